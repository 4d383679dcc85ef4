//! The bytes that a step sends, compared with the minimum for its layout of ranks.

use rlt_api::spec::LoraInit;
use rlt_core::batch::{Batch, Demonstration};
use rlt_decoder::{Adapter, Decoder, LoadOptions, LoraConfig, ModuleMatch};
use rlt_models::ModelConfig;
use rlt_parallel::{RankError, Ranks};
use tch::{Kind, Tensor};

use super::{actor_keeping_unsharded, on_ranks};
use crate::roles::actor::ActorOptions;
use crate::roles::actor::update::{UpdatePlan, update};
use crate::roles::learner::MicroBatch;
use crate::roles::objective::supervised_objective;
use crate::roles::offload::Offload;

/// Bytes of an fp32 value, the dtype of gradients and master weights.
const EXACT: f64 = 4.0;
/// Number of query heads of the model below.
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const LAYERS: usize = 3;
/// Token budget of a rank: two sequences of 26 tokens per rank of a sequence-parallel group.
const MAX_TOKENS: usize = 60;

/// Number of ranks, and the degrees by which they share the model and the tokens.
#[derive(Clone, Copy, Debug)]
struct Layout {
    size: usize,
    dp_shard: usize,
    sp: usize,
    /// Number of layers that stay unsharded between forward and backward pass.
    unsharded: usize,
    lora: bool,
    compute: Kind,
}

fn decoder(Layout { lora, compute, .. }: Layout) -> Decoder {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 40, "hidden_size": 64,
        "intermediate_size": 160, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "initializer_range": 0.1, "tie_word_embeddings": true, "hidden_act": "silu",
    }))
    .unwrap();
    let options = LoadOptions { trainable: !lora, compute, ..LoadOptions::default() };
    let mut decoder = Decoder::from_config(&config, 7, &options).unwrap();
    if lora {
        let lora = LoraConfig {
            rank: 2,
            alpha: 4.0,
            rank_stabilized: false,
            targets: ModuleMatch::AllLinear,
            target_parameters: Vec::new(),
            exclude: None,
            dropout: 0.0,
            init: LoraInit::Peft,
            ..LoraConfig::default()
        };
        decoder.attach_lora(&lora, 3).unwrap();
    }
    decoder
}

/// Creates eight sequences of one length, so that every rank makes the same number of passes.
fn batch() -> Batch {
    let demonstration = |row: u32| Demonstration {
        tokens: (0..26).map(|at| (row * 7 + at * 3) % 40).collect(),
        loss_mask: (0..26).map(|at| at > 0).collect(),
        images: Vec::new(),
    };
    Batch::from_demonstrations(&(0..8).map(demonstration).collect::<Vec<_>>())
}

/// Bytes of a model's weights, of each layer and of the root unit, and of the gradients of trained
/// parameters.
struct Sizes {
    layers: Vec<f64>,
    outer: f64,
    gradients: f64,
}

impl Sizes {
    /// Counts the bytes of a decoder whose matrices take `matrix_number` bytes per value; vectors take
    /// [`EXACT`].
    fn of(decoder: &Decoder, matrix_number: usize) -> Self {
        let count = |tensors: &[(String, Tensor)], number: f64| {
            let bytes = |t: &Tensor| t.numel() as f64 * if t.dim() > 1 { number } else { EXACT };
            tensors.iter().map(|(_, tensor)| bytes(tensor)).sum::<f64>()
        };
        let (layers, outer) = decoder.parameters_by_layer();
        Self {
            layers: layers.iter().map(|layer| count(layer, matrix_number as f64)).collect(),
            outer: count(&outer, matrix_number as f64),
            gradients: count(&decoder.trainable_parameters(), EXACT),
        }
    }

    /// Returns the bytes of the full model.
    fn all(&self) -> f64 {
        self.outer + self.layers.iter().sum::<f64>()
    }

    /// Returns the bytes that a forward and backward pass gathers: all units once, and resharded layers
    /// again.
    fn of_update_pass(&self, unsharded: usize) -> f64 {
        self.all() + self.layers[..LAYERS - unsharded].iter().sum::<f64>()
    }
}

