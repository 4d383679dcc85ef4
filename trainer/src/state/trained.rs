//! Trained weights and optimizer moments on their way into a checkpoint and out of it: always whole and by name, so that
//! a checkpoint does not depend on how many ranks share the model. Shards become whole one part of the model at a time.

use std::path::Path;

use rlt_torch::TensorFile;
use tch::{Tensor, no_grad};

use crate::actor::Actor;
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::parallel::{Part, RankError, Ranks, ShardedParameters};

type NamedTensors = Vec<(String, Tensor)>;

/// Every tensor that an update changes, by its name in a checkpoint. Where ranks share the model all of them take part,
/// and the leader alone gets the tensors: they lie in nameless files of `folder` where those can be written, for memory
/// is there for one part.
///
/// # Errors
/// [`RankError`] when a rank is lost.
pub(super) fn tensors(actor: &Actor, ranks: &Ranks, folder: &Path) -> Result<NamedTensors, RankError> {
    let state = actor.optimizer.state_tensors();
    let Some(shards) = actor.shards() else {
        let mut tensors = actor.decoder.trainable_parameters();
        tensors.extend(state);
        return Ok(tensors);
    };
    let mut tensors: NamedTensors = Vec::new();
    for part in shards.parts() {
        let whole = whole_part(shards, part, &state)?;
        if ranks.is_leader() {
            tensors.extend(in_file(whole, folder));
        }
    }
    if ranks.is_leader() {
        tensors.extend(state.into_iter().filter(|(name, _)| name.ends_with(".num_steps")));
    }
    Ok(tensors)
}

/// A part's parameters and moments.
fn whole_part(
    shards: &ShardedParameters,
    part: Part,
    state: &[(String, Tensor)],
) -> Result<NamedTensors, RankError> {
    let find = |tensors: &[(String, Tensor)], wanted: &str| {
        tensors.iter().find(|(name, _)| name == wanted).map(|(_, tensor)| tensor.shallow_clone())
    };
    let pieces = shards.pieces();
    let mut whole = shards.gather(part, |name| find(&pieces, name))?;
    for moment in ["exp_avg", "exp_avg_sq"] {
        let state_name = |name: &str| format!("optimizer.{name}.{moment}");
        let moments = shards.gather(part, |name| find(state, &state_name(name)))?;
        whole.extend(moments.into_iter().map(|(name, tensor)| (state_name(&name), tensor)));
    }
    Ok(whole)
}

/// The tensors as they lie in a new file, or as they are where none can be written: saving will then say why.
fn in_file(tensors: NamedTensors, folder: &Path) -> NamedTensors {
    let (names, resident): (Vec<String>, Vec<Tensor>) = tensors.into_iter().unzip();
    let lying = match TensorFile::write(folder, &resident) {
        Ok((_, mapped)) => mapped,
        Err(error) => {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, "a part of the checkpoint stays in memory until it is saved");
            resident
        }
    };
    names.into_iter().zip(lying).collect()
}

/// Takes over what [`tensors`] gave to a checkpoint, each rank its own part.
///
/// # Errors
/// [`CheckpointError`]: the checkpoint lacks a tensor, or one has another shape.
pub(super) fn restore(actor: &mut Actor, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
    let (shards, optimizer) = actor.shards_and_optimizer();
    let Some(shards) = shards else {
        optimizer.load(checkpoint)?;
        let load = |(name, leaf): (String, Tensor)| no_grad(|| checkpoint.load_into(&name, &leaf));
        return actor.decoder.trainable_parameters().into_iter().try_for_each(load);
    };
    for (name, piece) in shards.pieces() {
        shards.fill_piece(&name, &piece, |whole| checkpoint.load_into(&name, whole))?;
    }
    optimizer.load_moments(checkpoint, |name, state_name, moment| {
        shards.fill_piece(name, moment, |whole| checkpoint.load_into(state_name, whole))
    })
}
