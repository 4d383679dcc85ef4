//! Hot spares on a real node, with the real trainer in pods and the operator's binary in the chart's roles: a
//! pod is killed, the spare takes its rank, the other pod stays, and the trained weights equal those of
//! undisturbed local ranks bit for bit.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use kube::ResourceExt as _;
use kube::api::PostParams;
use rlt_api::FailureCause;
use rlt_api::status::{ConditionType, RLTrainingJobStatus};
use rlt_cluster::{HeldPort, Options, Shared};
use rlt_objects::labels;
use serde_json::{Value, json};

#[path = "real_node/container.rs"]
mod container;
#[path = "real_node/folder.rs"]
#[expect(dead_code, reason = "nothing but metrics is compared here")]
mod folder;
#[path = "real_node/processes.rs"]
#[expect(dead_code, reason = "a container is killed here, and no single rank")]
mod processes;
#[path = "cluster/test_namespace.rs"]
#[expect(dead_code, reason = "kubelet and operator are processes of their own here")]
mod test_namespace;

use container::kill_container;
use folder::Folder;
use test_namespace::{TestNamespace, merge};

const NAME: &str = "supervised";
/// Longest time that a test waits for a training in pods, which takes seconds on a quiet machine.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Steps of the job until it is told its end; no machine trains as many.
const ENDLESS: u64 = 1_000_000;
/// Between two checkpoints.
const EVERY_STEPS: u64 = 3;
/// Steps after the job was suspended.
const LAST_STEPS: u64 = 3;

static CLUSTER: Shared =
    Shared::new(|| Options::control_plane().with_real_node().with_tool("buildah").with_tool("debootstrap"));

/// A process that ends with the test, and the port of its channel.
struct Running {
    operator: Child,
    _channel_port: HeldPort,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.operator.kill();
        let _ = self.operator.wait();
    }
}

/// The supervised example on two ranks of one thread each, so that sums have one order.
fn supervised(num_steps: u64) -> Value {
    let mut manifest: Value = serde_saphyr::from_str(include_str!("../../examples/sft/job.yaml")).unwrap();
    let changes = json!({
        "training": { "steps": num_steps, "evaluateEvery": 0, "schedule": { "warmupSteps": 1 } },
        "data": { "task": { "numHeldOut": 8 } },
        "checkpoint": { "everySteps": EVERY_STEPS },
        "workers": {
            "count": 2, "spares": 1, "threads": 1, "device": "Cpu", "storage": { "claimName": "shared" }
        },
    });
    merge(&mut manifest["spec"], &changes);
    manifest["metadata"]["name"] = NAME.into();
    manifest
}

/// The operator as the Deployment starts it, but on this machine, with its channel where pods reach it, and
/// alone, so that it needs no Lease.
async fn operator(test: &TestNamespace) -> Running {
    let bundle = test.cluster.kubectl().args(["apply", "-k"]).arg(root().join("charts/kustomize")).output();
    assert!(bundle.unwrap().status.success());
    let kubeconfig = test.cluster.kubeconfig_of_service_account("rl-operator", "rl-operator").await.unwrap();
    let host = test.cluster.host_address();
    let port = HeldPort::on([0, 0, 0, 0]).unwrap();
    let started = Command::new(env!("CARGO_BIN_EXE_rlt-operator"))
        .args(["--listen=127.0.0.1:0", "--trainer-image-pull-policy=Never"])
        .args([format!("--channel-listen=0.0.0.0:{}", port.number()), format!("--channel-host={host}")])
        .env("KUBECONFIG", kubeconfig)
        .env("POD_NAMESPACE", "rl-operator")
        .env("POD_IP", host.to_string())
        .env("RLT_TRAINER_IMAGE", "rlt.local/rlt-trainer:test")
        .spawn();
    Running { operator: started.unwrap(), _channel_port: port }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Whether a spare waits, and the job would not begin again.
fn is_prepared(status: &RLTrainingJobStatus) -> bool {
    let mut groups = status.worker_groups.iter();
    groups.any(|group| group.name == "spare" && group.ready == 1) && !status.checkpoints.is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spare_and_the_pods_that_stay_train_what_undisturbed_ranks_of_one_machine_do() {
    let Some(cluster) = CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, "spares").await;
    test.cluster.load_image(&rlt_tests::test_image("rlt-trainer")).unwrap();
    let folder = Folder::shared(&test).await;
    let output = format!("runs/{NAME}");
    let last_step = || folder.steps(&output).last().and_then(|line| line["step"].as_u64()).unwrap_or(0);
    let _operator = operator(&test).await;
    let job = serde_json::from_value(supervised(ENDLESS)).unwrap();
    test.jobs().create(&PostParams::default(), &job).await.unwrap();

    test.when(NAME, is_prepared).await;
    let before = test.pods().get("supervised-trainer-0").await.unwrap();
    let (killed, killed_after) = (Instant::now(), last_step() + 1);
    kill_container(&test.pods().get("supervised-trainer-1").await.unwrap().uid().unwrap());
    let status = test.when(NAME, |status| status.attempt == Some(2)).await;
    assert!(status.attempt_in_place, "{status:#?}");
    let step = |status: &RLTrainingJobStatus| status.progress.as_ref().map_or(0, |progress| progress.step);
    test.when(NAME, |status| step(status) > killed_after).await;
    println!("a later step is reported {:.1} s after the kill", killed.elapsed().as_secs_f64());

    let status = test.status(NAME).await;
    assert_eq!((status.attempt, status.ready.as_deref()), (Some(2), Some("2/2")), "{status:#?}");
    let promoted = &status.promoted_spares[0];
    assert_eq!((promoted.worker, &*promoted.pod), (1, "supervised-spare-0"));
    let after = test.pods().get("supervised-trainer-0").await.unwrap();
    assert_eq!(after.uid(), before.uid(), "the same pod");
    let containers = after.status.unwrap().container_statuses.unwrap();
    assert_eq!(containers[0].restart_count, 0, "and the same container");
    let spare = test.pods().get("supervised-spare-0").await.unwrap();
    assert_eq!(
        (&*spare.labels()[labels::WORKER_GROUP], &*spare.labels()[labels::WORKER_IDX]),
        ("trainer", "1")
    );

    test.patch_job(NAME, json!({ "runPolicy": { "suspend": true } })).await;
    test.when_true(NAME, ConditionType::Suspended).await;
    test.when_pods(NAME, <[_]>::is_empty).await;
    let num_steps = last_step() + LAST_STEPS;
    let rest = json!({ "training": { "steps": num_steps }, "runPolicy": { "suspend": false } });
    test.patch_job(NAME, rest).await;
    let status = test.when_true(NAME, ConditionType::Complete).await;
    assert_eq!(status.failures_by_cause, [(FailureCause::Signalled, 1)].into());

    folder.run(&supervised(num_steps), "runs/here");
    let (disturbed, undisturbed) = (folder.steps(&output), folder.steps("runs/here"));
    let steps: Vec<u64> = disturbed.iter().filter_map(|line| line["step"].as_u64()).collect();
    assert_eq!(steps, (1..=num_steps).collect::<Vec<_>>(), "every step once");
    assert_eq!(disturbed, undisturbed);
    assert!(disturbed.iter().any(|line| line["actor/grad_norm"].as_f64() > Some(0.0)));
}
