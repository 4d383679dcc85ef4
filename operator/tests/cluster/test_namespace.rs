//! The namespace of a test: one cluster for all tests of a file, a namespace and an operator for each, and
//! functions that play the kubelet.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::events::Reporter;
use kube::{Client, ResourceExt as _};
use rlt_api::status::{ConditionStatus, ConditionType, RLTrainingJobStatus};
use rlt_cluster::Cluster;
use rlt_objects::args::PullPolicy;
use rlt_objects::build::{PodSettings, Settings};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::node_signals::{
    ConditionSignals, DEFAULT_CONDITIONS, DEFAULT_TERMINATION_TAINTS, NodeSignals,
};
use rlt_operator::client::{CallRate, Limiter, MAX_IN_FLIGHT};
use rlt_operator::context::Context;
use rlt_operator::controller;
use rlt_operator::discovery::Discovery;
use rlt_operator::index::Index;
use rlt_operator::metrics::Metrics;
use rlt_operator::observe::NoReports;
use rlt_operator::permissions::{Reach, rules};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

// The limit of the tests that use this module: only some wait for trainings.
use super::TIMEOUT;

/// Address of every running pod.
pub(crate) const ADDRESS: &str = "10.7.8.9";

const RBAC: &str = "rbac.authorization.k8s.io/v1";

