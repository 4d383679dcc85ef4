//! Jobs of other operators, as their manifests have them.

use serde_json::{Map, Value};

/// Kind of a job of another operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Job of KubeRay, whose command runs in a Ray cluster.
    RayJob,
    /// Job of Kubeflow Trainer, whose pods all run its command.
    TrainJob,
}

impl Kind {
    fn of(version: &str, kind: &str) -> Option<Self> {
        match (version, kind) {
            ("ray.io/v1", "RayJob") => Some(Self::RayJob),
            ("trainer.kubeflow.org/v1alpha1", "TrainJob") => Some(Self::TrainJob),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::RayJob => "RayJob",
            Self::TrainJob => "TrainJob",
        }
    }
}

/// A job of another operator, as its manifest has it.
#[derive(Clone, Debug)]
pub struct ClusterJob {
    pub(super) kind: Kind,
    pub(super) metadata: Map<String, Value>,
    pub(super) spec: Map<String, Value>,
}

impl ClusterJob {
    /// Returns the job that a document is, if its kind is read.
    pub(super) fn of(document: &Value) -> Option<Self> {
        let kind = Kind::of(document["apiVersion"].as_str()?, document["kind"].as_str()?)?;
        let map = |field: &str| document[field].as_object().cloned().unwrap_or_default();
        Some(Self { kind, metadata: map("metadata"), spec: map("spec") })
    }

    /// Returns the kind of the job.
    pub fn kind_name(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns the name of the job, or the beginning of the names that the cluster makes for it.
    pub fn name(&self) -> Option<&str> {
        let text = |field: &str| self.metadata.get(field).and_then(Value::as_str);
        text("name").or_else(|| text("generateName"))
    }
}
