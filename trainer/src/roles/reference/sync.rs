//! Synchronization of the reference with the actor (TR-DPO, arXiv 2404.09656): every few steps each weight
//! moves towards the actor's. The role decides when.

use std::collections::BTreeMap;

use rlt_layout::TensorRun;
use rlt_models::READ_CHUNK_NUMBERS;
use rlt_parallel::{RankError, copy_tensor_run};
use rlt_torch::TensorFile;
use tch::{Tensor, no_grad};

use super::FrozenPolicy;
use crate::roles::actor::Actor;

impl FrozenPolicy {
    /// Sets every weight to `alpha` times the actor's plus `1 - alpha` times its own, in the dtype in which
    /// it is stored. With FSDP this is collective, unit by unit; the result does not depend on the sharding.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost, or the file that holds the weights cannot be written.
    pub fn sync(&self, actor: &Actor, alpha: f64) -> Result<(), RankError> {
        self.decoder.forget_images();
        if let (Some(own), Some(of_actor)) = (&self.shards, actor.learner.shards()) {
            return own.fill_beside_role(
                of_actor,
                |name| name,
                |tensor_run, values, theirs| mix(tensor_run, values, theirs, alpha, own.file()),
            );
        }
        let of_actor: BTreeMap<String, Tensor> =
            actor.learner.decoder().base_parameters().into_iter().collect();
        self.decoder.named_parameters().iter().try_for_each(|(name, own)| {
            let Some(theirs) = of_actor.get(name) else { return Ok(()) };
            let shape = own.size();
            let file = self.decoder.offload_file.as_ref();
            mix(&TensorRun::full(name, &shape), &own.view(-1), theirs, alpha, file)
        })
    }
}

/// Mixes the run `tensor_run` of the full tensor `theirs` into `values`, `[len]`, which may be in `file`.
/// At most a chunk is copied at a time.
fn mix(
    tensor_run: &TensorRun<'_>,
    values: &Tensor,
    theirs: &Tensor,
    alpha: f64,
    file: Option<&TensorFile>,
) -> Result<(), RankError> {
    tensor_run.chunks(READ_CHUNK_NUMBERS as usize).try_for_each(|chunk| {
        let start = (chunk.range.start - tensor_run.range.start) as i64;
        let place = no_grad(|| values.detach().narrow(0, start, chunk.range.len() as i64));
        let mixed = no_grad(|| {
            let of_actor = place.empty_like();
            copy_tensor_run(&chunk, theirs, &of_actor);
            // Both products and their sum are rounded separately: whether libtorch fuses them depends on the
            // position of a value in memory.
            of_actor * alpha + &place * (1.0 - alpha)
        });
        match file {
            Some(file) => file.rewrite(&place, &mixed)?,
            None => no_grad(|| place.shallow_clone().copy_(&mixed)),
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
