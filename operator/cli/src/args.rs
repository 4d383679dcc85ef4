//! The command line. Settings of a training are in the manifest, not here.

mod cluster;
mod convert;
mod export;
mod manifest;
mod track;

use std::io::Stdout;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use rlt_terminal::Output;

pub(crate) use cluster::{ClusterArgs, EventsArgs, InstallationArgs, LogsArgs, StatusArgs, WhyArgs};
pub(crate) use convert::{ConvertArgs, SourceProject};
pub(crate) use export::ExportArgs;
pub(crate) use manifest::{ManifestArgs, ManifestsArgs};
pub(crate) use track::TrackArgs;

const EXAMPLES: &str = "\
Examples:
  rlctl run examples/quickstart/job.yaml  train here, into runs/quickstart
  rlctl validate job.yaml                 list everything that is wrong
  rlctl data job.yaml                     show ten rows as training sees them
  rlctl plan job.yaml                     show batches, workers and memory
  rlctl plan job.yaml --model-config config.json -o json
  rlctl plan job.yaml -o yaml             print the objects of the operator
  rlctl convert run_grpo.sh -o job.yaml   convert a script of verl or TRL
  rlctl export quickstart --step best     write the best checkpoint of a run
  rlctl track quickstart --to mlflow=http://localhost:5000
  rlctl status                            list the jobs on a cluster
  rlctl why quickstart                    say why it waits or failed
  rlctl logs quickstart --follow          show what its first worker writes
  source <(rlctl completion bash)

Exit codes:
   0 done                                  77 diverged
   1 failed                                78 the job cannot work here
   2 wrong command line or manifest        79 no readable checkpoint
  75 input or output failed, may pass      80 stopped after a checkpoint
  76 another worker is gone                81 a GPU failed";

