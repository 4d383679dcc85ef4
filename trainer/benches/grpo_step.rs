//! One whole GRPO step on a 135M-parameter Llama shape with random weights: 2 prompts of 64 tokens, 8 samples
//! of 64 tokens each, KL term of 0.04 against a reference, one update. Rewards are random, as no model learns
//! here.
//!
//! `--lora` trains an adapter, whose reference is the base. The peer on the same load is
//! `peers/grpo_step.py`; both answer `--serve` to `peers/compare.py`.

#[path = "training/measure.rs"]
mod measure;
#[path = "training/shape.rs"]
mod shape;
#[path = "training/subject.rs"]
mod subject;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use rlt_core::advantage::{AdvantageEstimator, AdvantageInputs};
use rlt_core::batch::Batch;
use rlt_core::engine::DetokenizeError;
use rlt_core::kl::KlEstimator;
use rlt_core::loss::{Aggregation, Clip, KlTerm, Objective, PolicyLoss};
use rlt_core::sampling::{SamplingParams, derive_seed, draw};
use rlt_core::types::{Completion, Prompt, Reward, RewardStatus, Rollout, RolloutGroup, TokenId};
use rlt_trainer::actor::Actor;
use rlt_trainer::model::Adapter;
use rlt_trainer::phases::PhaseClock;
use rlt_trainer::reference::FrozenPolicy;
use rlt_trainer::rollout::{Detokenizer, RolloutEngine, RolloutOptions, RolloutRequest};
use rlt_trainer::update::{UpdatePlan, update};
use serde_json::{Value, json};

const NUM_PROMPTS: usize = 2;
const NUM_SAMPLES: usize = 8;
const PROMPT_LEN: u64 = 64;
const NEW_TOKENS: usize = 64;
/// What a job of this size gets that does not say otherwise: one group a micro-batch.
const MAX_TOKENS: usize = 1024;

/// Texts play no part here.
struct NoText;

impl Detokenizer for NoText {
    fn decode(&self, _: &[TokenId]) -> Result<String, DetokenizeError> {
        Ok(String::new())
    }
}

fn main() -> anyhow::Result<()> {
    shape::prepare()?;
    let mut job = Job::new()?;
    measure::serve(&["step"], |_| measure::measured(|| job.step()))
}

struct Job {
    actor: Actor,
    /// A frozen copy of all weights; an adapter's reference needs none.
    reference: Option<FrozenPolicy>,
    engine: RolloutEngine,
    step: u64,
}

impl Job {
    fn new() -> anyhow::Result<Self> {
        let actor = subject::actor()?;
        // As a job on the CPU keeps it: in a file.
        let in_file = || FrozenPolicy::copy_of(&actor, &std::env::temp_dir());
        let reference = (!measure::has("--lora")).then(in_file).transpose()?;
        let max_concurrent = NUM_PROMPTS * NUM_SAMPLES;
        let engine = RolloutEngine::new(RolloutOptions { max_concurrent, ..RolloutOptions::default() });
        Ok(Self { actor, reference, engine, step: 0 })
    }

    /// The parts of `rlt_trainer::step` in their order.
    fn step(&mut self) -> anyhow::Result<Value> {
        let mut clock = PhaseClock::start();
        clock.measure("update_weights", || self.engine.sync_weights(&self.actor.decoder, self.step))?;
        let groups = clock.measure("gen", || self.sample())?;
        self.engine.sleep();
        let mut batch = Batch::from_groups(&groups, true);
        batch.ref_logprobs = Some(clock.measure("ref", || self.reference_logprobs(&batch))?);
        let token_rewards = batch.rows.at_last_valid(&batch.rewards);
        let inputs = AdvantageInputs::new(&batch.rows, &token_rewards, &batch.groups);
        batch.advantages = AdvantageEstimator::Grpo { normalize_by_std: true }.estimate(&inputs)?.advantages;
        let plan = plan(self.step);
        let report = clock.measure("update_actor", || update(&mut self.actor, &batch, &plan))?;
        self.step += 1;
        Ok(json!({
            "tokens": batch.sequence_lens().iter().sum::<usize>(),
            "new_tokens": batch.rows.num_tokens(),
            "computed_tokens": computed_tokens(&batch),
            "rollout_seconds": clock.seconds("update_weights") + clock.seconds("gen"),
            "reference_seconds": clock.seconds("ref"),
            "update_seconds": clock.seconds("update_actor"),
            "grad_norm": report.grad_norms.first(),
        }))
    }

