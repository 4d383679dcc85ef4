//! Racks: the placement of a job's workers by the real Kueue, the real scheduler's gangs and pod affinity,
//! and the status about it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use rlt_api::status::{ConditionType, RLTrainingJobStatus};
use rlt_cluster::{FakeNodes, Options, Shared};
use rlt_objects::labels;
use serde_json::{Value, json};

use crate::test_namespace::{TestNamespace, is_true, reason};

/// Four nodes of 32 cores, of which 0 and 2 share a rack, and 1 and 3 another one.
static WITH_KUEUE: Shared =
    Shared::new(|| Options::control_plane().with_kueue().with_fake_nodes(FakeNodes::new(4)));
/// A rack of one node and a rack of two.
static WITH_GANGS: Shared = Shared::new(|| {
    let options = Options::control_plane().with_gang_scheduling().with_fake_nodes(FakeNodes::new(3));
    options.with_feature_gate("TopologyAwareWorkloadScheduling")
});

const BLOCK: &str = "example.com/block";
const RACK: &str = "example.com/rack";

impl TestNamespace {
    async fn label_nodes(&self, racks: &[&str]) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        for (idx, rack) in racks.iter().enumerate() {
            let patch = json!({"metadata": {"labels": {BLOCK: "b0", RACK: rack}}});
            nodes.patch(&format!("fake-{idx}"), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        }
    }

    /// The rack of each worker, by its index.
    async fn racks(&self, job: &str) -> Vec<String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let racks: BTreeMap<_, _> = nodes
            .list(&ListParams::default())
            .await
            .unwrap()
            .into_iter()
            .map(|node| (node.name_any(), node.labels()[RACK].clone()))
            .collect();
        let mut pods = self.when_pods(job, |_| true).await;
        pods.sort_by_key(|pod| pod.labels()[labels::WORKER_IDX].parse::<u32>().unwrap());
        let node = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.clone().unwrap();
        pods.iter().map(|pod| racks[&node(pod)].clone()).collect()
    }

    async fn post_in(&self, name: &str, count: u32, cpu: &str, topology: Value, queue: Option<&str>) {
        let resources = json!({"cpu": cpu});
        let workers = json!({"count": count, "device": "Cpu", "resources": resources, "topology": topology});
        let mut job = self.manifest(name, &json!({"workers": workers}));
        let queue = queue.map(|queue| ("kueue.x-k8s.io/queue-name".to_owned(), queue.to_owned()));
        job.labels_mut().extend(queue);
        self.jobs().create(&PostParams::default(), &job).await.unwrap();
    }
}

