//! The disk of a chaos run: a volume whose file system is filled and restored.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Api, Patch, PatchParams};
use rlt_tests::SmallDisk;
use serde_json::json;

use crate::folder::Folder;
use crate::test_namespace::TestNamespace;

/// Storage class of the disk's volume, and name of the volume.
pub(super) const CLASS: &str = "chaos";
/// Size of the disk; only what is written takes memory.
const SIZE: &str = "8g";

/// The mounted disk with the run folders.
pub(super) struct Disk {
    pub(super) folder: Folder,
    disk: SmallDisk,
}

impl Disk {
    /// Mounts the disk, and offers it as a volume that several pods may mount.
    pub(super) fn mount(test: &TestNamespace) -> Self {
        let path = test.cluster.folder().join("disk");
        let disk = SmallDisk::mount(&path, SIZE).unwrap();
        test.create(&[json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": CLASS },
            "spec": {
                "hostPath": { "path": path }, "accessModes": ["ReadWriteMany"],
                "capacity": { "storage": "1Gi" }, "storageClassName": CLASS,
                "persistentVolumeReclaimPolicy": "Retain"
            }
        })]);
        Self { folder: Folder::at(path), disk }
    }

    /// Leaves no free block.
    pub(super) fn fill(&self) {
        assert!(self.disk.fill(), "the size of the disk cannot be cut");
    }

    /// Restores the size of the disk.
    pub(super) fn free(&self) {
        assert!(self.disk.resize(SIZE), "the size of the disk cannot be restored");
    }
}

/// Gives the volume back whenever its claim is gone, as an administrator does who keeps the data; never ends.
pub(super) async fn give_back(client: kube::Client) {
    let volumes: Api<PersistentVolume> = Api::all(client);
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        // The API server may be down.
        let Ok(volume) = volumes.get(CLASS).await else { continue };
        let phase = volume.status.and_then(|status| status.phase);
        if phase.as_deref() == Some("Released") {
            let unclaimed = Patch::Merge(json!({ "spec": { "claimRef": null } }));
            let _ = volumes.patch(CLASS, &PatchParams::default(), &unclaimed).await;
        }
    }
}
