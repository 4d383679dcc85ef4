//! Templates and privileges of pods, without a cluster: refused fields, and the resulting pod.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use rlt_objects::build::{self, BuildInput, PodSettings, Settings};
use rlt_objects::job::Job;
use rlt_objects::prepare::{Invalid, Prepared};
use rlt_objects::privileges::{Privilege, Privileges};
use rlt_objects::{args::PullPolicy, pod_template};
use serde_json::{Value, json};

fn job(workers: &Value) -> Job {
    let example = include_str!("../../../examples/quickstart/job.yaml");
    let mut manifest: Value = serde_saphyr::from_str(example).unwrap();
    manifest["spec"]["workers"] = workers.clone();
    manifest["metadata"] = json!({"name": "adding", "namespace": "team", "uid": "u", "generation": 1});
    serde_json::from_value(manifest).unwrap()
}

fn settings(privileges: Privileges) -> Settings {
    Settings {
        trainer_image: "rlt.local/rlt-trainer:dev".into(),
        trainer_cuda_image: None,
        pull_policy: PullPolicy::Never,
        channel: None,
        traces: Vec::new(),
        pods: PodSettings { privileges, ..PodSettings::default() },
    }
}

fn prepared(workers: &Value, privileges: Privileges) -> Result<Prepared, Invalid> {
    Prepared::in_cluster(&job(workers), &settings(privileges).pods, None)
}

fn pod_of(workers: &Value) -> Pod {
    let (job, settings) = (job(workers), settings(Privileges::default()));
    let prepared = Prepared::new(&job).unwrap();
    let input = BuildInput { job: &job, prepared: &prepared, settings: &settings };
    build::pod(&input, 1, &prepared.plan.worker_groups[0], 0)
}

fn spec_of(workers: &Value) -> PodSpec {
    pod_of(workers).spec.unwrap()
}

/// A template whose specification is this.
fn template(spec: Value) -> Value {
    json!({"podTemplate": {"spec": spec}})
}

fn trainer(fields: Value) -> Value {
    let mut container = json!({"name": "trainer"});
    container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"containers": [container]})
}

#[test]
fn a_field_of_the_operator_or_of_the_job_itself_is_refused_by_its_name() {
    let refused = [
        (json!({"metadata": {"name": "a"}}), "metadata.name: is set by the operator"),
        (json!({"metadata": {"finalizers": ["a/b"]}}), "metadata.finalizers: is set by the operator"),
        (
            json!({"metadata": {"labels": {"rltraining.dev/attempt": "9"}}}),
            "metadata.labels.rltraining.dev/attempt: is set by the operator",
        ),
        (
            json!({"metadata": {"annotations": {"kueue.x-k8s.io/workload": "a"}}}),
            "metadata.annotations.kueue.x-k8s.io/workload: is set by the operator",
        ),
        (
            json!({"spec": {"restartPolicy": "Always", "containers": []}}),
            "spec.restartPolicy: is set by the operator",
        ),
        (json!({"spec": {"nodeName": "a", "containers": []}}), "spec.nodeName: is set by the operator"),
        (
            json!({"spec": {"schedulingGates": [{"name": "a"}], "containers": []}}),
            "spec.schedulingGates: is set by the operator",
        ),
        (
            json!({"spec": {"schedulerName": "a", "containers": []}}),
            "spec.schedulerName: is set by spec.workers.schedulerName",
        ),
        (
            json!({"spec": trainer(json!({"command": ["sh"]}))}),
            "spec.containers[trainer].command: is set by the operator",
        ),
        (
            json!({"spec": trainer(json!({"image": "a"}))}),
            "spec.containers[trainer].image: is set by spec.workers.image",
        ),
        (
            json!({"spec": trainer(json!({"env": [{"name": "RANK", "value": "1"}]}))}),
            "spec.containers[trainer].env[RANK]: is set by the operator",
        ),
        (
            json!({"spec": trainer(json!({"volumeMounts": [{"name": "a", "mountPath": "//etc/./rltraining"}]}))}),
            "spec.containers[trainer].volumeMounts[//etc/./rltraining]: is set by the operator",
        ),
        (
            json!({"spec": {"volumes": [{"name": "storage", "emptyDir": {}}], "containers": []}}),
            "spec.volumes[storage]: is set by the operator",
        ),
        (
            json!({"spec": {"containers": [{"name": "trianer"}]}}),
            "spec.containers[trianer].image: is missing, and the operator makes no such container; the trainer's \
             container is `trainer`",
        ),
        (
            json!({"spec": {"hostNetwrk": true, "containers": []}}),
            "spec.hostNetwrk: is not a field; got true; did you mean spec.workers.podTemplate.spec.hostNetwork?",
        ),
        (
            json!({"spec": {"tolerations": [{"key": 1}], "containers": []}}),
            "spec.tolerations[0].key: is a number; expected a text; got 1",
        ),
    ];
    for (template, expected) in refused {
        let problems: Vec<_> = pod_template::problems(&template).iter().map(ToString::to_string).collect();
        assert_eq!(problems, [format!("{}.{expected}", pod_template::PATH)], "{template}");
    }
}

