//! Sequence parallelism on ranks that are threads: passes and training equal those of a single rank that has
//! all tokens.

use rlt_api::spec::{CriticSpec, LoraInit, Precision, QuantizationSpec};
use rlt_core::batch::Batch;
use rlt_core::fixtures::batch_of_lens;
use rlt_core::loss::{Aggregation, ClipCov, Denominators, Gpg, Gspo, LossInputs, Objective, PolicyLoss};
use rlt_core::types::TokenId;
use rlt_decoder::{Adapter, Decoder, LoadOptions, LoraConfig, ModuleMatch, PackedInput, Weights};
use rlt_layout::AxisPlace;
use rlt_models::ModelConfig;
use rlt_parallel::Ranks;
use rlt_parallel::schedule::probe::{ProbeError, Sample};
use rlt_parallel::schedule::{self, DecoderPass};
use tch::{Kind, Tensor};

use crate::roles::actor::update::{UpdatePlan, update};
use crate::roles::actor::{Actor, ActorOptions};
use crate::roles::critic::{Critic, CriticOptions};
use crate::roles::learner::MicroBatch;
use crate::roles::reference::{CopyOptions, FrozenPolicy};
use crate::tests::{actor_on_mesh, choose_products_of_runs, on_ranks, trained_parameters};

/// Tolerance of results that are summed over ranks in another order. Five steps of an optimizer that divides
/// by small gradients enlarge the differences.
const TOLERANCE: f64 = 1e-5;

/// Tolerance of losses over sequences, because the ratio of a sequence accumulates the roundings of all of
/// its tokens.
const SEQUENCE_TOLERANCE: f64 = 5e-5;

/// Number of prompt tokens and of tokens of each completion, by group: uneven lengths, a completion of a
/// single token, a group of one completion, a prompt of one token.
const GROUPS: [(usize, &[usize]); 4] = [(7, &[4, 1, 6]), (3, &[5]), (1, &[2, 3]), (5, &[9, 2])];

/// Token budget that puts every completion into one micro-batch.
const ALL: usize = 4096;

/// The settings of a training.
#[derive(Clone, Copy, Debug)]
struct Case {
    kv_heads: usize,
    /// Projections with a trained adapter, and its dropout; `None` trains all weights.
    lora: Option<(&'static [&'static str], f64)>,
    /// Whether the base model is quantized to 4 bits.
    quantized: bool,
    activation_checkpointing: bool,
    compute: Kind,
    max_tokens: usize,
}

const FULL: Case = Case {
    kv_heads: 2,
    lora: None,
    quantized: false,
    activation_checkpointing: false,
    compute: Kind::Float,
    max_tokens: 15,
};

/// Number of ranks, and the degrees by which they share the model and the tokens.
#[derive(Clone, Copy, Debug)]
struct Layout {
    size: usize,
    dp_shard: usize,
    sp: usize,
}

const fn layout(size: usize, dp_shard: usize, sp: usize) -> Layout {
    Layout { size, dp_shard, sp }
}

const ONE: Layout = layout(1, 1, 1);

fn decoder(case: Case) -> Decoder {
    choose_products_of_runs();
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 11, "hidden_size": 13,
        "intermediate_size": 17, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": case.kv_heads, "head_dim": 6, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "initializer_range": 0.3, "tie_word_embeddings": true, "hidden_act": "silu",
    }))
    .unwrap();
    let options =
        LoadOptions { trainable: case.lora.is_none(), compute: case.compute, ..LoadOptions::default() };
    let spec = case.quantized.then(QuantizationSpec::default);
    let weights = Weights::random_init(&config, 7).quantized(spec.as_ref(), Precision::Fp32).unwrap();
    let mut decoder = Decoder::from_weights(&weights, &options).unwrap();
    if let Some((targets, dropout)) = case.lora {
        let lora = LoraConfig {
            rank: 4,
            alpha: 6.0,
            rank_stabilized: false,
            targets: ModuleMatch::Names(targets.iter().map(|name| (*name).to_owned()).collect()),
            target_parameters: Vec::new(),
            exclude: None,
            dropout,
            init: LoraInit::Orthogonal,
            ..LoraConfig::default()
        };
        decoder.attach_lora(&lora, 3).unwrap();
    }
    decoder
}