fn kueue(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn queues(name: &str) -> Vec<Value> {
    let levels = [BLOCK, RACK, "kubernetes.io/hostname"].map(|label| json!({"nodeLabel": label}));
    let quota = json!([{"name": "cpu", "nominalQuota": "128"}]);
    let groups = json!([{"coveredResources": ["cpu"], "flavors": [{"name": name, "resources": quota}]}]);
    let flavor = json!({"nodeLabels": {"kubernetes.io/os": "linux"}, "topologyName": name});
    vec![
        kueue("Topology", name, json!({"levels": levels})),
        kueue("ResourceFlavor", name, flavor),
        kueue("ClusterQueue", name, json!({"namespaceSelector": {}, "resourceGroups": groups})),
        kueue("LocalQueue", "team", json!({"clusterQueue": name})),
    ]
}

/// The domains of a label in a status: `name workers`.
fn domains(status: &RLTrainingJobStatus, label: &str) -> Vec<String> {
    let topologies = status.worker_groups.iter().flat_map(|group| &group.topology);
    let domains =
        topologies.filter(|topology| topology.label == label).flat_map(|topology| &topology.domains);
    domains.map(|domain| format!("{} {}", domain.name, domain.workers)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kueue_and_pod_affinity_pack_neighbours_into_racks_and_the_status_says_which() {
    let Some(cluster) = WITH_KUEUE.get() else { return };
    let test = TestNamespace::on(cluster, "racks").await;
    test.label_nodes(&["r0", "r1", "r0", "r1"]).await;
    test.create(&queues("racks"));
    let _operator = test.operator_in_roles().await;
    let slices = json!({"required": BLOCK, "slice": {"required": RACK, "size": 2}});
    let runs = |status: &RLTrainingJobStatus| status.ready.as_deref() == Some("4/4");
    // One worker fills a node, so that a slice fills a rack.
    test.post_in("packed", 4, "20", slices.clone(), Some("team")).await;
    let status = test.when("packed", |status| runs(status) && !domains(status, RACK).is_empty()).await;
    let racks = test.racks("packed").await;
    assert!(racks[0] == racks[1] && racks[2] == racks[3] && racks[0] != racks[2], "{racks:?}");
    assert_eq!(domains(&status, BLOCK), ["b0 0-3"]);
    assert_eq!(domains(&status, RACK), [format!("{} 0-1", racks[0]), format!("{} 2-3", racks[2])]);
    let pods = test.when_pods("packed", |_| true).await;
    let selector = |pod: &Pod| pod.spec.as_ref().unwrap().node_selector.clone().unwrap_or_default();
    assert!(pods.iter().all(|pod| selector(pod).contains_key("kubernetes.io/hostname")), "Kueue chose nodes");
    // Three of them never fit into one rack, which Kueue says.
    test.patch_job("packed", json!({"runPolicy": {"suspend": true}})).await;
    test.when_true("packed", ConditionType::Suspended).await;
    test.post_in("large", 3, "20", json!({"required": RACK}), Some("team")).await;
    let says = |status: &RLTrainingJobStatus| {
        let admitted = status.conditions.iter().find(|one| one.type_ == ConditionType::Admitted);
        admitted.is_some_and(|admitted| admitted.message.contains("topology"))
    };
    let status = test.when("large", says).await;
    assert_eq!(reason(&status, ConditionType::Admitted).unwrap().1, "Queued");
    // Without a queue the scheduler keeps slices together by affinity.
    test.post_in("near", 4, "5", slices, None).await;
    let status = test.when("near", |status| runs(status) && !domains(status, RACK).is_empty()).await;
    let racks = test.racks("near").await;
    assert!(racks[0] == racks[1] && racks[2] == racks[3], "{racks:?}");
    assert!(domains(&status, RACK)[0].starts_with(&racks[0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_gpu_failed_begins_again_in_a_place_without_that_node() {
    let Some(cluster) = WITH_KUEUE.get() else { return };
    let test = TestNamespace::on(cluster, "broken").await;
    test.label_nodes(&["r0", "r1", "r0", "r1"]).await;
    test.create(&queues("broken"));
    let _operator = test.operator_in_roles().await;
    test.post_in("broken", 1, "2", json!({"required": RACK}), Some("team")).await;
    test.when_true("broken", ConditionType::PodsReady).await;
    let placed = async || {
        let pod = test.when_pods("broken", |pods| pods.len() == 1).await.remove(0);
        (pod.name_any(), pod.spec.unwrap().node_name.unwrap())
    };
    let (name, node) = placed().await;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"fake.rltraining.dev/exit-code": "81"}}}));
    test.pods().patch(&name, &PatchParams::default(), &patch).await.unwrap();
    let runs_again =
        |status: &RLTrainingJobStatus| status.attempt == Some(2) && is_true(status, ConditionType::PodsReady);
    let status = test.when("broken", runs_again).await;
    assert_eq!(status.excluded_nodes, std::slice::from_ref(&node));
    assert_ne!(placed().await.1, node);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gang_of_the_scheduler_goes_to_the_rack_that_holds_all_of_it() {
    let Some(cluster) = WITH_GANGS.get() else { return };
    let test = TestNamespace::on(cluster, "rack").await;
    test.label_nodes(&["small", "large", "large"]).await;
    let _operator = test.operator_in_roles().await;
    test.post_in("gang", 2, "20", json!({"required": RACK}), None).await;
    let status = test.when("gang", |status| !domains(status, RACK).is_empty()).await;
    assert_eq!(domains(&status, RACK), ["large 0-1"]);
    let groups = test.pod_groups().list(&ListParams::default()).await.unwrap();
    assert_eq!(groups.items[0].data["spec"]["schedulingConstraints"]["topology"][0]["key"], RACK);
}
