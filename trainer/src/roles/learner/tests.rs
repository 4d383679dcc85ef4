//! A learner below a loss that no role has.

mod hidden_squares;

use rlt_core::batch::Demonstration;
use rlt_decoder::{LoadOptions, PackedInput};
use rlt_models::ModelConfig;
use tch::{Device, Kind};

use self::hidden_squares::HiddenSquares;
use super::*;
use crate::roles::optim::AdamWOptions;

/// Tokens of each sequence, and how many of them are its prompt.
const SEQUENCES: [(&[u32], usize); 3] = [(&[3, 1, 4, 1, 5, 9], 2), (&[2, 6, 5], 1), (&[3, 5, 8, 9, 7], 4)];

fn learner() -> Learner {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 11, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "initializer_range": 0.3,
        "tie_word_embeddings": true, "hidden_act": "silu",
    }))
    .unwrap();
    let options = LoadOptions { trainable: true, ..LoadOptions::default() };
    let decoder = Decoder::from_config(&config, 7, &options).unwrap();
    // The squares of a normalized vector sum to a constant: with the ones that the last norm starts from, the
    // gradients of all layers before it would be zero.
    let weights = Tensor::linspace(0.5, 1.5, 16, (Kind::Float, Device::Cpu));
    for (name, mut leaf) in decoder.trainable_parameters() {
        if name == "model.norm.weight" {
            tch::no_grad(|| leaf.copy_(&weights));
        }
    }
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default()).unwrap();
    let options = LearnerOptions { activation_checkpointing: false, max_grad_norm: 1.0 };
    Learner::new(decoder, optimizer, options, Ranks::alone())
}

fn batch() -> Batch {
    let demonstration = |(tokens, prompt_len): &(&[u32], usize)| Demonstration {
        tokens: tokens.to_vec(),
        loss_mask: (0..tokens.len()).map(|at| at >= *prompt_len).collect(),
        images: Vec::new(),
    };
    Batch::from_demonstrations(&SEQUENCES.iter().map(demonstration).collect::<Vec<_>>())
}

fn head(batch: &Batch) -> HiddenSquares {
    HiddenSquares { num_tokens: batch.rows.num_tokens() }
}

fn gradients(learner: &Learner) -> Vec<(String, Tensor)> {
    let parameters = learner.decoder().trainable_parameters().into_iter();
    parameters.map(|(name, leaf)| (name, leaf.grad().copy())).collect()
}

/// Computes gradients by the learner, split into micro-batches of these rows.
fn by_learner(splits: &[&[usize]]) -> Vec<(String, Tensor)> {
    let (learner, batch) = (learner(), batch());
    let mut head = head(&batch);
    for row_idxs in splits {
        let micro_batch = MicroBatch::new(&batch, row_idxs, learner.decoder()).unwrap();
        let loss = learner.forward_backward(&micro_batch, |hidden_cd, context| {
            head.forward_backward(hidden_cd, &micro_batch, context)
        });
        assert!(loss.unwrap().finish().unwrap() > 0.0);
    }
    gradients(&learner)
}

/// Computes gradients by one dense graph, sequence by sequence.
fn by_autograd() -> Vec<(String, Tensor)> {
    let learner = learner();
    let weight = 0.5 / batch().rows.num_tokens() as f64;
    for (tokens, prompt_len) in SEQUENCES {
        let input = PackedInput::new(&[tokens], Device::Cpu);
        let hidden_td = learner.decoder().hidden_states(&input, Adapter::On);
        let (start, len) = (prompt_len as i64 - 1, (tokens.len() - prompt_len) as i64);
        (hidden_td.narrow(0, start, len).square().sum(Kind::Float) * weight).backward();
    }
    gradients(&learner)
}

#[test]
fn a_head_of_one_file_gets_the_gradients_of_one_autograd_graph() {
    let expected = by_autograd();
    for splits in [&[&[0, 1, 2][..]][..], &[&[0], &[1], &[2]], &[&[2, 0], &[1]]] {
        let got = by_learner(splits);
        assert_eq!(got.len(), expected.len());
        for ((name, got), (_, expected)) in got.iter().zip(&expected) {
            let difference = (got - expected).abs().max().double_value(&[]);
            let scale = expected.abs().max().double_value(&[]).max(1e-3);
            assert!(difference <= 1e-4 * scale, "{name}: differs by {difference} at a scale of {scale}");
        }
    }
}

#[test]
fn updates_by_a_head_of_one_file_lower_its_loss() {
    let (mut learner, batch) = (learner(), batch());
    let rows: Vec<usize> = (0..batch.rows.num_rows()).collect();
    let (mut head, mut stats, mut losses) = (head(&batch), UpdateStats::default(), Vec::new());
    for _ in 0..20 {
        let passes = learner.passes(&batch, &rows, 8).unwrap();
        assert!(passes.len() > 1, "the rows do not fit one micro-batch");
        let sums = learner.update(&passes, &mut head, 0.01, &mut stats).unwrap();
        assert_eq!(sums.len(), passes.len());
        losses.push(sums.iter().sum::<f64>());
    }
    assert_eq!((stats.grad_norms.len(), stats.num_skipped), (20, 0));
    assert!(losses[19] < 0.9 * losses[0], "{losses:?}");
}
