//! Errors that end a run, and their exit codes.

use rlt_api::{ExitCode, Problem};
use rlt_data::tokenizer::TokenizerError;
use rlt_data::{DataError, LoaderError};
use rlt_decoder::{LoraError, ModelError};
use rlt_hub::HubError;
use rlt_parallel::RankError;
use rlt_parallel::schedule::probe::ProbeError;
use rlt_storage::checkpoint::{CheckpointError, CopyError};
use rlt_storage::run_folder::RunFolderError;

use crate::roles::StepError;
use crate::roles::critic::CriticSetupError;
use crate::roles::optim::OptimError;
use crate::roles::reference::ReferenceError;
use crate::roles::reward::{RewardModelError, RewardSetupError};
use crate::run::consent::NotAllowed;
use crate::run::demonstration_limit::OtherDemonstrations;
use crate::run::device_failure::DeviceFailed;
use crate::run::out_of_memory::OutOfMemory;

/// An error that ends a run.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum TrainError {
    #[error("the manifest has {} problem(s):\n{}", .0.len(), listed(.0))]
    Manifest(Vec<Problem>),
    #[error("failed to read the manifest {}", path.display())]
    ReadManifest { path: std::path::PathBuf, source: std::io::Error },
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    #[error("failed to write the manifest with its defaults")]
    WriteManifest(#[from] serde_saphyr::SerializeError),
    #[error("failed to {act} `{path}`")]
    Io { act: &'static str, path: String, source: std::io::Error },
    #[error(transparent)]
    RunFolder(#[from] RunFolderError),
    #[error("failed to prepare the model")]
    Model(#[from] ModelError),
    #[error("failed to fetch from the hub")]
    Hub(#[from] HubError),
    #[error("failed to prepare the tokenizer")]
    Tokenizer(#[from] TokenizerError),
    #[error("failed to read the data")]
    Data(#[from] DataError),
    #[error(
        "failed to read {}, which says at which commits the run read models or data sets of the hub: restore the file, or start \
         afresh with --overwrite",
        path.display()
    )]
    HubRecord { path: std::path::PathBuf, source: serde_json::Error },
    #[error("failed to begin or resume the order of the data")]
    Loader(#[from] LoaderError),
    #[error("failed to prepare the rewards")]
    Rewards(#[from] RewardSetupError),
    #[error("failed to prepare a reward model")]
    RewardModel(#[from] RewardModelError),
    #[error("failed to create the critic")]
    CriticSetup(#[from] CriticSetupError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("failed to prepare the optimizer")]
    Optimizer(#[from] OptimError),
    #[error("failed to prepare the adapter, or to export the model")]
    Lora(#[from] LoraError),
    #[error("the model's configuration is invalid")]
    ModelConfig(#[source] rlt_models::ModelConfigError),
    #[error("the model does not fit the workers")]
    ModelRefusal(#[from] rlt_plan::ModelRefusal),
    #[error("the check of sequence parallelism failed")]
    Probe(#[from] ProbeError),
    #[error("failed to read or write the state of a checkpoint")]
    State(#[source] serde_json::Error),
    #[error("libtorch failed")]
    Kernel(#[from] rlt_torch::Error),
    #[error("spec.model.tokenizer: a new model needs one")]
    NoTokenizer,
    #[error("failed to communicate with the other ranks")]
    Ranks(#[from] RankError),
    #[error(
        "spec.workers.count is {count} and spec.workers.ranksPerWorker {ranks_per_worker}, but this process was started as \
         one of {world_size} ranks: start it with `rlt-trainer launch`, which starts them all"
    )]
    OtherWorldSize { count: u32, ranks_per_worker: u32, world_size: usize },
    #[error("failed to save or read a checkpoint")]
    Checkpoint(#[from] CheckpointError),
    #[error("failed to copy checkpoints")]
    Copies(#[from] CopyError),
    #[error(
        "the loss or its gradient was not finite for {num_steps} steps in a row (last step {last_step}): lower \
         spec.training.optimizer.learningRate or spec.training.maxGradNorm"
    )]
    Diverged { num_steps: u32, last_step: u64 },
    #[error(
        "spec.workers.device: Cuda was asked for; expected a GPU for each of the {num_ranks} ranks on this machine, \
         libtorch sees {num_gpus}"
    )]
    TooFewGpus { num_ranks: usize, num_gpus: usize },
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    #[error(transparent)]
    DeviceFailed(#[from] DeviceFailed),
    #[error("spec.workers.device: Cuda was asked for, and our kernels do not run on GPU {index}")]
    NoKernels { index: usize, source: rlt_torch::Error },
    #[error("spec.workers.device: Cuda was asked for, but {cause}; `rlt-trainer device` shows what is seen")]
    NoCuda { cause: String },
    #[error(
        "GPU {index} has {free:.1} of {total:.1} GiB free, and the plan of this job needs {needed:.1} GiB: another process \
         fills it; end that process, or choose another GPU by CUDA_VISIBLE_DEVICES"
    )]
    GpuTaken { index: usize, free: f64, total: f64, needed: f64 },
    #[error(
        "{} is a checkpoint of the job `{run}`, whose {field} is {there}, and this job's is {here}: name another \
         checkpoint, or start from its weights by spec.model.path",
        path.display()
    )]
    OtherRun { path: std::path::PathBuf, run: String, field: String, there: String, here: String },
    #[error(transparent)]
    OtherDemonstrations(#[from] OtherDemonstrations),
    #[error(
        "{num_failed} checkpoints in a row could not be saved: the run ends, because a failure would cost all work since the \
         last one; free space on the disk, or repair the storage"
    )]
    NoCheckpoints { num_failed: u32, source: Box<CheckpointError> },
    #[error(
        "{path}: {free} bytes are free, and the next checkpoint needs {needed}: make room, or lower spec.checkpoint.keep"
    )]
    NoRoom { path: String, free: u64, needed: u64 },
    #[error("no complete checkpoint is left in `{path}`: {reasons}")]
    NoCompleteCheckpoint { path: String, reasons: String },
}

impl From<ReferenceError> for TrainError {
    fn from(error: ReferenceError) -> Self {
        match error {
            ReferenceError::Checkpoint(error) => Self::Checkpoint(error),
            ReferenceError::Ranks(error) => Self::Ranks(error),
        }
    }
}

impl TrainError {
    /// Returns the exit code of the run, to which the operator reacts.
    pub fn exit_code(&self) -> ExitCode {
        if self.is_peer_lost() {
            return ExitCode::PeerLost;
        }
        if self.causes().any(is_file_error) {
            return ExitCode::RetryableIo;
        }
        match self {
            Self::Manifest(_) | Self::ReadManifest { .. } | Self::NotAllowed(_) => ExitCode::Usage,
            Self::OtherWorldSize { .. } | Self::Ranks(RankError::Environment { .. }) => ExitCode::Usage,
            Self::TooFewGpus { .. } | Self::NoCuda { .. } | Self::NoKernels { .. } => ExitCode::BadConfig,
            Self::OutOfMemory(_) => ExitCode::BadConfig,
            Self::DeviceFailed(_) | Self::GpuTaken { .. } => ExitCode::DeviceFailed,
            Self::RunFolder(
                RunFolderError::Io { .. } | RunFolderError::Busy { was_waited_for: true, .. },
            )
            | Self::Io { .. } => ExitCode::RetryableIo,
            Self::Hub(error) => error.exit_code(),
            Self::RewardModel(error) => error.exit_code(),
            Self::Model(error) => error.exit_code(),
            Self::Lora(error) => error.exit_code(),
            Self::Tokenizer(error) => error.exit_code(),
            Self::RunFolder(_) | Self::ModelConfig(_) | Self::ModelRefusal(_) => ExitCode::BadConfig,
            Self::Probe(ProbeError::Differs { .. }) => ExitCode::BadConfig,
            Self::Data(_) | Self::HubRecord { .. } | Self::Loader(_) | Self::Rewards(_) => {
                ExitCode::BadConfig
            }
            Self::OtherRun { .. } | Self::OtherDemonstrations(_) => ExitCode::BadConfig,
            Self::NoCheckpoints { .. } | Self::NoRoom { .. } => ExitCode::RetryableIo,
            Self::NoCompleteCheckpoint { .. } => ExitCode::CorruptCheckpoint,
            Self::Checkpoint(error) if error.is_corruption() => ExitCode::CorruptCheckpoint,
            Self::Checkpoint(error) if error.is_misfit() => ExitCode::BadConfig,
            Self::Copies(error) if error.is_permanent() => ExitCode::BadConfig,
            Self::Checkpoint(_) | Self::Copies(_) => ExitCode::RetryableIo,
            Self::Diverged { .. } => ExitCode::Diverged,
            Self::Step(error) => error.exit_code(),
            _ => ExitCode::Failure,
        }
    }
}

impl TrainError {
    /// Whether the cause is the loss of another rank, wherever it was detected.
    fn is_peer_lost(&self) -> bool {
        self.causes().filter_map(|error| error.downcast_ref::<RankError>()).any(RankError::is_peer_lost)
    }

    pub(crate) fn causes(&self) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
        std::iter::successors(Some(self as &(dyn std::error::Error + 'static)), |error| error.source())
    }
}

/// Whether a file of offloaded tensors could not be written or read, which may succeed once the disk has free
/// space.
fn is_file_error(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(rlt_torch::Error::File { .. }))
}

fn listed(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("  {problem}")).collect::<Vec<_>>().join("\n")
}
