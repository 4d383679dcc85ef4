//! Environment variables that all workers of a group share, in a file of the job's ConfigMap. Variables that
//! differ between workers or attempts are set on the container.

use std::collections::BTreeMap;

use rlt_channel::environment as channel;
use rlt_plan::{SPARE_GROUP, WorkerGroup};

use super::volumes::{STORAGE_FOLDER, job_file};
use super::{BuildInput, ChannelAccess};

/// Key of a group's variables in the ConfigMap, and name of their file: a JSON object of strings, as
/// `rlt-trainer env` reads it.
pub(super) fn key(input: &BuildInput<'_>, group: &WorkerGroup) -> String {
    match input.is_first(group) {
        true => "environment.json".to_owned(),
        false => format!("environment-{}.json", group.name),
    }
}

/// File in which the trainer writes its last error, the default of Kubernetes' `terminationMessagePath`.
const TERMINATION_MESSAGE_FILE: &str = "/dev/termination-log";

/// Returns the variables of a group by name.
pub(super) fn shared(input: &BuildInput<'_>, group: &WorkerGroup) -> BTreeMap<String, String> {
    let is_set = |name: &str| input.prepared.job.spec().workers.env.iter().any(|env| env.name == name);
    let defaults = defaults().into_iter().chain(input.settings.traces.iter().cloned());
    let mut variables: BTreeMap<_, _> = defaults.filter(|(name, _)| !is_set(name)).collect();
    variables.extend(of_ranks(group));
    variables.extend(of_launcher(input, group));
    variables.extend(of_job(input));
    variables.extend(input.settings.channel.iter().flat_map(of_channel));
    variables
}

/// Returns the defaults of variables that a job may override.
fn defaults() -> [(String, String); 3] {
    [
        ("GOMP_SPINCOUNT".into(), "1000".into()),
        ("HF_HOME".into(), format!("{STORAGE_FOLDER}/hub")),
        ("HOME".into(), "/tmp".into()),
    ]
}

/// Returns the variables that torchrun would set for a rank, except the rank itself.
fn of_ranks(group: &WorkerGroup) -> impl Iterator<Item = (String, String)> + use<> {
    let variables = group.environment(0).unwrap_or_default();
    let shared = variables.into_iter().filter(|variable| variable.name != channel::RANK);
    shared.map(|variable| (variable.name.to_owned(), variable.value))
}

/// Returns the variable that makes the launcher poll for another attempt; `None` in a job without spares.
fn of_launcher(input: &BuildInput<'_>, group: &WorkerGroup) -> Option<(String, String)> {
    let follows = if group.is_spare() { channel::FOLLOWS_SPARE } else { channel::FOLLOWS_RANKS };
    input.prepared.group(SPARE_GROUP)?;
    Some((channel::FOLLOW.to_owned(), follows.to_owned()))
}

fn of_job(input: &BuildInput<'_>) -> [(String, String); 4] {
    let job = input.job;
    [
        (rlt_api::TERMINATION_MESSAGE_VARIABLE.into(), TERMINATION_MESSAGE_FILE.into()),
        (channel::JOB_UID.into(), job.uid().into()),
        (channel::JOB_NAMESPACE.into(), job.namespace().into()),
        (channel::JOB_NAME.into(), job.name().into()),
    ]
}

fn of_channel(access: &ChannelAccess) -> [(String, String); 3] {
    [
        (channel::ADDRESS.into(), access.address.clone()),
        (channel::CA_FILE.into(), job_file(channel::CA_KEY)),
        (channel::TOKEN_FILE.into(), job_file(channel::TOKEN_KEY)),
    ]
}
