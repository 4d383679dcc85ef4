//! The one container of a worker: the trainer, which reads its rank from its environment. Variables that all
//! workers share are in `environment`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, ResourceClaim, ResourceRequirements,
    SecretKeySelector, SecurityContext, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rlt_api::spec::{EnvSpec, ImagePullPolicy, ResourceClaimSpec};
use rlt_channel::environment as channel;
use rlt_plan::{RENDEZVOUS_PORT, WorkerGroup};
use rlt_traces::AttemptTrace;

use super::manifest::MANIFEST_KEY;
use super::volumes::{STORAGE_FOLDER, job_file};
use super::{BuildInput, environment};
use crate::worker::TRAINER_CONTAINER;

pub(super) fn trainer(
    input: &BuildInput<'_>,
    attempt: u32,
    group: &WorkerGroup,
    worker_idx: u32,
    mounts: Vec<VolumeMount>,
) -> Container {
    let workers = &input.prepared.job.spec().workers;
    let first_rank = (!group.is_spare()).then(|| group.first_rank(worker_idx));
    Container {
        name: TRAINER_CONTAINER.into(),
        image: Some(image(input, group).to_owned()),
        image_pull_policy: pull_policy(input),
        command: Some(command(input, group)),
        // A relative path in the manifest starts at the folder of the run folders, as it does with `rlctl
        // run`.
        working_dir: Some(STORAGE_FOLDER.into()),
        env: Some(variables(input, attempt, first_rank)),
        resources: Some(resources(input, group)),
        volume_mounts: Some(mounts),
        security_context: Some(unprivileged(&workers.pod.capabilities)),
        ports: host_ports(input, group, worker_idx),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    }
}

/// Returns the image of the workers of a group: that of the job, else that of the settings.
pub fn image<'a>(input: &BuildInput<'a>, group: &WorkerGroup) -> &'a str {
    let of_job = input.prepared.job.spec().workers.image.as_deref();
    of_job.unwrap_or_else(|| input.settings.image_for(group.device))
}

/// Returns the job's pull policy. By default the operator's image has the settings' policy, and a job's image
/// Kubernetes' default: `Always` for `latest`, otherwise `IfNotPresent`.
fn pull_policy(input: &BuildInput<'_>) -> Option<String> {
    let workers = &input.prepared.job.spec().workers;
    let of_settings = || workers.image.is_none().then(|| input.settings.pull_policy.as_str());
    workers.pod.image_pull_policy.map(ImagePullPolicy::name).or_else(of_settings).map(str::to_owned)
}

/// Returns the command of the trainer. It reads the variables that all workers share from a file, because
/// Kubernetes processes the variables of a pod again with every change of the pod.
fn command(input: &BuildInput<'_>, group: &WorkerGroup) -> Vec<String> {
    let (variables, manifest) = (job_file(&environment::key(input, group)), job_file(MANIFEST_KEY));
    let output = format!("{STORAGE_FOLDER}/runs/{}", input.name());
    ["rlt-trainer", "env", &variables, "launch", "--manifest", &manifest, "--output", &output]
        .map(str::to_owned)
        .into()
}

/// Returns the job's own variables, and the rank, attempt and trace of this worker.
fn variables(input: &BuildInput<'_>, attempt: u32, first_rank: Option<u32>) -> Vec<EnvVar> {
    let own = input.prepared.job.spec().workers.env.iter().map(own_variable);
    let parent = (!input.settings.traces.is_empty()).then(|| {
        let trace = AttemptTrace::of(input.job.uid(), attempt);
        plain(rlt_traces::TRACEPARENT, trace.traceparent())
    });
    // A spare has neither rank nor attempt: its launcher receives both when it is assigned ranks.
    let attempt = first_rank.map_or(0, |_| attempt);
    let rank = first_rank.map(|rank| plain(channel::RANK, rank.to_string()));
    let ours = rank.into_iter().chain([plain(channel::ATTEMPT, attempt.to_string())]);
    own.chain(ours).chain(parent).collect()
}