pub(crate) struct TestNamespace {
    pub(crate) cluster: &'static Cluster,
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl TestNamespace {
    /// A namespace of its own on a cluster that serves our kind.
    pub(crate) async fn on(cluster: &'static Cluster, purpose: &str) -> Self {
        install_definition(cluster);
        Self::without_definition(cluster, purpose).await
    }

    /// A namespace of its own on a cluster that knows nothing of our kind.
    pub(crate) async fn without_definition(cluster: &'static Cluster, purpose: &str) -> Self {
        let namespace = cluster.namespace(purpose).await.unwrap();
        Self { cluster, client: cluster.client().await.unwrap(), namespace }
    }

    pub(crate) fn jobs(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("rltraining.dev", "v1alpha1", "RLTrainingJob");
        Api::namespaced_with(self.client.clone(), &self.namespace, &ApiResource::from_gvk(&kind))
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The quickstart under another name, with changes to its specification.
    pub(crate) fn manifest(&self, name: &str, patch: &Value) -> DynamicObject {
        let example = include_str!("../../../examples/quickstart/job.yaml");
        let mut manifest: Value = serde_saphyr::from_str(example).unwrap();
        manifest["metadata"] = json!({"name": name, "namespace": self.namespace});
        merge(&mut manifest["spec"], patch);
        serde_json::from_value(manifest).unwrap()
    }

    pub(crate) async fn post(&self, name: &str, patch: Value) -> DynamicObject {
        self.jobs().create(&PostParams::default(), &self.manifest(name, &patch)).await.unwrap()
    }

    pub(crate) async fn patch_job(&self, name: &str, patch: Value) {
        let params = PatchParams::default();
        self.jobs().patch(name, &params, &Patch::Merge(json!({"spec": patch}))).await.unwrap();
    }

    pub(crate) async fn status(&self, name: &str) -> RLTrainingJobStatus {
        let api: Api<Job> = Api::namespaced(self.client.clone(), &self.namespace);
        api.get(name).await.unwrap().status.unwrap()
    }

    /// Waits until a job's status is as wished, and returns it.
    pub(crate) async fn when(
        &self,
        name: &str,
        wish: impl Fn(&RLTrainingJobStatus) -> bool,
    ) -> RLTrainingJobStatus {
        let begin = Instant::now();
        loop {
            let status = self.status(name).await;
            if wish(&status) {
                return status;
            }
            assert!(begin.elapsed() < TIMEOUT, "{status:#?}");
            pause(begin).await;
        }
    }

    /// Changes a field of a job's specification that no pod contains, and waits until an operator has
    /// reconciled the change. That reconcile used every event that the operator received before the call.
    pub(crate) async fn when_reconciled(&self, name: &str) -> RLTrainingJobStatus {
        let seconds = "/spec/runPolicy/terminationGracePeriodSeconds";
        let job = serde_json::to_value(self.jobs().get(name).await.unwrap()).unwrap();
        let seconds = job.pointer(seconds).and_then(Value::as_u64).unwrap_or(30) + 1;
        self.patch_job(name, json!({"runPolicy": {"terminationGracePeriodSeconds": seconds}})).await;
        let generation = self.jobs().get(name).await.unwrap().metadata.generation;
        self.when(name, |status| status.observed_generation == generation).await
    }

    pub(crate) async fn when_true(&self, name: &str, type_: ConditionType) -> RLTrainingJobStatus {
        self.when(name, |status| is_true(status, type_)).await
    }

    /// Waits until the pods of a job are as wished, and returns them.
    pub(crate) async fn when_pods(&self, name: &str, wish: impl Fn(&[Pod]) -> bool) -> Vec<Pod> {
        let of_job = ListParams::default().labels(&format!("{}={name}", labels::JOB_NAME));
        let begin = Instant::now();
        loop {
            let pods = self.pods().list(&of_job).await.unwrap().items;
            if wish(&pods) {
                return pods;
            }
            assert!(begin.elapsed() < TIMEOUT, "{pods:#?}");
            pause(begin).await;
        }
    }

    /// The pod of a job's only worker in this attempt.
    pub(crate) async fn worker(&self, name: &str, attempt: u32) -> Pod {
        let attempt = attempt.to_string();
        let is_it = |pod: &Pod| pod.labels()[labels::ATTEMPT] == attempt;
        self.when_pods(name, |pods| pods.iter().any(is_it)).await.into_iter().find(is_it).unwrap()
    }

    /// Plays the kubelet: the pod runs, and is ready.
    pub(crate) async fn run(&self, pod: &Pod) {
        self.set_status(pod, running()).await;
    }

    /// Plays the kubelet: the pod's process ends with this code and this last message.
    pub(crate) async fn end(&self, pod: &Pod, code: i32, message: &str) {
        self.set_status(pod, ended(code, message)).await;
    }

    pub(crate) async fn set_status(&self, pod: &Pod, status: Value) {
        let (name, patch) = (pod.name_any(), json!({"metadata": {"uid": pod.uid()}, "status": status}));
        // As a kubelet does: conditions of others, such as why a pod is evicted, stay.
        self.pods().patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
    }

    /// Starts an operator that works in this namespace alone.
    pub(crate) async fn operator(&self) -> Operator {
        Operator::start(self.client.clone(), &self.namespace)
    }

    /// Starts an operator that works in this namespace alone, with the chart's roles.
    pub(crate) async fn operator_in_roles(&self) -> Operator {
        self.operator_in_roles_with(PodSettings::default()).await
    }

    /// Starts [`Self::operator_in_roles`] with these settings for the pods of all jobs.
    pub(crate) async fn operator_in_roles_with(&self, pods: PodSettings) -> Operator {
        let (namespace, name) = (&self.namespace, "rl-operator");
        let client = self.cluster.client_of_service_account(namespace, name).await.unwrap();
        let role = |kind: &str, name: &str, reach: Reach| json!({"apiVersion": RBAC, "kind": kind, "metadata": {"name": name}, "rules": rules(reach)});
        let binding = |kind: &str, of: &str, role: &str| {
            let subject = json!({"kind": "ServiceAccount", "name": name, "namespace": namespace});
            json!({
                "apiVersion": RBAC, "kind": kind, "metadata": {"name": role}, "subjects": [subject],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": of, "name": role},
            })
        };
        self.create(&[
            role("Role", name, Reach::Watched),
            binding("RoleBinding", "Role", name),
            role("ClusterRole", namespace, Reach::Cluster),
            binding("ClusterRoleBinding", "ClusterRole", namespace),
        ]);
        let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
        let nodes: Api<Node> = Api::all(client.clone());
        // The API server's authorizer follows each kind of role and binding by a watch of its own.
        let all = ListParams::default();
        let may = async || jobs.list(&all).await.is_ok() && nodes.list(&all).await.is_ok();
        until("the roles count", may).await;
        Operator::start_with(client, vec![namespace.clone()], pods)
    }

    /// Makes objects, in this namespace where they belong to one.
    pub(crate) fn create(&self, objects: &[Value]) {
        let mut kubectl = self.cluster.kubectl();
        kubectl
            .args(["create", "-n", &self.namespace, "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut child = kubectl.spawn().unwrap();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        child.stdin.take().unwrap().write_all(list.to_string().as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }
}

/// The status of a running pod, as a kubelet writes it.
pub(crate) fn running() -> Value {
    json!({
        "phase": "Running",
        "podIP": ADDRESS,
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [container(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}))],
    })
}

/// The status of a pod that has exited with this code and termination message, as a kubelet writes it.
pub(crate) fn ended(code: i32, message: &str) -> Value {
    let now = k8s_openapi::jiff::Timestamp::now();
    let ended = json!({
        "exitCode": code, "message": message, "reason": if code == 0 { "Completed" } else { "Error" },
        "finishedAt": k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now),
    });
    json!({
        "phase": if code == 0 { "Succeeded" } else { "Failed" },
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [container(json!({"terminated": ended}))],
    })
}

pub(crate) fn container(state: Value) -> Value {
    json!({
        "name": "trainer", "image": "i", "imageID": "", "ready": state.get("running").is_some(), "restartCount": 0,
        "state": state,
    })
}

/// The status of a job that no operator has seen.
pub(crate) fn unseen() -> RLTrainingJobStatus {
    RLTrainingJobStatus { observed_generation: Some(-1), ..RLTrainingJobStatus::default() }
}

pub(crate) fn is_true(status: &RLTrainingJobStatus, type_: ConditionType) -> bool {
    reason(status, type_).is_some_and(|(holds, _)| holds == ConditionStatus::True)
}

pub(crate) fn reason(
    status: &RLTrainingJobStatus,
    type_: ConditionType,
) -> Option<(ConditionStatus, String)> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((condition.status, condition.reason.clone()))
}

pub(crate) fn merge(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (name, value) in patch {
                match value {
                    Value::Null => drop(base.remove(name)),
                    value => merge(base.entry(name.clone()).or_insert(json!({})), value),
                }
            }
        }
        (base, patch) => *base = patch.clone(),
    }
}

