//! Compares an actor's gradients at fixed tokens on the GPU with those of the CPU in fp32. Module `deviation`
//! has the bounds.
//!
//! The metrics of a training cannot tell a wrong gradient from a rounded one: AdamW divides each gradient by
//! its own size, so the noise of a small gradient becomes a full step. Several completions share each prompt,
//! so that the attention of packed tokens has prefixes.

mod deviation;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rlt_core::batch::Batch;
use rlt_core::loss::{Aggregation, Denominators, Gpg, LossInputs, Objective};
use rlt_core::types::{Completion, FinishReason, Prompt, Reward, Rollout, RolloutGroup, TokenId};
use rlt_decoder::{Decoder, LoadOptions};
use rlt_parallel::Ranks;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use self::deviation::compared;
use super::{Failure, Finding, Report, shapes};
use crate::roles::actor::{Actor, ActorOptions};
use crate::roles::learner::MicroBatch;
use crate::roles::optim::{AdamW, AdamWOptions};

/// Number of prompt tokens, of completions and of tokens per completion of each group.
const GROUPS: [[usize; 3]; 3] = [[19, 3, 11], [5, 2, 23], [1, 1, 40]];

/// Gradients by the parameter's name.
type Gradients = BTreeMap<String, Tensor>;

pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    // libtorch reads the workspace configuration of cuBLAS at the first matrix product of the process and
    // caches it, so deterministic products must be configured before any product.
    rlt_torch::set_deterministic(true)?;
    rlt_torch::set_deterministic(false)?;
    let truth = gradients(Device::Cpu, Kind::Float)?;
    let found = gradients(Device::Cuda(0), Kind::Float)?;
    report(compared(&found, &truth, None)?.with([("dtype", json!("fp32"))]))?;
    let in_bf16 = gradients(Device::Cpu, Kind::BFloat16)?;
    let found = gradients(Device::Cuda(0), Kind::BFloat16)?;
    report(compared(&found, &truth, Some(&in_bf16))?.with([("dtype", json!("bf16"))]))?;
    repeated(report)
}

/// Returns the gradients of an actor with fp32 weights, which bf16 holds exactly, and the compute dtype
/// `compute`.
fn gradients(device: Device, compute: Kind) -> Result<Gradients, Failure> {
    let config = shapes::config(&shapes::tiny())?;
    let options = LoadOptions { device, param_dtype: Kind::Float, compute, trainable: true };
    let decoder = Decoder::from_config(&config, 5, &options)?;
    // Casting the weights then rounds nothing, so that bf16 differs from fp32 by its arithmetic alone.
    tch::no_grad(|| {
        for (_, mut weight) in decoder.trainable_parameters() {
            let rounded = weight.to_kind(Kind::BFloat16).to_kind(Kind::Float);
            weight.copy_(&rounded);
        }
    });
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default())?;
    let options = ActorOptions {
        temperature: 0.8,
        head_chunk_tokens: 32,
        activation_checkpointing: false,
        max_grad_norm: 1.0,
    };
    let actor = Actor::new(decoder, optimizer, options, Ranks::alone());
    let batch = batch(config.vocab_size);
    let rows: Vec<usize> = (0..batch.rows.num_rows()).collect();
    let micro_batch = MicroBatch::new(&batch, &rows, actor.learner.decoder())?;
    let advantages: Vec<f64> = (0..batch.rows.num_tokens()).map(|at| (at % 5) as f64 - 1.5).collect();
    let objective = Objective {
        policy: Gpg {}.into(),
        aggregation: Aggregation::TokenMean,
        kl: None,
        entropy_coefficient: 0.1,
        positive: None,
    };
    let inputs = LossInputs::new(&micro_batch.rows, &advantages);
    let loss = objective.prepare(inputs, &Denominators::of(&batch.rows))?;
    if device.is_cuda() {
        // A host function on the CUDA stream evaluates the loss, as in an update on a GPU.
        let ((objective, weights), rows) = (loss.owned(), micro_batch.rows.clone());
        let advantages = advantages.clone();
        let evaluate = move |tokens: Range<usize>, logprobs: &[f32], entropies: &[f32]| {
            let loss = objective.resume(LossInputs::new(&rows, &advantages), Arc::clone(&weights))?;
            loss.evaluate(tokens, logprobs, entropies)
        };
        actor.accumulate_in_stream(&micro_batch, Box::new(evaluate))?.finish()?;
    } else {
        actor.accumulate(&micro_batch, &loss)?;
    }
    let read = |(name, leaf): (String, Tensor)| (name, leaf.grad().to_device(Device::Cpu).copy());
    Ok(actor.learner.decoder().trainable_parameters().into_iter().map(read).collect())
}

/// Creates groups of completions that share their prompt. Token ids are a function of their indices.
fn batch(vocab_size: usize) -> Batch {
    let token = |at: usize| (at * 31 % (vocab_size - 2) + 1) as TokenId;
    let groups: Vec<RolloutGroup> = GROUPS
        .iter()
        .enumerate()
        .map(|(idx, &[prompt_len, num_samples, len])| {
            let prompt = Arc::new(Prompt::from_tokens(
                idx as u64,
                (0..prompt_len).map(|at| token(at + 7 * idx)).collect(),
            ));
            let rollout = |sample: usize| Rollout {
                prompt: Arc::clone(&prompt),
                sample_idx: sample as u32,
                policy_version: 0,
                completion: Completion {
                    tokens: (0..len).map(|at| token(at + 50 * sample + 3 * idx)).collect(),
                    rollout_logprobs: vec![-1.0; len],
                    text: String::new(),
                    finish_reason: FinishReason::Length,
                },
                reward: Reward::from_score(sample as f64),
            };
            RolloutGroup { rollouts: (0..num_samples).map(rollout).collect(), prompt: Arc::clone(&prompt) }
        })
        .collect();
    Batch::from_groups(&groups, &[])
}

/// Checks that two passes with deterministic operators have the same gradients to the bit.
fn repeated(report: &mut Report<'_>) -> Result<(), Failure> {
    for (dtype, kind) in [("fp32", Kind::Float), ("bf16", Kind::BFloat16)] {
        rlt_torch::set_deterministic(true)?;
        let pair =
            gradients(Device::Cuda(0), kind).and_then(|first| Ok((first, gradients(Device::Cuda(0), kind)?)));
        rlt_torch::set_deterministic(false)?;
        let finding = match pair {
            Ok((first, second)) => {
                let num_different =
                    first.iter().filter(|(name, one)| second.get(*name) != Some(*one)).count();
                Finding::new(num_different == 0, [("differentParameters", json!(num_different))])
            }
            Err(error) => Finding::new(false, [("error", json!(super::error_text(error.as_ref())))]),
        };
        let run = json!("gradients twice, with deterministic operators");
        report(finding.with([("run", run), ("dtype", json!(dtype))]))?;
    }
    Ok(())
}
