//! A group's prompt computed once gives what a copy of it for every completion gives: log-probs, entropies,
//! gradients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use rlt_core::batch::Batch;
use rlt_core::fixtures::{batch_of_lens, varied_token};
use rlt_core::loss::{Aggregation, Denominators, Gpg, LossInputs, Objective};
use rlt_decoder::{Adapter, Decoder, LoadOptions};
use rlt_layout::AxisPlace;
use rlt_parallel::Ranks;
use rlt_trainer::roles::actor::{Actor, ActorOptions, TokenScores};
use rlt_trainer::roles::learner::MicroBatch;
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use tch::Tensor;

/// Grouped queries, biases, norms of heads, sliding windows, one key head.
const FAMILIES: [&str; 9] = [
    "llama3-rope-bias",
    "mistral",
    "qwen2-window",
    "qwen3",
    "gemma",
    "gemma3",
    "olmo3",
    "phi4-longrope",
    "glm4",
];

/// Prompt and completions: uneven, of a single token, a group of one, a prompt of one token.
const GROUPS: [(usize, &[usize]); 4] = [(21, &[9, 1, 30, 14]), (7, &[12]), (1, &[5, 8]), (40, &[3, 3, 3])];

fn batch(shares_prompts: bool) -> Batch {
    let batch = batch_of_lens(&GROUPS, varied_token);
    let advantages = (0..batch.rows.num_tokens()).map(|at| (at as f64).sin()).collect();
    let groups = if shares_prompts { batch.groups } else { (0..batch.sequences.len()).collect() };
    Batch { advantages, groups, ..batch }
}

fn actor(family: &str, activation_checkpointing: bool) -> Actor {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(family);
    let decoder = Decoder::load(&folder, &LoadOptions { trainable: true, ..LoadOptions::default() }).unwrap();
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default()).unwrap();
    let options = ActorOptions {
        temperature: 0.9,
        head_chunk_tokens: 16,
        activation_checkpointing,
        max_grad_norm: 1.0,
    };
    Actor::new(decoder, optimizer, options, Ranks::alone())
}

/// Tokens that go through the model, and the gradients of all parameters.
fn gradients(actor: &mut Actor, batch: &Batch, max_tokens: usize) -> (usize, Vec<(String, Tensor)>) {
    let objective = Objective {
        policy: Gpg {}.into(),
        aggregation: Aggregation::TokenMean,
        kl: None,
        entropy_coefficient: 0.1,
        positive: None,
    };
    let row_idxs: Vec<usize> = (0..batch.rows.num_rows()).collect();
    let mut num_tokens = 0;
    for micro_batch in
        MicroBatch::split(batch, &row_idxs, actor.learner.decoder(), max_tokens, AxisPlace::ALONE).unwrap()
    {
        assert!(micro_batch.input.num_tokens() <= max_tokens);
        num_tokens += micro_batch.input.num_tokens();
        let advantages = batch.gather(&micro_batch.row_idxs, &batch.advantages);
        let inputs = LossInputs::new(&micro_batch.rows, &advantages);
        let loss = objective.prepare(inputs, &Denominators::of(&batch.rows)).unwrap();
        actor.accumulate(&micro_batch, &loss).unwrap();
    }
    let parameters = actor.learner.decoder().trainable_parameters();
    (num_tokens, parameters.into_iter().map(|(name, leaf)| (name, leaf.grad().copy())).collect())
}

fn scores(actor: &Actor, batch: &Batch, max_tokens: usize) -> TokenScores {
    actor.score(batch, Adapter::On, max_tokens).unwrap()
}

/// Checks gradients within 1e-4 of a parameter's largest gradient, because sums over the tokens of a few
/// sequences have another order, as between any two ways to pack.
fn assert_same_gradients(case: &str, got: &[(String, Tensor)], expected: &[(String, Tensor)]) {
    assert_eq!(got.len(), expected.len());
    for ((name, got), (_, expected)) in got.iter().zip(expected) {
        let off = (got - expected).abs().max().double_value(&[]);
        let scale = expected.abs().max().double_value(&[]).max(1e-3);
        assert!(off <= 1e-4 * scale, "{case}, {name}: off by {off} at a scale of {scale}");
    }
}

#[test]
fn a_shared_prompt_gives_the_log_probs_of_prompts_of_their_own() {
    for family in FAMILIES {
        let actor = actor(family, false);
        let (shared, alone) = (scores(&actor, &batch(true), 4096), scores(&actor, &batch(false), 64));
        for (kind, shared, alone) in [
            ("log-prob", &shared.logprobs, &alone.logprobs),
            ("entropy", &shared.entropies, &alone.entropies),
        ] {
            let off = shared.iter().zip(alone).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            // This is the tolerance between packed sequences and each sequence alone.
            assert!(off <= 1e-5, "{family}: {kind} off by {off}");
        }
    }
}

#[test]
fn a_shared_prompt_gives_the_gradients_of_prompts_of_their_own() {
    let completions: usize = GROUPS.iter().flat_map(|(_, lens)| lens.iter()).map(|len| len - 1).sum();
    let prompts: usize = GROUPS.iter().map(|(prompt_len, _)| prompt_len).sum();
    let copies: usize = GROUPS.iter().map(|(prompt_len, lens)| prompt_len * lens.len()).sum();
    for family in FAMILIES {
        let (num_shared, shared) = gradients(&mut actor(family, false), &batch(true), 4096);
        let (num_alone, alone) = gradients(&mut actor(family, false), &batch(false), 4096);
        assert_eq!(num_shared, completions + prompts, "every prompt goes through the model once");
        assert_eq!(num_alone, completions + copies);
        assert_same_gradients(family, &shared, &alone);
    }
}

#[test]
fn groups_split_by_a_budget_give_the_same_gradients() {
    let (_, whole) = gradients(&mut actor("mistral", false), &batch(true), 4096);
    for max_tokens in [52, 60, 75, 130] {
        let (_, split) = gradients(&mut actor("mistral", false), &batch(true), max_tokens);
        assert_same_gradients(&format!("{max_tokens} tokens"), &split, &whole);
    }
}

#[test]
fn recomputed_activations_give_a_shared_prompt_the_gradients_of_kept_ones() {
    let (_, kept) = gradients(&mut actor("qwen3", false), &batch(true), 4096);
    let (_, recomputed) = gradients(&mut actor("qwen3", true), &batch(true), 4096);
    for ((name, kept), (_, recomputed)) in kept.iter().zip(&recomputed) {
        assert!(kept.equal(recomputed), "{name} differs");
    }
}

/// The first token of every completion is predicted from the last one of the prompt, the others from the one
/// before.
#[test]
fn predictors_are_the_tokens_before_their_targets() {
    let batch = batch(true);
    let micro_batch = MicroBatch::new(&batch, &[4, 5, 6], actor("llama", false).learner.decoder()).unwrap();
    assert_eq!(micro_batch.input.cu_seqlens, [0, 18, 19, 23, 30]);
    assert_eq!(micro_batch.input.prefixes, [None, None, Some(1), Some(1)]);
    let predictors = Vec::<i64>::try_from(&micro_batch.predictors_c).unwrap();
    let expected: Vec<i64> = (6..18).chain(18..23).chain([18]).chain(23..30).collect();
    assert_eq!(predictors, expected);
}
