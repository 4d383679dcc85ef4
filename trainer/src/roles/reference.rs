//! The reference policy of KL terms and preference losses. With LoRA it is the actor with the adapter
//! disabled. Otherwise it is a frozen copy, sharded like the actor, which on the CPU is in a memory-mapped
//! file.

pub(crate) mod log_prob_cache;
mod role;
mod sync;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use rlt_core::batch::Batch;
use rlt_decoder::{Decoder, NamedTensors};
use rlt_layout::TensorRun;
use rlt_parallel::schedule::DecoderPass;
use rlt_parallel::{ProcessGroups, RankError, Ranks, ShardedParameters};
use rlt_storage::checkpoint::{Checkpoint, CheckpointError, CheckpointShard, split_between_copies};
use tch::Kind;

use crate::roles::actor::{Actor, TokenScores};
use crate::roles::learner::LearnerError;
use crate::roles::learner::train_state::{in_file, owned_shards};

pub use self::role::ReferenceRole;
pub(crate) use self::role::kl_controller;

/// Prefix of the names of the reference's tensors in a checkpoint.
const PREFIX: &str = "reference.";

/// The reference could not be read from a checkpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReferenceError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Ranks(#[from] RankError),
}

/// The reference policy, near which the actor is kept.
#[derive(Debug)]
pub enum Reference {
    /// The algorithm reads no reference.
    None,
    /// The actor's weights with the adapter off.
    AdapterOff,
    /// A frozen copy; `None` until the cold start is over.
    Frozen(Option<Box<FrozenPolicy>>),
}

impl Reference {
    /// Releases the memory of a frozen copy until its weights are read again.
    pub(crate) fn release_pages(&self) {
        if let Self::Frozen(Some(copy)) = self {
            copy.release_pages();
        }
    }
}

/// Storage settings for a copy of the actor's weights.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// The run folder, for the file of an offloaded copy, or of any copy on the CPU.
    pub folder: PathBuf,
    /// Whether the copy is offloaded, if the actor is sharded.
    pub is_offloaded: bool,
    /// Compute dtype of the copy, and its storage dtype unless `keeps_master`; `None` means the actor's
    /// compute dtype.
    pub compute: Option<Kind>,
    /// Ranks over which the copy is sharded, if the actor is; `None` means the actor's.
    pub mesh: Option<Rc<ProcessGroups>>,
    /// Whether the copy is stored in f32, because it follows the actor: lower precisions would round small
    /// changes away.
    pub keeps_master: bool,
}

impl CopyOptions {
    /// Creates the settings of a copy in the actor's compute dtype, with its file in `folder`.
    pub fn in_folder(folder: &Path, is_offloaded: bool) -> Self {
        Self { folder: folder.to_owned(), is_offloaded, compute: None, mesh: None, keeps_master: false }
    }

    fn compute_of(&self, actor: &Actor) -> Kind {
        self.compute.unwrap_or_else(|| actor.learner.decoder().compute_kind())
    }

    /// Returns the storage and compute dtype of the copy.
    fn dtypes_of(&self, actor: &Actor) -> (Kind, Kind) {
        let compute = self.compute_of(actor);
        (if self.keeps_master { Kind::Float } else { compute }, compute)
    }

    fn offload_to(&self) -> Option<&Path> {
        self.is_offloaded.then_some(&self.folder)
    }
}

/// A copy of earlier weights of the actor, which may be synced with them ([`FrozenPolicy::sync`]).
#[derive(Debug)]
pub struct FrozenPolicy {
    decoder: Decoder,
    /// This rank's shards of the copy; `None` if it is not sharded.
    shards: Option<ShardedParameters>,
}

impl From<Decoder> for FrozenPolicy {
    /// Creates a policy that is not sharded.
    fn from(decoder: Decoder) -> Self {
        Self { decoder, shards: None }
    }
}

impl FrozenPolicy {
    /// Copies the actor's present weights without its adapter. If the actor is sharded, so is the copy, and
    /// this call is collective. On a CPU without offload the copy is moved to an unlinked file of the folder,
    /// if that is writable: only one pass per step reads it, and the memory is free for other phases.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost, or there is not enough memory.
    pub fn copy_of(actor: &Actor, copy_options: &CopyOptions) -> Result<Self, RankError> {
        let Some(shards) = actor.learner.shards() else {
            let (param_dtype, compute) = copy_options.dtypes_of(actor);
            let copy = actor.learner.decoder().frozen_copy(param_dtype, compute);
            return Ok(Self::from(copy).in_file(&copy_options.folder));
        };
        let copy = Self::meta_of(actor, shards, copy_options)?;
        copy.shards.iter().try_for_each(|own| own.copy_from(shards, |name| name))?;
        Ok(copy.in_file(&copy_options.folder))
    }

