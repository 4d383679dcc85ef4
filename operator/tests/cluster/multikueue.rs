//! A job that MultiKueue runs in another cluster: two clusters, each with a real Kueue and an operator in the
//! chart's roles.

use crate::history::History;
use crate::queue::{holds, kueue};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use rlt_api::status::ConditionType;
use rlt_cluster::{FakeNodes, Options, Shared};
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use crate::test_namespace::{TestNamespace, is_true, pause, until};

/// The manager cluster, to which users post jobs. It has no node.
static LOCAL: Shared = Shared::new(|| {
    Options::control_plane().without_scheduler().with_multikueue("RLTrainingJob.v1alpha1.rltraining.dev")
});

/// Worker cluster, in which the jobs run.
static REMOTE: Shared =
    Shared::new(|| Options::control_plane().with_kueue().with_fake_nodes(FakeNodes::new(1)));

/// A queue `team` of four cores.
fn queue(strategy: &Value) -> Vec<Value> {
    let quota = json!([{"name": "cpu", "nominalQuota": "4"}]);
    let groups = json!([{"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": quota}]}]);
    let mut spec = json!({"namespaceSelector": {}, "resourceGroups": groups});
    spec["admissionChecksStrategy"] = strategy.clone();
    vec![
        kueue("ResourceFlavor", "any", json!({})),
        kueue("ClusterQueue", "all", spec),
        kueue("LocalQueue", "team", json!({"clusterQueue": "all"})),
    ]
}

