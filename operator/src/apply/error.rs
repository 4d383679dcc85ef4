//! Errors of applying a decision.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rlt_api::Reason;
use rlt_objects::build::ObjectError;
use rlt_objects::job::Job;
use rlt_objects::labels;

use crate::client::Closed;
use crate::decide::ApplyFailure;

/// Number of consecutive failures from which a transient failure is reported: about three seconds of retries.
const REPORTED_FROM: u32 = 5;

/// An error while a decision is applied.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum ApplyError {
    #[error("failed to {act} `{name}`")]
    Call { act: &'static str, name: String, source: kube::Error },
    #[error("{message}")]
    Refused { message: String },
    #[error("{message}")]
    Unfit { message: String },
    #[error("`{name}` exists already and belongs to {owner}")]
    Occupied {
        name: String,
        owner: String,
        /// Whether the object is about to be deleted.
        is_going: bool,
    },
    #[error("failed to build the ConfigMap of `{name}`")]
    Manifest { name: String, source: ObjectError },
    #[error("failed to write the status of `{name}` as JSON")]
    Json { name: String, source: serde_json::Error },
    #[error("the API server has a newer version of `{name}` than the watch has shown")]
    Outdated { name: String },
    #[error(transparent)]
    Closed(#[from] Closed),
}

impl ApplyError {
    /// Whether another client changed an object in the meantime, so that the job is reconciled again soon.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Outdated { .. } => true,
            Self::Call { source: kube::Error::Api(status), .. } => status.is_conflict(),
            _ => false,
        }
    }

    /// Whether the API server refuses an object as invalid, such as the change of a field that is immutable.
    pub(super) fn is_invalid(&self) -> bool {
        matches!(self, Self::Call { source: kube::Error::Api(status), .. } if status.code == 422)
    }

    /// Whether nothing was changed because the decision was based on an outdated version of the job.
    pub fn is_outdated(&self) -> bool {
        matches!(self, Self::Outdated { .. })
    }

    /// Returns the error for an object that has the name of a child, but another owner.
    pub(super) fn occupied(job: &Job, found: &ObjectMeta) -> Self {
        let owner = found.owner_references.iter().flatten().next();
        // The object belongs to an earlier job of this name, and garbage collection will delete it.
        let is_of_earlier_job = owner.is_some_and(|owner| {
            owner.kind == rlt_api::KIND && owner.name == job.name() && owner.uid != job.uid()
        });
        let managed_by = found.labels.as_ref().and_then(|all| all.get(labels::MANAGED_BY));
        let owner = match (owner, managed_by) {
            _ if is_of_earlier_job => "an earlier job of this name".to_owned(),
            (Some(owner), _) => format!("{} `{}`", owner.kind, owner.name),
            (None, Some(managed_by)) => format!("no owner, and is managed by `{managed_by}`"),
            (None, None) => "no owner".to_owned(),
        };
        let is_going = is_of_earlier_job || found.deletion_timestamp.is_some();
        Self::Occupied { name: found.name.clone().unwrap_or_default(), owner, is_going }
    }

    /// Returns the failure for the status after `num_in_a_row` consecutive failures; `None` for one that is
    /// expected to pass.
    pub fn failure(&self, num_in_a_row: u32) -> Option<ApplyFailure> {
        let (reason, needs_action) = match self {
            Self::Closed(_) | Self::Outdated { .. } => return None,
            Self::Refused { .. } => (Reason::WorkersRefused, true),
            Self::Unfit { .. } => (Reason::ObjectRefused, true),
            Self::Occupied { is_going, .. } => (Reason::NameConflict, !is_going),
            Self::Call { source, .. } if refusal(source).is_some() => (Reason::ObjectRefused, true),
            Self::Manifest { .. } | Self::Json { .. } => (Reason::ApplyFailed, true),
            Self::Call { .. } if self.is_conflict() || num_in_a_row < REPORTED_FROM => return None,
            Self::Call { .. } => (Reason::ApplyFailed, false),
        };
        Some(ApplyFailure { reason, message: self.in_full(), needs_action })
    }

    /// Formats the error with its cause.
    fn in_full(&self) -> String {
        let cause = match self {
            Self::Call { source: kube::Error::Api(status), .. } => Some(status.message.clone()),
            _ => std::error::Error::source(self).map(ToString::to_string),
        };
        cause.map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"))
    }

    /// Returns the most important error of `outcomes`: a stop first, then an error that a user must act on.
    pub fn first_of(outcomes: impl IntoIterator<Item = Result<(), Self>>) -> Result<(), Self> {
        let rank = |error: &Self| match error.failure(0) {
            _ if error.is_stop() => 0,
            Some(failure) if failure.needs_action => 1,
            Some(_) => 2,
            None => 3,
        };
        outcomes.into_iter().filter_map(Result::err).min_by_key(rank).map_or(Ok(()), Err)
    }

    /// Whether the call was not made because this process is about to end.
    pub fn is_stop(&self) -> bool {
        match self {
            Self::Closed(_) => true,
            Self::Call { source: kube::Error::Service(source), .. } => source.is::<Closed>(),
            _ => false,
        }
    }
}

/// Whether the object to delete is gone, or replaced by another of its name.
pub(super) fn is_done(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found() || status.is_conflict())
}

/// Whether the error says that an object of that name exists already.
pub(super) fn exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

/// Returns the API server's message if it refuses the call permanently, because it is forbidden, invalid or
/// too large.
pub(super) fn refusal(error: &kube::Error) -> Option<&str> {
    match error {
        kube::Error::Api(status) if matches!(status.code, 400 | 403 | 405 | 413 | 415 | 422) => {
            Some(&status.message)
        }
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
