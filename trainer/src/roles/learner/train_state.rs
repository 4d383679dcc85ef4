//! Trainable parameters of a role, sharded or not, with their optimizer state. Applies the gradients of all
//! ranks, and saves and loads weights and moments. A checkpoint has them by name and offset in the full
//! tensor, so it does not depend on the number of ranks: each rank saves and reads its shards. Shards are
//! gathered only for a leader that must save for all, one FSDP unit at a time. The gradients are computed by
//! the roles.

use std::collections::BTreeMap;
use std::path::Path;

use rlt_decoder::NamedTensors;
use rlt_layout::Axis;
use rlt_parallel::{FsdpUnit, RankError, Ranks, ShardedParameters, copy_tensor_run};
use rlt_storage::checkpoint::{Checkpoint, CheckpointError, CheckpointShard, split_between_copies};
use rlt_torch::TensorFile;
use tch::{Tensor, no_grad};

use super::error::LearnerError;
use crate::observe::phases::memory;
use crate::roles::optim::{AdamW, Clipped, LossScale, OptimError, StepOutcome};

/// Trainable parameters of a role with their optimizer.
#[derive(Debug)]
pub(crate) struct TrainState<'a> {
    pub(crate) optimizer: &'a mut AdamW,
    /// Loss scale of the gradients.
    pub(crate) loss_scale: &'a mut LossScale,
    /// Sharded parameters, whose local shards the optimizer updates; `None` without sharding.
    pub(crate) shards: Option<&'a ShardedParameters>,
    pub(crate) ranks: &'a Ranks,
    /// Largest global norm of a gradient, to which larger ones are clipped.
    pub(crate) max_grad_norm: f64,
}

/// Names of the optimizer's tensors that have a parameter's shape.
const MOMENTS: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// Returns the name of a parameter's moment in a checkpoint.
fn moment_name(parameter: &str, moment: &str) -> String {
    format!("optimizer.{parameter}.{moment}")
}

/// Returns the name of the parameter to which a tensor of a checkpoint belongs: the parameter itself, or a
/// moment.
fn parameter_of(tensor: &str) -> &str {
    let of_moment =
        |state: &'static str| tensor.strip_prefix("optimizer.")?.strip_suffix(state)?.strip_suffix('.');
    MOMENTS.into_iter().find_map(of_moment).unwrap_or(tensor)
}

