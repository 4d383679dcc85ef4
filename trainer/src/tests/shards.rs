//! FSDP of a small decoder on ranks that are threads: training equals that of one rank with the full model.

mod adapter_sync;
mod compositions;
mod configs;
mod expert_parallel;
mod loftq;
mod offloaded;
mod saved;
mod saved_modules;
mod taken;
mod tensor_parallel;
mod unsharded;

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use rlt_api::spec::{
    CriticSpec, LoraInit, LoraSpec, OffloadSpec, Precision, QuantizationFormat, QuantizationSpec,
};
use rlt_core::batch::{Batch, Demonstration};
use rlt_decoder::{Adapter, Decoder, ExportOptions, LoadOptions, LoraConfig, ModuleMatch, Weights};
use rlt_parallel::{DecoderUnits, FsdpUnit, RankError, Ranks, ShardedParameters, WeightDtype};
use tch::{Kind, Tensor};

use self::configs::config;
use crate::roles::actor::update::{UpdatePlan, update};
use crate::roles::actor::{Actor, ActorOptions};
use crate::roles::critic::{Critic, CriticOptions};
use crate::roles::objective::supervised_objective;
use crate::roles::offload::Offload;
use crate::roles::optim::AdamWOptions;
use crate::roles::reference::{CopyOptions, FrozenPolicy};
use crate::tests::{
    actor_keeping_unsharded, actor_with_offload, on_ranks, trained_parameters, whole_parameters,
};

/// Tolerance of results that are summed over ranks in another order. Five steps of an optimizer that divides
/// by small gradients enlarge the differences.
const TOLERANCE: f64 = 1e-5;

/// The settings of a training.
#[derive(Clone, Copy, Debug)]
struct Case {
    tied: bool,
    /// Whether the layers have experts and a router loss, except for the second, which has a feed-forward
    /// block.
    experts: bool,
    /// Whether attention is latent; the second layer then has experts, whose choice depends on an untrained
    /// bias.
    latent: bool,
    /// Whether the model is a GPT-OSS: attention sinks, and experts with biases.
    sinks: bool,
    /// Whether the model is a Qwen2-MoE, with a gated shared expert.
    shared: bool,
    lora: bool,
    dora: bool,
    /// Whether embedding, head and norms are trained in full together with the adapter (`modulesToSave`).
    saves: bool,
    /// Quantization format of the base model, and whether its scales are quantized, too.
    quantized: Option<(QuantizationFormat, bool)>,
    activation_checkpointing: bool,
    compute: Kind,
    max_tokens: usize,
    /// Number of experts of a layer; models with latent attention have their own number.
    num_experts: usize,
    /// Number of ranks over which the experts are distributed; a single rank has all of them.
    ep: usize,
    /// The architecture of a dense model.
    dense: &'static str,
    /// Number of key heads, of which query heads and width are multiples.
    kv_heads: usize,
}

const FULL: Case = Case {
    tied: false,
    experts: false,
    latent: false,
    sinks: false,
    shared: false,
    lora: false,
    dora: false,
    saves: false,
    quantized: None,
    activation_checkpointing: false,
    compute: Kind::Float,
    max_tokens: 8,
    num_experts: 5,
    ep: 1,
    dense: "Qwen3ForCausalLM",
    kv_heads: 1,
};

const ALL: OffloadSpec = OffloadSpec { parameters: true, optimizer: true, activations: true };
const NONE: OffloadSpec = OffloadSpec { parameters: false, optimizer: false, activations: false };

fn options(case: Case) -> LoadOptions {
    LoadOptions { trainable: !case.lora, compute: case.compute, ..LoadOptions::default() }
}

fn decoder(case: Case) -> Decoder {
    with_adapter(Decoder::from_weights(&weights(case), &options(case)).unwrap(), case)
}

