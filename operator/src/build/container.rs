//! The one container of a worker: the trainer, which knows its rank from its environment.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EnvVar, EnvVarSource, ResourceRequirements, SeccompProfile, SecretKeySelector,
    SecurityContext, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rlt_api::spec::{Device, EnvSpec};
use rlt_channel::environment;
use rlt_traces::AttemptTrace;

use super::manifest::MANIFEST_KEY;
use super::volumes::{MANIFEST_FOLDER, STORAGE_FOLDER};
use super::{Blueprint, ChannelAccess};

/// Where the trainer leaves its last error, and Kubernetes reads it.
const TERMINATION_MESSAGE_FILE: &str = "/dev/termination-log";

pub(super) fn trainer(
    blueprint: &Blueprint<'_>,
    attempt: u32,
    worker_idx: u32,
    mounts: Vec<VolumeMount>,
) -> Container {
    let workers = &blueprint.prepared.job.spec().workers;
    let settings = blueprint.settings;
    Container {
        name: "trainer".into(),
        image: Some(workers.image.clone().unwrap_or_else(|| settings.trainer_image.clone())),
        // A job's own image follows Kubernetes' rule: `Always` for `latest`, else `IfNotPresent`.
        image_pull_policy: workers.image.is_none().then(|| settings.pull_policy.as_str().into()),
        command: Some(command(blueprint)),
        // So that a relative path in the manifest means beside the run folders, as it does where `rlctl run` makes them.
        working_dir: Some(STORAGE_FOLDER.into()),
        env: Some(variables(blueprint, attempt, worker_idx)),
        resources: Some(resources(blueprint)),
        volume_mounts: Some(mounts),
        security_context: Some(unprivileged()),
        termination_message_path: Some(TERMINATION_MESSAGE_FILE.into()),
        termination_message_policy: Some("FallbackToLogsOnError".into()),
        ..Container::default()
    }
}

fn command(blueprint: &Blueprint<'_>) -> Vec<String> {
    let manifest = format!("{MANIFEST_FOLDER}/{MANIFEST_KEY}");
    let output = format!("{STORAGE_FOLDER}/runs/{}", blueprint.name());
    ["rlt-trainer", "launch", "--manifest", &manifest, "--output", &output].map(str::to_owned).into()
}

/// Later entries see earlier ones; the job's own come first, so that none of them replaces one of ours.
fn variables(blueprint: &Blueprint<'_>, attempt: u32, worker_idx: u32) -> Vec<EnvVar> {
    let own = blueprint.prepared.job.spec().workers.env.iter().map(own_variable);
    let group = blueprint.prepared.plan.worker_groups.first();
    let rank = group.and_then(|group| group.environment(worker_idx * group.ranks_per_worker));
    let rank = rank.unwrap_or_default().into_iter().map(|variable| plain(variable.name, variable.value));
    let job = blueprint.job;
    let ours = [
        plain("GOMP_SPINCOUNT", "1000"),
        plain("HF_HOME", format!("{STORAGE_FOLDER}/hub")),
        plain("HOME", "/tmp"),
        plain(rlt_api::TERMINATION_MESSAGE_VARIABLE, TERMINATION_MESSAGE_FILE),
        plain(environment::JOB_UID, job.uid()),
        plain(environment::JOB_NAMESPACE, job.namespace()),
        plain(environment::JOB_NAME, job.name()),
        plain(environment::ATTEMPT, attempt.to_string()),
    ];
    let traces = blueprint.settings.traces.as_slice();
    let is_default = |name: &str| {
        ["GOMP_SPINCOUNT", "HF_HOME", "HOME"].contains(&name) || traces.iter().any(|(known, _)| known == name)
    };
    let is_set = |name: &str| blueprint.prepared.job.spec().workers.env.iter().any(|env| env.name == name);
    let ours = ours.into_iter().chain(followed(traces, job.uid(), attempt));
    let ours = ours.filter(|one| !(is_default(&one.name) && is_set(&one.name)));
    own.chain(ours).chain(rank).chain(blueprint.settings.channel.iter().flat_map(channel)).collect()
}

/// Which trace the worker is a part of, and where it sends its spans.
fn followed(traces: &[(String, String)], job_uid: &str, attempt: u32) -> impl Iterator<Item = EnvVar> {
    let parent = (!traces.is_empty())
        .then(|| plain(rlt_traces::TRACEPARENT, AttemptTrace::of(job_uid, attempt).traceparent()));
    // Kubernetes must not expand what an address may hold.
    let variables = traces.iter().map(|(name, value)| plain(name, value.replace('$', "$$")));
    variables.chain(parent).collect::<Vec<_>>().into_iter()
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
    // Without a secret a variable has a value, which Kubernetes must not expand.
    let value = env.value.as_ref().map(|value| value.replace('$', "$$"));
    EnvVar { name: env.name.clone(), value, value_from: secret }
}

fn channel(channel: &ChannelAccess) -> [EnvVar; 3] {
    let file = |key: &str| format!("{}/{key}", environment::TOKEN_FOLDER);
    [
        plain(environment::ADDRESS, &channel.address),
        plain(environment::CA_FILE, file(environment::CA_KEY)),
        plain(environment::TOKEN_FILE, file(environment::TOKEN_KEY)),
    ]
}

/// Memory and GPUs are limits, because nobody can lend them; CPU time above the request is there for whoever needs it.
fn resources(blueprint: &Blueprint<'_>) -> ResourceRequirements {
    let resources = &blueprint.prepared.job.spec().workers.resources;
    let group = blueprint.prepared.plan.worker_groups.first();
    let quantity = |name: &str, amount: &String| (name.to_owned(), Quantity(amount.clone()));
    let mut limits = BTreeMap::new();
    limits.extend(resources.memory.as_ref().map(|memory| quantity("memory", memory)));
    if let Some(group) = group.filter(|group| group.device == Device::Cuda) {
        limits.insert(resources.gpu.clone(), Quantity(group.ranks_per_worker.to_string()));
    }
    let mut requests = limits.clone();
    requests.extend(resources.cpu.as_ref().map(|cpu| quantity("cpu", cpu)));
    let filled = |map: BTreeMap<String, Quantity>| (!map.is_empty()).then_some(map);
    ResourceRequirements { limits: filled(limits), requests: filled(requests), claims: None }
}

fn unprivileged() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
        read_only_root_filesystem: Some(true),
        run_as_non_root: Some(true),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
        ..SecurityContext::default()
    }
}