fn batch() -> Batch {
    let batch = batch_of_lens(&GROUPS, |seed, at| ((seed * 31 + at * 7 + at * at) % 11) as TokenId);
    let num_tokens = batch.rows.num_tokens();
    let wave = |rate: f64| (0..num_tokens).map(|at| (at as f64 * rate).sin()).collect::<Vec<_>>();
    Batch {
        old_logprobs: Some(wave(0.7).iter().map(|at| -2.4 + 0.1 * at).collect()),
        returns: Some(wave(0.3)),
        advantages: wave(1.0),
        ..batch
    }
}

fn objective(policy: PolicyLoss) -> Objective {
    Objective {
        policy,
        aggregation: Aggregation::TokenMean,
        kl: None,
        entropy_coefficient: 0.1,
        positive: None,
    }
}

fn plan(case: Case, policy: PolicyLoss, num_epochs: usize) -> UpdatePlan {
    UpdatePlan {
        objective: objective(policy),
        groups_per_update: GROUPS.len(),
        num_epochs,
        max_tokens: case.max_tokens,
        learning_rate: 0.01,
        seed: 5,
    }
}

fn actor(case: Case, ranks: &Ranks, dp_shard: usize) -> Actor {
    let options = ActorOptions {
        temperature: 0.7,
        head_chunk_tokens: 4,
        activation_checkpointing: case.activation_checkpointing,
        max_grad_norm: 1.0,
    };
    actor_on_mesh(decoder(case), options, ranks, dp_shard)
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.detach().to_kind(Kind::Double).reshape([-1])).unwrap()
}

/// Runs `body` on every rank of `layout`; the results must be equal. Returns the first.
#[track_caller]
fn everywhere(layout: Layout, body: impl Fn(&Ranks) -> Vec<f64> + Sync) -> Vec<f64> {
    if layout.size == 1 {
        return body(&Ranks::alone());
    }
    let mut all = on_ranks(layout.size, |ranks| body(&ranks.with_sequence_parallel(layout.sp).unwrap()));
    assert!(all.iter().all(|numbers| numbers == &all[0]), "ranks differ");
    all.swap_remove(0)
}

/// Checks that values differ by at most `tolerance`, relative for values above 1, because fp32 has 24 bits
/// for each.
#[track_caller]
fn assert_close(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    let pairs = got.iter().zip(expected);
    let difference = pairs.map(|(got, one)| (got - one).abs() / one.abs().max(1.0)).fold(0.0, f64::max);
    assert!(difference <= tolerance, "{what}: {difference}");
    assert!(expected.iter().any(|number| number.abs() > 100.0 * tolerance), "{what}: nothing to compare");
}

/// Computes log-probs, entropies and squared probabilities, by every way in which a batch is scored.
fn scores(case: Case, ranks: &Ranks) -> Vec<f64> {
    let (actor, batch) = (actor(case, ranks, 1), batch());
    let on = actor.score(&batch, Adapter::On, case.max_tokens).unwrap();
    let off = actor.score(&batch, Adapter::Off, case.max_tokens).unwrap();
    let reference = FrozenPolicy::from(decoder(case)).score(&actor, &batch, case.max_tokens).unwrap();
    assert_eq!(on.logprobs, reference.logprobs);
    let squares = actor.sum_pi_squared(&batch, case.max_tokens).unwrap();
    [on.logprobs, on.entropies, off.logprobs, squares].concat()
}

