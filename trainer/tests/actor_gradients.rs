//! The actor's layer schedule, chunked head and hand-written loss gradients, against one plain autograd
//! graph.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rlt_core::batch::{Batch, Demonstration};
use rlt_core::loss::{Aggregation, Denominators, Gpg, LossInputs, Objective};
use rlt_decoder::{Adapter, Decoder, LoadOptions, PackedInput};
use rlt_models::ModelConfig;
use rlt_parallel::Ranks;
use rlt_trainer::roles::actor::{Actor, ActorOptions};
use rlt_trainer::roles::learner::MicroBatch;
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use tch::{Device, Kind, Tensor};

const SEQUENCES: [(&[u32], usize); 3] = [(&[3, 1, 4, 1, 5, 9], 2), (&[2, 6, 5], 1), (&[3, 5, 8, 9, 7], 4)];

fn config(tied: bool) -> ModelConfig {
    ModelConfig::from_json(&serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 11, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "initializer_range": 0.3,
        "tie_word_embeddings": tied, "hidden_act": "silu",
    }))
    .unwrap()
}

fn decoder(tied: bool) -> Decoder {
    Decoder::from_config(&config(tied), 7, &LoadOptions { trainable: true, ..LoadOptions::default() })
        .unwrap()
}

fn batch() -> Batch {
    let demonstrations: Vec<Demonstration> = SEQUENCES
        .iter()
        .map(|(tokens, prompt_len)| Demonstration {
            tokens: tokens.to_vec(),
            loss_mask: (0..tokens.len()).map(|at| at >= *prompt_len).collect(),
            images: Vec::new(),
        })
        .collect();
    Batch::from_demonstrations(&demonstrations)
}

fn objective() -> Objective {
    Objective {
        policy: Gpg {}.into(),
        aggregation: Aggregation::TokenMean,
        kl: None,
        entropy_coefficient: 0.1,
        positive: None,
    }
}

/// Computes the gradients by the actor, split into micro-batches of these rows.
fn by_actor(tied: bool, splits: &[&[usize]], activation_checkpointing: bool) -> Vec<(String, Tensor)> {
    let decoder = decoder(tied);
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default()).unwrap();
    let options =
        ActorOptions { temperature: 0.7, head_chunk_tokens: 2, activation_checkpointing, max_grad_norm: 1.0 };
    let actor = Actor::new(decoder, optimizer, options, Ranks::alone());
    let (batch, objective) = (batch(), objective());
    for row_idxs in splits {
        let micro_batch = MicroBatch::new(&batch, row_idxs, actor.learner.decoder()).unwrap();
        let advantages = batch.gather(row_idxs, &batch.advantages);
        let inputs = LossInputs::new(&micro_batch.rows, &advantages);
        let loss = objective.prepare(inputs, &Denominators::of(&batch.rows)).unwrap();
        actor.accumulate(&micro_batch, &loss).unwrap();
    }
    let parameters = actor.learner.decoder().trainable_parameters();
    parameters.into_iter().map(|(name, leaf)| (name, leaf.grad().copy())).collect()
}

/// Gradients of mean negative log-likelihood minus 0.1 entropy by one dense graph, sequence by sequence.
fn by_autograd(tied: bool) -> Vec<(String, Tensor)> {
    let decoder = decoder(tied);
    let num_learned: usize = SEQUENCES.iter().map(|(tokens, prompt_len)| tokens.len() - prompt_len).sum();
    for (tokens, prompt_len) in SEQUENCES {
        let input = PackedInput::new(&[tokens], Device::Cpu);
        let logits_tv = decoder.logits(&decoder.hidden_states(&input, Adapter::On), Adapter::On) / 0.7;
        let logprobs_tv = logits_tv.log_softmax(-1, Kind::Float);
        let (start, len) = (prompt_len as i64 - 1, (tokens.len() - prompt_len) as i64);
        let predicting_cv = logprobs_tv.narrow(0, start, len);
        let targets = input.tokens.narrow(0, start + 1, len).unsqueeze(1);
        let likelihood = predicting_cv.gather(1, &targets, false).sum(Kind::Float);
        let entropy = -(predicting_cv.exp() * &predicting_cv).sum(Kind::Float);
        (-(likelihood + entropy * 0.1) / num_learned as f64).backward();
    }
    let parameters = decoder.trainable_parameters();
    parameters.into_iter().map(|(name, leaf)| (name, leaf.grad().copy())).collect()
}

fn assert_equal(got: &[(String, Tensor)], expected: &[(String, Tensor)]) {
    assert_eq!(got.len(), expected.len());
    for ((name, got), (_, expected)) in got.iter().zip(expected) {
        let difference = (got - expected).abs().max().double_value(&[]);
        let scale = expected.abs().max().double_value(&[]).max(1e-3);
        assert!(difference <= 1e-4 * scale, "{name}: differs by {difference} at a scale of {scale}");
    }
}

#[test]
fn islands_and_chunked_head_equal_one_autograd_graph() {
    for tied in [false, true] {
        assert_equal(&by_actor(tied, &[&[0, 1, 2]], false), &by_autograd(tied));
    }
}

#[test]
fn any_split_into_micro_batches_gives_the_same_gradient() {
    for splits in [&[&[0][..], &[1], &[2]][..], &[&[2, 0], &[1]]] {
        assert_equal(&by_actor(true, splits, false), &by_actor(true, &[&[0, 1, 2]], false));
    }
}

#[test]
fn recomputed_activations_give_the_gradients_of_kept_ones() {
    let (recomputed, kept) = (by_actor(true, &[&[0, 1, 2]], true), by_actor(true, &[&[0, 1, 2]], false));
    for ((name, recomputed), (_, kept)) in recomputed.iter().zip(&kept) {
        assert!(recomputed.equal(kept), "{name} differs");
    }
}
