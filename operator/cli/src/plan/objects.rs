//! The objects that the operator would create for a job, from the operator's own functions.

use anyhow::Context as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rlt_api::ValidatedJob;
use rlt_objects::args::{CHANNEL_PORT, PullPolicy};
use rlt_objects::build::{self, Authority, BuildInput, ChannelAccess, Settings};
use rlt_objects::job::Job;
use rlt_objects::prepare::Prepared;
use serde_json::Value;

use crate::args::{InstallationArgs, PlanArgs};

/// Returns all objects of attempt 1, as far as they can be determined without a cluster.
pub(super) fn offline(args: &PlanArgs, job: &ValidatedJob, manifest: &Value) -> anyhow::Result<Vec<Value>> {
    let settings = defaults(&args.installation);
    // The privileges that a cluster allows are settings of its operator, which are unknown here.
    let job = &without_cluster(args, job, manifest);
    let prepared = &Prepared::new(job).context("prepare the job as the operator does")?;
    of_attempt(job, prepared, &settings, 1)
}

/// Returns all objects of one attempt of a job.
pub(super) fn of_attempt(
    job: &Job,
    prepared: &Prepared,
    settings: &Settings,
    attempt: u32,
) -> anyhow::Result<Vec<Value>> {
    build::objects(&BuildInput { job, prepared, settings }, attempt).context("write the objects of the job")
}

/// Returns the operator's pod settings with the chart's defaults. Only a cluster has the authority that signs
/// the operator's certificate.
pub(super) fn defaults(installation: &InstallationArgs) -> Settings {
    let release = &installation.release;
    Settings {
        trainer_image: installation.trainer_image.clone(),
        trainer_cuda_image: Some(installation.trainer_cuda_image.clone()),
        pull_policy: PullPolicy::IfNotPresent,
        channel: Some(ChannelAccess {
            address: format!("https://{release}-channel.{release}.svc:{}", CHANNEL_PORT),
            authority: Authority::default(),
        }),
        traces: Vec::new(),
        pods: Default::default(),
    }
}

/// Returns the job as a cluster would store it, without a UID.
fn without_cluster(args: &PlanArgs, job: &ValidatedJob, manifest: &Value) -> Job {
    let metadata = job.metadata();
    let namespace = args.cluster.namespace.as_ref().or(metadata.namespace.as_ref());
    Job {
        metadata: ObjectMeta {
            name: Some(metadata.name.clone()),
            namespace: Some(namespace.map_or_else(|| "default".to_owned(), Clone::clone)),
            labels: Some(metadata.labels.clone()),
            generation: Some(1),
            ..ObjectMeta::default()
        },
        spec: manifest["spec"].to_string(),
        status: Ok(Default::default()),
    }
}
