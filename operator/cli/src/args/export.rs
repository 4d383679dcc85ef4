//! The arguments of `rlctl export`.

use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The checkpoint may be of a running, stopped or failed run of any number of
ranks; the run is not changed. The job's model must be where the run read it;
one of the hub is fetched at the same commit.

  rlctl export runs/gsm8k                                 the newest checkpoint
  rlctl export gsm8k --step best                          the best checkpoint
  rlctl export gsm8k --step 200 --layout peft -d adapter  the adapter alone
  HF_TOKEN=.. rlctl export gsm8k --push-to hub:owner/gsm8k

A push is one commit on the branch main. HF_TOKEN must have the right to write;
HF_ENDPOINT names a mirror.")]
pub(crate) struct ExportArgs {
    /// Run folder, or the name of a run below runs/.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Number of complete steps of the checkpoint, or best for the highest held-out reward; by default the
    /// newest.
    #[arg(long, value_name = "N|best")]
    step: Option<String>,
    /// Folder to write to; by default exports/step-N in the run folder.
    #[arg(long, short = 'd', value_name = "DIR")]
    output: Option<PathBuf>,
    /// Content of the export: hugging-face for the full model with its adapter merged, peft for the adapter
    /// alone.
    #[arg(long, value_name = "LAYOUT", value_parser = ["hugging-face", "peft"], default_value = "hugging-face")]
    layout: String,
    /// Dtype of stored weights: auto, fp32 or bf16; by default the job's checkpoint.export.dtype.
    #[arg(long, value_name = "DTYPE", value_parser = ["auto", "fp32", "bf16"])]
    dtype: Option<String>,
    /// Model repository of the hub to which the files are committed; if it is missing, a private one is
    /// created.
    #[arg(long, value_name = "hub:OWNER/NAME")]
    push_to: Option<String>,
    /// Path of the trainer that exports.
    #[arg(long, value_name = "PATH", env = "RLT_TRAINER")]
    pub(crate) trainer: Option<PathBuf>,
}

impl ExportArgs {
    /// The options of the trainer's `export`.
    pub(crate) fn handed_on(&self) -> Vec<OsString> {
        let text = |value: &Option<String>| value.as_ref().map(OsString::from);
        let options = [
            ("--step", text(&self.step)),
            ("--output", self.output.as_ref().map(OsString::from)),
            ("--layout", Some(OsString::from(&self.layout))),
            ("--dtype", text(&self.dtype)),
            ("--push-to", text(&self.push_to)),
        ];
        let given = options.into_iter().filter_map(|(name, value)| Some([name.into(), value?]));
        given.flatten().collect()
    }
}
