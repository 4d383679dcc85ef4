//! Duration of the rollout on a rank: prefill of its prompts, then one decoding step for every token of the
//! longest completions, once for each batch of concurrent sequences.
//!
//! ```text
//! bytes of a step   packed weights / n + b (p + c / 2) keys and values / n + b v logits
//! FLOP of a step    2 b packed weights / n + 4 b (p + c / 2) L q / n
//! ```
//! An unmerged adapter is read once in addition, and multiplied with every token.
//!
//! Legend: b concurrent sequences, p prompt tokens, c completion tokens, n ranks of a rollout tensor-parallel
//! group, L layers, q query width, v vocabulary.

use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::Device;
use rlt_models::ModelConfig;

use super::PhaseSpeed;
use super::work::{ComputePrecision, Kind, Work};
use crate::batch::{BatchPlan, share};
use crate::machine::Machine;
use crate::memory::{adapter, quantized_as, rollout_shard};

/// Number of GPU kernels of a decoding step: for each layer, and outside of the layers.
const KERNELS: (f64, f64) = (9.0, 12.0);
/// Number of matrix products of a layer.
const PRODUCTS: f64 = 4.0;
/// Number of additional kernels of a layer with unmerged adapters.
const KERNELS_OF_ADAPTERS: f64 = 2.0 * PRODUCTS;
/// Largest number of rows that a GPU multiplies with a quantized weight without dequantizing it to memory.
const QUANTIZED_FEW_ROWS: f64 = 16.0;
/// Least seconds of a kernel in a CUDA graph: its start, and the memory's latency.
const GRAPH_KERNEL_SECONDS: f64 = 2e-6;
/// Number of a decoding step's operations on a CPU, each with a launch: for each layer, and outside of the
/// layers.
const CPU_OPERATIONS: (f64, f64) = (14.0, 20.0);
/// Host seconds for each token: scheduling, drawing, text. On a CPU they fall between two steps of the model.
/// The quickstart's job, whose model takes next to no time, took 16 microseconds on 2 cores.
const HOST_SECONDS_OF_TOKEN: f64 = 16e-6;
/// Number of operations of an adapted projection: two products, a scaling and a sum.
const OPERATIONS_OF_PAIR: f64 = 4.0;
/// Number of passes over the fp32 logits while tokens are drawn.
const LOGIT_PASSES: f64 = 6.0;

/// Rollout of one tensor-parallel group in a step.
pub(super) struct Rollout {
    pub(super) speed: PhaseSpeed,
    /// Number of sampled tokens.
    pub(super) tokens: f64,
}

pub(super) fn of_step(
    spec: &ResolvedSpec,
    model: &ModelConfig,
    batch: &BatchPlan,
    machine: &Machine,
) -> Rollout {
    let slice = rollout_shard(spec, &quantized_as(spec, model));
    let prompts = share(spec, batch.prompts_per_step) as f64;
    let samples = prompts * batch.samples_per_prompt as f64;
    let together = (batch.concurrent_sequences as f64).min(samples);
    let completion = f64::from(spec.rollout.max_completion_tokens);
    let steps = (samples / together).ceil() * completion;
    let step = Step { spec, model: &slice, together };
    let decode = step.work();
    let (decode_seconds, bound) = decode.seconds(machine, Kind::Sampling);
    let prefill = step.prefill(prompts);
    let (prefill_seconds, _) = prefill.seconds(machine, Kind::Sampling);
    let seconds_of_step = decode_seconds + step.overhead(machine);
    let speed = PhaseSpeed {
        name: "rollout",
        seconds: steps * seconds_of_step + prefill_seconds,
        flop: steps * decode.flop() + prefill.flop(),
        bytes: steps * decode.bytes + prefill.bytes,
        bound,
    };
    Rollout { speed, tokens: samples * completion }
}

/// One decoding step of `together` concurrent sequences on a tensor-parallel shard of the model.
struct Step<'a> {
    spec: &'a ResolvedSpec,
    model: &'a ModelConfig,
    together: f64,
}

