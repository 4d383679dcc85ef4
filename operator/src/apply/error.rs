//! What can go wrong between a decision and the API server.

use crate::build::ObjectError;
use crate::client::Closed;

/// Why a decision was not carried out.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum ApplyError {
    #[error("failed to {act} `{name}`")]
    Call { act: &'static str, name: String, source: kube::Error },
    #[error("{message}")]
    Refused { message: String },
    #[error("`{name}` exists already and belongs to somebody else")]
    Occupied { name: String },
    #[error("failed to write what the workers of `{name}` read")]
    Manifest { name: String, source: ObjectError },
    #[error("failed to write the status of `{name}` as JSON")]
    Json { name: String, source: serde_json::Error },
    #[error(transparent)]
    Closed(#[from] Closed),
}

impl ApplyError {
    /// Whether somebody else changed the job in between: it is looked at again at once.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Call { source: kube::Error::Api(status), .. } if status.is_conflict())
    }

    /// Whether nothing failed but this process is about to end.
    pub fn is_stop(&self) -> bool {
        match self {
            Self::Closed(_) => true,
            Self::Call { source: kube::Error::Service(source), .. } => source.is::<Closed>(),
            _ => false,
        }
    }
}

/// Whether an object that was to be deleted is gone, or is another one by now.
pub(super) fn is_done(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found() || status.is_conflict())
}

/// Whether an object of that name is there already.
pub(super) fn exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

/// What the API server says where it will not have an object as it is: forbidden, or invalid.
pub(super) fn refusal(error: &kube::Error) -> Option<&str> {
    match error {
        kube::Error::Api(status) if matches!(status.code, 403 | 422 | 400) => Some(&status.message),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::client::{Body, ClientBuilder};

    use super::*;
    use crate::client::{ApiLayer, CallRate, Limiter};

    #[tokio::test]
    async fn a_call_that_is_left_to_the_next_leader_is_no_failure() {
        let limiter = Limiter::new(CallRate::default(), 1);
        let server = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, tower::BoxError>(Response::builder().status(500).body(Body::empty()).unwrap())
        });
        let layer = ApiLayer::new(limiter.clone(), crate::metrics::Metrics::default());
        let client = ClientBuilder::new(server, "a").with_layer(&layer).build();
        let api: Api<ConfigMap> = Api::namespaced(client, "a");
        let call = async || {
            let source = api.get("b").await.unwrap_err();
            ApplyError::Call { act: "read", name: "b".into(), source }
        };
        assert!(!call().await.is_stop());
        limiter.close();
        assert!(call().await.is_stop());
        assert!(ApplyError::from(Closed).is_stop());
    }
}
