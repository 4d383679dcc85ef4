//! The speed of this machine's GPU, compared with its data sheet: limits, decoding, updates, whole steps.
//!
//! Fractions of a peak use the table of plans (`rlt_plan::Machine`), and are null for a GPU that is not in
//! it. Findings of decoding, updates and steps include the times that `rlctl plan` predicts. On an emulated
//! device shapes are tiny, and a note says that times mean nothing.

pub(super) mod decode;
pub(super) mod decode_tail;
pub(super) mod grpo_step;
pub(super) mod limits;
mod peer;
mod prediction;
pub(super) mod published;
pub(super) mod trace;
pub(super) mod update;

use rlt_decoder::{Decoder, LoadOptions};
use rlt_models::ModelConfig;
use rlt_parallel::Ranks;
use rlt_plan::Machine;
use serde_json::{Value, json};
use tch::{Device, Kind};

use super::{Failure, Finding, device_name, is_stand_in};
use crate::roles::actor::{Actor, ActorOptions};
use crate::roles::optim::{AdamW, AdamWOptions};

const GPU: Device = Device::Cuda(0);

/// Returns the data sheet of the first GPU; `None` if the table has no such product.
pub(super) fn peak() -> Option<Machine> {
    Machine::of_product(&device_name()?).ok()
}

/// Makes a finding of measured rates, which passes if all of them are positive and finite.
pub(super) fn measured<const N: usize, const M: usize>(
    rates: [(&str, f64); N],
    others: [(&str, Value); M],
) -> Finding {
    let holds = rates.iter().all(|(_, rate)| rate.is_finite() && *rate > 0.0);
    let note = is_stand_in().then_some("a device of CPU memory, at a tiny shape: the times mean nothing");
    let finding = Finding::new(holds, rates.map(|(name, rate)| (name, json!(rate)))).with(others);
    if let Some(note) = note { finding.with([("note", json!(note))]) } else { finding }
}

/// Creates an actor with random weights in fp32, which computes in bf16.
fn actor(config: &ModelConfig) -> Result<Actor, Failure> {
    let options =
        LoadOptions { device: GPU, param_dtype: Kind::Float, compute: Kind::BFloat16, trainable: true };
    let decoder = Decoder::from_config(config, 0, &options)?;
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default())?;
    let options = ActorOptions {
        temperature: 1.0,
        head_chunk_tokens: 1024,
        activation_checkpointing: false,
        max_grad_norm: 1.0,
    };
    Ok(Actor::new(decoder, optimizer, options, Ranks::alone()))
}

/// Returns the number of weights in all products except the head's, and in the head.
fn weights(config: &ModelConfig) -> [f64; 2] {
    let of_layers = config.matrices_of_layers();
    [of_layers as f64, (config.vocab_size * config.hidden_size) as f64]
}

/// Computes the FLOP of a forward and a backward pass over `computed` tokens, `predicted` of which pass the
/// head. Each token attends to `context` tokens on average: three times 2 W t + 2 H c + 4 L q l t.
fn model_flop(config: &ModelConfig, [computed, predicted, context]: [f64; 3]) -> f64 {
    let [body, head] = weights(config);
    let attention = 4.0 * (config.num_layers * config.num_heads * config.head_dim) as f64 * context;
    3.0 * (computed * (2.0 * body + attention) + 2.0 * head * predicted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flop_of_an_update_are_six_a_parameter_and_token_and_attentions() {
        let config = ModelConfig::from_json(&super::super::shapes::tiny()).unwrap();
        // 2 layers: q and o 64 x 64, k and v 64 x 32, three of 64 x 128; a tied head of 160 x 64.
        let (body, head) = (2.0 * (2.0 * 4096.0 + 2.0 * 2048.0 + 3.0 * 8192.0), 10_240.0);
        assert_eq!(weights(&config), [body, head]);
        let attention = 3.0 * 4.0 * 2.0 * 64.0 * 5.0;
        assert_eq!(model_flop(&config, [10.0, 10.0, 5.0]), 10.0 * (6.0 * (body + head) + attention));
        assert_eq!(
            model_flop(&config, [10.0, 0.0, 0.0]),
            60.0 * body,
            "what predicts nothing passes no head"
        );
    }

    #[test]
    fn a_rate_that_is_no_number_fails() {
        assert!(matches!(measured([("rate", 1.0)], []).status, super::super::Status::Passed));
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(measured([("rate", rate)], []).status, super::super::Status::Failed), "{rate}");
        }
    }
}
