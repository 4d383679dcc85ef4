//! Jobs of other operators, as their manifests have them.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde_json::{Map, Value};

use super::fields::Target;
use super::ray::RayJob;
use super::shape::Shape;
use super::train::TrainJob;
use crate::ConvertError;
use crate::launch::Launch;

/// Kinds of jobs that are read, with their API versions.
const KINDS: [(&str, &dyn JobKind); 2] =
    [("ray.io/v1", &RayJob), ("trainer.kubeflow.org/v1alpha1", &TrainJob)];

/// Command of a job.
pub(super) enum JobCommand {
    /// Text that a shell runs.
    Script(String),
    /// Program and its arguments, in which the kubelet replaces variables.
    Words(Vec<String>),
}

/// Kind of a job of another operator: where its command, its variables and its pods are.
pub(super) trait JobKind: Debug + Sync {
    /// Returns the name of the kind.
    fn name(&self) -> &'static str;

    /// Returns the path of the field with the command.
    fn field(&self) -> &'static str;

    /// Returns advice on a job without a command, as the end of a sentence.
    fn hint(&self) -> &'static str;

    /// Whether all pods run the command, rather than one.
    fn runs_in_all_pods(&self) -> bool;

    /// Returns the command.
    fn command(&self, job: &ClusterJob) -> JobCommand;

    /// Returns the variables of the command.
    fn environment(&self, job: &ClusterJob) -> BTreeMap<String, String>;

    /// Returns the number of pods that train, and of GPUs or processes of each.
    fn shape(&self, job: &ClusterJob) -> Shape;

    /// Replaces what the arguments of a launch mean only in the pods of the job.
    fn translate(&self, job: &ClusterJob, launch: &mut Launch);

    /// Converts the fields of the job but for its command.
    fn convert(&self, job: &ClusterJob, launch: &Launch, target: &mut Target<'_>)
    -> Result<(), ConvertError>;
}

/// A job of another operator, as its manifest has it.
#[derive(Clone, Debug)]
pub struct ClusterJob {
    pub(super) kind: &'static dyn JobKind,
    pub(super) metadata: Map<String, Value>,
    pub(super) spec: Map<String, Value>,
}

impl ClusterJob {
    /// Returns the job that a document is, if its kind is read.
    pub(super) fn of(document: &Value) -> Option<Self> {
        let is_kind = |(version, kind): &&(&str, &dyn JobKind)| {
            document["apiVersion"] == *version && document["kind"] == kind.name()
        };
        let (_, kind) = KINDS.iter().find(is_kind)?;
        let map = |field: &str| document[field].as_object().cloned().unwrap_or_default();
        Some(Self { kind: *kind, metadata: map("metadata"), spec: map("spec") })
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
