//! Resources that a pod gets because its job requests them: a Secret, scratch space, a runtime, devices by
//! name and by claim, a capability.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams};
use rlt_objects::build::PodSettings;
use rlt_objects::privileges::Privileges;
use serde_json::{Value, json};

use crate::TIMEOUT;
use crate::container::first_process;
use crate::device::offer;
use crate::test_namespace::TestNamespace;

const NAME: &str = "requested";
const DRIVER: &str = "nics.example.com";
/// The number of `CAP_IPC_LOCK` in Linux' `capability.h`.
const IPC_LOCK: u32 = 14;

/// A driver of devices that ends with the test.
struct Driver {
    process: Child,
    /// Folder in which the driver keeps a file for each claim that a pod holds.
    prepared: PathBuf,
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Driver {
    fn start(test: &TestNamespace) -> Self {
        let prepared = folder(test, "prepared");
        let mut command = test.cluster.device_driver(DRIVER, &prepared, &["nic-0"]);
        let process = command.stdin(Stdio::null()).spawn().unwrap();
        Self { process, prepared }
    }

    fn prepared(&self) -> Vec<String> {
        let files = fs::read_dir(&self.prepared).unwrap();
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// A folder that every user may write.
fn folder(test: &TestNamespace, name: &str) -> PathBuf {
    let path = test.cluster.folder().join(name);
    fs::create_dir_all(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    path
}

/// Objects that an administrator creates before a job can request them.
fn offered(scratch: &Path) -> [Value; 5] {
    let size = json!({ "storage": "1Gi" });
    let request = json!({ "name": "nic", "exactly": { "deviceClassName": DRIVER } });
    let is_its = format!("device.driver == '{DRIVER}'");
    [
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "license" }, "stringData": { "key": "1" } }),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "nvme" },
            "spec": {
                "hostPath": { "path": scratch }, "accessModes": ["ReadWriteOnce"], "capacity": size,
                "storageClassName": "nvme"
            }
        }),
        json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "plain" },
            "handler": "runc"
        }),
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": { "name": DRIVER },
            "spec": { "selectors": [{ "cel": { "expression": is_its } }] }
        }),
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": { "name": "nic" },
            "spec": { "spec": { "devices": { "requests": [request] } } }
        }),
    ]
}

#[tokio::test]
async fn requested_resources_reach_the_trainers_container() {
    let Some(cluster) = crate::CLUSTER.get() else { return };
    let test = TestNamespace::on(cluster, NAME).await;
    test.cluster.load_image(&rlt_tests::test_image("rlt-trainer")).unwrap();
    let privileges = Privileges {
        namespaces: vec![test.namespace.clone()],
        capabilities: vec!["IPC_LOCK".into()],
        ..Privileges::default()
    };
    let _operator = test.operator_in_roles_with(PodSettings { privileges, ..PodSettings::default() }).await;
    test.create(&offered(&folder(&test, "scratch")));
    offer(&test, "rdma/hca_shared").await;
    let driver = Driver::start(&test);
    let pod = json!({
        "runtimeClassName": "plain", "capabilities": ["IPC_LOCK"],
        "resourceClaims": [{ "name": "nic", "templateName": "nic" }],
        "volumes": [
            { "mountPath": "/license", "secret": "license" },
            { "mountPath": "/scratch", "ephemeral": { "size": "1Gi", "storageClassName": "nvme" } },
        ],
    });
    let resources = json!({ "extra": { "rdma/hca_shared": "1" } });
    let workers = json!({ "pod": pod, "resources": resources });
    test.post(NAME, json!({ "training": { "steps": 1_000_000 }, "workers": workers })).await;

    test.when(NAME, |status| status.ready.as_deref() == Some("1/1")).await;
    let worker = test.when_pods(NAME, |pods| !pods.is_empty()).await.remove(0);
    let (uid, spec) = (worker.uid().unwrap(), worker.spec.unwrap());
    assert_eq!(spec.runtime_class_name.as_deref(), Some("plain"));
    let of_trainer = |name: &str| fs::read_to_string(first_process(&uid).join(name)).unwrap();
    let mounts = of_trainer("mountinfo");
    let mount = |path: &str| mounts.lines().find(|line| line.split(' ').nth(4) == Some(path)).unwrap();
    assert!(mount("/license").split(' ').nth(5).unwrap().starts_with("ro"), "{mounts}");
    assert!(mount("/scratch").split(' ').nth(5).unwrap().starts_with("rw"), "{mounts}");
    assert_eq!(fs::read_to_string(first_process(&uid).join("root/license/key")).unwrap(), "1");
    let status = of_trainer("status");
    let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:\t")).unwrap();
    assert_eq!(u64::from_str_radix(bounding, 16).unwrap(), 1 << IPC_LOCK, "that one, and no other");

    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceClaim"));
    let claims: Api<DynamicObject> = Api::namespaced_with(test.client.clone(), &test.namespace, &kind);
    let claim = claims.list(&ListParams::default()).await.unwrap().items.remove(0);
    assert_eq!(driver.prepared(), [claim.name_any()]);
    let status = &claim.data["status"];
    assert_eq!(status["allocation"]["devices"]["results"][0]["device"], "nic-0", "{status}");
    assert_eq!(status["reservedFor"][0]["uid"], uid, "{status}");
    test.jobs().delete(NAME, &DeleteParams::default()).await.unwrap();
    let deleted = Instant::now();
    while !driver.prepared().is_empty() {
        assert!(deleted.elapsed() < TIMEOUT, "the device is still taken");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}
