//! AdamW over all parameters of a gradient dtype in one kernel launch: `adamw_step` for many tensors.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

const THREADS: usize = 256;
/// Number of elements per block.
const CHUNK: usize = 4096;
/// Number of words in a row of the table.
const WORDS: usize = 9;

/// One parameter, with all tensors and factors that a step reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct AdamWTensor<'a> {
    /// Master weights, f32.
    pub param: &'a Tensor,
    /// Gradient, f32, bf16 or f16; of the same dtype in all rows of a table.
    pub grad: &'a Tensor,
    /// First moment, f32.
    pub exp_avg: &'a Tensor,
    /// Second moment, f32.
    pub exp_avg_sq: &'a Tensor,
    /// bf16 copy of the updated master weights, if the model computes with one.
    pub copy: Option<&'a Tensor>,
    /// Factor of the step's learning rate (parameter groups); 1 for none.
    pub rate_factor: f64,
    /// Decoupled weight decay of the parameter.
    pub weight_decay: f64,
}

/// The addresses of all parameters of a launch, on the host. Its words are copied to the device once, and
/// stay valid until an address changes.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWTable {
    words: Vec<i64>,
    blocks: usize,
    kind: Kind,
}

impl AdamWTable {
    /// Makes a table of `tensors`.
    ///
    /// # Errors
    /// When a tensor's dtype, size or device does not fit.
    pub fn new(kernels: &Kernels, tensors: &[AdamWTensor<'_>]) -> Result<Self, Error> {
        let operands = kernels.operands("a table for AdamW");
        let kind = tensors.first().map_or(Kind::Float, |tensor| tensor.grad.kind());
        let mut words = Vec::with_capacity(tensors.len() * WORDS);
        let mut blocks = 0;
        for tensor in tensors {
            let shape = tensor.param.size();
            let float = |name, t| operands.address(name, t, Kind::Float, &shape).map(|at| at as i64);
            words.extend([
                float("param", tensor.param)?,
                operands.address("grad", tensor.grad, kind, &shape)? as i64,
                float("exp_avg", tensor.exp_avg)?,
                float("exp_avg_sq", tensor.exp_avg_sq)?,
                operands.address_or_null("copy", tensor.copy, Kind::BFloat16, &shape)? as i64,
                tensor.param.numel() as i64,
                blocks as i64,
                tensor.rate_factor.to_bits() as i64,
                tensor.weight_decay.to_bits() as i64,
            ]);
            blocks += tensor.param.numel().div_ceil(CHUNK);
        }
        Ok(Self { words, blocks, kind })
    }

    /// Contents of the table, for an i64 tensor `[words]` on the device.
    pub fn words(&self) -> &[i64] {
        &self.words
    }
}

/// One AdamW step of all parameters of a table: torch.optim.AdamW's formula in the order of
/// [`adamw_step`](crate::adamw_step).
#[derive(Clone, Copy, Debug)]
pub struct FusedAdamW<'a> {
    /// Table from which the device's words were copied.
    pub table: &'a AdamWTable,
    /// Copy of [`AdamWTable::words`] on the device.
    pub words: &'a Tensor,
    /// Hyperparameters of the step. Its `weight_decay` is not read: each parameter has its own.
    pub step: crate::AdamWStep,
    /// f32 `[1]`: factor of `step.grad_scale`, so that a clipping coefficient need not be copied to the host.
    /// A value that is not finite skips the step.
    pub device_scale: Option<&'a Tensor>,
}

#[repr(C)]
struct Arguments {
    table: *const c_void,
    device_scale: *const c_void,
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    grad_scale: f64,
    bias1: f64,
    bias2_sqrt: f64,
    num_tensors: i32,
}

impl FusedAdamW<'_> {
    /// Launches one block per 4096 elements.
    ///
    /// # Errors
    /// When the words on the device do not fit the table, or the step is below 1.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("AdamW");
        let (table, step) = (self.table, &self.step);
        operands.require(step.step >= 1, "a step from 1", step.step)?;
        let (beta1, beta2) = step.betas;
        let arguments = Arguments {
            table: operands.address("the table", self.words, Kind::Int64, &[table.words.len() as i64])?,
            device_scale: operands.address_or_null("device_scale", self.device_scale, Kind::Float, &[1])?,
            learning_rate: step.learning_rate,
            beta1,
            beta2,
            epsilon: step.epsilon,
            grad_scale: step.grad_scale,
            bias1: 1.0 - beta1.powi(step.step as i32),
            bias2_sqrt: (1.0 - beta2.powi(step.step as i32)).sqrt(),
            num_tensors: (table.words.len() / WORDS) as i32,
        };
        let name = operands.kernel("adamw", table.kind)?;
        kernels.launch(&name, Shape::blocks([table.blocks, 1, 1], THREADS as u32), &arguments)
    }
}
