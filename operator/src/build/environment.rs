//! The variables that all workers of a job share, in a file of its ConfigMap. What differs between workers or
//! attempts is the container's.

use std::collections::BTreeMap;

use rlt_channel::environment as channel;

use super::volumes::{STORAGE_FOLDER, job_file};
use super::{BuildInput, ChannelAccess};

/// The key of the variables, and their file's name: a JSON object of strings, as `rlt-trainer env` reads it.
pub(super) const KEY: &str = "environment.json";

/// Where the trainer leaves its last error, and Kubernetes reads it unless a container says otherwise.
const TERMINATION_MESSAGE_FILE: &str = "/dev/termination-log";

/// The variables by their names.
pub(super) fn shared(input: &BuildInput<'_>) -> BTreeMap<String, String> {
    let is_set = |name: &str| input.prepared.job.spec().workers.env.iter().any(|env| env.name == name);
    let defaults = defaults().into_iter().chain(input.settings.traces.iter().cloned());
    let mut variables: BTreeMap<_, _> = defaults.filter(|(name, _)| !is_set(name)).collect();
    variables.extend(of_ranks(input));
    variables.extend(of_job(input));
    variables.extend(input.settings.channel.iter().flat_map(of_channel));
    variables
}

/// The first rank of a worker.
pub(super) fn first_rank(input: &BuildInput<'_>, worker_idx: u32) -> u32 {
    let group = input.prepared.plan.worker_groups.first();
    worker_idx * group.map_or(1, |group| group.ranks_per_worker)
}

/// Those that a job may set itself.
fn defaults() -> [(String, String); 3] {
    [
        ("GOMP_SPINCOUNT".into(), "1000".into()),
        ("HF_HOME".into(), format!("{STORAGE_FOLDER}/hub")),
        ("HOME".into(), "/tmp".into()),
    ]
}

/// What torch's own launcher tells a rank, but for the rank.
fn of_ranks(input: &BuildInput<'_>) -> impl Iterator<Item = (String, String)> {
    let group = input.prepared.plan.worker_groups.first();
    let variables = group.and_then(|group| group.environment(0)).unwrap_or_default();
    let shared = variables.into_iter().filter(|variable| variable.name != channel::RANK);
    shared.map(|variable| (variable.name.to_owned(), variable.value))
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
