//! The command line of the trainer: parses arguments, runs a command and returns an exit code. A third-party
//! binary reuses it with its own recipes.

pub mod data;
pub mod device;
pub mod env;
pub mod export;
pub mod generate;
pub mod gpu_check;
pub mod launch;
pub mod measure;
pub mod model_args;
pub mod score;
mod termination;
pub mod worker;

use std::io::Write as _;
use std::process::ExitCode as ProcessExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use rlt_api::ExitCode;
use rlt_traces::Traces;

use self::data::DataArgs;
use self::device::DeviceArgs;
use self::env::EnvArgs;
use self::export::ExportArgs;
use self::generate::GenerateArgs;
use self::gpu_check::GpuCheckArgs;
use self::measure::MeasureArgs;
use self::score::ScoreArgs;
use self::worker::{ChooseRecipes, WorkerArgs};
use crate::observe::report;

const EXIT_CODES: &str = "\
Exit codes:
   0 done                                  77 diverged
   1 failed                                78 the job cannot work here
   2 wrong command line or manifest        79 no readable checkpoint
  75 input or output failed, may pass      80 stopped after a checkpoint
  76 another worker is gone                81 a GPU failed";

/// Train language models by reinforcement learning, and use them.
#[derive(Debug, Parser)]
#[command(name = "rlt-trainer", version, about, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an RLTrainingJob manifest: all of its ranks, or those that the environment assigns to this
    /// machine.
    Launch(WorkerArgs),
    /// Run one rank of an RLTrainingJob manifest in this process.
    Worker(WorkerArgs),
    /// Run another of these commands with the variables of a file.
    Env(EnvArgs),
    /// Show the first rows of a job's data as its training reads them, and the rows that are left out.
    Data(DataArgs),
    /// Show CUDA on this machine: driver, libraries, GPUs, links between them, and what cannot be used.
    Device(DeviceArgs),
    /// Check this machine's GPU, with lines of JSON for each check; without a GPU all are skipped.
    GpuCheck(GpuCheckArgs),
    /// Compute log-probs and entropies of given tokens under a model.
    Score(ScoreArgs),
    /// Sample completions of given prompts from a model.
    Generate(GenerateArgs),
    /// Write a checkpoint of a run as a folder that transformers or PEFT loads, and push it to the hub.
    Export(ExportArgs),
    /// Measure this machine's limits, for `rlctl plan --measure`.
    Measure(MeasureArgs),
    /// Render `report.html` of a run folder again, also during the run.
    Report {
        /// Folder of the run.
        folder: std::path::PathBuf,
    },
    /// Print the completion script of a shell.
    Completion {
        /// Shell whose completion script is printed.
        shell: clap_complete::Shell,
    },
}

/// Runs the command line of the process. `choose` creates the recipes of a training from its manifest; a
/// binary without recipes of its own passes [`crate::recipes::of`].
pub fn main(choose: ChooseRecipes) -> ProcessExitCode {
    rlt_terminal::escape_panics();
    rlt_torch::skip_destructors_at_exit();
    // Invalid arguments end the process here, with code 2 and the usage.
    let cli = Cli::parse();
    let traces = start_logging(matches!(cli.command, Command::Launch(_) | Command::Worker(_)));
    let code = run(cli.command, choose);
    if let Some(traces) = traces {
        traces.finish();
    }
    code.into()
}

/// Runs a command, and returns its exit code.
fn run(command: Command, choose: ChooseRecipes) -> ExitCode {
    let outcome = match command {
        Command::Launch(args) => {
            launch::run(&args, choose).map_err(|error| (error.exit_code(), anyhow::Error::new(error)))
        }
        Command::Worker(args) => {
            let orphaned = launch::end_with_launcher();
            let alone = orphaned.map_err(|error| (error.exit_code(), anyhow::Error::new(error)));
            alone.and_then(|()| {
                worker::run(&args, choose).map_err(|error| (error.exit_code(), anyhow::Error::new(error)))
            })
        }
        Command::Env(args) => match env::run(&args) {
            Err(error) => Err((error.exit_code(), error.into())),
        },
        Command::Data(args) => {
            data::run(&args).map_err(|error| (error.exit_code(), anyhow::Error::new(error)))
        }
        Command::Device(args) => device::run(&args)
            .map(|()| ExitCode::Success)
            .map_err(|error| (ExitCode::RetryableIo, error.into())),
        Command::GpuCheck(args) => {
            gpu_check::run(&args).map_err(|error| (ExitCode::RetryableIo, error.into()))
        }
        Command::Score(args) => {
            score::run(&args).map(|()| ExitCode::Success).map_err(|error| (error.exit_code(), error.into()))
        }
        Command::Generate(args) => match generate::run(&args) {
            Ok(report) => {
                tracing::info!("{report}");
                Ok(ExitCode::Success)
            }
            Err(error) => Err((error.exit_code(), error.into())),
        },
        Command::Export(args) => {
            export::run(&args).map(|()| ExitCode::Success).map_err(|error| (error.exit_code(), error.into()))
        }
        Command::Measure(args) => match measure::run(&args) {
            Ok(()) => Ok(ExitCode::Success),
            Err(error) => Err((error.exit_code(), error.into())),
        },
        Command::Report { folder } => match report::render_named(&folder) {
            Ok(path) => {
                tracing::info!("the report is in {}", path.display());
                Ok(ExitCode::Success)
            }
            Err(error) => Err((ExitCode::Failure, error.into())),
        },
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "rlt-trainer", &mut rlt_terminal::document());
            Ok(ExitCode::Success)
        }
    };
    match outcome {
        Ok(code) => code,
        Err((code, error)) => {
            report_failure(&error, code);
            code
        }
    }
}

/// Starts logging to standard error, which also shows the progress. Levels are set by `RUST_LOG`; the default
/// is `info`, or `warn` for ranks that would repeat the lines of rank 0. A training is also traced if the
/// environment requests it.
fn start_logging(is_training: bool) -> Option<Traces> {
    let is_first = std::env::var("RANK").map_or(true, |rank| rank == "0");
    // Errors of an object store are reported once, by its users.
    let level = if is_first { "info,object_store=warn" } else { "warn" };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    // The writer escapes control sequences, those of colors included, so colors are off.
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(rlt_terminal::messages);
    rlt_traces::start(lines.with_target(false), filter, is_training.then_some("rlt-trainer"))
}

/// Writes the error as the termination message, and prints it with its chain of causes and the meaning of the
/// exit code. For a launched worker the launcher prints it.
fn report_failure(error: &anyhow::Error, code: ExitCode) {
    termination::write(&format!("{error:#}"));
    if launch::is_launched() {
        return;
    }
    let causes: String = error.chain().skip(1).map(|cause| format!("  caused by: {cause}\n")).collect();
    // Standard error may be closed, and the exit code still reports the failure.
    let _ = write!(rlt_terminal::messages(), "error: {error}\n{causes}exit code {}: {code:?}\n", code.code());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_explains_every_exit_code() {
        for exit in ExitCode::ALL {
            assert!(EXIT_CODES.contains(&format!("{:>4} ", exit.code())), "{exit:?}");
        }
    }
}
