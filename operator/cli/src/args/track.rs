//! The arguments of `rlctl track`.

use std::path::PathBuf;

use rlt_tracking::replay::Destination;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Everything is read from the files of the run, which is not changed; no cluster
and no trainer is needed.

  rlctl track quickstart --to mlflow=http://localhost:5000
  rlctl track runs/gsm8k --to trackio=http://localhost:7860
  rlctl track runs/gsm8k --to wandb=wandb && wandb sync wandb/offline-run-*
  rlctl track runs/gsm8k --to tensorboard=events

MLflow and Trackio get the steps that they do not have, also of a run that logs
there itself: the command may be repeated during the run. Files are written
again. MLflow's credentials are MLFLOW_TRACKING_TOKEN, or
MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; Trackio's are
TRACKIO_WRITE_TOKEN, and HF_TOKEN for a Space.")]
pub(crate) struct TrackArgs {
    /// Run folder, or the name of a run below runs/.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Destination: mlflow=URL, trackio=URL, wandb=DIR or tensorboard=DIR; may be repeated.
    #[arg(long, value_name = "TRACKER=PLACE", required = true)]
    pub(crate) to: Vec<Destination>,
    /// Experiment in MLflow, or project in W&B or Trackio; by default the job's name.
    #[arg(long, value_name = "NAME")]
    pub(crate) project: Option<String>,
    /// Name of the run at the destination; by default the job's.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}
