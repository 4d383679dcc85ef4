//! `rlt-trainer worker`: one rank of a run, from the manifest's text to the process's exit code.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rlt_api::{ExitCode, ValidatedJob};

use crate::error::TrainError;
use crate::run_folder::RunFolder;
use crate::status_channel::StatusChannel;
use crate::stop::{Outcome, StopRequest};
use crate::train::train;
use crate::{report, setup};

/// Runs a manifest in this process.
#[derive(Args, Clone, Debug)]
pub struct WorkerArgs {
    /// The RLTrainingJob manifest; - for standard input
    #[arg(long, value_name = "FILE")]
    pub manifest: PathBuf,
    /// The run folder; by default `runs/<metadata.name>`.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Remove what an earlier run left in the folder and start afresh.
    #[arg(long)]
    pub overwrite: bool,
}

/// Trains to the end, or to a request to stop.
///
/// # Errors
/// [`TrainError`], which names its exit code.
pub fn run(args: &WorkerArgs) -> Result<ExitCode, TrainError> {
    let channel = Arc::new(StatusChannel::from_environment());
    let outcome = run_job(args, &channel);
    channel.finish(&outcome);
    outcome
}

fn run_job(args: &WorkerArgs, channel: &Arc<StatusChannel>) -> Result<ExitCode, TrainError> {
    let job = read_manifest(&args.manifest)?;
    let root = args.output.clone().unwrap_or_else(|| Path::new("runs").join(job.name()));
    let folder = RunFolder::open(&root, args.overwrite)?;
    folder.claim(&job.to_yaml()?, identity)?;
    if is_complete(&folder, &job) {
        return already_complete(&folder);
    }
    let deadline = job.spec().run_policy.active_deadline_seconds.map(Duration::from_secs);
    let stop = StopRequest::listen(deadline).map_err(|source| TrainError::Io {
        act: "listen for signals in",
        path: "this process".to_owned(),
        source,
    })?;
    let mut trainer = setup::setup(job, folder, stop)?;
    trainer.watch.tell(channel);
    Ok(match train(&mut trainer)? {
        Outcome::Complete => ExitCode::Success,
        Outcome::Stopped(_) => ExitCode::Preempted,
    })
}

fn read_manifest(path: &Path) -> Result<ValidatedJob, TrainError> {
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    let text = text.map_err(|source| TrainError::ReadManifest { path: path.to_owned(), source })?;
    rlt_api::validate(&text).map_err(TrainError::Manifest)
}

/// Parts of the manifest that may change between a run and its continuation: how long it goes on, what it leaves behind,
/// who watches, and on what it runs.
const CONTINUABLE: [&[&str]; 9] = [
    &["metadata"],
    &["spec", "training", "length"],
    &["spec", "training", "steps"],
    &["spec", "training", "epochs"],
    &["spec", "training", "evaluateEvery"],
    &["spec", "checkpoint"],
    &["spec", "tracking"],
    &["spec", "workers"],
    &["spec", "runPolicy"],
];

/// What must be the same for a run to be continued, as text.
fn identity(manifest: &str) -> String {
    let Ok(mut value) = serde_saphyr::from_str::<serde_json::Value>(manifest) else {
        return manifest.to_owned();
    };
    for path in CONTINUABLE {
        let (Some(last), parents) = (path.last(), &path[..path.len() - 1]) else { continue };
        let parent = parents.iter().try_fold(&mut value, |at, key| at.get_mut(key));
        if let Some(map) = parent.and_then(serde_json::Value::as_object_mut) {
            map.remove(*last);
        }
    }
    format!("{value:#}")
}

/// Whether an earlier process finished this very job.
fn is_complete(folder: &RunFolder, job: &ValidatedJob) -> bool {
    let Ok(text) = std::fs::read_to_string(folder.result()) else { return false };
    let Ok(result) = serde_json::from_str::<serde_json::Value>(&text) else { return false };
    let wanted = match job.spec().training.length {
        rlt_api::resolved::TrainingLength::Steps(steps) => Some(steps),
        rlt_api::resolved::TrainingLength::Epochs(_) => result["num_steps"].as_u64(),
    };
    result["outcome"] == "complete" && result["step"].as_u64() >= wanted
}

fn already_complete(folder: &RunFolder) -> Result<ExitCode, TrainError> {
    report::render(folder.root())?;
    tracing::info!(
        "this run is complete already: {} (start afresh with --overwrite)",
        folder.root().display()
    );
    Ok(ExitCode::Success)
}
