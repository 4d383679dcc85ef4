//! Tests that train roles on several ranks, each a thread of the test, and compare them with one rank.

#[path = "../parallel/src/tests/rank_threads.rs"]
mod rank_threads;
mod sequence_parallel;
mod shards;
mod traffic;

use std::collections::BTreeMap;
use std::rc::Rc;

use rlt_decoder::Decoder;
use rlt_parallel::{DecoderUnits, RankEnvironment, RankError, Ranks, ShardedParameters, WeightDtype};
use rlt_torch::MatmulPrecision;
use tch::Tensor;

pub(crate) use self::rank_threads::on_ranks;
use crate::roles::actor::{Actor, ActorOptions};
use crate::roles::offload::Offload;
use crate::roles::optim::AdamWOptions;

/// Creates an actor whose decoder is sharded over `dp_shard` ranks.
pub(crate) fn actor_on_mesh(
    decoder: Decoder,
    options: ActorOptions,
    ranks: &Ranks,
    dp_shard: usize,
) -> Actor {
    actor_with_offload(decoder, options, ranks, (dp_shard, 1), &Offload::default())
}

/// Creates an actor with `offload`, sharded over `dp_shard` ranks, with experts distributed over `ep` ranks.
pub(super) fn actor_with_offload(
    decoder: Decoder,
    options: ActorOptions,
    ranks: &Ranks,
    (dp_shard, ep): (usize, usize),
    offload: &Offload,
) -> Actor {
    actor_keeping_unsharded(decoder, options, ranks, (dp_shard, ep, 1), offload)
}

/// Selects the library for matrix products that runs use by default. The choice holds for the process, so
/// without it the rounding of a test would depend on whether a test of a run came before.
pub(crate) fn choose_products_of_runs() {
    let precision = if rlt_torch::cpu_has_amx() { MatmulPrecision::Highest } else { MatmulPrecision::Medium };
    rlt_torch::set_float32_matmul_precision(precision).unwrap();
}

/// Creates an actor whose last layers stay unsharded between forward and backward pass.
pub(super) fn actor_keeping_unsharded(
    decoder: Decoder,
    options: ActorOptions,
    ranks: &Ranks,
    (dp_shard, ep, unsharded_layers): (usize, usize, usize),
    offload: &Offload,
) -> Actor {
    choose_products_of_runs();
    let ranks = ranks.clone().with_expert_parallel(ep);
    let offload_to = offload.parameters();
    let by_unit = dp_shard > 1 || ep > 1 || ranks.tp_group().is_some() || offload_to.is_some();
    let shards = by_unit.then(|| {
        let mesh = Rc::new(ranks.on_mesh(dp_shard).unwrap());
        let shards = ShardedParameters::new(&decoder, mesh, offload_to).unwrap();
        shards.keeping_unsharded(unsharded_layers)
    });
    let trained =
        shards.as_ref().map_or_else(|| decoder.trainable_parameters(), ShardedParameters::local_shards);
    let optimizer = offload.optimizer(trained, AdamWOptions::default()).unwrap();
    let mut actor = Actor::new(decoder, optimizer, options, ranks);
    if let Some(shards) = shards {
        actor = actor.with_shards(shards);
    }
    match offload.activations() {
        Some(folder) => actor.with_offloaded_inputs(folder.to_owned()),
        None => actor,
    }
}

/// Returns copies of a decoder's parameters by name, gathered if they are sharded.
pub(crate) fn whole_parameters(decoder: DecoderUnits<'_>) -> BTreeMap<String, Tensor> {
    let (layers, outer) = decoder.decoder().parameters_by_layer();
    let mut all = BTreeMap::new();
    let visited = decoder.visit(WeightDtype::Master, |unit| {
        let of_part = unit.layer_idx().map_or(&outer, |layer_idx| &layers[layer_idx]);
        all.extend(of_part.iter().map(|(name, leaf)| (name.clone(), leaf.detach().copy())));
        Ok::<(), RankError>(())
    });
    visited.unwrap();
    all
}

/// Returns the trained parameters of an actor by name, unsharded.
pub(crate) fn trained_parameters(actor: &Actor) -> BTreeMap<String, Tensor> {
    let mut all = whole_parameters(actor.learner.units());
    let trained = actor.learner.decoder().trainable_parameters();
    all.retain(|name, _| trained.iter().any(|(trained, _)| trained == name));
    all
}