/// The objects that dispatch jobs of this cluster to the other one.
fn dispatching() -> Vec<Value> {
    let config = json!({"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "all"});
    let check = json!({"controllerName": "kueue.x-k8s.io/multikueue", "parameters": config});
    let source = json!({"kubeConfig": {"locationType": "Secret", "location": "worker"}});
    let mut objects = vec![
        kueue("MultiKueueCluster", "worker", json!({"clusterSource": source})),
        kueue("MultiKueueConfig", "all", json!({"clusters": ["worker"]})),
        kueue("AdmissionCheck", "elsewhere", check),
    ];
    objects.extend(queue(&json!({"admissionChecks": [{"name": "elsewhere"}]})));
    objects
}

/// Clusters reach the host and not each other: the test passes their bytes on. The way from the local
/// cluster to the remote API server, as a kubeconfig.
async fn way_to(remote: &TestNamespace, local: &TestNamespace) -> Value {
    let text = std::fs::read_to_string(remote.cluster.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&text).unwrap();
    let server = kubeconfig["clusters"][0]["cluster"]["server"].as_str().unwrap().to_owned();
    let upstream = server.strip_prefix("https://").unwrap().to_owned();
    let listener = TcpListener::bind((local.cluster.host_address(), 0)).await.unwrap();
    let cluster = &mut kubeconfig["clusters"][0]["cluster"];
    cluster["server"] = format!("https://{}", listener.local_addr().unwrap()).into();
    cluster["tls-server-name"] = remote.cluster.node_address().to_string().into();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let upstream = upstream.clone();
            tokio::spawn(async move {
                let mut far = TcpStream::connect(upstream).await.unwrap();
                // The next caller reopens a broken connection.
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    kubeconfig
}

/// A namespace of one name in both clusters.
async fn stages() -> Option<(TestNamespace, TestNamespace)> {
    let (local, remote) = (LOCAL.get()?, REMOTE.get()?);
    let local = TestNamespace::on(local, "dispatched").await;
    let remote =
        TestNamespace { namespace: local.namespace.clone(), ..TestNamespace::on(remote, "unused").await };
    let namespaces: Api<Namespace> = Api::all(remote.client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": remote.namespace}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    Some((local, remote))
}

impl TestNamespace {
    async fn when_there(&self, job: &str) -> DynamicObject {
        let begin = std::time::Instant::now();
        loop {
            if let Some(found) = self.jobs().get_opt(job).await.unwrap() {
                return found;
            }
            if begin.elapsed() > crate::TIMEOUT {
                panic!("{:#?}", self.workloads().list(&ListParams::default()).await.unwrap().items);
            }
            pause(begin).await;
        }
    }

    /// Posts a job of two workers that runs in the other cluster.
    async fn post_away(&self, name: &str, run_policy: Value) {
        let workers = json!({"count": 2, "device": "Cpu", "resources": {"cpu": "2"}});
        let managed_by = "kueue.x-k8s.io/multikueue";
        let spec = json!({"managedBy": managed_by, "workers": workers, "runPolicy": run_policy});
        let mut job = self.manifest(name, &spec);
        job.labels_mut().insert("kueue.x-k8s.io/queue-name".into(), "team".into());
        self.jobs().create(&PostParams::default(), &job).await.unwrap();
    }

    /// Lets all workers of a job end well.
    async fn end_all(&self, job: &str) {
        let ended =
            Patch::Merge(json!({"metadata": {"annotations": {"fake.rltraining.dev/exit-code": "0"}}}));
        for pod in self.when_pods(job, |_| true).await {
            self.pods().patch(&pod.name_any(), &PatchParams::default(), &ended).await.unwrap();
        }
    }

    /// How many objects of jobs, other than Workloads, are in the namespace.
    async fn num_children(&self) -> usize {
        let ours = ListParams::default().labels(&rlt_objects::labels::own_objects());
        let (client, namespace) = (self.client.clone(), &self.namespace);
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
        pods.list(&ours).await.unwrap().items.len()
            + accounts.list(&ours).await.unwrap().items.len()
            + maps.list(&ours).await.unwrap().items.len()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_another_cluster_has_a_status_that_only_multikueue_writes() {
    let Some((local, remote)) = stages().await else { return };
    remote.create(&queue(&Value::Null));
    let kubeconfig = way_to(&remote, &local).await.to_string();
    let secret = json!({"metadata": {"name": "worker"}, "stringData": {"kubeconfig": kubeconfig}});
    let secrets: Api<Secret> = Api::namespaced(local.client.clone(), "kueue-system");
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    local.create(&dispatching());
    let (here, _there) = (local.operator_in_roles().await, remote.operator_in_roles().await);
    local.post_away("away", json!({})).await;
    // It runs there, from the Workload that MultiKueue created, and only its Workload is here.
    let copy = remote.when_there("away").await;
    remote.when_true("away", ConditionType::PodsReady).await;
    assert_eq!(copy.data["spec"].get("managedBy"), None);
    let prebuilt = &copy.labels()["kueue.x-k8s.io/prebuilt-workload-name"];
    let workload = remote.workload("away", |workload| holds(workload, "PodsReady")).await;
    assert_eq!((&workload.name_any(), workload.owner_references().len()), (prebuilt, 1));
    assert_eq!(local.num_children().await, 0);
    // The remote status is copied, and a change here causes no other status write.
    local.when_true("away", ConditionType::PodsReady).await;
    let touched = Patch::Merge(json!({"metadata": {"labels": {"team": "a"}}}));
    local.jobs().patch("away", &PatchParams::default(), &touched).await.unwrap();
    here.reconciles_all(&local).await;
    // MultiKueue copies a later status of the other cluster a moment later.
    let is_copied = async || local.status("away").await == remote.status("away").await;
    until("the status is not the one of the other cluster", is_copied).await;
    assert_eq!(local.num_children().await, 0);
    // It ends there; here its status and the Workload's say so, and there nothing is left.
    remote.end_all("away").await;
    local.when_true("away", ConditionType::Complete).await;
    local.workload("away", |workload| holds(workload, "Finished")).await;
    remote.when_gone("away").await;
    remote.when_pods("away", <[_]>::is_empty).await;
    assert!(is_true(&local.status("away").await, ConditionType::Complete));
    a_job_without_time_to_live_is_deleted_once_its_last_status_is_copied(&local, &remote).await;
}

async fn a_job_without_time_to_live_is_deleted_once_its_last_status_is_copied(
    local: &TestNamespace,
    remote: &TestNamespace,
) {
    let (history, copies) = (History::of(local).await, History::of(remote).await);
    local.post_away("brief", json!({"ttlSecondsAfterFinished": 0})).await;
    copies.when("brief", |status| is_true(status, ConditionType::PodsReady)).await;
    remote.end_all("brief").await;
    history.when("brief", |status| is_true(status, ConditionType::Complete)).await;
    local.when_gone("brief").await;
    remote.when_gone("brief").await;
}
