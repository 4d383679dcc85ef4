//! A folder that pods and the test share, and the runs in it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::test_namespace::TestNamespace;

/// A folder of this machine that is also a volume of the namespace, as one on the network would be for many
/// machines.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) async fn shared(test: &TestNamespace) -> Self {
        let folder = Self::at(test.cluster.folder().join("shared"));
        let path = folder.path();
        let (modes, size) = (json!(["ReadWriteMany"]), json!({ "storage": "1Gi" }));
        let volume = json!({
            "metadata": { "name": test.namespace },
            "spec": { "hostPath": { "path": path }, "accessModes": modes, "capacity": size }
        });
        let claim = json!({
            "metadata": { "name": "shared" },
            "spec": {
                "volumeName": test.namespace, "storageClassName": "", "accessModes": modes,
                "resources": { "requests": size }
            }
        });
        let volumes: Api<PersistentVolume> = Api::all(test.client.clone());
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(test.client.clone(), &test.namespace);
        let (volume, claim) =
            (serde_json::from_value(volume).unwrap(), serde_json::from_value(claim).unwrap());
        volumes.create(&PostParams::default(), &volume).await.unwrap();
        claims.create(&PostParams::default(), &claim).await.unwrap();
        folder
    }

    /// A folder at this path that is not a volume yet.
    pub(crate) fn at(path: PathBuf) -> Self {
        // Pods run as an unprivileged user.
        for folder in [path.clone(), path.join("runs")] {
            fs::create_dir_all(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        }
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Runs a manifest on this machine to its end, as its author would on a laptop.
    pub(crate) fn run(&self, manifest: &Value, output: &str) {
        self.run_by(&["env"], manifest, output);
    }

    /// Runs a manifest to its end by a command that starts the program that it is given.
    pub(crate) fn run_by(&self, starter: &[&str], manifest: &Value, output: &str) {
        let job = self.0.join("job.json");
        fs::write(&job, manifest.to_string()).unwrap();
        let mut command = Command::new(starter[0]);
        command.args(&starter[1..]).arg(rlt_tests::fresh_binary("rlctl"));
        command.arg("run").arg(job).args(["--output", output]).current_dir(&self.0);
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }

    /// The lines of a run's metrics without values that differ between runs, and without values that are only
    /// measured at the end.
    pub(crate) fn steps(&self, output: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.0.join(output).join("metrics.jsonl")).unwrap_or_default();
        let mut lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let own = ["timing_s/", "perf/", "timestamp", "val-", "checkpoint/"];
        for line in &mut lines {
            line.as_object_mut()
                .unwrap()
                .retain(|name, _| !own.iter().any(|prefix| name.starts_with(prefix)));
        }
        lines.retain(|line| line["step"] != 0);
        lines
    }

    /// The step of a run's newest complete checkpoint; 0 without one.
    pub(crate) fn last_checkpoint(&self, output: &str) -> u64 {
        let folders = fs::read_dir(self.0.join(output).join("checkpoints")).into_iter().flatten().flatten();
        let complete = folders.map(|folder| folder.path()).filter(|path| path.join("manifest.json").exists());
        let step = |path: PathBuf| path.file_name()?.to_str()?.strip_prefix("step-")?.parse::<u64>().ok();
        complete.filter_map(step).max().unwrap_or(0)
    }

    pub(crate) fn adapter(&self, output: &str) -> Vec<u8> {
        fs::read(self.0.join(output).join("export/adapter/adapter_model.safetensors")).unwrap()
    }
}