/// Computes the gradients of all parameters.
fn gradients(case: Case, ranks: &Ranks) -> Vec<f64> {
    let (mut actor, batch) = (actor(case, ranks, 1), batch());
    let all: Vec<usize> = (0..batch.rows.num_rows()).collect();
    let split = MicroBatch::share(&batch, &all, actor.learner.decoder(), case.max_tokens, ranks).unwrap();
    let objective = objective(POLICY);
    for micro_batch in split {
        let advantages = batch.gather(&micro_batch.row_idxs, &batch.advantages);
        let inputs = LossInputs::new(&micro_batch.rows, &advantages);
        let loss = objective.prepare(inputs, &Denominators::of(&batch.rows)).unwrap();
        actor.accumulate(&micro_batch, &loss).unwrap();
    }
    actor.learner.train_state().sum_gradients().unwrap();
    let parameters = actor.learner.decoder().trainable_parameters();
    parameters.iter().flat_map(|(_, leaf)| numbers(&leaf.grad())).collect()
}

/// Checks that sequence-parallel groups of `sp` ranks compute the results of one rank in each case.
#[track_caller]
fn assert_as_one_rank(sp: usize, cases: &[Case], compute: fn(Case, &Ranks) -> Vec<f64>, tolerance: f64) {
    let all = |ranks: &Ranks| cases.iter().map(|case| compute(*case, ranks)).collect::<Vec<_>>();
    let (one, many) =
        (all(&Ranks::alone()), on_ranks(sp, |ranks| all(&ranks.with_sequence_parallel(sp).unwrap())));
    for rank in &many {
        assert_eq!(rank, &many[0], "ranks differ");
        for (case, (one, got)) in cases.iter().zip(one.iter().zip(rank)) {
            assert_close(&format!("{case:?} by {sp}"), got, one, tolerance);
        }
    }
}

/// Returns the reports of five updates, and the parameters after them.
fn train(case: Case, layout: Layout, policy: PolicyLoss) -> Vec<f64> {
    everywhere(layout, |ranks| {
        let (mut actor, batch) = (actor(case, ranks, layout.dp_shard), batch());
        let report = update(&mut actor, &batch, &plan(case, policy, 5)).unwrap();
        assert_eq!((report.updates.num_skipped, report.updates.grad_norms.len()), (0, 5));
        let loss = report.loss;
        let mut all = vec![loss.pg_loss, loss.entropy, loss.num_clipped as f64, loss.num_tokens as f64];
        all.extend(report.updates.grad_norms.iter().chain(&report.actor_logprobs));
        all.extend(trained_parameters(&actor).values().flat_map(numbers));
        all
    })
}

const POLICY: PolicyLoss = PolicyLoss::Gpg(Gpg {});

#[test]
fn log_probs_are_those_of_one_rank_at_every_degree_that_the_heads_allow() {
    for (sp, kv_heads) in [(2, &[4, 2, 1][..]), (4, &[4, 2, 1])] {
        let cases =
            |max_tokens| kv_heads.iter().map(move |heads| Case { kv_heads: *heads, max_tokens, ..FULL });
        let cases: Vec<Case> = cases(FULL.max_tokens).chain(cases(ALL)).collect();
        assert_as_one_rank(sp, &cases, scores, TOLERANCE);
    }
}

#[test]
fn gradients_of_every_parameter_are_those_of_one_rank() {
    let recomputed = Case { kv_heads: 1, activation_checkpointing: true, ..FULL };
    for sp in [2, 4] {
        assert_as_one_rank(sp, &[FULL, Case { kv_heads: 4, ..FULL }, recomputed], gradients, TOLERANCE);
    }
}

#[test]
fn sequence_parallel_groups_train_like_one_rank_also_with_fsdp() {
    let one = train(FULL, ONE, POLICY);
    for layout in [layout(4, 1, 4), layout(4, 1, 2), layout(4, 2, 2), layout(8, 2, 2)] {
        assert_close(&format!("{layout:?}"), &train(FULL, layout, POLICY), &one, TOLERANCE);
    }
}

