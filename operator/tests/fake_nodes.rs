//! Gangs on nodes that exist in the API alone: the real scheduler places their pods, kwok plays the kubelets.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test panics where it fails")]

#[path = "cluster/history.rs"]
#[expect(dead_code, reason = "these lives are judged, not followed")]
mod history;
#[path = "cluster/test_namespace.rs"]
#[expect(dead_code, reason = "kwok plays the kubelet here")]
mod test_namespace;

use std::collections::BTreeSet;
use std::time::Duration;

use history::History;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, EvictParams, Patch, PatchParams};
use rlt_api::FailureCause;
use rlt_api::status::ConditionType;
use rlt_cluster::{FakeNodes, Options, Shared};
use rlt_objects::labels;
use serde_json::json;
use test_namespace::TestNamespace;
use tokio::sync::{Mutex, MutexGuard};

static CLUSTER: Shared = Shared::new(|| Options::control_plane().with_fake_nodes(FakeNodes::new(4)));

/// One gang at a time: the nodes are all tests'.
static TURN: Mutex<()> = Mutex::const_new(());

const NUM_WORKERS: usize = 8;
/// Longest time that a test waits for the API server or the operator. Nothing trains here.
const TIMEOUT: Duration = Duration::from_secs(120);

struct Gang {
    test: TestNamespace,
    history: History,
    _operator: test_namespace::Operator,
    _turn: MutexGuard<'static, ()>,
}

impl Gang {
    /// A job of eight workers that run.
    async fn run(purpose: &str) -> Option<Self> {
        Self::run_with(purpose, json!({})).await
    }

    /// Runs a gang with a run policy, by an operator in the chart's roles.
    async fn run_with(purpose: &str, run_policy: serde_json::Value) -> Option<Self> {
        let cluster = CLUSTER.get()?;
        let turn = TURN.lock().await;
        let test = TestNamespace::on(cluster, purpose).await;
        let history = History::of(&test).await;
        let operator = test.operator_in_roles().await;
        let workers = json!({"count": NUM_WORKERS, "device": "Cpu"});
        test.post("gang", json!({"workers": workers, "runPolicy": run_policy})).await;
        let gang = Self { test, history, _operator: operator, _turn: turn };
        gang.runs_as(1).await;
        Some(gang)
    }

    /// Waits until all workers of an attempt run, and returns their pods.
    async fn runs_as(&self, attempt: u32) -> Vec<Pod> {
        let label = attempt.to_string();
        let is_of = |pod: &Pod| pod.labels()[labels::ATTEMPT] == label;
        let is_ready = |status: &rlt_api::status::RLTrainingJobStatus| {
            status.attempt == Some(attempt) && test_namespace::is_true(status, ConditionType::PodsReady)
        };
        self.test.when("gang", is_ready).await;
        self.test.when_pods("gang", |pods| pods.len() == NUM_WORKERS && pods.iter().all(is_of)).await
    }

