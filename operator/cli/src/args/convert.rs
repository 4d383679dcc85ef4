//! The arguments of `rlctl convert`.

use std::path::PathBuf;

use clap::ValueEnum;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads a launch script (its variables, arrays, conditions and functions; no
program is started), a settings file in YAML, or settings after `--`; also a
RayJob of KubeRay and a TrainJob of Kubeflow Trainer, whose pods become workers.
In Markdown each fenced block of a shell is read by itself. Settings without an
equivalent become comments next to the fields to which they would belong, and
are listed. The manifest states every part of the algorithm in which the other
trainer's defaults differ.

  rlctl convert run_qwen3_8b.sh -o job.yaml
  rlctl convert run_qwen3_8b.sh --set MODEL_PATH=Qwen/Qwen3-4B --set NNODES=2
  rlctl convert rayjob.yaml -o job.yaml
  kubectl get trainjob NAME -o yaml | rlctl convert -
  rlctl convert --from trl grpo.yaml --trainer grpo
  rlctl convert --from verl -- algorithm.adv_estimator=grpo trainer.nnodes=2

Exit code 0 when the manifest is valid, 2 when something must be added to it.")]
pub(crate) struct ConvertArgs {
    /// Launch script (shell or Python), Markdown (.md) with shell blocks, settings (.yaml), or a manifest of
    /// KubeRay or Kubeflow Trainer; - for standard input.
    #[arg(value_name = "FILE", required_unless_present = "settings")]
    pub(crate) file: Option<PathBuf>,
    /// Project of the settings, if there is no script.
    #[arg(long, value_enum)]
    pub(crate) from: Option<SourceProject>,
    /// Trainer of the project, if there is no script: main_ppo, sft_trainer, grpo, dpo, grpo_fast, ..; by
    /// default main_ppo for verl, grpo for trl and grpo_fast for open-instruct.
    #[arg(long, value_name = "NAME")]
    pub(crate) trainer: Option<String>,
    /// Variable in the script's environment; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) variables: Vec<(String, String)>,
    /// Number of the launch that is converted, from 1, if the script starts several trainers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) launch: usize,
    /// Name of the job; by default the file's.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// File to which the manifest is written; by default standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// File to which a reward server is written that calls the script's reward function in Python.
    #[arg(long, value_name = "FILE")]
    pub(crate) reward_server: Option<PathBuf>,
    /// Settings or, with a script, its arguments.
    #[arg(last = true, value_name = "SETTINGS")]
    pub(crate) settings: Vec<String>,
}

/// Project whose settings are converted.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SourceProject {
    /// Hydra overrides of verl, or its settings in YAML.
    Verl,
    /// Flags of TRL, or its settings in YAML.
    Trl,
    /// Flags of open-instruct scripts.
    OpenInstruct,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}
