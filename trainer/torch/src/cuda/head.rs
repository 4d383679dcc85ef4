//! One chunk of the language-model head between its two matrix products: statistics of the logits, and the
//! gradient, which overwrites them. The formulas are in `csrc/kernels/head.inl`.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Number of logits per thread of the backward launch.
const PER_THREAD: i64 = 8;
const THREADS: i64 = 256;

/// Log-prob of the target and entropy of softmax(logits / temperature), for each row.
#[derive(Clone, Copy, Debug)]
pub struct HeadForward<'a> {
    /// Logits `[rows, vocabulary]`; f32, bf16 or f16.
    pub logits: &'a Tensor,
    /// Target token ids, i64 `[rows]`.
    pub targets: &'a Tensor,
    /// Divisor of the logits.
    pub temperature: f64,
    /// Log-prob of the targets, f32 `[rows]`.
    pub logprob: &'a Tensor,
    /// Entropy in nats, f32 `[rows]`.
    pub entropy: &'a Tensor,
    /// Largest logit / temperature, f32 `[rows]`; used by the backward launch.
    pub max: &'a Tensor,
    /// ln of the sum of exp(logit / temperature - max), f32 `[rows]`; used by the backward launch.
    pub log_sum: &'a Tensor,
}

/// Gradient of `grad_logprob * logprob + grad_entropy * entropy`, which overwrites the logits.
#[derive(Clone, Copy, Debug)]
pub struct HeadBackward<'a> {
    /// Tensors that the forward launch read and wrote.
    pub forward: HeadForward<'a>,
    /// Gradient of the log-prob, f32 `[rows]`.
    pub grad_logprob: &'a Tensor,
    /// Gradient of the entropy, f32 `[rows]`.
    pub grad_entropy: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    logits: *mut c_void,
    targets: *const c_void,
    logprob: *mut c_void,
    entropy: *mut c_void,
    max: *mut c_void,
    log_sum: *mut c_void,
    grad_logprob: *const c_void,
    grad_entropy: *const c_void,
    vocabulary: i64,
    inv_temperature: f32,
}

impl HeadForward<'_> {
    fn arguments(&self, kernels: &Kernels) -> Result<Arguments, Error> {
        let operands = kernels.operands("the head's chunk");
        let [rows, vocabulary] = operands.sizes("logits", self.logits)?;
        let row = |name, tensor| operands.address(name, tensor, Kind::Float, &[rows]);
        Ok(Arguments {
            logits: operands.address("logits", self.logits, self.logits.kind(), &[rows, vocabulary])?,
            targets: operands.address("targets", self.targets, Kind::Int64, &[rows])?,
            logprob: row("logprob", self.logprob)?,
            entropy: row("entropy", self.entropy)?,
            max: row("max", self.max)?,
            log_sum: row("log_sum", self.log_sum)?,
            grad_logprob: std::ptr::null(),
            grad_entropy: std::ptr::null(),
            vocabulary,
            inv_temperature: (1.0 / self.temperature) as f32,
        })
    }

    /// Launches one block per row. A target outside the vocabulary gives NaN.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let arguments = self.arguments(kernels)?;
        let name = kernels.operands("the head's chunk").kernel("head_forward", self.logits.kind())?;
        let rows = self.targets.numel();
        kernels.launch(&name, Shape::blocks([rows, 1, 1], THREADS as u32), &arguments)
    }
}

impl HeadBackward<'_> {
    /// Launches one thread per 8 logits.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("the head's chunk, backward");
        let rows = self.forward.targets.numel();
        let gradient = |name, tensor| operands.address(name, tensor, Kind::Float, &[rows as i64]);
        let arguments = Arguments {
            grad_logprob: gradient("grad_logprob", self.grad_logprob)?,
            grad_entropy: gradient("grad_entropy", self.grad_entropy)?,
            ..self.forward.arguments(kernels)?
        };
        let name = operands.kernel("head_backward", self.forward.logits.kind())?;
        let parts = (arguments.vocabulary as usize).div_ceil((THREADS * PER_THREAD) as usize);
        kernels.launch(&name, Shape::blocks([rows, parts, 1], THREADS as u32), &arguments)
    }
}
