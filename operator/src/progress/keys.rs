//! Keys of the rendezvous of attempts, which only the pods of an attempt are given.
//!
//! Every key is derived from the private key of the channel's authority, the job's UID and the attempt. Thus
//! all replicas hand out the same keys, also after a restart, and no key is stored. A Secret for each attempt
//! would be one more object to write before its pods start.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use hmac::{Hmac, Mac};
use sha2::{Digest as _, Sha256};

use super::certificates::Certificates;

/// Prefix of the text that is hashed to the secret. It separates this use of the private key from any other.
const LABEL: &str = "rltraining.dev rendezvous keys, version 1\n";
/// Number of bytes of the secret.
const SECRET_BYTES: usize = 32;

/// The secret from which keys are derived. Clones share it; its debug output does not show it.
#[derive(Clone, Default)]
pub struct RendezvousKeys {
    secret: Arc<Mutex<Option<[u8; SECRET_BYTES]>>>,
}

impl RendezvousKeys {
    /// Replaces the secret by the one that is derived from the authority's private key.
    pub fn replace(&self, certificates: &Certificates) {
        let digest = Sha256::digest([LABEL, certificates.authority_key()].concat());
        *self.secret.lock().unwrap_or_else(PoisonError::into_inner) = Some(digest.into());
    }

    /// Returns the key of an attempt of a job as 64 hexadecimal digits; empty before there is a secret.
    pub fn of(&self, job_uid: &str, attempt: u32) -> String {
        let secret = *self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(secret) = secret else { return String::new() };
        // A key of the block's size cannot have a wrong length.
        let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
        block[..SECRET_BYTES].copy_from_slice(&secret);
        let key = <Hmac<Sha256> as Mac>::new(&block)
            .chain_update(attempt.to_le_bytes())
            .chain_update(job_uid)
            .finalize()
            .into_bytes();
        let digits = key.into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
    }
}

impl fmt::Debug for RendezvousKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RendezvousKeys(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jiff::Timestamp;

    use super::*;

    fn of_new_authority() -> (RendezvousKeys, Certificates) {
        let certificates = Certificates::current(None, &["host".into()], Timestamp::now()).unwrap();
        let keys = RendezvousKeys::default();
        keys.replace(&certificates);
        (keys, certificates)
    }

    #[test]
    fn each_attempt_of_each_job_has_its_key_and_every_replica_the_same() {
        let (first, certificates) = of_new_authority();
        let second = RendezvousKeys::default();
        assert_eq!(second.of("a", 1), "", "no key without a secret");
        second.replace(&Certificates::from_data(&certificates.to_data()).unwrap());
        assert_eq!(first.of("a", 1), second.of("a", 1));
        let (other, _) = of_new_authority();
        let keys = [first.of("a", 1), first.of("a", 2), first.of("b", 1), other.of("a", 1)];
        assert_eq!(BTreeSet::from(keys.clone()).len(), 4);
        let is_hex = |key: &String| key.len() == 64 && key.bytes().all(|digit| digit.is_ascii_hexdigit());
        assert!(keys.iter().all(is_hex), "{keys:?}");
        assert_eq!(format!("{first:?}"), "RendezvousKeys(..)");
    }
}