fn plain(name: impl Into<String>, value: impl Into<String>) -> EnvVar {
    EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
}

fn own_variable(env: &EnvSpec) -> EnvVar {
    let secret = env.secret.as_ref().map(|secret| EnvVarSource {
        secret_key_ref: Some(SecretKeySelector {
            name: secret.name.clone(),
            key: secret.key.clone(),
            optional: None,
        }),
        ..EnvVarSource::default()
    });
    // A variable without a secret has a value, in which Kubernetes must not expand `$(...)`.
    let value = env.value.as_ref().map(|value| value.replace('$', "$$"));
    EnvVar { name: env.name.clone(), value, value_from: secret }
}

/// Returns the container's resources. Memory and GPUs are limits, because they cannot be taken back from a
/// process; CPU is only requested, so that a pod may use idle CPU time.
fn resources(input: &BuildInput<'_>, group: &WorkerGroup) -> ResourceRequirements {
    let resources = &input.prepared.job.spec().workers.resources;
    let quantity = |name: &str, amount: &String| (name.to_owned(), Quantity(amount.clone()));
    let mut limits = BTreeMap::new();
    limits.extend(resources.memory.as_ref().map(|memory| quantity("memory", memory)));
    limits.extend(resources.extra.iter().map(|(name, amount)| quantity(name, amount)));
    let num_gpus = group.gpus_per_worker();
    let claims = &input.prepared.job.spec().workers.pod.resource_claims;
    let has_claim_for_gpus = claims.iter().any(|claim| claim.gpus == Some(true));
    if num_gpus > 0 && !has_claim_for_gpus {
        limits.insert(resources.gpu.clone(), Quantity(num_gpus.to_string()));
    }
    let mut requests = limits.clone();
    requests.extend(resources.cpu.as_ref().map(|cpu| quantity("cpu", cpu)));
    let filled = |map: BTreeMap<String, Quantity>| (!map.is_empty()).then_some(map);
    ResourceRequirements { limits: filled(limits), requests: filled(requests), claims: claims_of(claims) }
}

/// Returns the trainer's references to all resource claims of the pod.
fn claims_of(claims: &[ResourceClaimSpec]) -> Option<Vec<ResourceClaim>> {
    let claim = |claim: &ResourceClaimSpec| ResourceClaim {
        name: claim.name.clone(),
        request: claim.request.clone(),
    };
    (!claims.is_empty()).then(|| claims.iter().map(claim).collect())
}

/// Returns the host ports of a pod that uses its node's network. Because of them, the scheduler places two
/// jobs that use the same port on different nodes. Only the first worker of a group listens.
fn host_ports(input: &BuildInput<'_>, group: &WorkerGroup, worker_idx: u32) -> Option<Vec<ContainerPort>> {
    let spec = input.prepared.job.spec();
    let has_ranks = !group.is_spare();
    let is_reached = has_ranks && worker_idx == 0 && group.num_workers * group.ranks_per_worker > 1;
    let rendezvous = is_reached.then_some(RENDEZVOUS_PORT);
    let metrics = spec.tracking.prometheus.as_ref().map(|prometheus| prometheus.port);
    let ports: Vec<_> =
        [rendezvous, metrics.filter(|port| *port > 0 && worker_idx == 0 && input.is_first(group))]
            .into_iter()
            .flatten()
            .map(|port| ContainerPort {
                container_port: port.into(),
                host_port: Some(port.into()),
                ..ContainerPort::default()
            })
            .collect();
    (spec.workers.pod.host_network == Some(true) && !ports.is_empty()).then_some(ports)
}

/// Returns the security settings that can only be set on a container, not on a pod.
fn unprivileged(capabilities: &[String]) -> SecurityContext {
    let add = (!capabilities.is_empty()).then(|| capabilities.to_vec());
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add }),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}