/// The adapters cover few projections: in the first layer's attention only the queries need gradients, or
/// nothing does.
#[test]
fn an_adapter_trains_as_on_one_rank_and_drops_the_same_inputs() {
    for (targets, dropout, layout) in [
        (&["q_proj", "o_proj", "down_proj"][..], 0.0, layout(4, 2, 2)),
        (&["q_proj", "o_proj", "down_proj"], 0.4, layout(4, 1, 4)),
        (&["down_proj"], 0.4, layout(2, 1, 2)),
    ] {
        let case = Case { lora: Some((targets, dropout)), max_tokens: ALL, ..FULL };
        let one = train(case, ONE, POLICY);
        assert_close(&format!("{case:?}"), &train(case, layout, POLICY), &one, TOLERANCE);
    }
}

#[test]
fn an_adapter_on_quantized_weights_trains_as_on_one_rank() {
    let case = Case { lora: Some((&["q_proj", "down_proj"], 0.0)), quantized: true, max_tokens: ALL, ..FULL };
    let one = train(case, ONE, POLICY);
    assert_close("4 bits", &train(case, layout(4, 2, 2), POLICY), &one, TOLERANCE);
}

#[test]
fn losses_over_sequences_and_batches_see_the_tokens_of_all_ranks() {
    let (clip_low, clip_high) = (0.2, 0.3);
    let gspo = PolicyLoss::Gspo(Gspo { clip_low, clip_high });
    let clip_cov = PolicyLoss::ClipCov(ClipCov { clip_low, clip_high, ratio: 0.2, lower: -1.0, upper: 1.0 });
    for policy in [gspo, clip_cov] {
        let one = train(FULL, ONE, policy);
        assert_close(&format!("{policy:?}"), &train(FULL, layout(4, 2, 2), policy), &one, SEQUENCE_TOLERANCE);
    }
}

#[test]
fn a_critic_learns_on_streams_as_on_one_rank() {
    let learn = |layout: Layout| {
        everywhere(layout, |ranks| {
            let critic = CriticSpec { learning_rate: 0.01, warmup_steps: None, value_clip: 0.2 };
            let options =
                CriticOptions { critic, activation_checkpointing: true, ..CriticOptions::default() };
            let mut batch = batch();
            let mut critic =
                Critic::from_actor(&actor(FULL, ranks, 1), None, options, ranks.clone()).unwrap();
            batch.values = Some(critic.values(&batch, FULL.max_tokens).unwrap());
            let report = critic.learn(&batch, plan(FULL, POLICY, 3).mini_batches()).unwrap();
            // The number of passes depends on the distribution of rows over ranks.
            let metrics = report.metrics().into_iter().filter(|(name, _)| name != "critic/num_micro_batches");
            let mut all: Vec<f64> = metrics.map(|(_, value)| value).collect();
            all.extend(critic.values(&batch, FULL.max_tokens).unwrap());
            all.extend(critic.state_tensors().unwrap().iter().flat_map(|(_, tensor)| numbers(tensor)));
            all
        })
    };
    let one = learn(ONE);
    for layout in [layout(4, 1, 2), layout(4, 1, 4)] {
        assert_close(&format!("{layout:?}"), &learn(layout), &one, TOLERANCE);
    }
}