    fn sample(&mut self) -> anyhow::Result<Vec<RolloutGroup>> {
        let prompts: Vec<Arc<Prompt>> = (0..NUM_PROMPTS as u64).map(|idx| self.prompt(idx)).collect();
        let requests: Vec<RolloutRequest> = prompts
            .iter()
            .map(|prompt| RolloutRequest {
                prompt: prompt.tokens.as_slice().into(),
                seeds: (0..NUM_SAMPLES as u64)
                    .map(|sample| derive_seed(&[self.step, prompt.row_idx, sample]))
                    .collect(),
                sampling: SamplingParams { ignore_eos: true, ..SamplingParams::default() },
                max_new_tokens: NEW_TOKENS,
            })
            .collect();
        let go_on = &mut |_| ControlFlow::Continue(());
        let completions = self.engine.generate(&self.actor.decoder, &requests, &NoText, go_on)?;
        Ok(prompts.into_iter().zip(completions).map(|(prompt, own)| self.group(prompt, own)).collect())
    }

    fn prompt(&self, prompt_idx: u64) -> Arc<Prompt> {
        let vocab_size = self.actor.decoder.config.vocab_size as f64;
        let seed = derive_seed(&[self.step, prompt_idx]);
        Arc::new(Prompt {
            row_idx: prompt_idx,
            tokens: (0..PROMPT_LEN).map(|at| (draw(seed, at) * vocab_size) as TokenId).collect(),
            text: String::new(),
            data_source: String::new(),
            ground_truth: Value::Null,
            extra_info: Value::Null,
        })
    }

    fn group(&self, prompt: Arc<Prompt>, completions: Vec<Completion>) -> RolloutGroup {
        let rollout = |(sample_idx, completion)| {
            let value = draw(derive_seed(&[self.step, prompt.row_idx]), sample_idx as u64);
            Rollout {
                prompt: Arc::clone(&prompt),
                sample_idx: sample_idx as u32,
                policy_version: self.step,
                completion,
                reward: Reward {
                    score: value,
                    value,
                    parts: BTreeMap::new(),
                    answer: None,
                    status: RewardStatus::Ok,
                    message: None,
                },
            }
        };
        let rollouts = completions.into_iter().enumerate().map(rollout).collect();
        RolloutGroup { prompt, rollouts }
    }

    fn reference_logprobs(&self, batch: &Batch) -> anyhow::Result<Vec<f64>> {
        let scores = match &self.reference {
            Some(copy) => self.actor.score_with(copy, batch, 2 * MAX_TOKENS),
            None => self.actor.score(batch, Adapter::Off, 2 * MAX_TOKENS),
        };
        if let Some(copy) = &self.reference {
            copy.rest();
        }
        Ok(scores?.logprobs)
    }
}

/// Tokens that go through the model in a pass over the batch, each prompt once.
fn computed_tokens(batch: &Batch) -> usize {
    let rows: Vec<usize> = (0..batch.rows.num_rows()).collect();
    batch.prompt_groups(&rows).iter().map(|group| group.prompt_len + group.lens.iter().sum::<usize>()).sum()
}

fn plan(step: u64) -> UpdatePlan {
    UpdatePlan {
        objective: Objective {
            policy: PolicyLoss::Vanilla { clip: Clip { low: 0.2, high: 0.2 }, dual_clip: None },
            aggregation: Aggregation::TokenMean,
            kl: Some(KlTerm { estimator: KlEstimator::K3, coefficient: 0.04 }),
            entropy_coefficient: 0.0,
        },
        groups_per_update: NUM_PROMPTS,
        num_epochs: 1,
        max_tokens: MAX_TOKENS,
        learning_rate: 1e-6,
        seed: step,
    }
}