/// Draws random weights, and quantizes them if the case says so.
fn weights(case: Case) -> Weights {
    let spec = case.quantized.map(|(format, double_quantization)| QuantizationSpec {
        format,
        block_size: if format == QuantizationFormat::Int8 { 64 } else { 32 },
        double_quantization,
        ..QuantizationSpec::default()
    });
    Weights::random_init(&config(case), 7).quantized(spec.as_ref(), Precision::Fp32).unwrap()
}

fn with_adapter(mut decoder: Decoder, case: Case) -> Decoder {
    if case.lora {
        let lora = LoraConfig {
            rank: 3,
            alpha: 6.0,
            rank_stabilized: false,
            targets: ModuleMatch::AllLinear,
            target_parameters: parameters_with_adapters(case),
            exclude: None,
            dropout: 0.0,
            init: LoraInit::Peft,
            dora: case.dora,
            modules_to_save: saved_modules::names(case),
            ..LoraConfig::default()
        };
        decoder.attach_lora(&lora, 3).unwrap();
    }
    decoder
}

/// Returns the names of the expert and router parameters that have adapters; empty without experts.
fn parameters_with_adapters(case: Case) -> Vec<String> {
    let all = ["gate.weight", "experts.gate_up_proj", "experts.down_proj"].map(str::to_owned);
    if case.experts { all.to_vec() } else { Vec::new() }
}

/// Creates five sequences whose lengths give ranks different numbers of micro-batches.
fn batch() -> Batch {
    let rows: [&[u32]; 5] =
        [&[3, 1, 4, 1, 5, 9], &[2, 6, 5], &[3, 5, 8, 9, 7], &[9, 3], &[2, 3, 8, 4, 6, 2, 6, 4]];
    let demonstration = |tokens: &&[u32]| Demonstration {
        tokens: tokens.to_vec(),
        loss_mask: (0..tokens.len()).map(|at| at >= 1).collect(),
        images: Vec::new(),
    };
    let demonstrations: Vec<Demonstration> = rows.iter().map(demonstration).collect();
    Batch::from_demonstrations(&demonstrations)
}

fn actor_options(case: Case) -> ActorOptions {
    ActorOptions {
        temperature: 0.7,
        head_chunk_tokens: 2,
        activation_checkpointing: case.activation_checkpointing,
        max_grad_norm: 1.0,
    }
}

fn actor(case: Case, ranks: &Ranks, dp_shard: usize) -> Actor {
    let degrees = (dp_shard, expert_parallel_degree(case, ranks));
    let actor = actor_with_offload(decoder(case), actor_options(case), ranks, degrees, &Offload::default());
    actor.with_router_loss(case.experts.then_some(0.5))
}

/// Creates the actor of a case with the offload `spec` to `folder`.
fn offloaded_actor(case: Case, ranks: &Ranks, dp_shard: usize, spec: OffloadSpec, folder: &Path) -> Actor {
    let degrees = (dp_shard, expert_parallel_degree(case, ranks));
    actor_with_offload(decoder(case), actor_options(case), ranks, degrees, &Offload::new(spec, folder))
}

/// Returns the number of ranks that distribute the experts of a case; a single rank has all of them.
fn expert_parallel_degree(case: Case, ranks: &Ranks) -> usize {
    case.ep.min(ranks.size())
}

fn plan(case: Case, seed: u64) -> UpdatePlan {
    UpdatePlan {
        objective: supervised_objective(),
        groups_per_update: 5,
        num_epochs: 1,
        max_tokens: case.max_tokens,
        learning_rate: 0.01,
        seed,
    }
}

/// Returns the values of all trained parameters, unsharded.
fn parameters(actor: &Actor) -> Vec<f64> {
    numbers(trained_parameters(actor).values())
}

fn numbers<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Vec<f64> {
    let of_one =
        |tensor: &Tensor| Vec::<f64>::try_from(tensor.detach().to_kind(Kind::Double).reshape([-1])).unwrap();
    tensors.into_iter().flat_map(of_one).collect()
}