#[test]
fn a_template_is_laid_over_the_pod_and_what_it_adds_is_as_restricted() {
    let sidecar = json!({
        "name": "metrics", "image": "example.com/metrics:1", "ports": [{"containerPort": 9400}],
    });
    let own = json!({
        "name": "trainer", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    });
    let workers = json!({
        "env": [{"name": "A", "value": "1"}], "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "podTemplate": {
            "metadata": {"labels": {"team": "a"}, "annotations": {"example.com/b": "c"}},
            "spec": {
                "containers": [sidecar, own],
                "volumes": [{"name": "scratch", "emptyDir": {"medium": "HugePages"}}],
                "tolerations": [{"key": "spot", "operator": "Exists"}],
                "shareProcessNamespace": true,
                "securityContext": {"supplementalGroups": [44]},
            },
        },
    });
    let pod = pod_of(&workers);
    let (labels, annotations) = (pod.metadata.labels.unwrap(), pod.metadata.annotations.unwrap());
    assert_eq!((&*labels["team"], &*labels["rltraining.dev/attempt"]), ("a", "1"));
    assert_eq!(annotations["example.com/b"], "c");
    let spec = pod.spec.unwrap();
    let names: Vec<_> = spec.containers.iter().map(|container| &*container.name).collect();
    assert_eq!(names, ["trainer", "metrics"]);
    let (trainer, metrics) = (&spec.containers[0], &spec.containers[1]);
    assert_eq!(trainer.command.as_ref().unwrap()[0], "rlt-trainer");
    let variable = |name: &str| {
        let mut found = trainer.env.iter().flatten().filter(|variable| variable.name == name);
        (found.next().and_then(|variable| variable.value.clone()), found.count())
    };
    assert_eq!((variable("A"), variable("B")), ((Some("2".into()), 0), (Some("3".into()), 0)));
    assert_eq!(variable("RANK").0.as_deref(), Some("0"));
    assert!(trainer.volume_mounts.iter().flatten().any(|mount| mount.mount_path == "/scratch"));
    assert!(trainer.volume_mounts.iter().flatten().any(|mount| mount.mount_path == "/storage"));
    let context = metrics.security_context.clone().unwrap();
    assert_eq!(context.allow_privilege_escalation, Some(false));
    assert_eq!(context.capabilities.unwrap().drop.unwrap(), ["ALL"]);
    // A list without keys is replaced, as `kubectl patch` does.
    assert_eq!(spec.tolerations.unwrap().len(), 1);
    let of_pod = spec.security_context.unwrap();
    assert_eq!((of_pod.run_as_non_root, of_pod.supplemental_groups), (Some(true), Some(vec![44])));
    assert_eq!(spec.share_process_namespace, Some(true));
}