/// Run, plan and validate RLTrainingJob manifests, and inspect jobs on a cluster.
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
    /// Show the plan of a job: batches, workers, memory.
    Plan(PlanArgs),
    /// Show rows of a job's data as its training will see them.
    Data(DataArgs),
    /// List everything that is wrong with manifests.
    Validate(ValidateArgs),
    /// Write a checkpoint of a run as a folder that transformers or PEFT loads, and push it to the hub.
    Export(ExportArgs),
    /// Send the metrics of a run, finished or running, to MLflow, Trackio, Weights & Biases or TensorBoard.
    Track(TrackArgs),
    /// Convert a launch script or settings of verl, TRL or open-instruct to a manifest.
    Convert(ConvertArgs),
    /// Show the state of jobs on a cluster: condition, step, reward, time left.
    Status(StatusArgs),
    /// Explain why a job or a local run waits, failed or continues, and what to change.
    Why(WhyArgs),
    /// Show the log of a worker of a job on a cluster.
    Logs(LogsArgs),
    /// List the events of a job on a cluster, oldest first.
    Events(EventsArgs),
    /// Print the completion script of a shell.
    Completion(CompletionArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The trainer is the rlt-trainer in rlctl's folder, or the first one on PATH. It
takes over the terminal, and its exit code is rlctl's. An interrupt (Ctrl-C)
saves a checkpoint; the same command continues from it.")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) manifest: ManifestArgs,
    /// Run folder; by default runs/ and the job's name.
    #[arg(long, short = 'd', value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Remove the files of an earlier run in the run folder and start over.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Variable of the environment that the manifest may send to an address that it names, such as a reward
    /// server; may be repeated. Without it such a manifest is asked about on a terminal, else refused.
    #[arg(long, value_name = "NAME")]
    pub(crate) send_env: Vec<String>,
    /// Path of the trainer to start.
    #[arg(long, value_name = "PATH", env = "RLT_TRAINER")]
    pub(crate) trainer: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Memory is estimated from the model's config.json: the one in spec.model.path, or
the one given with --model-config. Without one the rest of the plan is still
shown.

  --gpu      plans for workers that each have such a GPU: what the manifest
             leaves open is chosen for it, memory is compared with the GPU's,
             and the times of a step are predicted; docs/memory-and-speed.md
             says how. If the job cannot fit, the exit code is 78, and the
             changes that would make it fit are listed
  --measure  plans for workers like this machine, whose speed rlt-trainer
             measures in a few seconds
  --run      reads the lengths of sequences from a run of the job, and compares
             what it took with the prediction. Without it, and without
             --prompt-tokens and --completion-tokens, every sequence is assumed
             to have its maximum length

  -o json    the plan, the manifest with every default written out, and the
             objects that the operator would make
  -o yaml    these objects alone, as they would be sent
  --server   asks a cluster instead: what it would say to each object, and how
             it differs from what is there

Two things are known on a cluster alone: the job's UID, and the authority behind
the operator's certificate. Without --server both are left empty.")]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) manifest: ManifestArgs,
    /// config.json of the model, if the manifest names a hub or a folder that is not on this machine.
    #[arg(long, value_name = "FILE")]
    pub(crate) model_config: Option<PathBuf>,
    /// Format of the plan.
    #[arg(long, short, value_enum, default_value_t = DocumentFormat::Text)]
    pub(crate) output: DocumentFormat,
    /// Plan for workers with this GPU: a100-40gb, a100-80gb, l40s, h100-pcie, h100-nvl, gh200, h100,
    /// h200-nvl, h200, b200, rtx-4090.
    #[arg(long, value_name = "NAME", group = "machine")]
    pub(crate) gpu: Option<String>,
    /// Plan for workers like this machine, which is measured.
    #[arg(long, group = "machine")]
    pub(crate) measure: bool,
    /// Path of the trainer that measures.
    #[arg(long, value_name = "PATH", env = "RLT_TRAINER")]
    pub(crate) trainer: Option<PathBuf>,
    /// Mean length of prompts in tokens, at least 1, for predicted times.
    #[arg(long, value_name = "TOKENS", requires = "machine")]
    pub(crate) prompt_tokens: Option<u32>,
    /// Mean length of completions in tokens, at least 1, for predicted times.
    #[arg(long, value_name = "TOKENS", requires = "machine")]
    pub(crate) completion_tokens: Option<u32>,
    /// Run folder whose lengths of sequences are used for predicted times, which are compared with the run's.
    #[arg(long, value_name = "FOLDER", requires = "machine")]
    pub(crate) run: Option<PathBuf>,
    /// Ask the cluster by a dry run, including the GPUs of its nodes; nothing is changed there.
    #[arg(long, conflicts_with_all = ["gpu", "measure"])]
    pub(crate) server: bool,
    #[command(flatten)]
    pub(crate) installation: InstallationArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Rows are rendered by the model's chat template and counted in its tokens; what
is left out, cut or cannot be judged is shown with the reason. Files and model
must be here; a model of the hub is fetched. Ends with 78 where the training
would end at one of the rows.")]
pub(crate) struct DataArgs {
    #[command(flatten)]
    pub(crate) manifest: ManifestArgs,
    /// Number of rows to show, from the first: 1 to 100000.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rows: u32,
    /// Show held-out rows instead of training rows.
    #[arg(long)]
    pub(crate) held_out: bool,
    /// Path of the trainer that reads the rows.
    #[arg(long, value_name = "PATH", env = "RLT_TRAINER")]
    pub(crate) trainer: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Ends with 2 when there is a problem.")]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    pub(crate) manifests: ManifestsArgs,
    /// Format of the result.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionArgs {
    /// Shell whose completion script is printed.
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// Output format: text or JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for reading.
    Text,
    /// JSON for programs.
    Json,
}

/// Output format: text, or one of two formats for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DocumentFormat {
    /// Text for reading.
    Text,
    /// JSON for programs.
    Json,
    /// YAML for programs.
    Yaml,
}

impl Format {
    /// Returns standard output for this format.
    pub(crate) fn output(self) -> Output<Stdout> {
        match self {
            Self::Text => rlt_terminal::text(),
            Self::Json => rlt_terminal::document(),
        }
    }
}

impl DocumentFormat {
    /// Returns standard output for this format.
    pub(crate) fn output(self) -> Output<Stdout> {
        match self {
            Self::Text => rlt_terminal::text(),
            Self::Json | Self::Yaml => rlt_terminal::document(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use rlt_api::ExitCode;

    use super::{Args, EXAMPLES};

    /// A longer line would be wrapped by clap, and the words behind it would have a line of their own.
    #[test]
    fn lines_of_the_help_fit_the_usual_width_of_a_terminal() {
        let command = Args::command();
        for command in command.get_subcommands().chain([&command]) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let long: Vec<_> = text.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{}: {long:?}", command.get_name());
        }
    }

    #[test]
    fn the_help_explains_every_exit_code() {
        for exit in ExitCode::ALL {
            assert!(EXAMPLES.contains(&format!("{:>4} ", exit.code())), "{exit:?}");
        }
    }
}
