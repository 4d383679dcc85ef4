//! The critic's passes over packed micro-batches equal one differentiable pass over each sequence alone.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use rlt_api::spec::CriticSpec;
use rlt_core::batch::{Batch, BatchSequence};
use rlt_core::fixtures::{self, varied_token};
use rlt_core::loss::Objective;
use rlt_core::loss::{Aggregation, Gpg};
use rlt_decoder::{Adapter, Decoder, LoadOptions, PackedInput};
use rlt_parallel::Ranks;
use rlt_trainer::roles::actor::update::UpdatePlan;
use rlt_trainer::roles::actor::{Actor, ActorOptions};
use rlt_trainer::roles::critic::{Critic, CriticOptions};
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use tch::{Kind, Tensor};

const FAMILIES: [&str; 3] = ["llama3-rope-bias", "qwen3", "gemma"];
const MAX_TOKENS: usize = 48;
const LENS: [(usize, usize); 4] = [(9, 7), (9, 30), (9, 1), (1, 12)];

fn actor(family: &str) -> Actor {
    let decoder = decoder(family);
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default()).unwrap();
    let options = ActorOptions {
        temperature: 1.0,
        head_chunk_tokens: 16,
        activation_checkpointing: false,
        max_grad_norm: 1.0,
    };
    Actor::new(decoder, optimizer, options, Ranks::alone())
}

fn decoder(family: &str) -> Decoder {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(family);
    Decoder::load(&folder, &LoadOptions { trainable: true, ..LoadOptions::default() }).unwrap()
}

fn batch() -> Batch {
    let tokens =
        |seed: usize, len: usize| -> Vec<_> { (0..len).map(|idx| varied_token(seed, idx)).collect() };
    let prompt = |len: usize| fixtures::prompt(&tokens(len, len));
    let sequences: Vec<BatchSequence> = (0..LENS.len())
        .map(|row| BatchSequence {
            prompt: prompt(LENS[row].0),
            sample_idx: 0,
            completion: tokens(row + 50, LENS[row].1),
        })
        .collect();
    let batch = fixtures::batch(sequences, vec![0, 0, 0, 1]);
    let wave: Vec<f64> = (0..batch.rows.num_tokens()).map(|at| (at as f64).sin()).collect();
    Batch { returns: Some(wave.clone()), advantages: wave, ..batch }
}

/// A critic whose head is not zero, so that gradients reach its layers, and which never clips.
fn critic(actor: &Actor, family: &str) -> Critic {
    let options = CriticOptions {
        critic: CriticSpec { learning_rate: 0.0, warmup_steps: None, value_clip: 1e6 },
        optimizer: AdamWOptions { betas: (0.0, 0.0), ..AdamWOptions::default() },
        activation_checkpointing: family == "qwen3",
        max_grad_norm: 1e12,
        ..CriticOptions::default()
    };
    let critic = Critic::from_actor(actor, None, options, actor.learner.ranks().clone()).unwrap();
    let (_, head_d) =
        critic.state_tensors().unwrap().into_iter().find(|(name, _)| name.contains("value_head")).unwrap();
    tch::no_grad(|| head_d.shallow_clone().copy_(&head_of(&head_d.size())));
    critic
}

fn head_of(size: &[i64]) -> Tensor {
    (Tensor::arange(size[0], (Kind::Float, tch::Device::Cpu)) * 0.37).sin() * 0.3
}

/// Values of one sequence by one differentiable pass over it alone.
fn values_alone(backbone: &Decoder, head_d: &Tensor, sequence: &BatchSequence) -> Tensor {
    let tokens = sequence.tokens();
    let input = PackedInput::new(&[&tokens[..tokens.len() - 1]], tch::Device::Cpu);
    let hidden_td = backbone.hidden_states(&input, Adapter::Off);
    let first = sequence.prompt.tokens.len() as i64 - 1;
    hidden_td.narrow(0, first, sequence.completion.len() as i64).mv(head_d)
}

fn plan() -> UpdatePlan {
    let objective = Objective {
        policy: Gpg {}.into(),
        aggregation: Aggregation::TokenMean,
        kl: None,
        entropy_coefficient: 0.0,
        positive: None,
    };
    UpdatePlan {
        objective,
        groups_per_update: 2,
        num_epochs: 1,
        max_tokens: MAX_TOKENS,
        learning_rate: 0.0,
        seed: 0,
    }
}

#[test]
fn packed_values_are_those_of_sequences_alone() {
    for family in FAMILIES {
        let (decoder, batch) = (decoder(family), batch());
        let values = critic(&actor(family), family).values(&batch, MAX_TOKENS).unwrap();
        let head_d = head_of(&[decoder.config.hidden_size as i64]);
        let alone: Vec<Tensor> =
            batch.sequences.iter().map(|sequence| values_alone(&decoder, &head_d, sequence)).collect();
        let alone: Vec<f32> = Vec::try_from(Tensor::cat(&alone, 0).detach()).unwrap();
        for (token, (packed, alone)) in values.iter().zip(alone).enumerate() {
            // This is the tolerance between a packed sequence and the same sequence alone.
            assert!((packed - f64::from(alone)).abs() <= 1e-5, "{family}, token {token}: {packed} {alone}");
        }
    }
}

#[test]
fn an_update_of_micro_batches_has_the_gradient_of_the_whole_loss() {
    for family in FAMILIES {
        let (decoder, mut batch) = (decoder(family), batch());
        let mut critic = critic(&actor(family), family);
        batch.values = Some(critic.values(&batch, MAX_TOKENS).unwrap());
        let report = critic.learn(&batch, plan().mini_batches()).unwrap();

        let backbone = decoder.trained_backbone(Kind::Float);
        let head_d = head_of(&[decoder.config.hidden_size as i64]).set_requires_grad(true);
        let values: Vec<Tensor> =
            batch.sequences.iter().map(|sequence| values_alone(&backbone, &head_d, sequence)).collect();
        let returns: Vec<f32> = batch.returns.as_ref().unwrap().iter().map(|value| *value as f32).collect();
        let loss = (Tensor::cat(&values, 0) - Tensor::from_slice(&returns)).square().mean(Kind::Float) * 0.5;
        loss.backward();
        let off = report.metrics()["critic/vf_loss"] - loss.double_value(&[]);
        assert!(off.abs() <= 1e-5, "{family}: loss off by {off}");

        // If the optimizer has no earlier gradients, its first moment is the gradient.
        let state = critic.state_tensors().unwrap();
        let mut expected = backbone.trainable_parameters();
        expected.push(("value_head.weight".into(), head_d));
        for (name, leaf) in expected {
            let wanted = format!("optimizer.critic.{name}.exp_avg");
            let (_, got) =
                state.iter().find(|(name, _)| *name == wanted).unwrap_or_else(|| panic!("no {wanted}"));
            let off = (got - leaf.grad()).abs().max().double_value(&[]);
            let scale = leaf.grad().abs().max().double_value(&[]).max(1e-3);
            assert!(off <= 1e-4 * scale, "{family}, {name}: off by {off} at a scale of {scale}");
        }
    }
}
