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

/// Every object of attempt 1, as far as it is known without a cluster.
pub(super) fn offline(args: &PlanArgs, job: &ValidatedJob, manifest: &Value) -> anyhow::Result<Vec<Value>> {
    let settings = defaults(&args.installation);
    // Allowed privileges are a cluster's settings, and unknown here.
    let job = &without_cluster(args, job, manifest);
    let prepared = &Prepared::new(job).context("prepare the job as the operator does")?;
    of_attempt(job, prepared, &settings, 1)
}

/// Every object of an attempt of a job.
pub(super) fn of_attempt(
    job: &Job,
    prepared: &Prepared,
    settings: &Settings,
    attempt: u32,
) -> anyhow::Result<Vec<Value>> {
    build::objects(&BuildInput { job, prepared, settings }, attempt).context("write the objects of the job")
}

/// The operator's pod settings by the chart's defaults; the authority behind its certificate is known on a
/// cluster only.
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

/// The job as it would be once a cluster has it, but for its UID.
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