/// Computes the minimum number of bytes that a rank sends in a step with weight sync, log-probs and one
/// update, in `num_passes` micro-batches with `num_tokens` tokens of this rank in total.
fn lower_bound(layout: Layout, decoder: &Decoder, num_passes: usize, num_tokens: usize) -> f64 {
    let Layout { size, dp_shard, sp, unsharded, lora, compute } = layout;
    let number = compute.elt_size_in_bytes();
    let (computed, exact) = (Sizes::of(decoder, number), Sizes::of(decoder, EXACT as usize));
    // In an all-gather over `ranks` each rank sends its shard to all others; in a reduce-scatter it sends the
    // shards of all others.
    let of_others = |ranks: usize| (ranks - 1) as f64 / ranks as f64;
    let num_passes = num_passes as f64;
    // An adapter is merged into master weights, so the weight sync gathers those.
    let synced = of_others(dp_shard) * if lora { exact.all() } else { computed.all() };
    let scored = num_passes * of_others(dp_shard) * computed.all();
    let updated = num_passes * of_others(dp_shard) * computed.of_update_pass(unsharded);
    let gradients = num_passes * of_others(dp_shard) * computed.gradients;
    // Gradient shards are all-reduced over the replicas of the model.
    let copies = 2.0 * of_others(size / dp_shard) * computed.gradients / dp_shard as f64;
    // Queries, keys and values of local tokens are sent to the ranks with their heads, and attention outputs
    // are sent back; a rank has at least one key head. That happens once for log-probs, and forward and
    // backward for the update.
    let heads = 2 * HEADS + 2 * KV_HEADS.max(sp);
    let attention = 3.0 * of_others(sp) * (LAYERS * num_tokens * heads * HEAD_DIM * number) as f64;
    synced + scored + updated + gradients + copies + attention
}

/// Runs such a step; returns the bytes that this rank sends, and the minimum.
fn step(layout: Layout, ranks: &Ranks) -> (f64, f64) {
    let (batch, decoder) = (batch(), decoder(layout));
    let rows: Vec<usize> = (0..batch.rows.num_rows()).collect();
    let split = MicroBatch::share(&batch, &rows, &decoder, MAX_TOKENS, ranks).unwrap();
    let num_tokens = split.iter().map(|one| one.input.tokens.numel()).sum();
    let bound = lower_bound(layout, &decoder, split.len(), num_tokens);
    let options = ActorOptions {
        temperature: 1.0,
        head_chunk_tokens: 64,
        activation_checkpointing: false,
        max_grad_norm: 1.0,
    };
    let degrees = (layout.dp_shard, 1, layout.unsharded);
    let mut actor = actor_keeping_unsharded(decoder, options, ranks, degrees, &Offload::default());
    let before = ranks.traffic();
    let parts = actor.learner.units();
    parts.visit(parts.dtype_to_sample(parts.decoder().compute_kind()), |_| Ok::<(), RankError>(())).unwrap();
    actor.score(&batch, Adapter::On, MAX_TOKENS).unwrap();
    let plan = UpdatePlan {
        objective: supervised_objective(),
        groups_per_update: batch.sequences.len(),
        num_epochs: 1,
        max_tokens: MAX_TOKENS,
        learning_rate: 0.01,
        seed: 1,
    };
    assert_eq!(update(&mut actor, &batch, &plan).unwrap().updates.num_skipped, 0);
    (ranks.traffic().since(before).sent as f64, bound)
}

#[test]
fn a_step_moves_hardly_more_bytes_than_its_layout_needs() {
    let layout =
        |size, dp_shard, sp| Layout { size, dp_shard, sp, unsharded: 1, lora: false, compute: Kind::Float };
    let keeping = |unsharded, layout| Layout { unsharded, ..layout };
    let with_adapter = |layout| Layout { lora: true, ..layout };
    let in_bf16 = |layout| Layout { compute: Kind::BFloat16, ..layout };
    for layout in [
        layout(2, 1, 1),
        layout(2, 2, 1),
        layout(4, 4, 1),
        layout(4, 2, 1),
        layout(4, 2, 2),
        with_adapter(layout(2, 2, 1)),
        with_adapter(layout(2, 1, 2)),
        with_adapter(layout(4, 1, 4)),
        keeping(2, layout(2, 2, 1)),
        keeping(LAYERS, layout(4, 2, 2)),
        keeping(LAYERS, with_adapter(layout(4, 4, 1))),
        in_bf16(layout(2, 2, 1)),
        in_bf16(with_adapter(layout(4, 2, 2))),
    ] {
        let all =
            on_ranks(layout.size, |ranks| step(layout, &ranks.with_sequence_parallel(layout.sp).unwrap()));
        for (sent, bound) in all {
            // All-reduces of norms, losses and log-probs add a little to the minimum.
            let ratio = sent / bound;
            assert!((1.0..1.05).contains(&ratio), "{layout:?}: {sent} bytes, {bound} at least: {ratio}");
        }
    }
    let alone = Ranks::alone();
    assert_eq!(step(layout(1, 1, 1), &alone), (0.0, 0.0));
}
