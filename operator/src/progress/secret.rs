//! Secret with the channel's certificates, shared by all replicas: created if missing, renewed if it expires
//! soon. The first writer wins. A Secret that was deleted is created again, with the metadata of the release
//! and, if this process has read it before, with the same certificates.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use rlt_objects::labels::OPERATOR;
use rlt_objects::release_metadata;

use super::certificates::{CertificateError, Certificates};

/// Number of reads before giving up, each after a write of this or another replica.
const MAX_TURNS: usize = 6;

/// The certificates could not be read or stored.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum SecretError {
    #[error("failed to read Secret {namespace}/{name}")]
    Read { namespace: String, name: String, source: kube::Error },
    #[error("failed to write Secret {namespace}/{name}")]
    Write { namespace: String, name: String, source: kube::Error },
    #[error("Secret {namespace}/{name} was changed by others {MAX_TURNS} times in a row")]
    Raced { namespace: String, name: String },
    #[error(transparent)]
    Certificates(#[from] CertificateError),
}

/// Certificates that this process has read from the Secret. A deleted Secret is restored with them, so that
/// pods keep trusting the authority, and all pods of an attempt get the same rendezvous key. Clones share
/// them; the debug output does not show them.
#[derive(Clone, Default)]
pub struct CachedCertificates(Arc<Mutex<Option<Certificates>>>);

impl CachedCertificates {
    fn get(&self) -> Option<Certificates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, certificates: &Certificates) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(certificates.clone());
    }
}

impl fmt::Debug for CachedCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CachedCertificates(..)")
    }
}

/// Returns certificates for the host `names`: from the Secret if they are valid, otherwise the `cached` or
/// newly made ones, which are stored there. The Service of the same name, if there is one, says to which
/// release the Secret belongs.
///
/// # Errors
/// [`SecretError`].
pub async fn certificates(
    client: &Client,
    namespace: &str,
    name: &str,
    names: &[String],
    cached: &CachedCertificates,
) -> Result<Certificates, SecretError> {
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    let place = || (namespace.to_owned(), name.to_owned());
    let mut was_disowned = false;
    for _ in 0..MAX_TURNS {
        let mut secret = api.get_opt(name).await.map_err(|source| {
            let (namespace, name) = place();
            SecretError::Read { namespace, name, source }
        })?;
        let stored = secret.as_ref().and_then(read);
        let present = stored.clone().or_else(|| cached.get());
        let current = Certificates::current(present.as_ref(), names, Timestamp::now())?;
        let is_owner = secret.as_mut().is_some_and(|secret| release_metadata::disown(&mut secret.metadata));
        if stored.as_ref() == Some(&current) && (was_disowned || !is_owner) {
            cached.replace(&current);
            return Ok(current);
        }
        match write(&api, name, secret, &current).await {
            // The next turn reads the stored Secret, and gives up the ownership of metadata of a created one.
            Ok(()) => was_disowned |= is_owner,
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {}
            Err(error) if stored.as_ref() == Some(&current) => {
                tracing::warn!(secret = name, %error, "the operator still owns metadata of the Secret");
                cached.replace(&current);
                return Ok(current);
            }
            Err(source) => {
                let (namespace, name) = place();
                return Err(SecretError::Write { namespace, name, source });
            }
        }
    }
    let (namespace, name) = place();
    Err(SecretError::Raced { namespace, name })
}

fn read(secret: &Secret) -> Option<Certificates> {
    let text =
        |(key, value): (&String, &ByteString)| Some((key.clone(), String::from_utf8(value.0.clone()).ok()?));
    let data: BTreeMap<String, String> = secret.data.iter().flatten().filter_map(text).collect();
    Certificates::from_data(&data)
}

/// Creates the Secret, or replaces exactly the version that was read.
async fn write(
    api: &Api<Secret>,
    name: &str,
    read: Option<Secret>,
    certificates: &Certificates,
) -> Result<(), kube::Error> {
    let data = certificates.to_data().into_iter().map(|(key, text)| (key, ByteString(text.into_bytes())));
    let data = Some(data.collect());
    let params = PostParams { field_manager: Some(OPERATOR.into()), ..PostParams::default() };
    match read {
        Some(secret) => api.replace(name, &params, &Secret { data, ..secret }).await?,
        None => {
            let metadata = metadata(api, name).await;
            api.create(&params, &Secret { metadata, data, ..Secret::default() }).await?
        }
    };
    Ok(())
}

/// Returns the metadata of a new Secret: that of the release to which the Service of its name belongs.
/// Failures to read the Service are logged, and do not prevent the channel.
async fn metadata(api: &Api<Secret>, name: &str) -> ObjectMeta {
    let services = Api::<Service>::namespaced(api.clone().into_client(), api.namespace().unwrap_or_default());
    let found = services.get_metadata_opt(name).await;
    let found = found
        .inspect_err(|error| tracing::warn!(service = name, %error, "the channel's Service cannot be read"));
    let service = found.ok().flatten().map(|service| service.metadata).unwrap_or_default();
    release_metadata::copy_from(&service, name)
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn certificates_are_read_although_the_metadata_of_their_secret_cannot_be_given_up() {
        let names = ["host".to_owned()];
        let made = Certificates::current(None, &names, Timestamp::now()).unwrap();
        let data = made.to_data().into_iter().map(|(key, text)| (key, ByteString(text.into_bytes())));
        let secret = Secret { data: Some(data.collect()), ..Secret::default() };
        let mut secret = serde_json::to_value(secret).unwrap();
        let owned = json!({
            "manager": OPERATOR, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {}}},
        });
        secret["metadata"] = json!({"name": "channel", "namespace": "rl", "managedFields": [owned]});
        let refused = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "may not update secrets",
        });
        let server = tower::service_fn(move |request: Request<Body>| {
            let (code, answer) =
                if request.method() == Method::GET { (200, &secret) } else { (403, &refused) };
            let body = Body::from(answer.to_string().into_bytes());
            let response = Response::builder().status(code).body(body).unwrap();
            futures::future::ready(Ok::<_, tower::BoxError>(response))
        });
        let (client, cached) = (Client::new(server, "rl"), CachedCertificates::default());
        let read = certificates(&client, "rl", "channel", &names, &cached).await.unwrap();
        assert_eq!(read, made);
        assert_eq!(cached.get(), Some(made));
    }
}
