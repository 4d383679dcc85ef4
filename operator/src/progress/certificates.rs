//! Certificate authority of the channel and the certificate that it signs: created, stored as text, and
//! renewed in time. No I/O.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Lifetime of the authority; it is renewed when a tenth of it is left.
const AUTHORITY_VALID_FOR: Duration = Duration::from_secs(3650 * 24 * 3600);
/// Lifetime of the certificate; it is renewed when a third of it is left.
const CERTIFICATE_VALID_FOR: Duration = Duration::from_secs(90 * 24 * 3600);

const AUTHORITY_CERTIFICATE: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
const AUTHORITY_RENEWAL: &str = "ca.renew-after";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const RENEWAL: &str = "tls.renew-after";
const NAMES: &str = "tls.names";

/// The certificates could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A key or certificate could not be generated or parsed.
    #[error("failed to make a certificate for {names:?}")]
    Make {
        /// Host names of the certificate.
        names: Vec<String>,
        /// Error of the library.
        source: rcgen::Error,
    },
}

/// Authority and server certificate, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    authority: Signed,
    server: Signed,
    names: Vec<String>,
}

/// A certificate with its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Signed {
    certificate: String,
    key: String,
    renew_after: Timestamp,
}

impl Certificates {
    /// Returns the authority's certificate, which clients need.
    pub fn authority(&self) -> &str {
        &self.authority.certificate
    }

    /// Returns the authority's private key.
    pub(super) fn authority_key(&self) -> &str {
        &self.authority.key
    }

    /// Returns the server's certificate and private key.
    pub fn identity(&self) -> (&str, &str) {
        (&self.server.certificate, &self.server.key)
    }

    /// Returns the time after which the certificate should be renewed.
    pub fn renew_after(&self) -> Timestamp {
        self.server.renew_after
    }

    /// Returns certificates for `names` that are valid at the time `now`: `present` if they are, otherwise
    /// new ones, signed by the same authority as long as that is valid.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn current(
        present: Option<&Self>,
        names: &[String],
        now: Timestamp,
    ) -> Result<Self, CertificateError> {
        let authority =
            present.map(|present| &present.authority).filter(|authority| now < authority.renew_after);
        let server = present.filter(|present| authority.is_some() && now < present.server.renew_after);
        if let Some(present) = server.filter(|present| present.names == names) {
            return Ok(present.clone());
        }
        let made = authority.cloned().map_or_else(|| make_authority(now), Ok).and_then(|authority| {
            let server = make_server(&authority, names, now)?;
            Ok(Self { authority, server, names: names.to_vec() })
        });
        made.map_err(|source| CertificateError::Make { names: names.to_vec(), source })
    }

    /// Converts to the entries of a Secret.
    pub fn to_data(&self) -> BTreeMap<String, String> {
        let entries = [
            (AUTHORITY_CERTIFICATE, self.authority.certificate.clone()),
            (AUTHORITY_KEY, self.authority.key.clone()),
            (AUTHORITY_RENEWAL, self.authority.renew_after.to_string()),
            (CERTIFICATE, self.server.certificate.clone()),
            (KEY, self.server.key.clone()),
            (RENEWAL, self.server.renew_after.to_string()),
            (NAMES, self.names.join(",")),
        ];
        entries.map(|(key, value)| (key.to_owned(), value)).into()
    }

    /// Parses the entries of a Secret. Returns `None` if an entry is missing or damaged; new certificates are
    /// created then.
    pub fn from_data(data: &BTreeMap<String, String>) -> Option<Self> {
        let text = |key: &str| data.get(key).cloned();
        let signed = |certificate, key, renewal| {
            let key = text(key)?;
            KeyPair::from_pem(&key).ok()?;
            Some(Signed { certificate: text(certificate)?, key, renew_after: text(renewal)?.parse().ok()? })
        };
        Some(Self {
            authority: signed(AUTHORITY_CERTIFICATE, AUTHORITY_KEY, AUTHORITY_RENEWAL)?,
            server: signed(CERTIFICATE, KEY, RENEWAL)?,
            names: text(NAMES)?.split(',').map(str::to_owned).collect(),
        })
    }
}

fn make_authority(now: Timestamp) -> Result<Signed, rcgen::Error> {
    let key = KeyPair::generate()?;
    let params = authority_params(now)?;
    let certificate = params.self_signed(&key)?.pem();
    let renew_after = now + AUTHORITY_VALID_FOR.mul_f64(0.9);
    Ok(Signed { certificate, key: key.serialize_pem(), renew_after })
}

fn make_server(authority: &Signed, names: &[String], now: Timestamp) -> Result<Signed, rcgen::Error> {
    // An issuer needs only its name and key, so its certificate is not parsed.
    let issuer = Issuer::new(authority_params(now)?, KeyPair::from_pem(&authority.key)?);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    valid_for(&mut params, now, CERTIFICATE_VALID_FOR);
    let certificate = params.signed_by(&key, &issuer)?.pem();
    let renew_after = now + CERTIFICATE_VALID_FOR.mul_f64(2.0 / 3.0);
    Ok(Signed { certificate, key: key.serialize_pem(), renew_after })
}

fn authority_params(now: Timestamp) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name.push(DnType::CommonName, "rltraining status channel");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid_for(&mut params, now, AUTHORITY_VALID_FOR);
    Ok(params)
}

/// Sets the validity, which begins a day ago because clocks differ.
fn valid_for(params: &mut CertificateParams, now: Timestamp, duration: Duration) {
    let now = SystemTime::from(now);
    params.not_before = (now - DAY).into();
    params.not_after = (now + duration).into();
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan as _;

    use super::*;

    fn names() -> Vec<String> {
        vec!["rl-operator-channel.rl.svc".into()]
    }

    #[test]
    fn certificates_that_are_good_stay_also_through_a_secret() {
        let now = Timestamp::now();
        let made = Certificates::current(None, &names(), now).unwrap();
        let read = Certificates::from_data(&made.to_data()).unwrap();
        assert_eq!(Certificates::current(Some(&read), &names(), now).unwrap(), made);
    }

    #[test]
    fn a_certificate_is_renewed_before_it_ends_by_the_same_authority() {
        let now = Timestamp::now();
        let made = Certificates::current(None, &names(), now).unwrap();
        let renewed = Certificates::current(Some(&made), &names(), now + (61 * 24).hours()).unwrap();
        assert_eq!(renewed.authority(), made.authority(), "pods that run know the old one");
        assert_ne!(renewed.identity(), made.identity());
        let other_names = Certificates::current(Some(&made), &["127.0.0.1".into()], now).unwrap();
        assert_ne!(other_names.identity(), made.identity());
    }

    #[test]
    fn an_authority_is_renewed_before_it_ends() {
        let now = Timestamp::now();
        let made = Certificates::current(None, &names(), now).unwrap();
        let renewed = Certificates::current(Some(&made), &names(), now + (3300 * 24).hours()).unwrap();
        assert_ne!(renewed.authority(), made.authority());
    }

    #[test]
    fn damaged_entries_are_no_certificates() {
        let made = Certificates::current(None, &names(), Timestamp::now()).unwrap().to_data();
        for key in made.keys() {
            let mut missing = made.clone();
            missing.remove(key);
            assert_eq!(Certificates::from_data(&missing), None, "{key}");
        }
        let mut damaged = made;
        damaged.insert(KEY.into(), "no key".into());
        assert_eq!(Certificates::from_data(&damaged), None);
    }
}
