//! Pod settings of cluster, namespace and job, on a real API server with the chart's roles.

use k8s_openapi::api::core::v1::{ConfigMap, PodTemplate, ServiceAccount};
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use rlt_api::Defaults;
use rlt_api::status::{ConditionType, RLTrainingJobStatus};
use rlt_objects::build::PodSettings;
use rlt_objects::pod_defaults;
use rlt_objects::privileges::{Privilege, Privileges};
use serde_json::{Value, json};

use crate::set;
use crate::test_namespace::{Operator, TestNamespace, is_true};

fn config_map(text: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(pod_defaults::NAME.into()), ..ObjectMeta::default() };
    let data = Some([(pod_defaults::KEY.to_owned(), text.to_owned())].into());
    ConfigMap { metadata, data, ..ConfigMap::default() }
}

async fn set_defaults(test: &TestNamespace, text: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(test.client.clone(), &test.namespace);
    if maps.get_opt(pod_defaults::NAME).await.unwrap().is_none() {
        maps.create(&PostParams::default(), &config_map(text)).await.unwrap();
    } else {
        let patch = Patch::Merge(json!({"data": {pod_defaults::KEY: text}}));
        maps.patch(pod_defaults::NAME, &PatchParams::default(), &patch).await.unwrap();
    }
}

/// The reason and message of the condition `Stalled`.
fn stalled(status: &RLTrainingJobStatus) -> (String, String) {
    let stalled = status.conditions.iter().find(|one| one.type_ == ConditionType::Stalled).unwrap();
    (stalled.reason.clone(), stalled.message.clone())
}

#[tokio::test]
async fn a_job_overrides_its_namespace_which_overrides_the_cluster_and_bad_defaults_are_a_condition() {
    let Some(test) = set("defaults").await else { return };
    let of_cluster =
        "workers: {nodeSelector: {zone: a, gpu: h100}, tolerations: [{operator: Exists}], network: Isolated}";
    let defaults = Defaults::parse(of_cluster).unwrap();
    let _operator = test.operator_in_roles_with(PodSettings { defaults, ..PodSettings::default() }).await;
    set_defaults(&test, "workers:\n  nodeSelectr: {zone: b}\n").await;
    let own = json!({"workers": {"nodeSelector": {"disk": "nvme"}, "env": [{"name": "A", "value": "job"}]}});
    test.post("adding", own).await;
    let status = test.when_true("adding", ConditionType::Stalled).await;
    let (reason, message) = stalled(&status);
    assert_eq!(reason, "InvalidDefaults");
    assert!(message.contains("defaults.yaml:2:3: workers.nodeSelectr: is not a field"), "{message}");
    assert!(message.contains("did you mean workers.nodeSelector?"), "{message}");

    let good = "workers:\n  nodeSelector: {zone: b}\n  env: [{name: A, value: ns}, {name: B, value: ns}]\n";
    set_defaults(&test, good).await;
    let pod = test.worker("adding", 1).await;
    let spec = pod.spec.clone().unwrap();
    let selector = serde_json::to_value(spec.node_selector).unwrap();
    assert_eq!(selector, json!({"zone": "b", "gpu": "h100", "disk": "nvme"}));
    let tolerates_all = |all: Vec<_>| serde_json::to_value(all).unwrap()[0] == json!({"operator": "Exists"});
    assert!(tolerates_all(spec.tolerations.unwrap()));
    let value = |name: &str| {
        let variables = spec.containers[0].env.iter().flatten();
        variables.filter(|one| one.name == name).filter_map(|one| one.value.clone()).collect::<Vec<_>>()
    };
    assert_eq!((value("A"), value("B")), (vec!["job".to_owned()], vec!["ns".to_owned()]));

    // A prepared job is not delayed by invalid settings of its namespace.
    set_defaults(&test, "workers: 7").await;
    test.run(&pod).await;
    test.end(&pod, 0, "").await;
    test.when_true("adding", ConditionType::Complete).await;
}