fn install_definition(cluster: &Cluster) {
    static INSTALLED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if installed.insert(cluster.name()) {
        let folders = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let mut manifests = folders.map(|folder| folder.join("crds/manifests/rltrainingjobs.yaml"));
        let manifest = manifests.find(|manifest| manifest.is_file()).unwrap();
        let applied = cluster.kubectl().args(["apply", "-f"]).arg(manifest).output().unwrap();
        assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
        let wait =
            ["wait", "--for=condition=Established", "crd/rltrainingjobs.rltraining.dev", "--timeout=120s"];
        // A definition that has no status at all yet is an error to kubectl.
        let is_there = || cluster.kubectl().args(wait).output().unwrap().status.success();
        let begin = Instant::now();
        while !is_there() {
            assert!(begin.elapsed() < TIMEOUT, "the definition is not served");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The node signals of an operator by default.
fn signals() -> NodeSignals {
    let conditions: ConditionSignals = DEFAULT_CONDITIONS.parse().unwrap();
    NodeSignals {
        conditions: conditions.0,
        termination_taints: DEFAULT_TERMINATION_TAINTS.split(',').map(str::to_owned).collect(),
        ..NodeSignals::default()
    }
}

/// Pauses before the next look at what a test has waited for since `begin`: for a tenth of that time, within
/// limits, because each look takes API server and client some milliseconds of a core.
pub(crate) async fn pause(begin: Instant) {
    let pause = (begin.elapsed() / 10).clamp(Duration::from_millis(10), Duration::from_millis(50));
    tokio::time::sleep(pause).await;
}

/// Polls until `holds` returns true; fails with `what` after [`TIMEOUT`].
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < TIMEOUT, "{what}");
        pause(begin).await;
    }
}

