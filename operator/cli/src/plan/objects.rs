//! The objects that the operator would make of a job, by the operator's own functions.

use anyhow::Context as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rlt_operator::build::{self, Blueprint, ChannelAccess, Settings};
use rlt_operator::job::Job;
use rlt_operator::prepare::Prepared;
use rlt_operator::{PullPolicy, progress};
use serde_json::Value;

use crate::args::InstallationArgs;

/// What every object of attempt 1 would be, as far as it is known without a cluster.
pub(super) fn offline(prepared: &Prepared, installation: &InstallationArgs) -> anyhow::Result<Vec<Value>> {
    let settings = defaults(installation);
    let blueprint = Blueprint { job: &without_cluster(prepared), prepared, settings: &settings };
    build::objects(&blueprint, 1).context("write the objects of the job")
}

/// What the chart makes the operator put into pods; the authority behind its certificate is known on a
/// cluster only.
pub(super) fn defaults(installation: &InstallationArgs) -> Settings {
    let release = &installation.release;
    Settings {
        trainer_image: installation.trainer_image.clone(),
        pull_policy: PullPolicy::IfNotPresent,
        channel: Some(ChannelAccess {
            address: format!("https://{release}-channel.{release}.svc:{}", progress::PORT),
            authority_pem: String::new(),
        }),
        traces: Vec::new(),
    }
}

/// The job as it would be once a cluster has it, but for its UID.
fn without_cluster(prepared: &Prepared) -> Job {
    let metadata = prepared.job.metadata();
    let namespace = metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
    Job {
        metadata: ObjectMeta {
            name: Some(metadata.name.clone()),
            namespace: Some(namespace),
            labels: Some(metadata.labels.clone()),
            generation: Some(1),
            ..ObjectMeta::default()
        },
        spec: String::new(),
        status: Ok(Default::default()),
    }
}