#[tokio::test]
async fn a_job_with_forbidden_privileges_creates_no_pod_and_reports_it() {
    let Some(test) = set("privileges").await else { return };
    let _operator = test.operator_in_roles().await;
    let pod_template = json!({"spec": {"hostPID": true, "containers": []}});
    test.post("adding", json!({"workers": {"podTemplate": pod_template}})).await;
    let status = test.when_true("adding", ConditionType::Stalled).await;
    let (reason, message) = stalled(&status);
    assert_eq!(reason, "PodNotAllowed");
    let refused =
        "spec.workers.podTemplate.spec.hostPID: HostPid is not in the operator's setting podPrivileges.allow";
    assert!(message.contains(refused), "{message}");
    assert!(test.pods().list(&Default::default()).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn a_job_that_has_begun_continues_after_a_restart_with_settings_that_refuse_it() {
    let Some(test) = set("stricter").await else { return };
    let privileges = Privileges { allow: vec![Privilege::HostPid], ..Privileges::default() };
    let settings = PodSettings { privileges, ..PodSettings::default() };
    let lax = Operator::start_with(test.client.clone(), vec![test.namespace.clone()], settings);
    let workers = json!({"podTemplate": {"spec": {"hostPID": true, "containers": []}}});
    for name in ["runs", "done"] {
        test.post(name, json!({"workers": workers})).await;
        test.run(&test.worker(name, 1).await).await;
        test.when_true(name, ConditionType::PodsReady).await;
    }
    test.end(&test.worker("done", 1).await, 0, "").await;
    let done = test.when_true("done", ConditionType::Complete).await;
    lax.kill().await;

    let strict = test.operator_in_roles().await;
    let status = test.when("runs", |status| stalled(status).0 == "PodNotAllowed").await;
    assert!(is_true(&status, ConditionType::PodsReady) && !is_true(&status, ConditionType::Stalled));
    // A failure counts, and the next attempt has the same specification.
    test.end(&test.worker("runs", 1).await, 75, "").await;
    let second = test.worker("runs", 2).await;
    assert_eq!(second.spec.as_ref().unwrap().host_pid, Some(true));
    test.run(&second).await;
    test.end(&second, 0, "").await;
    test.when_true("runs", ConditionType::Complete).await;
    strict.reconciles_all(&test).await;
    let still = test.status("done").await;
    assert!(is_true(&still, ConditionType::Complete) && !is_true(&still, ConditionType::Stalled));
    assert_eq!((still.phase, still.completion_time), (done.phase, done.completion_time));
}

/// The API server counts the fields of a created object as updated, and an apply alone would leave them.
#[tokio::test]
async fn a_cloud_role_that_a_job_no_longer_names_is_removed_and_annotations_of_others_stay() {
    let Some(test) = set("role").await else { return };
    let privileges =
        Privileges { allow: vec![Privilege::ServiceAccountAnnotations], ..Privileges::default() };
    let _operator = test.operator_in_roles_with(PodSettings { privileges, ..PodSettings::default() }).await;
    let role = json!({"iam.example.com/role": "reader"});
    test.post("reads", json!({"workers": {"pod": {"serviceAccountAnnotations": role}}})).await;
    test.worker("reads", 1).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(test.client.clone(), &test.namespace);
    let annotations =
        async || accounts.get("reads-trainer").await.unwrap().metadata.annotations.unwrap_or_default();
    assert_eq!(annotations().await["iam.example.com/role"], "reader");
    let of_another = Patch::Merge(json!({"metadata": {"annotations": {"example.com/team": "a"}}}));
    accounts.patch("reads-trainer", &PatchParams::default(), &of_another).await.unwrap();

    test.patch_job("reads", json!({"runPolicy": {"suspend": true}})).await;
    test.when_true("reads", ConditionType::Suspended).await;
    let workers = json!({"pod": {"serviceAccountAnnotations": null}});
    test.patch_job("reads", json!({"workers": workers, "runPolicy": {"suspend": false}})).await;
    test.worker("reads", 2).await;
    let left = annotations().await;
    assert!(!left.contains_key("iam.example.com/role"), "{left:?}");
    assert_eq!(left["example.com/team"], "a");
}

/// Sorts lists whose order has no meaning by the keys of their items.
fn sorted(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(sorted),
        Value::Array(items) => {
            items.iter_mut().for_each(sorted);
            items.sort_by_key(ToString::to_string);
        }
        _ => {}
    }
    value.sort_all_objects();
}

#[tokio::test]
async fn a_template_is_merged_as_the_api_server_merges_a_patch() {
    let Some(test) = set("merge").await else { return };
    let base = json!({
        "metadata": {"labels": {"a": "1", "b": "1"}},
        "spec": {
            "containers": [
                {
                    "name": "trainer", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
                    "ports": [{"containerPort": 1, "name": "one"}],
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}], "command": ["a", "b"],
                    "resources": {"limits": {"cpu": "1"}},
                    "securityContext": {"capabilities": {"drop": ["ALL"]}},
                },
                {"name": "other", "image": "i"},
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "nodeSelector": {"zone": "a"},
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "imagePullSecrets": [{"name": "a"}],
            "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        },
    });
    let over = json!({
        "metadata": {"labels": {"b": "2", "c": "2"}, "annotations": {"d": "2"}},
        "spec": {
            "containers": [
                {
                    "name": "trainer", "env": [{"name": "B", "value": "2"}, {"name": "C", "value": "2"}],
                    "ports": [{"containerPort": 1, "name": "uno"}, {"containerPort": 2}],
                    "volumeMounts": [{"name": "more", "mountPath": "/more"}, {"name": "more", "mountPath": "/tmp"}],
                    "command": ["c"], "resources": {"limits": {"memory": "1Gi"}},
                    "securityContext": {"capabilities": {"drop": ["CHOWN"], "add": ["IPC_LOCK"]}},
                    "livenessProbe": {"exec": {"command": ["true"]}},
                },
                {"name": "new", "image": "j", "env": [{"name": "A", "value": "2"}]},
            ],
            "initContainers": [{"name": "first", "image": "k"}],
            "volumes": [{"name": "more", "emptyDir": {"medium": "Memory"}}],
            "tolerations": [{"key": "b", "operator": "Exists"}],
            "nodeSelector": {"disk": "b"},
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["b"]}, {"ip": "10.0.0.2", "hostnames": ["c"]}],
            "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "imagePullSecrets": [{"name": "b"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
        },
    });
    let templates: Api<PodTemplate> = Api::namespaced(test.client.clone(), &test.namespace);
    let object = json!({"metadata": {"name": "base"}, "template": base});
    let made =
        templates.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let mut ours = serde_json::to_value(made.template).unwrap();
    rlt_api::overlay(&mut ours, &over);
    // The API server fills in missing fields of new items.
    let object = json!({"metadata": {"name": "ours"}, "template": ours});
    let ours =
        templates.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let patch = Patch::Strategic(json!({"template": over}));
    let theirs = templates.patch("base", &PatchParams::default(), &patch).await.unwrap();
    let [mut ours, mut theirs] = [ours, theirs].map(|one| serde_json::to_value(one.template).unwrap());
    sorted(&mut ours);
    sorted(&mut theirs);
    assert_eq!(ours, theirs);
    assert_eq!(theirs["spec"]["containers"].as_array().unwrap().len(), 3);
}
