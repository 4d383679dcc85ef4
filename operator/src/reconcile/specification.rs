//! Lookup of the specification that a job runs under: the present one, or the one in its ConfigMap, with
//! which it began.

use std::sync::Arc;

use rlt_objects::job::Job;
use rlt_objects::pod_defaults::NamespaceDefaults;
use rlt_objects::prepare::{Invalid, Prepared};

use crate::apply::{self, ApplyError};
use crate::context::Context;
use crate::decide::{self, Specification};
use crate::observe::Observed;

/// The specification that a job runs under.
pub(super) enum JobSpecification {
    /// The present specification is refused, and the job does not run under an earlier one.
    Refused(Invalid),
    /// The job runs under an accepted specification.
    Accepted {
        /// The specification and its plan.
        prepared: Arc<Prepared>,
        /// Refusal of the present specification; `None` if that is accepted.
        refused: Option<Invalid>,
    },
}

/// Validates a job, and reads the specification that it began with if it runs under that one.
pub(super) async fn of(
    context: &Context,
    job: &Job,
    observed: &Observed,
) -> Result<JobSpecification, ApplyError> {
    let defaults = context.index.defaults.of(job.namespace());
    let present = context.prepared.get(job, &context.settings.pods, defaults.as_deref());
    let status = &observed.current.status;
    let is_unedited = status.accepted.as_ref().is_some_and(|record| Prepared::is_unedited(job, record));
    let has_pods = !observed.workers.is_empty();
    let digests = present.as_ref().map(|prepared| &prepared.accepted);
    let began_with = match decide::specification(status, has_pods, is_unedited, digests) {
        Specification::BeganWith => {
            read(context, job, observed, present.as_ref().ok(), defaults.as_deref()).await?
        }
        Specification::Present | Specification::Refused => None,
    };
    Ok(match (began_with, present) {
        (Some(prepared), present) => JobSpecification::Accepted { prepared, refused: present.err() },
        (None, Ok(prepared)) => JobSpecification::Accepted { prepared, refused: None },
        (None, Err(invalid)) => JobSpecification::Refused(invalid),
    })
}

/// Returns the specification that a job began with: from the cache, else from its ConfigMap, else from the
/// job itself if the ConfigMap was deleted or has another manifest.
async fn read(
    context: &Context,
    job: &Job,
    observed: &Observed,
    present: Option<&Arc<Prepared>>,
    defaults: Option<&NamespaceDefaults>,
) -> Result<Option<Arc<Prepared>>, ApplyError> {
    if let Some(known) = context.prepared.began_with(job) {
        return Ok(Some(known));
    }
    let recorded = observed.current.status.accepted.as_ref();
    let pods = &context.settings.pods;
    let in_config_map = apply::read_manifest(&context.client, job).await?;
    let began_with = |manifest: &str| {
        Prepared::began_with(job, manifest, recorded, present.map(Arc::as_ref), pods).map(Arc::new)
    };
    let read = in_config_map.as_deref().and_then(began_with);
    if in_config_map.is_some() && read.is_none() {
        let (namespace, job) = (job.namespace(), job.name());
        tracing::warn!(
            namespace,
            job,
            "the ConfigMap does not hold the specification that the job began with"
        );
    }
    let of_job = || began_with(&Prepared::recorded_manifest(job, recorded?, pods, defaults)?);
    let read = read.or_else(of_job);
    if let Some(prepared) = &read {
        context.prepared.keep(job, prepared.clone());
    }
    Ok(read)
}