/// Updates, log-prob passes and passes of the reference have different sequence-parallel degrees, with a
/// sharded model as well.
#[test]
fn every_pass_has_a_degree_of_its_own() {
    let compute = |ranks: &Ranks, [updates, logprobs, reference]: [usize; 3], dp_shard: usize| {
        let sharing = |sp| ranks.clone().with_sequence_parallel(sp).unwrap();
        let mut actor = actor(FULL, &sharing(updates), dp_shard);
        if logprobs != updates {
            actor = actor.scoring_by(sharing(logprobs));
        }
        if reference != logprobs {
            actor = actor.scoring_reference_by(sharing(reference));
        }
        let batch = batch();
        let folder = tempfile::tempdir().unwrap();
        let frozen = FrozenPolicy::copy_of(&actor, &CopyOptions::in_folder(folder.path(), false)).unwrap();
        let scores = actor.score(&batch, Adapter::On, FULL.max_tokens).unwrap();
        let mut all = [scores.logprobs, scores.entropies].concat();
        all.extend(actor.sum_pi_squared(&batch, FULL.max_tokens).unwrap());
        let report = update(&mut actor, &batch, &plan(FULL, POLICY, 2)).unwrap();
        all.extend(report.updates.grad_norms.iter().chain(&report.actor_logprobs));
        all.extend(actor.score(&batch, Adapter::On, FULL.max_tokens).unwrap().logprobs);
        all.extend(frozen.score(&actor, &batch, FULL.max_tokens).unwrap().logprobs);
        all
    };
    let one = compute(&Ranks::alone(), [1, 1, 1], 1);
    for (degrees, dp_shard) in [([2, 4, 4], 2), ([4, 1, 2], 1), ([1, 2, 4], 4), ([2, 2, 1], 2)] {
        for got in on_ranks(4, |ranks| compute(&ranks, degrees, dp_shard)) {
            assert_close(&format!("{degrees:?} by {dp_shard}"), &got, &one, TOLERANCE);
        }
    }
}

#[test]
fn layers_in_bf16_round_equally_with_and_without_sequence_parallelism() {
    // The products are the same with fewer rows each, so at most the last of 8 bits differs.
    let case = Case { compute: Kind::BFloat16, kv_heads: 1, ..FULL };
    assert_as_one_rank(2, &[case], scores, 0.05);
}

#[test]
fn ranks_of_a_sequence_parallel_group_have_the_same_samples_and_equal_shards_of_the_tokens() {
    let batch = batch();
    let all: Vec<usize> = (0..batch.rows.num_rows()).collect();
    let shares = on_ranks(4, |ranks| {
        let ranks = ranks.with_sequence_parallel(2).unwrap();
        let share = ranks.share_of(&batch, &all, 13);
        let split =
            |max_tokens, part| MicroBatch::split(&batch, &share, &decoder(FULL), max_tokens, part).unwrap();
        for micro_batch in split(12, ranks.sp_place()) {
            let num_tokens = micro_batch.input.num_tokens();
            assert!(num_tokens <= 24, "{num_tokens} of two budgets");
            assert_eq!(micro_batch.input.tokens.size(), [num_tokens.div_ceil(2) as i64]);
        }
        share
    });
    assert_eq!((&shares[0], &shares[2]), (&shares[1], &shares[3]));
    let mut together = [&shares[0][..], &shares[2]].concat();
    together.sort_unstable();
    assert_eq!(together, all);
}

#[test]
fn a_model_that_does_not_see_beyond_its_own_tokens_is_found_before_the_first_step() {
    let outcomes = on_ranks(2, |ranks| {
        let ranks = ranks.with_sequence_parallel(2).unwrap();
        let actor = actor(FULL, &ranks, 1);
        actor.check_sequence_parallel(actor.learner.ranks(), "sp").unwrap();
        let sample = Sample::new(2, 11);
        let alone = DecoderPass { decoder: actor.learner.decoder(), shards: None, sp_group: None };
        let whole_td = sample.hidden_states(alone, AxisPlace::ALONE).unwrap();
        let own = ranks.sp_place().padded_range(11);
        // Each rank computes its tokens without attention to those of the other rank.
        let tokens = sample.tokens()[own.start..own.end.min(11)].to_vec();
        let input = PackedInput::new(&[&tokens], tch::Device::Cpu);
        let mut context = actor.learner.decoder().context(&input, Adapter::On);
        let inert_td = schedule::infer(alone, &input, &mut context).unwrap();
        sample.compare(&inert_td, &whole_td, &ranks, "spec.workers.mesh.sp")
    });
    for outcome in outcomes {
        let Err(error @ ProbeError::Differs { difference, .. }) = outcome else {
            panic!("nothing was found")
        };
        assert!(difference > 0.1 && error.to_string().contains("spec.workers.mesh.sp"), "{error}");
    }
}