/// Returns losses, gradient norms, log-probs and parameters of five updates.
fn train(case: Case, ranks: &Ranks, dp_shard: usize) -> Vec<f64> {
    train_actor(case, actor(case, ranks, dp_shard))
}

fn train_actor(case: Case, mut actor: Actor) -> Vec<f64> {
    let batch = batch();
    let folder = tempfile::tempdir().unwrap();
    let is_offloaded = actor.learner.shards().is_some_and(ShardedParameters::is_offloaded);
    let reference =
        FrozenPolicy::copy_of(&actor, &CopyOptions::in_folder(folder.path(), is_offloaded)).unwrap();
    let mut numbers = Vec::new();
    for step in 0..5 {
        let report = update(&mut actor, &batch, &plan(case, step)).unwrap();
        assert_eq!(report.updates.num_skipped, 0);
        numbers.push(report.loss.pg_loss);
        numbers.extend(report.updates.grad_norms);
        numbers.extend(report.actor_logprobs);
        numbers.extend(report.router_loads.iter().flat_map(|load| load.chosen.clone()));
    }
    numbers.extend(actor.score(&batch, Adapter::Off, case.max_tokens).unwrap().logprobs);
    numbers.extend(actor.sum_pi_squared(&batch, case.max_tokens).unwrap());
    // The reference equals the earlier actor, also after its pages were released.
    reference.release_pages();
    numbers.extend(reference.score(&actor, &batch, case.max_tokens).unwrap().logprobs);
    numbers.extend(parameters(&actor));
    numbers
}

fn largest_difference(one: &[f64], other: &[f64]) -> f64 {
    assert_eq!(one.len(), other.len());
    // Differences of values above 1, such as a gradient norm, are relative, because fp32 has 24 bits for
    // each.
    one.iter().zip(other).map(|(one, other)| (one - other).abs() / one.abs().max(1.0)).fold(0.0, f64::max)
}

#[track_caller]
fn assert_trains_as_one(case: Case, meshes: &[(usize, usize)], tolerance: f64) {
    let alone = train(case, &Ranks::alone(), 1);
    let untrained = actor(case, &Ranks::alone(), 1).score(&batch(), Adapter::Off, case.max_tokens).unwrap();
    let num_weights = parameters(&actor(case, &Ranks::alone(), 1)).len();
    assert!(alone[..alone.len() - num_weights].ends_with(&untrained.logprobs), "the reference has moved");
    for (size, dp_shard) in meshes {
        let all = on_ranks(*size, |ranks| train(case, &ranks, *dp_shard));
        for numbers in &all {
            assert_eq!(numbers, &all[0], "ranks differ");
        }
        let difference = largest_difference(&alone, &all[0]);
        assert!(difference < tolerance, "{case:?} on {size} ranks by {dp_shard}: {difference}");
    }
}

#[test]
fn shards_train_as_the_whole_on_any_mesh() {
    assert_trains_as_one(FULL, &[(2, 2), (3, 3), (4, 4), (4, 2)], TOLERANCE);
    assert_trains_as_one(
        Case { tied: true, activation_checkpointing: true, ..FULL },
        &[(3, 3), (4, 2)],
        TOLERANCE,
    );
}

#[test]
fn experts_and_the_loss_of_their_routers_train_on_any_mesh_and_in_any_micro_batches_as_in_one() {
    let experts = Case { experts: true, ..FULL };
    assert_trains_as_one(experts, &[(2, 1), (2, 2), (4, 2)], TOLERANCE);
    assert_trains_as_one(Case { activation_checkpointing: true, ..experts }, &[(3, 3)], TOLERANCE);
    let one = |max_tokens| train(Case { max_tokens, ..experts }, &Ranks::alone(), 1);
    let difference = largest_difference(&one(8), &one(64));
    assert!(difference < TOLERANCE, "{difference}");
    let without = actor_with_offload(
        decoder(experts),
        actor_options(experts),
        &Ranks::alone(),
        (1, 1),
        &Offload::default(),
    );
    let num_weights = parameters(&without).len();
    let weights = |numbers: Vec<f64>| numbers[numbers.len() - num_weights..].to_vec();
    assert_ne!(weights(train_actor(experts, without)), weights(one(8)), "the routers' loss has no gradient");
}

