//! Ranks that are threads here share a small decoder, and train it as one rank that has the whole.

use rlt_api::spec::LoraInit;
use rlt_core::batch::{Batch, Demonstration};
use tch::{Kind, Tensor};

use crate::actor::{Actor, ActorOptions};
use crate::model::{Adapter, Decoder, LoadOptions, LoraConfig, ModelConfig, ModuleMatch};
use crate::objective::supervised_objective;
use crate::parallel::Ranks;
use crate::parallel::tests::{actor_on_mesh, on_ranks};
use crate::update::{UpdatePlan, update};

/// Sums over ranks are added in another order; five steps of an optimizer that divides by small gradients enlarge that.
const TOLERANCE: f64 = 1e-5;

/// What a job trains, and how.
#[derive(Clone, Copy, Debug)]
struct Case {
    tied: bool,
    lora: bool,
    activation_checkpointing: bool,
    compute: Kind,
    max_tokens: usize,
}

const FULL: Case =
    Case { tied: false, lora: false, activation_checkpointing: false, compute: Kind::Float, max_tokens: 8 };

/// Three layers whose numbers of parameters no small number divides.
fn decoder(case: Case) -> Decoder {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 11, "hidden_size": 13,
        "intermediate_size": 17, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 6, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "initializer_range": 0.3, "tie_word_embeddings": case.tied, "hidden_act": "silu",
    }))
    .unwrap();
    let options = LoadOptions { trainable: !case.lora, compute: case.compute, ..LoadOptions::default() };
    let mut decoder = Decoder::from_config(&config, 7, &options).unwrap();
    if case.lora {
        let lora = LoraConfig {
            rank: 3,
            alpha: 6.0,
            rank_stabilized: false,
            targets: ModuleMatch::AllLinear,
            exclude: None,
            dropout: 0.0,
            init: LoraInit::Peft,
        };
        decoder.attach_lora(&lora, 3).unwrap();
    }
    decoder
}

/// Five sequences of such lengths that ranks have different numbers of micro-batches.
fn batch() -> Batch {
    let rows: [&[u32]; 5] =
        [&[3, 1, 4, 1, 5, 9], &[2, 6, 5], &[3, 5, 8, 9, 7], &[9, 3], &[2, 3, 8, 4, 6, 2, 6, 4]];
    let demonstration = |tokens: &&[u32]| Demonstration {
        tokens: tokens.to_vec(),
        loss_mask: (0..tokens.len()).map(|at| at >= 1).collect(),
    };
    let demonstrations: Vec<Demonstration> = rows.iter().map(demonstration).collect();
    Batch::from_demonstrations(&demonstrations)
}

fn actor(case: Case, ranks: &Ranks, dp_shard: usize) -> Actor {
    let options = ActorOptions {
        temperature: 0.7,
        head_chunk_tokens: 2,
        activation_checkpointing: case.activation_checkpointing,
        max_grad_norm: 1.0,
    };
    actor_on_mesh(decoder(case), options, ranks, dp_shard)
}

/// All trained parameters, whole.
fn parameters(actor: &Actor) -> Vec<f64> {
    actor.hold().unwrap();
    let trained = actor.decoder.trainable_parameters();
    let numbers = |(_, leaf): &(String, Tensor)| {
        Vec::<f64>::try_from(leaf.detach().to_kind(Kind::Double).reshape([-1])).unwrap()
    };
    let numbers = trained.iter().flat_map(numbers).collect();
    actor.let_go().unwrap();
    numbers
}

/// Losses, gradient norms, log-probs and parameters of five updates.
fn train(case: Case, ranks: &Ranks, dp_shard: usize) -> Vec<f64> {
    let (batch, mut actor) = (batch(), actor(case, ranks, dp_shard));
    let mut numbers = Vec::new();
    for step in 0..5 {
        let plan = UpdatePlan {
            objective: supervised_objective(),
            groups_per_update: 5,
            num_epochs: 1,
            max_tokens: case.max_tokens,
            learning_rate: 0.01,
            seed: step,
        };
        let report = update(&mut actor, &batch, &plan).unwrap();
        assert_eq!(report.num_skipped, 0);
        numbers.push(report.loss.pg_loss);
        numbers.extend(report.grad_norms);
        numbers.extend(report.actor_logprobs);
    }
    numbers.extend(actor.score(&batch, Adapter::Off, case.max_tokens).unwrap().logprobs);
    numbers.extend(actor.sum_pi_squared(&batch, case.max_tokens).unwrap());
    numbers.extend(parameters(&actor));
    numbers
}