    /// The node that a worker is made to leave because of this change.
    async fn is_evacuated(&self, changed: &ChangedNode) -> String {
        let begin = std::time::Instant::now();
        loop {
            let status = self.test.status("gang").await;
            if let Some(evacuation) = status.evacuation {
                return evacuation.node;
            }
            if begin.elapsed() > TIMEOUT {
                panic!("{:#?} is not left", changed.api.get(&changed.name).await.unwrap());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn annotate(&self, pod: &Pod, annotations: serde_json::Value) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.test.pods().patch(&pod.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }

    /// Lets all workers end well, and has the life judged.
    async fn completes(&self, pods: &[Pod]) {
        for pod in pods {
            self.annotate(pod, json!({"fake.rltraining.dev/exit-code": "0"})).await;
        }
        self.test.when_true("gang", ConditionType::Complete).await;
        self.history.check(&self.test, false).await;
    }
}

fn nodes_of(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect()
}

#[tokio::test]
async fn a_gang_whose_worker_crashed_starts_whole_on_other_nodes() {
    let Some(gang) = Gang::run("crash").await else { return };
    let pods = gang.runs_as(1).await;
    let node = pods[3].spec.as_ref().unwrap().node_name.clone().unwrap();
    gang.annotate(&pods[3], json!({"fake.rltraining.dev/exit-code": "139"})).await;
    let second = gang.runs_as(2).await;
    assert!(!nodes_of(&second).contains(&node), "{node} is avoided");
    let status = gang.test.status("gang").await;
    assert_eq!(status.failures_by_cause, [(FailureCause::Signalled, 1)].into());
    assert_eq!(status.failures_by_node, [(node, 1)].into());
    gang.completes(&second).await;
}

#[tokio::test]
async fn a_drained_worker_costs_no_retry() {
    let Some(gang) = Gang::run("drain").await else { return };
    let pods = gang.runs_as(1).await;
    gang.test.pods().evict(&pods[0].name_any(), &EvictParams::default()).await.unwrap();
    let second = gang.runs_as(2).await;
    let status = gang.test.status("gang").await;
    assert_eq!(status.failures_by_cause, [(FailureCause::Disrupted, 1)].into());
    assert!(status.failures_by_node.is_empty());
    gang.completes(&second).await;
}

#[tokio::test]
async fn a_gang_leaves_a_node_that_is_deleted() {
    let Some(gang) = Gang::run("deleted").await else { return };
    let nodes: Api<Node> = Api::all(gang.test.client.clone());
    let pods = gang.runs_as(1).await;
    let node = nodes_of(&pods).into_iter().next().unwrap();
    nodes.delete(&node, &DeleteParams::default()).await.unwrap();
    let second = gang.runs_as(2).await;
    assert!(!nodes_of(&second).contains(&node));
    assert_eq!(gang.test.status("gang").await.last_failure.unwrap().cause, FailureCause::NodeLost);
    gang.completes(&second).await;
}

/// A patch of a node that is taken back when the test ends.
struct ChangedNode {
    api: Api<Node>,
    name: String,
}

impl ChangedNode {
    async fn taint(gang: &Gang, name: &str, key: &str) -> Self {
        let api: Api<Node> = Api::all(gang.test.client.clone());
        let patch = json!({"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}});
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        Self { api, name: name.to_owned() }
    }

    async fn set_condition(gang: &Gang, name: &str, type_: &str) -> Self {
        let api: Api<Node> = Api::all(gang.test.client.clone());
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        let condition = json!({
            "type": type_, "status": "True", "reason": "Xid79", "message": "GPU has fallen off the bus",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        });
        let patch = json!({"status": {"conditions": [condition]}});
        api.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
        Self { api, name: name.to_owned() }
    }

    async fn restore(self) {
        let spec = json!({"spec": {"taints": null}});
        self.api.patch(&self.name, &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
        let gone = json!([{"type": "XIDErrors", "$patch": "delete"}]);
        let patch = json!({"status": {"conditions": gone}});
        self.api.patch_status(&self.name, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    }
}

#[tokio::test]
async fn a_gang_leaves_a_terminating_node_and_one_with_a_broken_gpu() {
    for (purpose, key, cause) in [
        ("spot", "aws-node-termination-handler/spot-itn", FailureCause::NodeTerminating),
        ("xid", "XIDErrors", FailureCause::NodeProblem),
    ] {
        let Some(gang) = Gang::run(purpose).await else { return };
        let pods = gang.runs_as(1).await;
        let node = nodes_of(&pods).into_iter().next().unwrap();
        let stays = |pod: &&Pod| pod.spec.as_ref().unwrap().node_name.as_ref() == Some(&node);
        // It saves a checkpoint until it is seen to leave.
        for pod in pods.iter().filter(stays) {
            gang.annotate(pod, json!({"fake.rltraining.dev/stop-after": "1h"})).await;
        }
        let changed = match cause {
            FailureCause::NodeProblem => ChangedNode::set_condition(&gang, &node, key).await,
            _ => ChangedNode::taint(&gang, &node, key).await,
        };
        assert_eq!(gang.is_evacuated(&changed).await, node);
        let at_once = DeleteParams::default().grace_period(0);
        for pod in pods.iter().filter(stays) {
            gang.test.pods().delete(&pod.name_any(), &at_once).await.unwrap();
        }
        let second = gang.runs_as(2).await;
        assert!(!nodes_of(&second).contains(&node), "{node} is avoided");
        let status = gang.test.status("gang").await;
        assert_eq!(status.failures_by_cause, [(cause, 1)].into(), "{purpose}");
        assert_eq!(status.failures_by_node, [(node, 1)].into(), "{purpose}");
        assert!(status.last_failure.unwrap().message.contains(key));
        gang.completes(&second).await;
        changed.restore().await;
    }
}

#[tokio::test]
async fn a_rule_of_the_job_decides_what_no_budget_would() {
    let rules = json!({"rules": [
        {"name": "licences", "action": "Ignore", "avoidNode": true, "onExitCodes": {"operator": "In", "values": [42]}},
        {"name": "leak", "action": "FailJob", "onReasons": ["OOMKilled"]},
    ]});
    let Some(gang) = Gang::run_with("rules", json!({"failurePolicy": rules})).await else { return };
    let pods = gang.runs_as(1).await;
    let node = pods[3].spec.as_ref().unwrap().node_name.clone().unwrap();
    gang.annotate(&pods[3], json!({"fake.rltraining.dev/exit-code": "42"})).await;
    let second = gang.runs_as(2).await;
    assert!(!nodes_of(&second).contains(&node), "{node} is avoided");
    let status = gang.test.status("gang").await;
    assert_eq!(status.last_failure.unwrap().rule.as_deref(), Some("licences: Ignore"));
    assert!(status.retries_used.is_empty());
    let killed =
        json!({"fake.rltraining.dev/exit-code": "137", "fake.rltraining.dev/exit-reason": "OOMKilled"});
    gang.annotate(&second[0], killed).await;
    let status = gang.test.when_true("gang", ConditionType::Failed).await;
    let failed = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Failed).unwrap();
    assert!(failed.message.contains("failurePolicy, leak: FailJob"), "{}", failed.message);
}