#[test]
fn latent_attention_trains_in_shards_as_whole() {
    let latent = Case { latent: true, ..FULL };
    assert_trains_as_one(latent, &[(2, 2), (4, 2)], TOLERANCE);
    assert_trains_as_one(Case { lora: true, ..latent }, &[(2, 2)], TOLERANCE);
}

#[test]
fn sinks_and_experts_with_biases_train_in_shards_as_whole() {
    let sinks = Case { sinks: true, ..FULL };
    assert_trains_as_one(sinks, &[(2, 2), (4, 2)], TOLERANCE);
    assert_trains_as_one(Case { activation_checkpointing: true, lora: true, ..sinks }, &[(2, 2)], TOLERANCE);
}

#[test]
fn an_adapter_on_shards_of_a_frozen_model_trains_as_on_the_whole() {
    assert_trains_as_one(Case { lora: true, ..FULL }, &[(2, 2), (4, 2)], TOLERANCE);
    assert_trains_as_one(Case { lora: true, experts: true, ..FULL }, &[(2, 2), (4, 2)], TOLERANCE);
}

const QUANTIZED: Case = Case {
    lora: true,
    quantized: Some((QuantizationFormat::Nf4, true)),
    activation_checkpointing: true,
    ..FULL
};

#[test]
fn an_adapter_on_shards_of_a_quantized_model_trains_as_on_the_whole() {
    assert_trains_as_one(QUANTIZED, &[(2, 2), (3, 3), (4, 2)], TOLERANCE);
    let int8 = Case { quantized: Some((QuantizationFormat::Int8, false)), ..QUANTIZED };
    assert_trains_as_one(int8, &[(2, 2)], TOLERANCE);
}

#[test]
fn an_offloaded_quantized_model_trains_like_one_on_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let offloaded = offloaded_actor(QUANTIZED, &Ranks::alone(), 1, ALL, folder.path());
    assert_eq!(train_actor(QUANTIZED, offloaded), train(QUANTIZED, &Ranks::alone(), 1));
}

#[test]
fn ranks_quantize_their_shards_of_the_weights_of_one_rank() {
    for format in [QuantizationFormat::Nf4, QuantizationFormat::Fp4, QuantizationFormat::Int8] {
        for double in [false, format != QuantizationFormat::Int8] {
            let case = Case { quantized: Some((format, double)), ..QUANTIZED };
            let whole = whole_parameters(DecoderUnits::from(&decoder(case)));
            assert!(whole.iter().any(|(name, _)| name.ends_with("absmax") || name.ends_with("SCB")));
            let all = on_ranks(3, |ranks| {
                let weights = weights(case);
                let meta = Decoder::meta(weights.config(), &options(case)).unwrap();
                let decoder = with_adapter(meta, case);
                let mesh = Rc::new(ranks.on_mesh(3).unwrap());
                let shards = ShardedParameters::new(&decoder, mesh, None).unwrap();
                shards.read(&weights).unwrap();
                whole_parameters(DecoderUnits::new(&decoder, Some(&shards)))
            });
            assert!(all.iter().all(|parameters| parameters == &whole), "{case:?}");
        }
    }
}

#[test]
fn magnitudes_of_dora_on_shards_train_as_on_the_whole() {
    let dora = Case { lora: true, dora: true, ..FULL };
    assert_trains_as_one(dora, &[(2, 2), (4, 2)], TOLERANCE);
    assert_trains_as_one(Case { activation_checkpointing: true, ..dora }, &[(3, 3)], TOLERANCE);
}