    /// Loads the reference from a checkpoint of a run with a model like the actor's; `None` if the checkpoint
    /// has none.
    ///
    /// # Errors
    /// [`ReferenceError`] if a tensor is missing or of another shape, or there is not enough memory.
    pub(crate) fn of_checkpoint(
        actor: &Actor,
        checkpoint: &Checkpoint,
        copy_options: &CopyOptions,
    ) -> Result<Option<Self>, ReferenceError> {
        let names = actor.learner.decoder().base_parameters();
        if !names.iter().any(|(name, _)| checkpoint.contains(&stored_name(name))) {
            return Ok(None);
        }
        let copy = match actor.learner.shards() {
            None => {
                let (param_dtype, compute) = copy_options.dtypes_of(actor);
                let decoder = actor.learner.decoder().frozen_copy(param_dtype, compute);
                for (name, tensor) in decoder.named_parameters() {
                    let (stored, shape) = (stored_name(&name), tensor.size());
                    checkpoint.fill_rounded(&TensorRun::full(&stored, &shape), &tensor.view(-1))?;
                }
                Self::from(decoder)
            }
            Some(shards) => {
                let copy = Self::meta_of(actor, shards, copy_options)?;
                copy.fill_from(checkpoint)?;
                copy
            }
        };
        Ok(Some(copy.in_file(&copy_options.folder)))
    }

    /// Creates a sharded copy with values of zero, offloaded to the folder if the settings say so.
    fn meta_of(
        actor: &Actor,
        shards: &ShardedParameters,
        copy_options: &CopyOptions,
    ) -> Result<Self, RankError> {
        let (param_dtype, compute) = copy_options.dtypes_of(actor);
        let decoder = actor.learner.decoder().frozen_meta(param_dtype, compute);
        let mesh = copy_options.mesh.clone().unwrap_or_else(|| shards.ranks());
        let shards = ShardedParameters::new(&decoder, mesh, copy_options.offload_to())?;
        Ok(Self { decoder, shards: Some(shards) })
    }

    fn fill_from(&self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.shards.iter().try_for_each(|shards| {
            shards.load_shards(|tensor_run, values| {
                checkpoint.fill_rounded(&tensor_run.named(&stored_name(tensor_run.name)), values)
            })
        })
    }

    /// Moves the copy into a file, or logs why it stays in memory.
    fn in_file(mut self, folder: &Path) -> Self {
        let moved = match &mut self.shards {
            Some(shards) => shards.move_to_file(folder),
            None => self.decoder.move_to_file(folder),
        };
        if let Err(error) = moved {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "the reference policy stays in memory");
        }
        self
    }

    /// Scores every completion token of `batch` under the copy, with the head and the ranks of `actor`, in
    /// micro-batches of at most `max_tokens` tokens for each rank of a sequence-parallel group.
    ///
    /// # Errors
    /// When a sequence alone is longer than a micro-batch may be, or a rank is lost.
    pub fn score(
        &self,
        actor: &Actor,
        batch: &Batch,
        max_tokens: usize,
    ) -> Result<TokenScores, LearnerError> {
        let model = DecoderPass { decoder: &self.decoder, shards: self.shards.as_ref(), sp_group: None };
        actor.score_with(model, batch, max_tokens)
    }

    /// Returns the copy's weights. They can be read while their unit is unsharded.
    pub(crate) fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    pub(crate) fn shards(&self) -> Option<&ShardedParameters> {
        self.shards.as_ref()
    }

    /// Releases the memory of the copy until its weights are read again.
    pub fn release_pages(&self) {
        self.decoder.release_pages();
        self.shards.iter().for_each(ShardedParameters::release_pages);
    }

    /// Returns the shards that this rank saves. All ranks together save every tensor once.
    ///
    /// # Errors
    /// [`RankError::Shards`] when an offloaded tensor cannot be read.
    pub(crate) fn checkpoint_shards(&self, ranks: &Ranks) -> Result<Vec<CheckpointShard>, RankError> {
        let Some(shards) = &self.shards else {
            let tensors = self.decoder.named_parameters().into_iter();
            let whole =
                tensors.map(|(name, tensor)| CheckpointShard::full(stored_name(&name), tensor)).collect();
            return Ok(split_between_copies(whole, ranks.rank(), ranks.size()));
        };
        let mut local_shards = Vec::new();
        shards.for_each_shard(|slice, values| {
            local_shards.push(CheckpointShard::of(&slice.named(&stored_name(slice.name)), values));
            Ok::<(), RankError>(())
        })?;
        Ok(owned_shards(shards, local_shards))
    }

    /// Returns every tensor of the copy under its name in a checkpoint. With FSDP this is collective, and
    /// only the leader gets the tensors, in unlinked files of `folder`.
    pub(crate) fn tensors(&self, is_leader: bool, folder: &Path) -> Result<NamedTensors, RankError> {
        let stored =
            |tensors: NamedTensors| tensors.into_iter().map(|(name, tensor)| (stored_name(&name), tensor));
        let Some(shards) = &self.shards else {
            return Ok(stored(self.decoder.named_parameters()).collect());
        };
        let mut tensors = NamedTensors::new();
        for unit in shards.units() {
            shards.unshard_master(unit)?;
            if is_leader {
                tensors.extend(stored(in_file(shards.parameters_of(unit), folder)));
            }
            shards.reshard(unit)?;
        }
        Ok(tensors)
    }
}

fn stored_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}
