//! Trait of the readers of jobs, one for each kind, so that no other code depends on the kind.

use std::collections::BTreeMap;

use super::fields::Target;
use super::job::ClusterJob;
use super::shape::Shape;
use crate::ConvertError;
use crate::launch::Launch;

/// Command of a job.
pub(super) enum JobCommand {
    /// Text that a shell runs.
    Script(String),
    /// Program and its arguments, in which the kubelet replaces variables.
    Words(Vec<String>),
}

/// Reader of the jobs of one kind, which finds their command, their variables and their pods.
pub(super) trait JobReader {
    /// Returns the path of the field with the command.
    fn field(&self) -> &'static str;

    /// Returns advice on a job without a command, as the end of a sentence.
    fn hint(&self) -> &'static str;

    /// Whether all pods run the command; otherwise one of them does.
    fn runs_in_all_pods(&self) -> bool;

    /// Returns the command.
    fn command(&self, job: &ClusterJob) -> JobCommand;

    /// Returns the variables of the command.
    fn environment(&self, job: &ClusterJob) -> BTreeMap<String, String>;

    /// Returns the number of pods that train, and the number of GPUs or processes of each.
    fn shape(&self, job: &ClusterJob) -> Shape;

    /// Replaces arguments of a launch that have a meaning only in the pods of the job.
    fn translate(&self, job: &ClusterJob, launch: &mut Launch);

    /// Converts the fields of the job, except for its command.
    fn convert(&self, job: &ClusterJob, launch: &Launch, target: &mut Target<'_>)
    -> Result<(), ConvertError>;
}
