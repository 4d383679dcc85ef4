//! A job that requests GPUs, in a pod of a real node with an emulated driver: it waits for a GPU, and then
//! trains on it until it completes.

use std::fs;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams};
use rlt_api::status::ConditionType;
use rlt_devices::StandIn;
use serde_json::{Value, json};

use crate::TIMEOUT;
use crate::folder::Folder;
use crate::test_namespace::TestNamespace;

const NAME: &str = "on-device";
const GPU: &str = "nvidia.com/gpu";
/// Folder of a pod at which the volume with run folders is mounted.
const STORAGE: &str = "/storage";
/// The folder in it that has the driver.
const DRIVER: &str = "driver";

/// Copies the emulated libraries into the volume, as NVIDIA's container runtime mounts the node's driver into
/// a container; returns the variables by which a pod finds them there. Our kernels are looked for beside
/// them.
fn driver(folder: &Folder) -> Value {
    let (from, to) = (StandIn::build().unwrap(), folder.path().join(DRIVER));
    fs::create_dir_all(&to).unwrap();
    let entries = fs::read_dir(from.folder()).unwrap().map(|entry| entry.unwrap().path());
    for file in entries.filter(|path| path.is_file()) {
        fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
    json!([{ "name": "LD_LIBRARY_PATH", "value": format!("{STORAGE}/{DRIVER}") }])
}

fn job(environment: &Value) -> Value {
    let mut job = rlt_tests::tiny_job();
    job["metadata"]["name"] = NAME.into();
    job["spec"]["workers"] = json!({
        "device": "Cuda", "threads": 1, "storage": { "claimName": "shared" }, "env": environment,
        "resources": { "cpu": "500m", "memory": "1Gi" }
    });
    job
}

/// Waits until the scheduler has said why a pod has no node; its words.
async fn unschedulable(test: &TestNamespace) -> String {
    let cause = |pod: &Pod| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|one| one.reason.as_deref() == Some("Unschedulable"))?.message.clone()
    };
    let pods = test.when_pods(NAME, |pods| pods.iter().any(|pod| cause(pod).is_some())).await;
    pods.iter().find_map(cause).unwrap()
}

/// Lets the node offer one of a resource, as a device plugin does.
pub(crate) async fn offer(test: &TestNamespace, resource: &str) {
    let nodes: Api<Node> = Api::all(test.client.clone());
    let node = nodes.list(&Default::default()).await.unwrap().items.remove(0).metadata.name.unwrap();
    let one = json!({ resource: "1" });
    let status = json!({ "status": { "capacity": one, "allocatable": one } });
    nodes.patch_status(&node, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

#[tokio::test]
async fn a_job_on_cuda_waits_for_a_gpu_and_trains_on_it_in_its_pod() {
    let Some(test) = crate::test_namespace("device").await else { return };
    let folder = Folder::shared(&test).await;
    let _operator = test.operator().await;
    let job = serde_json::from_value(job(&driver(&folder))).unwrap();
    test.jobs().create(&Default::default(), &job).await.unwrap();

    let cause = unschedulable(&test).await;
    assert!(cause.contains(&format!("Insufficient {GPU}")), "{cause}");
    let status = test.when(NAME, |status| status.resolved.is_some()).await;
    assert_eq!(status.resolved.unwrap().gpus_per_worker, 1, "said before it starts");
    offer(&test, GPU).await;

    let ends = test.when_true(NAME, ConditionType::Complete);
    let status = tokio::time::timeout(TIMEOUT, ends).await.unwrap();
    assert_eq!((status.attempt, status.failures_by_cause.len()), (Some(1), 0));
    let run = folder.path().join("runs").join(NAME);
    assert!(run.join("report.html").exists() && run.join("export/model.safetensors").exists());
    let checkpoints = fs::read_dir(run.join("checkpoints")).unwrap().count();
    assert!(checkpoints > 0, "no checkpoint came back");
    for step in folder.steps(&format!("runs/{NAME}")) {
        assert!(step["actor/grad_norm"].as_f64() > Some(0.0), "{step}");
    }
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let steps = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let on_device = steps.filter_map(|step| step["perf/max_memory_allocated_gb"].as_f64());
    assert_eq!(on_device.filter(|gib| *gib > 0.0).count(), 3, "each step took memory of the device");
}