fn largest_difference(one: &[f64], other: &[f64]) -> f64 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
}

#[track_caller]
fn assert_trains_as_one(case: Case, meshes: &[(usize, usize)], tolerance: f64) {
    let alone = train(case, &Ranks::alone(), 1);
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
fn an_adapter_on_shards_of_a_frozen_model_trains_as_on_the_whole() {
    assert_trains_as_one(Case { lora: true, ..FULL }, &[(2, 2), (4, 2)], TOLERANCE);
}

#[test]
fn layers_in_bf16_round_alike_on_shards_and_on_the_whole() {
    // The very same products are summed in another order in fp32; AdamW's first steps turn on a gradient's sign.
    let case = Case { compute: Kind::BFloat16, max_tokens: 64, ..FULL };
    let alone = train(case, &Ranks::alone(), 1);
    let both = on_ranks(2, |ranks| train(case, &ranks, 2));
    assert!((alone[0] - both[0][0]).abs() < 1e-3, "{} {}", alone[0], both[0][0]);
}

#[test]
fn accumulated_micro_batches_are_one_batch() {
    let whole = on_ranks(2, |ranks| train(Case { max_tokens: 64, ..FULL }, &ranks, 2));
    let parts = on_ranks(2, |ranks| train(FULL, &ranks, 2));
    let difference = largest_difference(&whole[0], &parts[0]);
    assert!(difference < TOLERANCE, "{difference}");
}

#[test]
fn at_rest_a_rank_holds_its_part_and_nothing_more() {
    for case in [FULL, Case { lora: true, ..FULL }] {
        let (num_parameters, num_trained) = {
            let whole = decoder(case);
            let count = |tensors: &[(String, Tensor)]| tensors.iter().map(|(_, t)| t.numel()).sum::<usize>();
            (count(&whole.named_parameters()), count(&whole.trainable_parameters()))
        };
        on_ranks(3, |ranks| {
            let mut actor = actor(case, &ranks, 3);
            let batch = batch();
            let plan = UpdatePlan {
                objective: supervised_objective(),
                groups_per_update: 5,
                num_epochs: 1,
                max_tokens: 64,
                learning_rate: 0.01,
                seed: 0,
            };
            // Padding is less than a number for each part, of which there are at most eight.
            let at_rest = 4 * num_parameters / 3..=4 * (num_parameters / 3 + 8);
            let num_bytes = |actor: &Actor| actor.shards().unwrap().num_bytes();
            assert!(at_rest.contains(&num_bytes(&actor)));
            update(&mut actor, &batch, &plan).unwrap();
            assert!(at_rest.contains(&num_bytes(&actor)), "{} of {at_rest:?}", num_bytes(&actor));
            let moments: usize = actor.optimizer.state_tensors().iter().map(|(_, t)| t.numel()).sum();
            let num_pieces = actor.shards().unwrap().pieces().len();
            let expected = 2 * (num_trained / 3)..=2 * (num_trained / 3 + 4) + num_pieces;
            assert!((expected).contains(&moments), "{moments} of {expected:?}");
            actor.hold().unwrap();
            assert!(num_bytes(&actor) >= 4 * num_parameters);
            actor.let_go().unwrap();
            assert!(at_rest.contains(&num_bytes(&actor)));
        });
    }
}

#[test]
fn a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all() {
    let outcomes = on_ranks(3, |ranks| {
        let mut actor = actor(FULL, &ranks, 3);
        let before = parameters(&actor);
        let shards = actor.shards().unwrap();
        shards.finish_gradients().unwrap();
        if ranks.rank() == 1 {
            let pieces = shards.pieces();
            let (_, piece) = pieces.iter().find(|(_, piece)| piece.numel() > 0).unwrap();
            let _ = piece.grad().fill_(f64::NAN);
        }
        let outcome = actor.apply(0.1).unwrap();
        assert_eq!(parameters(&actor), before);
        outcome
    });
    assert!(outcomes.iter().all(|outcome| *outcome == crate::optim::StepOutcome::SkippedNonFinite));
}