#[test]
fn ranks_read_or_draw_their_shards_of_the_weights_of_one_rank() {
    let lora = Case { lora: true, ..FULL };
    let saves = Case { saves: true, ..lora };
    let tied = Case { tied: true, ..FULL };
    for case in [FULL, tied, lora, Case { dora: true, ..lora }, saves, Case { tied: true, ..saves }] {
        let whole = decoder(case);
        let folder = tempfile::tempdir().unwrap();
        whole.export(folder.path(), &ExportOptions { merge_lora: false, dtype: Kind::Float }).unwrap();
        let whole = whole_parameters(DecoderUnits::from(&whole));
        let drawn = Weights::random_init(&config(case), 7);
        let read = Weights::open(folder.path()).unwrap();
        for (size, weights) in [(2, &drawn), (3, &drawn), (4, &read), (3, &read)] {
            let all = on_ranks(size, |ranks| {
                let meta = Decoder::meta(weights.config(), &options(case)).unwrap();
                let decoder = with_adapter(meta, case);
                let mesh = Rc::new(ranks.on_mesh(size).unwrap());
                let shards = ShardedParameters::new(&decoder, mesh, None).unwrap();
                shards.read(weights).unwrap();
                shards.start_adapter(&decoder, |name| name).unwrap();
                whole_parameters(DecoderUnits::new(&decoder, Some(&shards)))
            });
            assert!(all.iter().all(|parameters| parameters == &whole), "{case:?} by {size}");
        }
    }
}

/// Returns the reports of five updates of a critic, its values after them, and on the leader its weights and
/// moments.
fn learn(case: Case, ranks: &Ranks, dp_shard: usize) -> (Vec<f64>, Vec<f64>) {
    learn_beside(case, &actor(case, ranks, dp_shard), Offload::default())
}