impl TrainState<'_> {
    /// All-reduces the gradients, so that each rank applies the sum over all ranks. A parameter without a
    /// gradient, such as one of the vision tower in a batch without images, gets a gradient of zeros on any
    /// number of ranks.
    pub(crate) fn sum_gradients(&self) -> Result<(), RankError> {
        match self.shards {
            Some(shards) => shards.finish_gradients(),
            None => {
                let gradients = self.optimizer.gradients();
                if self.ranks.size() == 1 { Ok(()) } else { self.ranks.all_reduce_tensors(&gradients) }
            }
        }
    }

    /// Clips the reduced gradients, applies them at `learning_rate`, and clears them. A non-finite gradient
    /// is discarded and changes only the loss scale, on all ranks together.
    pub(crate) fn apply(&mut self, learning_rate: f64) -> Result<StepOutcome, LearnerError> {
        memory::during("optimizer", || self.apply_clipped(learning_rate))
    }

    fn apply_clipped(&mut self, learning_rate: f64) -> Result<StepOutcome, LearnerError> {
        let norm_of = |is_of: &dyn Fn(&str) -> bool| Ok(self.optimizer.grad_norm(is_of)?);
        let scaled_norm = match self.shards {
            Some(shards) => shards.norm_over_shards::<LearnerError>(norm_of)?,
            None => norm_of(&|_| true)?,
        };
        let factor = self.loss_scale.factor();
        let grad_norm = scaled_norm / factor;
        let outcome = match Clipped::at_norm(grad_norm, learning_rate, Some(self.max_grad_norm)) {
            Some(clipped) => {
                self.loss_scale.grow();
                let updated = self.update(&clipped.of_scaled(factor));
                updated.map(|()| StepOutcome::Applied { grad_norm }).map_err(LearnerError::from)
            }
            None if self.loss_scale.back_off() => Ok(StepOutcome::SkippedOverflow),
            None => Ok(StepOutcome::SkippedNonFinite),
        };
        self.discard_gradients();
        outcome
    }

    /// Updates all parameters, together or, if any are offloaded, one fetched buffer after the other.
    fn update(&mut self, clipped: &Clipped) -> Result<(), OptimError> {
        let optimizer = &mut *self.optimizer;
        match self.shards {
            Some(shards) => shards.with_resident_shards(|is_here| optimizer.update(clipped, is_here)),
            None => optimizer.update(clipped, |_| true),
        }
    }

    /// Discards the gradients without applying them.
    pub(crate) fn discard_gradients(&mut self) {
        self.optimizer.clear_gradients();
        self.shards.iter().for_each(|shards| shards.clear_gradients());
    }

    /// Returns the shards that this rank saves. All ranks together save every tensor once. Offloaded shards
    /// stay in offload storage, and must be read before the next update.
    ///
    /// # Errors
    /// [`RankError::Shards`] if an offloaded tensor cannot be read.
    pub(crate) fn checkpoint_shards(&self) -> Result<Vec<CheckpointShard>, RankError> {
        let Some(shards) = self.shards else {
            let tensors = self.optimizer.parameters().into_iter().chain(self.optimizer.state_tensors()?);
            let whole = tensors.map(|(name, tensor)| CheckpointShard::full(name, tensor)).collect();
            return Ok(split_between_copies(whole, self.ranks.rank(), self.ranks.size()));
        };
        let (mut moments, counts) = self.state()?;
        let mut local_shards = Vec::new();
        shards.show_trained(|slice, local_shard| {
            local_shards.push(CheckpointShard::of(slice, local_shard));
            for moment in MOMENTS.map(|moment| moment_name(slice.name, moment)) {
                let values = moments.remove(&moment);
                local_shards.extend(values.map(|values| CheckpointShard::of(&slice.named(&moment), &values)));
            }
            Ok::<(), RankError>(())
        })?;
        let mut parts = owned_shards(shards, local_shards);
        if self.ranks.is_leader() {
            parts.extend(counts.into_iter().map(|(name, count)| CheckpointShard::full(name, count)));
        }
        Ok(parts)
    }

    /// Returns the optimizer's moments by name, and its step counts.
    fn state(&self) -> Result<(BTreeMap<String, Tensor>, NamedTensors), RankError> {
        let is_count = |(name, _): &(String, Tensor)| name.ends_with(".num_steps");
        let (counts, moments): (NamedTensors, NamedTensors) =
            self.optimizer.state_tensors()?.into_iter().partition(is_count);
        Ok((moments.into_iter().collect(), counts))
    }

    /// Returns every tensor that an update changes, under its name in a checkpoint. With FSDP this is
    /// collective, and only the leader gets the tensors, in unlinked files of `folder` if that is writable,
    /// because memory suffices for one unit only.
    pub(crate) fn tensors(&self, folder: &Path) -> Result<NamedTensors, RankError> {
        let Some(shards) = self.shards else {
            return Ok(self
                .optimizer
                .parameters()
                .into_iter()
                .chain(self.optimizer.state_tensors()?)
                .collect());
        };
        let (mut moments, counts) = self.state()?;
        let mut tensors = NamedTensors::new();
        for unit in shards.units() {
            let whole = gather_unit(shards, unit, &mut moments)?;
            if self.ranks.is_leader() {
                tensors.extend(in_file(whole, folder));
            }
        }
        if self.ranks.is_leader() {
            tensors.extend(counts);
        }
        Ok(tensors)
    }

    /// Overwrites the parameters in `values`, which maps names to full tensors and is the same on every rank.
    ///
    /// # Errors
    /// [`RankError::Shards`] if offloaded parameters cannot be fetched or written back.
    pub(crate) fn overwrite(&self, values: &BTreeMap<String, Tensor>) -> Result<(), RankError> {
        let Some(shards) = self.shards else {
            let parameters = self.optimizer.parameters().into_iter();
            let with_values = parameters.filter_map(|(name, leaf)| Some((leaf, values.get(&name)?)));
            no_grad(|| with_values.for_each(|(leaf, values)| leaf.detach().copy_(values)));
            return Ok(());
        };
        shards.fill_trained(|tensor_run, local_shard| {
            if let Some(whole) = values.get(tensor_run.name) {
                copy_tensor_run(tensor_run, whole, local_shard);
            }
            Ok(())
        })
    }

    /// Loads a checkpoint of [`Self::checkpoint_shards`] or [`Self::tensors`]; each rank reads only its own
    /// shards.
    ///
    /// # Errors
    /// [`CheckpointError`]: the checkpoint lacks a tensor, or one has another shape.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let Some(shards) = self.shards else {
            self.optimizer.load(checkpoint)?;
            let load = |(name, leaf): (String, Tensor)| no_grad(|| checkpoint.load_into(&name, &leaf));
            return self.optimizer.parameters().into_iter().try_for_each(load);
        };
        shards.fill_trained(|tensor_run, values| checkpoint.fill(tensor_run, values))?;
        self.optimizer.load_moments(checkpoint, |name, state_name, moment| {
            shards.fill_beside(name, moment, |tensor_run, values| {
                checkpoint.fill(&tensor_run.named(state_name), values)
            })
        })
    }
}

/// Selects the local shards that this rank saves. All ranks together save every tensor once.
pub(crate) fn owned_shards(
    shards: &ShardedParameters,
    local_shards: Vec<CheckpointShard>,
) -> Vec<CheckpointShard> {
    let mut by_axes: BTreeMap<Vec<Axis>, Vec<CheckpointShard>> = BTreeMap::new();
    for local_shard in local_shards {
        let axes = shards.split_axes(parameter_of(&local_shard.name));
        by_axes.entry(axes).or_default().push(local_shard);
    }
    let mut owned = Vec::new();
    for (axes, parts) in by_axes {
        let copies = shards.copies(&axes);
        owned.extend(split_between_copies(parts, copies.index, copies.size));
    }
    owned
}

/// Gathers a unit's parameters and moments; the moments are removed from `moments`.
fn gather_unit(
    shards: &ShardedParameters,
    unit: FsdpUnit,
    moments: &mut BTreeMap<String, Tensor>,
) -> Result<NamedTensors, RankError> {
    let mut whole = shards.gather_parameters(unit)?;
    for moment in MOMENTS {
        let gathered = shards.gather(unit, |name| moments.remove(&moment_name(name, moment)))?;
        whole.extend(gathered.into_iter().map(|(name, tensor)| (moment_name(&name, moment), tensor)));
    }
    Ok(whole)
}

/// Moves tensors into a new file. If the file cannot be written, the tensors are copied in memory, and the
/// save of the checkpoint reports the error.
pub(crate) fn in_file(tensors: NamedTensors, folder: &Path) -> NamedTensors {
    let (names, resident): (Vec<String>, Vec<Tensor>) = tensors.into_iter().unzip();
    let lying = match TensorFile::write(folder, &resident) {
        Ok((_, mapped)) => mapped,
        Err(error) => {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "a part of the checkpoint stays in memory until it is saved");
            // The tensors are views of buffers that may be freed.
            resident.iter().map(|tensor| tensor.detach().copy()).collect()
        }
    };
    names.into_iter().zip(lying).collect()
}