/// A job's request, the refused field, and the settings that allow it.
type Asked = (Value, &'static str, Privileges);

fn allowing(privilege: Privilege) -> Privileges {
    Privileges { allow: vec![privilege], ..Privileges::default() }
}

fn capability(name: &str) -> Privileges {
    Privileges { capabilities: vec![name.into()], ..Privileges::default() }
}

/// Privileges of containers that are refused by default.
fn privileged_containers() -> Vec<Asked> {
    let with_context = |context: Value| template(trainer(json!({"securityContext": context})));
    vec![
        (
            with_context(json!({"privileged": true})),
            "podTemplate.spec.containers[trainer].securityContext.privileged: Privileged",
            allowing(Privilege::Privileged),
        ),
        (
            with_context(json!({"allowPrivilegeEscalation": true})),
            "podTemplate.spec.containers[trainer].securityContext.allowPrivilegeEscalation: PrivilegeEscalation",
            allowing(Privilege::PrivilegeEscalation),
        ),
        (
            with_context(json!({"runAsUser": 0})),
            "podTemplate.spec.containers[trainer].securityContext.runAsUser: Root",
            allowing(Privilege::Root),
        ),
        (
            with_context(json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
            "podTemplate.spec.containers[trainer].securityContext.capabilities.add: capability SYS_ADMIN",
            capability("SYS_ADMIN"),
        ),
        (
            with_context(json!({"capabilities": {"drop": []}})),
            "podTemplate.spec.containers[trainer].securityContext.capabilities.drop: DefaultCapabilities",
            allowing(Privilege::DefaultCapabilities),
        ),
        (
            with_context(json!({"seccompProfile": {"type": "Unconfined"}})),
            "podTemplate.spec.containers[trainer].securityContext.seccompProfile: Unconfined",
            allowing(Privilege::Unconfined),
        ),
    ]
}

/// Privileges of pods that are refused by default.
fn privileged_pods() -> Vec<Asked> {
    let volume = |source: Value| {
        let mut volume = json!({"name": "a"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        template(json!({"containers": [], "volumes": [volume]}))
    };
    let containers = json!([]);
    vec![
        (
            json!({"pod": {"hostNetwork": true}}),
            "pod.hostNetwork: HostNetwork",
            allowing(Privilege::HostNetwork),
        ),
        (
            json!({"pod": {"serviceAccountAnnotations": {"role": "a"}}}),
            "pod.serviceAccountAnnotations: ServiceAccountAnnotations",
            allowing(Privilege::ServiceAccountAnnotations),
        ),
        (
            json!({"pod": {"capabilities": ["IPC_LOCK"]}}),
            "pod.capabilities: capability IPC_LOCK",
            capability("IPC_LOCK"),
        ),
        (
            template(json!({"containers": containers, "hostNetwork": true})),
            "podTemplate.spec.hostNetwork: HostNetwork",
            allowing(Privilege::HostNetwork),
        ),
        (
            template(json!({"containers": containers, "hostPID": true})),
            "podTemplate.spec.hostPID: HostPid",
            allowing(Privilege::HostPid),
        ),
        (
            template(json!({"containers": containers, "hostIPC": true})),
            "podTemplate.spec.hostIPC: HostIpc",
            allowing(Privilege::HostIpc),
        ),
        (
            template(trainer(json!({"ports": [{"containerPort": 1, "hostPort": 1}]}))),
            "podTemplate.spec.containers[trainer].ports[1].hostPort: HostPorts",
            allowing(Privilege::HostPorts),
        ),
        (
            template(json!({"containers": containers, "securityContext": {"runAsNonRoot": false}})),
            "podTemplate.spec.securityContext.runAsNonRoot: Root",
            allowing(Privilege::Root),
        ),
        (
            template(
                json!({"containers": containers, "securityContext": {"sysctls": [{"name": "a", "value": "b"}]}}),
            ),
            "podTemplate.spec.securityContext.sysctls: Unconfined",
            allowing(Privilege::Unconfined),
        ),
        (
            volume(json!({"nfs": {"server": "a", "path": "/"}})),
            "podTemplate.spec.volumes[a]: OtherVolumes",
            allowing(Privilege::OtherVolumes),
        ),
        (
            volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "a"}}]}})),
            "podTemplate.spec.volumes[a].projected: ServiceAccountToken",
            allowing(Privilege::ServiceAccountToken),
        ),
        (
            template(json!({"containers": containers, "automountServiceAccountToken": true})),
            "podTemplate.spec.automountServiceAccountToken: ServiceAccountToken",
            allowing(Privilege::ServiceAccountToken),
        ),
        (
            volume(json!({"hostPath": {"path": "/dev/infiniband/a"}})),
            "podTemplate.spec.volumes[a].hostPath: the node's folder /dev/infiniband/a",
            Privileges { host_paths: vec!["/dev/infiniband".into()], ..Privileges::default() },
        ),
    ]
}

