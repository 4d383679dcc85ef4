//! Key of an attempt's rendezvous, and the proofs by which both ends of a connection show that they have it.

use std::fmt;
use std::io;

use hmac::{Hmac, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest as _, Sha256};

/// Number of bytes of a challenge and of a proof.
pub(super) const PROOF_BYTES: usize = 32;
/// Smallest and largest length of a key's text in bytes.
const TEXT_BYTES: std::ops::RangeInclusive<usize> = 32..=1024;

/// A secret that the launcher of rank 0 and all ranks of an attempt share. Its debug output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct RendezvousKey(String);

impl RendezvousKey {
    /// Expected form of a key's text, in words.
    pub const FORM: &'static str = "a text of 32 to 1024 bytes, such as that of `openssl rand -hex 32`";

    /// Creates a key from `text` without the white space around it; `None` if it is too short or too long.
    pub fn from_text(text: &str) -> Option<Self> {
        let text = text.trim();
        TEXT_BYTES.contains(&text.len()).then(|| Self(text.to_owned()))
    }

    /// Creates a random key of 64 hexadecimal digits.
    ///
    /// # Errors
    /// When the operating system has no random bytes.
    pub fn random() -> io::Result<Self> {
        let digits = challenge()?.into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
        Ok(Self(digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()))
    }

    /// Returns the text of the key, for the environment of another process.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RendezvousKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RendezvousKey(..)")
    }
}

/// End of a connection that proves that it has the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prover {
    Client,
    Server,
}

/// Content of a proof: the attempt, and a challenge of each end, so that no proof is valid twice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transcript {
    pub(super) attempt: u64,
    pub(super) of_server: [u8; PROOF_BYTES],
    pub(super) of_client: [u8; PROOF_BYTES],
}

impl Transcript {
    /// Returns the proof of one end that it has `key`. Without a key the proof shows only that the other end
    /// read the challenge.
    pub(super) fn proof(&self, prover: Prover, key: Option<&RendezvousKey>) -> [u8; PROOF_BYTES] {
        self.mac(prover, key).finalize().into_bytes().into()
    }

    /// Whether `proof` is that of one end; the comparison takes the same time for any proof.
    pub(super) fn is_proven(&self, prover: Prover, key: Option<&RendezvousKey>, proof: &[u8]) -> bool {
        self.mac(prover, key).verify_slice(proof).is_ok()
    }

    fn mac(&self, prover: Prover, key: Option<&RendezvousKey>) -> Hmac<Sha256> {
        // A key of the block's size cannot have a wrong length.
        let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
        let digest = Sha256::digest(key.map_or("", RendezvousKey::text));
        block[..PROOF_BYTES].copy_from_slice(&digest);
        let label: &[u8] = match prover {
            Prover::Client => b"rltstor2 client",
            Prover::Server => b"rltstor2 server",
        };
        <Hmac<Sha256> as Mac>::new(&block)
            .chain_update(label)
            .chain_update(self.attempt.to_le_bytes())
            .chain_update(self.of_server)
            .chain_update(self.of_client)
    }
}

/// Draws the challenge of one connection: random bytes that no other connection has.
pub(super) fn challenge() -> io::Result<[u8; PROOF_BYTES]> {
    let mut bytes = [0; PROOF_BYTES];
    // For up to 256 bytes the system call either fills the buffer or fails.
    let num_bytes = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if num_bytes == PROOF_BYTES { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        Transcript { attempt: 3, of_server: [1; PROOF_BYTES], of_client: [2; PROOF_BYTES] }
    }

    #[test]
    fn a_proof_is_valid_for_its_end_key_attempt_and_challenges_only() {
        let keys = [(); 2].map(|()| RendezvousKey::random().unwrap());
        let proof = transcript().proof(Prover::Client, Some(&keys[0]));
        assert!(transcript().is_proven(Prover::Client, Some(&keys[0]), &proof));
        assert!(!transcript().is_proven(Prover::Server, Some(&keys[0]), &proof));
        assert!(!transcript().is_proven(Prover::Client, Some(&keys[1]), &proof));
        assert!(!transcript().is_proven(Prover::Client, None, &proof));
        assert!(!transcript().is_proven(Prover::Client, Some(&keys[0]), &proof[..31]));
        for other in [
            Transcript { attempt: 4, ..transcript() },
            Transcript { of_server: [3; PROOF_BYTES], ..transcript() },
            Transcript { of_client: [3; PROOF_BYTES], ..transcript() },
        ] {
            assert!(!other.is_proven(Prover::Client, Some(&keys[0]), &proof), "{other:?}");
        }
    }

    #[test]
    fn a_key_of_a_fair_length_keeps_its_text_and_is_not_printed() {
        let random = RendezvousKey::random().unwrap();
        assert_eq!(random.text().len(), 64);
        assert_eq!(RendezvousKey::from_text(&format!(" {}\n", random.text())), Some(random.clone()));
        assert_ne!(RendezvousKey::random().unwrap(), random);
        assert_eq!(RendezvousKey::from_text(&"k".repeat(31)), None);
        assert_eq!(RendezvousKey::from_text(&"k".repeat(1025)), None);
        assert_eq!(format!("{random:?}"), "RendezvousKey(..)");
    }
}
