//! Half precision compared with fp32: the gradients of a scaled loss, and the state after an overflow.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rlt_core::batch::{Batch, Demonstration};
use rlt_core::loss::{Aggregation, Denominators, Gpg, LossInputs, Objective};
use rlt_decoder::{Decoder, LoadOptions};
use rlt_models::ModelConfig;
use rlt_parallel::Ranks;
use rlt_trainer::roles::actor::{Actor, ActorOptions};
use rlt_trainer::roles::learner::MicroBatch;
use rlt_trainer::roles::optim::{AdamW, AdamWOptions, StepOutcome};
use tch::{Kind, Tensor};

const LEARNING_RATE: f64 = 0.01;

fn actor(compute: Kind) -> Actor {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 13, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 4, "max_position_embeddings": 32, "initializer_range": 0.3, "tie_word_embeddings": true,
    }))
    .unwrap();
    let options = LoadOptions { compute, trainable: true, ..LoadOptions::default() };
    let decoder = Decoder::from_config(&config, 7, &options).unwrap();
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default()).unwrap();
    let options = ActorOptions {
        temperature: 1.0,
        head_chunk_tokens: 4,
        activation_checkpointing: true,
        max_grad_norm: 1.0,
    };
    Actor::new(decoder, optimizer, options, Ranks::alone())
}

fn batch() -> Batch {
    let demonstration = |tokens: &[u32]| Demonstration {
        tokens: tokens.to_vec(),
        loss_mask: (0..tokens.len()).map(|at| at >= 2).collect(),
        images: Vec::new(),
    };
    Batch::from_demonstrations(&[demonstration(&[3, 1, 4, 1, 5, 9]), demonstration(&[2, 6, 5, 3, 5])])
}

/// Gathers the gradient of the batch's likelihood times `weight`.
fn accumulate(actor: &mut Actor, weight: f64) {
    let objective = Objective {
        policy: Gpg {}.into(),
        aggregation: Aggregation::TokenMean,
        kl: None,
        entropy_coefficient: 0.0,
        positive: None,
    };
    let batch = batch();
    let rows: Vec<usize> = (0..batch.sequences.len()).collect();
    let micro_batch = MicroBatch::new(&batch, &rows, actor.learner.decoder()).unwrap();
    let advantages: Vec<f64> = batch.gather(&rows, &batch.advantages).iter().map(|a| weight * a).collect();
    let inputs = LossInputs::new(&micro_batch.rows, &advantages);
    let loss = objective.prepare(inputs, &Denominators::of(&batch.rows)).unwrap();
    actor.accumulate(&micro_batch, &loss).unwrap();
}

fn leaves(actor: &Actor) -> Vec<(String, Tensor)> {
    actor.learner.decoder().trainable_parameters()
}

/// Makes updates from the initial weights until one does not overflow, because the loss scale starts high.
fn update(actor: &mut Actor, weight: f64) -> StepOutcome {
    loop {
        accumulate(actor, weight);
        match actor.learner.apply(LEARNING_RATE).unwrap() {
            StepOutcome::SkippedOverflow => {}
            outcome => return outcome,
        }
    }
}

fn gradients(compute: Kind, weight: f64) -> Vec<(String, Tensor)> {
    let mut actor = actor(compute);
    loop {
        accumulate(&mut actor, weight);
        let factor = actor.learner.loss_scale().factor();
        let unscaled = |(name, leaf): (String, Tensor)| (name, leaf.grad() / (factor * weight));
        let gradients: Vec<_> = leaves(&actor).into_iter().map(unscaled).collect();
        if gradients.iter().all(|(_, gradient)| gradient.isfinite().all().int64_value(&[]) == 1) {
            return gradients;
        }
        assert_eq!(actor.learner.apply(LEARNING_RATE).unwrap(), StepOutcome::SkippedOverflow);
    }
}

/// Half has 11 significant bits, and most of the gradient of a norm cancels in its sum over tokens: the
/// tolerance is a twentieth of the largest. Without a scale, a factor of a millionth would leave nothing of
/// most gradients, because the smallest numbers in half are 6e-8.
#[test]
fn gradients_of_a_scaled_loss_are_those_of_fp32_up_to_rounding_however_small_they_are() {
    let exact = gradients(Kind::Float, 1.0);
    for weight in [1.0, 1e-6] {
        for ((name, half), (_, exact)) in gradients(Kind::Half, weight).iter().zip(&exact) {
            assert_eq!(half.kind(), Kind::Float, "{name}: masters have gradients like themselves");
            let off = (half - exact).abs().max().double_value(&[]) / exact.abs().max().double_value(&[]);
            assert!(off < 0.05, "{name} of a loss times {weight}: off by {off}");
        }
    }
}

#[test]
fn an_update_in_half_precision_reports_and_clips_the_norm_of_the_loss_itself() {
    let norm = |compute: Kind| {
        let mut actor = actor(compute);
        match update(&mut actor, 1.0) {
            StepOutcome::Applied { grad_norm } => grad_norm,
            skipped => panic!("{skipped:?}"),
        }
    };
    let (half, exact) = (norm(Kind::Half), norm(Kind::Float));
    assert!((half / exact - 1.0).abs() < 0.02, "{half} and {exact}");
    let moved = |compute: Kind| {
        let mut actor = actor(compute);
        let before: Vec<Tensor> = leaves(&actor).iter().map(|(_, leaf)| leaf.detach().copy()).collect();
        update(&mut actor, 1.0);
        let parts = leaves(&actor).into_iter().zip(before);
        parts.map(|((_, leaf), before)| (leaf.detach() - before).norm().double_value(&[])).sum::<f64>()
    };
    let (half, exact) = (moved(Kind::Half), moved(Kind::Float));
    assert!((half / exact - 1.0).abs() < 0.05, "{half} and {exact}");
}

#[test]
fn an_overflow_changes_nothing_but_the_scale_which_falls_until_gradients_fit() {
    let mut actor = actor(Kind::Half);
    let weights: Vec<Tensor> = leaves(&actor).iter().map(|(_, leaf)| leaf.detach().copy()).collect();
    let first = actor.learner.loss_scale().factor();
    let mut num_overflows = 0;
    // The loss is so steep that its scaled derivatives exceed 65504, the maximum of half.
    let outcome = loop {
        accumulate(&mut actor, 1000.0);
        match actor.learner.apply(LEARNING_RATE).unwrap() {
            StepOutcome::SkippedOverflow => {
                num_overflows += 1;
                assert_eq!(actor.learner.loss_scale().factor(), first / f64::from(1 << num_overflows));
                for ((name, leaf), before) in leaves(&actor).iter().zip(&weights) {
                    assert_eq!(leaf.detach(), *before, "{name}");
                    assert!(!leaf.grad().defined(), "{name}");
                }
            }
            outcome => break outcome,
        }
        assert!(num_overflows < 16, "a factor of 1 is enough");
    };
    assert!(num_overflows > 0 && matches!(outcome, StepOutcome::Applied { .. }), "{outcome:?}");
}

#[test]
fn a_loss_that_is_not_finite_at_any_scale_is_no_overflow() {
    let mut actor = actor(Kind::Half);
    let outcome = (0..32).find_map(|_| {
        accumulate(&mut actor, f64::INFINITY);
        Some(actor.learner.apply(LEARNING_RATE).unwrap())
            .filter(|outcome| *outcome != StepOutcome::SkippedOverflow)
    });
    assert_eq!(outcome, Some(StepOutcome::SkippedNonFinite));
    assert_eq!(actor.learner.loss_scale().factor(), 1.0);
}