#[test]
fn privileges_beyond_restricted_are_refused_by_field_until_a_setting_allows_them() {
    for (workers, asked, allowing) in privileged_containers().into_iter().chain(privileged_pods()) {
        let Err(Invalid::NotAllowed(refused)) = prepared(&workers, Privileges::default()) else {
            unreachable!("not refused: {workers}")
        };
        let begin = format!("spec.workers.{asked} is not in the operator's setting podPrivileges.");
        assert!(refused.len() == 1 && refused[0].starts_with(&begin), "{refused:?}, not {begin}");
        assert!(prepared(&workers, allowing.clone()).is_ok(), "{asked}");
        let here = Privileges { namespaces: vec!["team".into()], ..allowing.clone() };
        assert!(prepared(&workers, here).is_ok(), "{asked}");
        let elsewhere = Privileges { namespaces: vec!["other".into()], ..allowing };
        let Err(Invalid::NotAllowed(refused)) = prepared(&workers, elsewhere) else {
            unreachable!("allowed in another namespace: {asked}")
        };
        assert!(
            refused[0]
                .ends_with("namespace team, which is not in the operator's setting podPrivileges.namespaces")
        );
    }
}

#[test]
fn a_folder_of_a_node_is_not_left_by_dots_and_an_account_is_one_of_those_that_are_named() {
    let host = |path: &str| {
        let volumes = json!([{"name": "a", "hostPath": {"path": path}}]);
        let allowed = Privileges { host_paths: vec!["/data/".into()], ..Privileges::default() };
        prepared(&template(json!({"containers": [], "volumes": volumes})), allowed).is_ok()
    };
    assert!(host("/data") && host("/data/models"));
    for outside in ["/database", "/data/../etc", "/data/./../etc", "data/a", "/"] {
        assert!(!host(outside), "{outside}");
    }
    let account = json!({"pod": {"serviceAccountName": "reader"}});
    assert!(prepared(&account, Privileges::default()).is_ok());
    let named = |name: &str| Privileges { service_accounts: vec![name.into()], ..Privileges::default() };
    assert!(prepared(&account, named("reader")).is_ok());
    assert!(matches!(prepared(&account, named("writer")), Err(Invalid::NotAllowed(_))));
}

#[test]
fn claims_of_devices_and_the_network_of_the_node_reach_the_pod() {
    let spec = spec_of(&json!({
        "device": "Cuda", "count": 2, "ranksPerWorker": 8,
        "pod": {
            "hostNetwork": true, "capabilities": ["IPC_LOCK"],
            "resourceClaims": [
                {"name": "gpus", "templateName": "eight", "gpus": true}, {"name": "nic", "claimName": "a", "request": "b"},
            ],
        },
    }));
    assert_eq!(
        (spec.host_network, spec.dns_policy.as_deref()),
        (Some(true), Some("ClusterFirstWithHostNet"))
    );
    let container = &spec.containers[0];
    let resources = container.resources.clone().unwrap();
    assert_eq!(resources.limits, None, "the claim is the GPUs");
    let claims = serde_json::to_value(resources.claims).unwrap();
    assert_eq!(claims, json!([{"name": "gpus"}, {"name": "nic", "request": "b"}]));
    let claims = serde_json::to_value(spec.resource_claims).unwrap();
    let expected = json!([
        {"name": "gpus", "resourceClaimTemplateName": "eight"}, {"name": "nic", "resourceClaimName": "a"},
    ]);
    assert_eq!(claims, expected);
    let capabilities = container.security_context.clone().unwrap().capabilities.unwrap();
    assert_eq!(
        (capabilities.add, capabilities.drop),
        (Some(vec!["IPC_LOCK".into()]), Some(vec!["ALL".into()]))
    );
    let port = container.ports.clone().unwrap().remove(0);
    assert_eq!(port.host_port, Some(29500), "two jobs that listen at one port are placed apart");
}