fn learn_beside(case: Case, actor: &Actor, offload: Offload) -> (Vec<f64>, Vec<f64>) {
    let options = CriticOptions {
        critic: CriticSpec { learning_rate: 0.001, warmup_steps: None, value_clip: 0.2 },
        activation_checkpointing: case.activation_checkpointing,
        offload,
        ..CriticOptions::default()
    };
    let mut batch = batch();
    let modules_to_save = saved_modules::names(case);
    let lora = LoraSpec { rank: 2, dora: case.dora, modules_to_save, ..LoraSpec::default() };
    let lora = case.lora.then_some((&lora, 5));
    let mut critic = Critic::from_actor(actor, lora, options, actor.learner.ranks().clone()).unwrap();
    let returns = (0..batch.rows.num_tokens()).map(|at| (at as f64 * 0.3).sin()).collect();
    (batch.values, batch.returns) = (Some(critic.values(&batch, case.max_tokens).unwrap()), Some(returns));
    let mut reported = Vec::new();
    for step in 0..5 {
        let report = critic.learn(&batch, plan(case, step).mini_batches()).unwrap();
        assert_eq!(report.updates.num_skipped, 0);
        // The number of micro-batches depends on the distribution of rows over ranks.
        let metrics = report.metrics().into_iter().filter(|(name, _)| name != "critic/num_micro_batches");
        reported.extend(metrics.map(|(_, value)| value));
    }
    reported.extend(critic.values(&batch, case.max_tokens).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut state = critic.learner.train_state().tensors(folder.path()).unwrap();
    state.sort_by(|(one, _), (other, _)| one.cmp(other));
    assert!(state.is_empty() || state.iter().any(|(name, _)| name == "critic.value_head.weight"));
    (reported, numbers(state.iter().map(|(_, tensor)| tensor)))
}

#[test]
fn a_critic_in_shards_learns_as_the_whole() {
    let checkpointed = Case { tied: true, activation_checkpointing: true, ..FULL };
    for (case, meshes) in [
        (FULL, &[(2, 1, 1), (2, 2, 1), (3, 3, 1), (4, 2, 1)][..]),
        (checkpointed, &[(4, 2, 2)]),
        (Case { lora: true, ..FULL }, &[(2, 2, 1), (4, 2, 1)]),
        (Case { lora: true, dora: true, ..FULL }, &[(2, 2, 1)]),
        (Case { lora: true, saves: true, ..FULL }, &[(2, 2, 1)]),
    ] {
        let (numbers, state) = learn(case, &Ranks::alone(), 1);
        for &(size, dp_shard, sp) in meshes {
            let all =
                on_ranks(size, |ranks| learn(case, &ranks.with_sequence_parallel(sp).unwrap(), dp_shard));
            assert!(all.iter().all(|(numbers, _)| numbers == &all[0].0), "ranks differ");
            let difference = largest_difference(&numbers, &all[0].0);
            assert!(difference < TOLERANCE, "{case:?} on {size} ranks by {dp_shard}: {difference}");
            let difference = largest_difference(&state, &all[0].1);
            assert!(
                difference < TOLERANCE,
                "{case:?} on {size} ranks by {dp_shard}: {difference} in weights"
            );
        }
    }
}

/// A critic that is an adapter computes with the actor's shards, so no weight of the model exists twice.
#[test]
fn a_critic_s_adapter_uses_the_actor_s_shards() {
    let case = Case { lora: true, ..FULL };
    on_ranks(2, |ranks| {
        let actor = actor(case, &ranks, 2);
        let lora = LoraSpec { rank: 1, ..LoraSpec::default() };
        let options = CriticOptions::default();
        let mut critic = Critic::from_actor(&actor, Some((&lora, 5)), options, ranks.clone()).unwrap();
        let sharded_bytes = actor.learner.shards().unwrap().num_bytes();
        critic.values(&batch(), 64).unwrap();
        assert_eq!(
            actor.learner.shards().unwrap().num_bytes(),
            sharded_bytes,
            "what has come for the critic has gone"
        );
        let of_critic = critic.learner.train_state().shards.unwrap().num_bytes();
        let trained: usize =
            critic.state_tensors().unwrap().iter().take(3).map(|(_, tensor)| tensor.numel()).sum();
        assert!(trained > 0 && of_critic < actor.learner.shards().unwrap().num_bytes());
    });
}

#[test]
fn layers_in_bf16_round_equally_with_and_without_sharding() {
    // The products are the same, but their sums in fp32 have another order. The first steps of AdamW depend
    // on the sign of a gradient.
    let case = Case { compute: Kind::BFloat16, max_tokens: 64, ..FULL };
    let alone = train(case, &Ranks::alone(), 1);
    let both = on_ranks(2, |ranks| train(case, &ranks, 2));
    assert!((alone[0] - both[0][0]).abs() < 1e-3, "{} {}", alone[0], both[0][0]);
}

#[test]
fn weights_are_gathered_in_the_compute_dtype_and_in_the_master_dtype_on_request() {
    let case = Case { compute: Kind::BFloat16, ..FULL };
    let exact = numbers(whole_parameters(DecoderUnits::from(&decoder(case))).values());
    on_ranks(2, |ranks| {
        let actor = actor(case, &ranks, 2);
        let sharded_bytes = actor.learner.shards().unwrap().num_bytes();
        actor.score(&batch(), Adapter::On, case.max_tokens).unwrap();
        assert_eq!(parameters(&actor), exact);
        let (parts, mut rounded) = (actor.learner.units(), BTreeMap::new());
        let computed = parts.decoder().compute_kind();
        assert_eq!(parts.dtype_to_sample(computed), WeightDtype::Compute);
        assert_eq!(parts.dtype_to_sample(Kind::Half), WeightDtype::Master, "no number is rounded twice");
        let visited = parts.visit(parts.dtype_to_sample(computed), |unit| {
            for (name, tensor) in actor.learner.shards().unwrap().parameters_of(unit) {
                // Norms use the master dtype, projections the compute dtype.
                let expected = if tensor.dim() > 1 { Kind::BFloat16 } else { Kind::Float };
                assert_eq!(tensor.kind(), expected, "{name}");
                rounded.insert(name, tensor.copy());
            }
            Ok::<(), RankError>(())
        });
        visited.unwrap();
        let rounded = numbers(rounded.values());
        assert!(largest_difference(&exact, &rounded) < 1.0 / 256.0 && exact != rounded);
        assert_eq!(parameters(&actor), exact);
        assert_eq!(actor.learner.shards().unwrap().num_bytes(), sharded_bytes);
    });
}

#[test]
fn accumulated_micro_batches_are_one_batch() {
    let whole = on_ranks(2, |ranks| train(Case { max_tokens: 64, ..FULL }, &ranks, 2));
    let parts = on_ranks(2, |ranks| train(FULL, &ranks, 2));
    let difference = largest_difference(&whole[0], &parts[0]);
    assert!(difference < TOLERANCE, "{difference}");
}

#[test]
fn between_passes_a_rank_holds_only_its_shard() {
    for case in [FULL, Case { lora: true, ..FULL }] {
        let (num_parameters, num_trained) = {
            let whole = decoder(case);
            let count = |tensors: &[(String, Tensor)]| tensors.iter().map(|(_, t)| t.numel()).sum::<usize>();
            (count(&whole.named_parameters()), count(&whole.trainable_parameters()))
        };
        on_ranks(3, |ranks| {
            let mut actor = actor(case, &ranks, 3);
            let batch = batch();
            let plan = plan(Case { max_tokens: 64, ..case }, 0);
            // Padding takes less than one value in each buffer, and there are at most eight buffers.
            let sharded_bytes = 4 * num_parameters / 3..=4 * (num_parameters / 3 + 8);
            let num_bytes = |actor: &Actor| actor.learner.shards().unwrap().num_bytes();
            assert!(sharded_bytes.contains(&num_bytes(&actor)));
            update(&mut actor, &batch, &plan).unwrap();
            assert!(sharded_bytes.contains(&num_bytes(&actor)), "{} of {sharded_bytes:?}", num_bytes(&actor));
            let moments: usize =
                actor.learner.optimizer().state_tensors().unwrap().iter().map(|(_, t)| t.numel()).sum();
            let num_local_shards = actor.learner.shards().unwrap().local_shards().len();
            let expected = 2 * (num_trained / 3)..=2 * (num_trained / 3 + 4) + num_local_shards;
            assert!((expected).contains(&moments), "{moments} of {expected:?}");
            let (layers, outer) = actor.learner.decoder().parameters_by_layer();
            let of_part = |unit: &[(String, Tensor)]| unit.iter().map(|(_, t)| t.numel()).sum::<usize>();
            let two_parts = of_part(&layers[0]) + of_part(&layers[0]).max(of_part(&outer));
            let visited = actor.learner.units().visit(WeightDtype::Master, |_| {
                let more = num_bytes(&actor) - sharded_bytes.start();
                assert!(more <= 4 * (two_parts + 16), "{more} bytes of a unit and the next one");
                Ok::<(), RankError>(())
            });
            visited.unwrap();
            assert!(sharded_bytes.contains(&num_bytes(&actor)));
        });
    }
}

#[test]
fn a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all() {
    let outcomes = on_ranks(3, |ranks| {
        let mut actor = actor(FULL, &ranks, 3);
        let before = parameters(&actor);
        let shards = actor.learner.shards().unwrap();
        shards.finish_gradients().unwrap();
        if ranks.rank() == 1 {
            let local_shards = shards.local_shards();
            let (_, local_shard) =
                local_shards.iter().find(|(_, local_shard)| local_shard.numel() > 0).unwrap();
            let _ = local_shard.grad().fill_(f64::NAN);
        }
        let outcome = actor.learner.apply(0.1).unwrap();
        assert_eq!(parameters(&actor), before);
        outcome
    });
    assert!(outcomes.iter().all(|outcome| *outcome == crate::roles::optim::StepOutcome::SkippedNonFinite));
}