impl Step<'_> {
    fn width(&self) -> f64 {
        self.spec.rollout.precision.unwrap_or(self.spec.training.precision).width() as f64
    }

    fn layers(&self) -> f64 {
        self.model.num_layers as f64
    }

    fn body(&self) -> f64 {
        self.model.matrices_of_layers() as f64
    }

    /// Elements of the layers' matrices by which one token is multiplied.
    fn active_body(&self) -> f64 {
        self.model.active_matrices_of_layers() as f64
    }

    fn head(&self) -> f64 {
        (self.model.vocab_size * self.model.hidden_size) as f64
    }

    /// Number of parameters of an unmerged adapter, and of its low-rank pairs; zeros for a merged one.
    fn adapter(&self) -> (f64, f64) {
        let lora = self.spec.model.lora.as_ref().filter(|lora| lora.merge == Some(false));
        lora.map_or((0.0, 0.0), |lora| {
            let num_trained = adapter::trained(lora, self.model).num_parameters;
            (num_trained as f64, adapter::num_pairs(lora, self.model) as f64)
        })
    }

    fn empty(&self) -> Work {
        let dtype = self.spec.rollout.precision.unwrap_or(self.spec.training.precision);
        Work::in_numbers(ComputePrecision { dtype, matmul: self.spec.training.matmul_precision })
    }

    fn work(&self) -> Work {
        let context = f64::from(self.spec.data.max_prompt_tokens)
            + f64::from(self.spec.rollout.max_completion_tokens) / 2.0;
        let heads = |num_heads: usize| (num_heads * self.model.head_dim) as f64;
        let cache = self.layers() * self.model.cached_numbers() as f64 * context;
        let active = self.active_body() + self.head();
        let read = self.model.matrices_read_by(self.together) + self.head();
        let attention = 4.0 * self.layers() * heads(self.model.num_heads) * context;
        let logits = LOGIT_PASSES * 4.0 * self.model.vocab_size as f64;
        let (per_layer, besides) = CPU_OPERATIONS;
        // Tensor parallelism needs two all-reduces of hidden states a layer, and an all-gather of logits.
        let tp = f64::from(self.spec.workers.mesh.rollout_tp);
        let summed = 4.0 * self.layers() * self.model.hidden_size as f64 + self.model.vocab_size as f64;
        let is_gpu = self.spec.workers.device == Device::Cuda;
        let (adapter, num_pairs) = self.adapter();
        let quantized = self.model.quantized();
        let numbers = quantized.numbers as f64;
        // Codes are read; for more than a few rows a GPU also writes and reads dequantized weights.
        let dequantized = if self.dequantizes() { 2.0 * self.width() * numbers } else { 0.0 };
        let codes = quantized.bytes as f64 + dequantized - self.width() * numbers;
        let operations = self.layers() * per_layer + besides + OPERATIONS_OF_PAIR * num_pairs;
        Work {
            products: self.together * (2.0 * (active + adapter) + attention),
            bytes: self.width() * (read + adapter + self.together * cache) + codes + self.together * logits,
            operations: if is_gpu { 1.0 } else { operations },
            exchanged: self.together * self.width() * summed * (tp - 1.0) / tp,
            ..self.empty()
        }
    }

    /// The overhead added to a step's roofline.
    fn overhead(&self, machine: &Machine) -> f64 {
        let (per_layer, besides) = KERNELS;
        match machine.device {
            Device::Cuda => {
                let beside = if self.adapter().1 > 0.0 { KERNELS_OF_ADAPTERS } else { 0.0 };
                let dequantizing = if self.dequantizes() { PRODUCTS } else { 0.0 };
                let of_layer = per_layer + beside + dequantizing;
                (self.layers() * of_layer + besides) * GRAPH_KERNEL_SECONDS
            }
            Device::Auto | Device::Cpu => self.together * HOST_SECONDS_OF_TOKEN,
        }
    }

    /// Whether a GPU dequantizes weights to memory for each product.
    fn dequantizes(&self) -> bool {
        let is_gpu = self.spec.workers.device == Device::Cuda;
        is_gpu && self.model.quantization.is_some() && self.together > QUANTIZED_FEW_ROWS
    }

    /// Work of the prefill: every prompt once.
    fn prefill(&self, prompts: f64) -> Work {
        let tokens = prompts * f64::from(self.spec.data.max_prompt_tokens);
        let hidden = (self.model.hidden_size + self.model.active_width()) as f64;
        Work {
            products: tokens * 2.0 * (self.active_body() + self.adapter().0) + prompts * 2.0 * self.head(),
            bytes: self.width() * (self.body() + tokens * self.layers() * 6.0 * hidden),
            operations: self.layers() * CPU_OPERATIONS.0,
            ..self.empty()
        }
    }
}
