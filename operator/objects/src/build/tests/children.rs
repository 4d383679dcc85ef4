//! Objects for queues, schedulers and networks: Workloads, PodGroups, policies, and the fields that they add
//! to pods.

use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::super::{
    Flavor, Flavors, Gang, Placement, avoid, gang, network_policy, pod_group, workload, workload_digest,
};
use super::{BuildInput, channel, pod, prepared, settings, trainer, with_workers};
use crate::job::Job;
use crate::labels;
use crate::queue::{Assignment, PodSetUpdate, Workload};
use crate::served::Served;

const ALL: Served = Served {
    has_workloads: true,
    native_groups: Some("v1alpha2"),
    has_volcano: true,
    has_coscheduling: true,
};

/// Calls `check` with the input of a job that has two workers.
fn two<T>(job: &Job, check: impl FnOnce(&BuildInput<'_>) -> T) -> T {
    let (prepared, settings) = (prepared(job, 2), settings(Some(channel())));
    check(&BuildInput { job, prepared: &prepared, settings: &settings })
}

fn labelled(mut job: Job, name: &str, value: &str) -> Job {
    job.metadata.labels.get_or_insert_default().insert(name.into(), value.into());
    job
}

fn placement(
    input: &BuildInput<'_>,
    attempt: u32,
    gang: Option<Gang>,
    admission: Option<(&Workload, &Flavors)>,
) -> Placement {
    Placement::new(input, trainer(input), attempt, gang, admission)
}

/// Returns a pod with its placement, as it is sent to the API server.
fn sent(placement: &Placement, pod: Pod) -> Value {
    let body = placement.body(&placement.place(pod).unwrap()).unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[test]
fn a_workload_contains_only_fields_that_decide_where_pods_fit() {
    let job = with_workers(json!({
        "device": "Cuda",
        "image": "example.com/trainer:2",
        "resources": {"cpu": "4", "memory": "16Gi"},
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "topology": {"required": "rack"},
    }));
    let job = labelled(job, "kueue.x-k8s.io/priority-class", "urgent");
    two(&job, |input| insta::assert_yaml_snapshot!(workload(input, "team", Some(7), &[])));
}

#[test]
fn a_new_image_asks_for_nothing_new_and_more_memory_does() {
    let digest = |workers: Value| two(&with_workers(workers), |input| workload_digest(input, "team", &[]));
    let first = digest(json!({"image": "a:1", "resources": {"memory": "1Gi"}}));
    assert_eq!(first, digest(json!({"image": "a:2", "resources": {"memory": "1Gi"}})));
    assert_ne!(first, digest(json!({"image": "a:1", "resources": {"memory": "2Gi"}})));
    let job = with_workers(json!({"resources": {"memory": "1Gi"}}));
    assert_ne!(first, two(&job, |input| workload_digest(input, "other", &[])));
}

#[test]
fn a_workload_names_the_nodes_that_it_excludes_and_is_another_request() {
    let job = with_workers(json!({}));
    let excluded = ["node-1".to_owned(), "node-2".to_owned()];
    let (all, fewer) =
        two(&job, |input| (workload(input, "team", None, &[]), workload(input, "team", None, &excluded)));
    let annotation = |workload: &DynamicObject, name: &str| {
        workload.metadata.annotations.as_ref().and_then(|all| all.get(name)).cloned()
    };
    assert_eq!(annotation(&all, labels::EXCLUDED_NODES), None);
    assert_eq!(annotation(&fewer, labels::EXCLUDED_NODES).as_deref(), Some("node-1,node-2"));
    assert_ne!(annotation(&all, labels::CONTENT_DIGEST), annotation(&fewer, labels::CONTENT_DIGEST));
    let affinity = "/spec/podSets/0/template/spec/affinity/nodeAffinity";
    let required = "/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields";
    assert_eq!(all.data.pointer(affinity), None);
    let fields = fewer.data.pointer(&format!("{affinity}{required}")).unwrap();
    let not = |node: &str| json!({"key": "metadata.name", "operator": "NotIn", "values": [node]});
    assert_eq!(*fields, json!([not("node-1"), not("node-2")]));
}

#[test]
fn the_scheduler_of_the_pods_decides_whose_pod_group_they_have() {
    let of =
        |workers: Value, served| two(&with_workers(workers), |input| gang(input, trainer(input), served));
    assert_eq!(of(json!({}), ALL), Some(Gang::Native("v1alpha2")));
    assert_eq!(of(json!({"schedulerName": "volcano"}), ALL), Some(Gang::Volcano));
    assert_eq!(of(json!({"schedulerName": "plugins"}), ALL), Some(Gang::Coscheduling));
    assert_eq!(of(json!({}), Served { native_groups: None, ..ALL }), Some(Gang::Coscheduling));
    assert_eq!(of(json!({"schedulerName": "volcano"}), Served { has_volcano: false, ..ALL }), None);
    assert_eq!(of(json!({}), Served::default()), None);
    let job = with_workers(json!({}));
    let (prepared, settings) = (prepared(&job, 1), settings(None));
    let alone = BuildInput { job: &job, prepared: &prepared, settings: &settings };
    assert_eq!(gang(&alone, trainer(&alone), ALL), None, "one worker is placed whole by itself");
}

#[test]
fn a_pod_group_of_each_kind_wants_all_workers_near_to_each_other() {
    let job = with_workers(json!({"topology": {"required": "rack"}, "priorityClassName": "high"}));
    let job = labelled(job, "volcano.sh/queue-name", "research");
    let groups = [Gang::Native("v1alpha2"), Gang::Volcano, Gang::Coscheduling];
    insta::assert_yaml_snapshot!(groups.map(|gang| two(&job, |input| pod_group(
        input,
        trainer(input),
        gang,
        3
    ))));
}

#[test]
fn pods_know_their_group_in_the_words_of_its_scheduler() {
    let job = with_workers(json!({"topology": {"preferred": "rack"}}));
    let placed = |gang| two(&job, |input| sent(&placement(input, 3, Some(gang), None), pod(input, 3, 1)));
    let name = "quickstart-trainer-3";
    let native = placed(Gang::Native("v1alpha2"));
    assert_eq!(native["spec"]["schedulingGroup"], json!({"podGroupName": name}));
    let volcano = placed(Gang::Volcano);
    assert_eq!(volcano["metadata"]["annotations"]["scheduling.k8s.io/group-name"], name);
    assert_eq!(volcano["spec"]["affinity"], Value::Null, "it has a topology of its own");
    let plugins = placed(Gang::Coscheduling);
    assert_eq!(plugins["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"], name);
    insta::assert_yaml_snapshot!(plugins["spec"]["affinity"]);
}

#[test]
fn pods_go_where_the_queue_has_set_nodes_aside() {
    let job = with_workers(json!({"nodeSelector": {"zone": "a"}, "topology": {"required": "rack"}}));
    let update = PodSetUpdate {
        name: "trainer".into(),
        node_selector: [("pool".to_owned(), "new".to_owned())].into(),
        annotations: [("checked".to_owned(), "yes".to_owned())].into(),
        ..PodSetUpdate::default()
    };
    let assignment = |has_topology| Assignment {
        name: "trainer".into(),
        flavors: ["spot".into()].into(),
        has_topology,
        ..Assignment::default()
    };
    let admitted = |has_topology| Workload {
        name: "quickstart-12345".into(),
        assignments: vec![assignment(has_topology)],
        updates: vec![update.clone()],
        ..Workload::default()
    };
    let flavor: Flavor = serde_json::from_value(json!({
        "nodeLabels": {"instance": "spot"},
        "nodeTaints": [{"key": "spot", "effect": "NoSchedule"}],
        "tolerations": [{"key": "spot", "operator": "Exists"}],
    }))
    .unwrap();
    let placed = |has_topology| {
        two(&job, |input| {
            let flavors = [("spot".to_owned(), flavor.clone())].into();
            let admission = Some((&admitted(has_topology), &flavors));
            sent(&placement(input, 1, None, admission), pod(input, 1, 0))
        })
    };
    let pod = placed(false);
    assert_eq!(pod["spec"]["nodeSelector"], json!({"zone": "a", "instance": "spot", "pool": "new"}));
    assert_eq!(pod["spec"]["tolerations"], json!([{"key": "spot", "operator": "Exists"}]));
    assert_eq!(pod["metadata"]["labels"]["kueue.x-k8s.io/podset"], "trainer");
    assert_eq!(pod["metadata"]["annotations"]["kueue.x-k8s.io/workload"], "quickstart-12345");
    assert_eq!(pod["metadata"]["annotations"]["checked"], "yes");
    assert_eq!(pod["spec"]["schedulingGates"], Value::Null);
    let gated = placed(true);
    assert_eq!(gated["spec"]["schedulingGates"], json!([{"name": "kueue.x-k8s.io/topology"}]));
    assert_eq!(gated["metadata"]["labels"]["kueue.x-k8s.io/tas"], "true");
    assert_eq!(gated["spec"]["affinity"], Value::Null, "the queue chooses the nodes itself");
}

#[test]
fn workers_stay_near_to_each_other_and_away_from_nodes_on_which_they_failed() {
    let job = with_workers(json!({"topology": {"required": "rack"}}));
    let pod = two(&job, |input| {
        let placed = placement(input, 2, None, None).place(pod(input, 2, 0)).unwrap();
        avoid(placed, &[("broken".to_owned(), 1)].into())
    });
    let affinity = pod.spec.unwrap().affinity.unwrap();
    assert!(affinity.pod_affinity.is_some() && affinity.node_affinity.is_some());
}

#[test]
fn workers_of_a_topology_slice_share_a_domain_with_every_scheduler() {
    let workers =
        json!({"count": 4, "topology": {"preferred": "block", "slice": {"required": "rack", "size": 2}}});
    let job = with_workers(workers);
    let (prepared, settings) = (prepared(&job, 4), settings(None));
    let input = BuildInput { job: &job, prepared: &prepared, settings: &settings };
    for gang in [None, Some(Gang::Volcano)] {
        for (idx, neighbours) in [(0, ["0", "1"]), (1, ["0", "1"]), (3, ["2", "3"])] {
            let pod = sent(&placement(&input, 1, gang, None), pod(&input, 1, idx));
            let near =
                &pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
            assert_eq!(near.as_array().unwrap().len(), 1);
            assert_eq!(near[0]["topologyKey"], "rack");
            let indices = &near[0]["labelSelector"]["matchExpressions"][0];
            assert_eq!((&indices["operator"], &indices["values"]), (&json!("In"), &json!(neighbours)));
            assert_eq!(near[0]["labelSelector"]["matchLabels"]["rltraining.dev/attempt"], "1");
        }
    }
    let asked = &workload(&input, "team", None, &[]).data["spec"]["podSets"][0]["topologyRequest"];
    let slices = json!({"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 2});
    let mut expected = json!({"preferred": "block", "podIndexLabel": "rltraining.dev/worker-index"});
    expected.as_object_mut().unwrap().extend(slices.as_object().unwrap().clone());
    assert_eq!(*asked, expected);
}

#[test]
fn a_conflict_of_node_selectors_is_reported_to_the_queue() {
    let job = with_workers(json!({"nodeSelector": {"zone": "a"}}));
    let flavor = Flavor { node_labels: [("zone".to_owned(), "b".to_owned())].into(), ..Flavor::default() };
    let conflict = two(&job, |input| {
        let assignment =
            Assignment { name: "trainer".into(), flavors: ["b".into()].into(), ..Assignment::default() };
        let workload = Workload { assignments: vec![assignment], ..Workload::default() };
        let flavors = [("b".to_owned(), flavor.clone())].into();
        placement(input, 1, None, Some((&workload, &flavors))).place(pod(input, 1, 0)).unwrap_err()
    });
    let words = "the queue lets workers run on nodes with zone=b only, but the job asks for zone=a";
    assert_eq!(conflict.to_string(), words);
}

#[test]
fn workers_are_reached_by_each_other_and_for_their_metrics() {
    let policy = |network: &str, port: u16| {
        let mut job = with_workers(json!({"network": network}));
        let mut spec: Value = serde_json::from_str(&job.spec).unwrap();
        spec["tracking"] = json!({"prometheus": {"port": port}});
        job.spec = spec.to_string();
        two(&job, network_policy)
    };
    insta::assert_yaml_snapshot!((policy("Guarded", 9090), policy("Isolated", 0)));
    assert!(policy("Open", 9090).is_none());
}
