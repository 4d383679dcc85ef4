//! `rlctl run`: validates a manifest and replaces itself with the trainer's launcher (exec).
//!
//! rlctl does not start a child process: signals, terminal and exit code are the trainer's own, and no parent
//! process can die before the trainer.

use std::env;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use rlt_api::{ExitCode, ValidatedJob};

use crate::args::{DataArgs, ExportArgs, RunArgs};
use crate::manifest;

const TRAINER: &str = "rlt-trainer";

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let path = args.manifest.path();
    let (job, text) = match manifest::load_with_text(path) {
        Ok(loaded) => loaded,
        Err(error) => return manifest::report(error),
    };
    note_cluster_only_fields(&job);
    let trainer = find_trainer(args.trainer.as_deref())?;
    let output = args.output.clone().unwrap_or_else(|| Path::new("runs").join(job.name()));
    let mut command = Command::new(&trainer);
    command.arg("launch").arg("--manifest").arg(path).arg("--output").arg(output);
    if path == Path::new(manifest::STANDARD_INPUT) {
        command.stdin(readable(&text).context("hand the manifest from standard input on to the trainer")?);
    }
    if args.overwrite {
        command.arg("--overwrite");
    }
    command.args(args.send_env.iter().flat_map(|name| ["--send-env", name.as_str()]));
    // The OpenMP runtime reads this before the trainer's first line. By default its idle threads spin, which
    // slows every operation tenfold as soon as another process, or a container's CPU limit, wants the same
    // cores.
    if env::var_os("GOMP_SPINCOUNT").is_none() && env::var_os("OMP_WAIT_POLICY").is_none() {
        command.env("GOMP_SPINCOUNT", "1000");
    }
    Err(command.exec()).with_context(|| format!("start {}", trainer.display()))
}

/// Replaces this process with the trainer's `data` command.
pub(crate) fn show_data(args: &DataArgs) -> anyhow::Result<ExitCode> {
    let path = args.manifest.path();
    let text = match manifest::load_with_text(path) {
        Ok((_, text)) => text,
        Err(error) => return manifest::report(error),
    };
    let trainer = find_trainer(args.trainer.as_deref())?;
    let mut command = Command::new(&trainer);
    command.arg("data").arg("--manifest").arg(path).args(["--rows", &args.rows.to_string()]);
    if path == Path::new(manifest::STANDARD_INPUT) {
        command.stdin(readable(&text).context("hand the manifest from standard input on to the trainer")?);
    }
    if args.held_out {
        command.arg("--held-out");
    }
    Err(command.exec()).with_context(|| format!("start {}", trainer.display()))
}

/// Replaces this process with the trainer's `export` command.
pub(crate) fn export(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let trainer = find_trainer(args.trainer.as_deref())?;
    let mut command = Command::new(&trainer);
    command.arg("export").arg(&args.run).args(args.handed_on());
    Err(command.exec()).with_context(|| format!("start {}", trainer.display()))
}

/// Makes an unnamed file that contains `text`, positioned at its beginning.
fn readable(text: &str) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Notes the fields of a manifest that have no effect in a local run, so that none is ignored silently.
fn note_cluster_only_fields(job: &ValidatedJob) {
    let fields = job.cluster_only_fields();
    if !fields.is_empty() {
        let _ = writeln!(
            rlt_terminal::messages(),
            "note: without effect here, on a cluster only: {}",
            fields.join(", ")
        );
    }
}

/// Returns the given trainer, else the one next to this binary, else the first one on `PATH`.
pub(crate) fn find_trainer(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        anyhow::ensure!(named.is_file(), "find the trainer: {} is not a file", named.display());
        return Ok(named.to_owned());
    }
    let beside = env::current_exe().ok().and_then(|own| Some(own.parent()?.join(TRAINER)));
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|folder| folder.join(TRAINER));
    beside.iter().cloned().chain(on_path).find(|candidate| candidate.is_file()).with_context(|| {
        let beside = beside.map(|beside| beside.display().to_string()).unwrap_or_default();
        format!(
            "find the trainer: no {beside} and no {TRAINER} on PATH; name one with --trainer or RLT_TRAINER"
        )
    })
}
