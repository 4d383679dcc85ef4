//! The disk of a chaos run: a file system in memory whose size is cut to what is used, and restored.

use std::fs;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::chart::succeed;
use crate::folder::Folder;
use crate::test_namespace::TestNamespace;

/// Storage class of the disk's volume, and name of the volume.
pub(super) const CLASS: &str = "chaos";
/// Size of the disk; only what is written takes memory.
const SIZE: &str = "8g";
/// Attempts to cut the size while the job writes.
const MAX_CUTS: usize = 1000;

/// The mounted disk with the run folders.
pub(super) struct Disk {
    pub(super) folder: Folder,
}

impl Disk {
    /// Mounts the disk, and offers it as a volume that several pods may mount.
    pub(super) fn mount(test: &TestNamespace) -> Self {
        let path = test.cluster.folder().join("disk");
        fs::create_dir_all(&path).unwrap();
        let size = format!("size={SIZE}");
        succeed(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path));
        test.create(&[json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": CLASS },
            "spec": {
                "hostPath": { "path": path }, "accessModes": ["ReadWriteMany"],
                "capacity": { "storage": "1Gi" }, "storageClassName": CLASS,
                "persistentVolumeReclaimPolicy": "Retain"
            }
        })]);
        Self { folder: Folder::at(path) }
    }

    /// Leaves no free block. The job writes meanwhile, so a size that was just read may be too small.
    pub(super) fn fill(&self) {
        let is_full = (0..MAX_CUTS).any(|_| self.resize(&self.used_bytes()));
        assert!(is_full, "the size of the disk cannot be cut");
    }

    /// Restores the size of the disk.
    pub(super) fn free(&self) {
        assert!(self.resize(SIZE), "the size of the disk cannot be restored");
    }

    fn resize(&self, size: &str) -> bool {
        let options = format!("remount,size={size}");
        let mut mount = Command::new("mount");
        mount.args(["-o", &options]).arg(self.folder.path());
        mount.output().unwrap().status.success()
    }

    fn used_bytes(&self) -> String {
        let mut df = Command::new("df");
        let output = succeed(df.args(["--output=used", "--block-size=1"]).arg(self.folder.path()));
        output.lines().nth(1).unwrap().trim().to_owned()
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