/// An operator in this process.
pub(crate) struct Operator {
    task: JoinHandle<()>,
    metrics: Metrics,
    stop: Option<oneshot::Sender<()>>,
    _leader: watch::Sender<bool>,
}

impl Operator {
    pub(crate) fn start(client: Client, namespace: &str) -> Self {
        Self::start_in(client, vec![namespace.to_owned()])
    }

    pub(crate) fn start_in(client: Client, namespaces: Vec<String>) -> Self {
        Self::start_with(client, namespaces, PodSettings::default())
    }

    /// An operator whose cluster says this of the pods of all jobs.
    pub(crate) fn start_with(client: Client, namespaces: Vec<String>, pods: PodSettings) -> Self {
        let (leader, leadership) = watch::channel(true);
        let (stop, stopped) = oneshot::channel();
        let context = Context {
            reporter: Reporter { controller: labels::OPERATOR.into(), instance: None },
            events: Default::default(),
            client,
            limiter: Limiter::new(CallRate::default(), MAX_IN_FLIGHT),
            settings: Settings {
                trainer_image: "rlt.local/rlt-trainer:test".into(),
                trainer_cuda_image: None,
                pull_policy: PullPolicy::Never,
                channel: None,
                traces: Vec::new(),
                pods,
            },
            index: std::sync::Arc::new(Index::new(signals())),
            discovery: std::sync::Arc::new(Discovery::new(Duration::from_millis(100))),
            prepared: Default::default(),
            written: Default::default(),
            reports: std::sync::Arc::new(NoReports),
            leadership,
            failures: Default::default(),
            metrics: Metrics::default(),
            synced: watch::Sender::new(false),
        };
        let metrics = context.metrics.clone();
        let task = tokio::spawn(async move {
            let stop = async move { drop(stopped.await) };
            controller::run(std::sync::Arc::new(context), &namespaces, 8, stop).await;
        });
        Self { task, metrics, stop: Some(stop), _leader: leader }
    }

    /// Returns the number of reconciles with this outcome, `done` or `failed`.
    pub(crate) fn num_reconciles(&self, outcome: &str) -> usize {
        let name = format!("rlt_operator_reconciles_total{{outcome=\"{outcome}\"}} ");
        let page = self.metrics.page();
        page.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
    }

    /// Annotates all jobs of the namespace twice, and waits each time until as many reconciles have ended.
    /// The reconciles of the second round began after the first annotation, and used every event received
    /// until then.
    pub(crate) async fn reconciles_all(&self, test: &TestNamespace) {
        let num_reconciles = || self.num_reconciles("done") + self.num_reconciles("failed");
        for _ in 0..2 {
            let (before, jobs) = (num_reconciles(), test.jobs().list(&ListParams::default()).await.unwrap());
            for job in &jobs {
                // Each version of a job has another one, so the annotation changes.
                let touched = json!({"metadata": {"annotations": {"touched": job.resource_version()}}});
                let touch = Patch::Merge(touched);
                test.jobs().patch(&job.name_any(), &PatchParams::default(), &touch).await.unwrap();
            }
            let wanted = before + jobs.items.len();
            until("all jobs are reconciled", async || num_reconciles() >= wanted).await;
        }
    }

    /// Reconciles all jobs of the namespace until a round makes no further call.
    pub(crate) async fn settles(&self, test: &TestNamespace, num_calls: impl Fn() -> usize) {
        let begin = Instant::now();
        loop {
            let before = num_calls();
            self.reconciles_all(test).await;
            if num_calls() == before {
                return;
            }
            assert!(begin.elapsed() < TIMEOUT, "every reconcile costs a call");
        }
    }

    /// Ends it between any two of its instructions.
    pub(crate) async fn kill(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Lets it finish active reconciles.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        (&mut self.task).await.unwrap();
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.task.abort();
    }
}
