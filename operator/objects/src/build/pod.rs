//! Pod of one worker. Its name is a function of job, group and index, so that the API server itself refuses a
//! duplicate.
//!
//! The label `rltraining.dev/attempt` says to which attempt a pod belongs.

use k8s_openapi::api::core::v1::{
    EnvVar, LocalObjectReference, Pod, PodResourceClaim, PodSecurityContext, PodSpec, SeccompProfile,
    Toleration,
};
use rlt_api::spec::{ResourceClaimSpec, RetriesSpec, TaintEffect, TolerationOperator, TolerationSpec};
use rlt_channel::environment::RETRIES_LEFT;
use rlt_plan::WorkerGroup;

use super::{BuildInput, container, volumes, within_label, workers_name};
use crate::worker::TRAINER_CONTAINER;
use crate::{labels, pod_template};

/// User and group ID of a worker, whatever its image says; its files belong to them.
const USER_ID: i64 = 65532;

/// Returns the pod of a worker of a group in an attempt.
pub fn pod(input: &BuildInput<'_>, attempt: u32, group: &WorkerGroup, worker_idx: u32) -> Pod {
    let spec = input.prepared.job.spec();
    let name = group.worker_name(worker_idx);
    let (volumes, mounts) = volumes::volumes(input, group).into_iter().unzip();
    let workers = &spec.workers;
    let account = workers_name(input.name());
    let filled = |list: Vec<_>| (!list.is_empty()).then_some(list);
    let host_network = workers.pod.host_network.filter(|uses| *uses);
    let claims: Vec<_> = workers.pod.resource_claims.iter().map(claim).collect();
    let spec = PodSpec {
        containers: vec![container::trainer(input, attempt, group, worker_idx, mounts)],
        volumes: Some(volumes),
        restart_policy: Some("Never".into()),
        // The name of a pod may be longer than a host name.
        hostname: Some(within_label(&name)),
        subdomain: (group.num_workers > 1 && !group.is_spare()).then(|| group.service_name()),
        service_account_name: Some(workers.pod.service_account_name.clone().unwrap_or(account)),
        runtime_class_name: workers.pod.runtime_class_name.clone(),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(spec.run_policy.termination_grace_period_seconds.into()),
        security_context: Some(security_context()),
        node_selector: (!workers.node_selector.is_empty()).then(|| workers.node_selector.clone()),
        tolerations: (!workers.tolerations.is_empty())
            .then(|| workers.tolerations.iter().map(toleration).collect()),
        priority_class_name: workers.priority_class_name.clone(),
        scheduler_name: workers.scheduler_name.clone(),
        host_network,
        // By default a pod on its node's network resolves names as the node does.
        dns_policy: host_network.map(|_| "ClusterFirstWithHostNet".into()),
        resource_claims: (!claims.is_empty()).then_some(claims),
        image_pull_secrets: filled(workers.image_pull_secrets.iter().map(|name| reference(name)).collect()),
        ..PodSpec::default()
    };
    let mut metadata = input.metadata(name);
    if !workers.pod.annotations.is_empty() {
        metadata.annotations.get_or_insert_default().extend(workers.pod.annotations.clone());
    }
    // Labels that identify a pod are set last, so that a job cannot override them.
    let labels = metadata.labels.get_or_insert_default();
    for (name, value) in &workers.pod.labels {
        labels.entry(name.clone()).or_insert_with(|| value.clone());
    }
    labels.extend([
        (labels::WORKER_GROUP.to_owned(), group.name.clone()),
        (labels::WORKER_IDX.to_owned(), worker_idx.to_string()),
        (labels::ATTEMPT.to_owned(), attempt.to_string()),
    ]);
    let pod = Pod { metadata, spec: Some(spec), status: None };
    match &workers.pod_template {
        // Validation has refused templates that do not merge to a pod.
        Some(template) => pod_template::lay_over(pod.clone(), template).unwrap_or(pod),
        None => pod,
    }
}

fn claim(claim: &ResourceClaimSpec) -> PodResourceClaim {
    PodResourceClaim {
        name: claim.name.clone(),
        resource_claim_name: claim.claim_name.clone(),
        resource_claim_template_name: claim.template_name.clone(),
    }
}

/// Allows the pod to restart its processes in place, as often as `retries` says.
///
/// # Errors
/// When the retries have no JSON form, which would be a bug.
pub fn allow_restarts(mut pod: Pod, retries: Option<&RetriesSpec>) -> Result<Pod, serde_json::Error> {
    if let Some(retries) = retries {
        let value = Some(serde_json::to_string(retries)?);
        let variable = EnvVar { name: RETRIES_LEFT.into(), value, value_from: None };
        let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
        for container in containers.filter(|container| container.name == TRAINER_CONTAINER) {
            container.env.get_or_insert_default().push(variable.clone());
        }
    }
    Ok(pod)
}

/// Replaces the image of a pod's container `trainer`.
#[must_use]
pub fn with_image(mut pod: Pod, image: &str) -> Pod {
    let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
    for container in containers.filter(|container| container.name == TRAINER_CONTAINER) {
        container.image = Some(image.to_owned());
    }
    pod
}

fn reference(name: &str) -> LocalObjectReference {
    LocalObjectReference { name: name.to_owned() }
}

fn security_context() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER_ID),
        run_as_group: Some(USER_ID),
        fs_group: Some(USER_ID),
        // Kubernetes does not change the owner of every file at each start, which is slow with many
        // checkpoints.
        fs_group_change_policy: Some("OnRootMismatch".into()),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

fn toleration(toleration: &TolerationSpec) -> Toleration {
    let TolerationSpec { key, operator, value, effect } = toleration;
    let operator = match operator.unwrap_or_default() {
        TolerationOperator::Equal => "Equal",
        TolerationOperator::Exists => "Exists",
    };
    let effect = effect.map(|effect| match effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    });
    Toleration {
        key: key.clone(),
        operator: Some(operator.into()),
        value: value.clone(),
        effect: effect.map(Into::into),
        toleration_seconds: None,
    }
}
