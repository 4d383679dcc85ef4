//! The arguments of `rlctl convert`.

use std::path::PathBuf;

use clap::ValueEnum;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads a launch script (its variables, arrays, conditions and functions; no program is started), a settings file in
YAML, or settings behind `--`; of Markdown the fenced blocks of a shell, each by itself. What has no equal stands as a comment beside the fields to which it would belong, and
is listed. The manifest says every part of the algorithm in which the other trainer's defaults differ.

  rlctl convert run_qwen3_8b.sh -o job.yaml
  rlctl convert run_qwen3_8b.sh --set MODEL_PATH=Qwen/Qwen3-4B --set NNODES=2
  rlctl convert --from trl grpo.yaml --trainer grpo
  rlctl convert --from verl -- algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-8B

Exit code 0 when the manifest is valid, 2 when something must be added to it.")]
pub(crate) struct ConvertArgs {
    /// A launch script, Markdown (.md) with commands in blocks of a shell, or settings (.yaml); - for
    /// standard input.
    #[arg(value_name = "FILE", required_unless_present = "settings")]
    pub(crate) file: Option<PathBuf>,
    /// The project of the settings, if there is no script.
    #[arg(long, value_enum)]
    pub(crate) from: Option<SourceProject>,
    /// The project's trainer, if there is no script: main_ppo, sft_trainer, grpo, dpo, grpo_fast, ..
    #[arg(long, value_name = "NAME")]
    pub(crate) trainer: Option<String>,
    /// A variable in the script's environment.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) variables: Vec<(String, String)>,
    /// The number of the trainer that the script starts, from 1.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) launch: usize,
    /// The job's name; by default the file's.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Where the manifest is written; by default to standard output.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write a reward server here that calls the script's reward function in Python.
    #[arg(long, value_name = "FILE")]
    pub(crate) reward_server: Option<PathBuf>,
    /// Settings, or with a script its arguments.
    #[arg(last = true, value_name = "SETTINGS")]
    pub(crate) settings: Vec<String>,
}

/// Whose settings.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SourceProject {
    /// verl's Hydra overrides or its settings in YAML.
    Verl,
    /// TRL's flags or its settings in YAML.
    Trl,
    /// open-instruct's flags.
    OpenInstruct,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}
