//! The command line. Nothing about a training is set here: that is the manifest's.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  rlctl run examples/quickstart/job.yaml          train here, into runs/quickstart
  rlctl validate -f job.yaml                      list everything that is wrong with a manifest
  rlctl plan -f job.yaml                          show batches, workers and memory of a job
  rlctl plan -f job.yaml --model-config config.json -o json
  source <(rlctl completion bash)

Exit codes:
   0 done                                  77 diverged
   1 failed                                78 the job cannot work here
   2 wrong command line or manifest        79 no readable checkpoint
  75 input or output failed, may pass      80 stopped after a checkpoint
  76 another worker is gone";

/// Run, plan and validate RLTrainingJob manifests.
#[derive(Debug, Parser)]
#[command(name = "rlctl", version, after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a job on this machine.
    Run(RunArgs),
    /// Show what a job will be: batches, workers, memory.
    Plan(PlanArgs),
    /// List everything that is wrong with manifests.
    Validate(ValidateArgs),
    /// Write a shell's completion script.
    Completion(CompletionArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The trainer is the rlt-trainer beside rlctl, or the first one on PATH. It takes over the terminal, and its exit code is
rlctl's. An interrupt (Ctrl-C) saves a checkpoint; the same command continues from it.")]
pub(crate) struct RunArgs {
    /// The manifest; - for standard input.
    #[arg(value_name = "MANIFEST")]
    pub(crate) manifest: PathBuf,
    /// The run folder; by default runs/ and the job's name.
    #[arg(long, short = 'd', value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Begin anew in a run folder that is already there.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// The trainer to start.
    #[arg(long, value_name = "PATH", env = "RLT_TRAINER")]
    pub(crate) trainer: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Memory is estimated from the model's config.json: the one in spec.model.path, or the one given with --model-config.
Without one the rest of the plan is still shown.")]
pub(crate) struct PlanArgs {
    /// The manifest; - for standard input.
    #[arg(long = "file", short, value_name = "MANIFEST")]
    pub(crate) file: PathBuf,
    /// The model's config.json, where the manifest names a hub or a folder that is not here.
    #[arg(long, value_name = "FILE")]
    pub(crate) model_config: Option<PathBuf>,
    /// How to write the plan.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Ends with 2 when there is a problem.")]
pub(crate) struct ValidateArgs {
    /// The manifests; - for standard input.
    #[arg(long = "file", short, value_name = "MANIFEST", required = true, num_args = 1..)]
    pub(crate) files: Vec<PathBuf>,
    /// How to write the answer.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionArgs {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// For people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}
