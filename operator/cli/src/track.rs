//! `rlctl track`: sends the files of a run to a tracker. The client of the tracker is in `rlt-tracking`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rlt_api::ExitCode;
use rlt_tracking::RunEnd;
use rlt_tracking::replay::{Destination, Naming, replay};

use crate::args::TrackArgs;

pub(crate) fn track(args: &TrackArgs) -> anyhow::Result<ExitCode> {
    let folder = run_folder(&args.run);
    let naming = Naming { project: args.project.clone(), run_name: args.name.clone() };
    for destination in &args.to {
        let replayed = replay(&folder, destination, &naming)
            .with_context(|| format!("send {} to {}", folder.display(), name(destination)))?;
        let end = match replayed.end {
            Some(RunEnd::Complete) => "complete",
            Some(RunEnd::Stopped) => "stopped",
            Some(RunEnd::Failed) => "failed",
            None => "running",
        };
        let (num_steps, place) = (replayed.num_steps, name(destination));
        writeln!(
            rlt_terminal::text(),
            "{place} has {num_steps} steps of {}, which is {end}",
            folder.display()
        )?;
    }
    Ok(ExitCode::Success)
}

fn name(destination: &Destination) -> String {
    match destination {
        Destination::Mlflow(url) | Destination::Trackio(url) => url.clone(),
        Destination::Wandb(folder) | Destination::TensorBoard(folder) => folder.display().to_string(),
    }
}

/// Returns the given folder, or the folder of this name below `runs`.
fn run_folder(run: &Path) -> PathBuf {
    let below = Path::new("runs").join(run);
    if !run.exists() && below.exists() { below } else { run.to_owned() }
}
