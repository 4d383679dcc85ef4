//! Norm, gated activation and rotary embedding for training, forward and backward, one kernel launch each.

use super::kernels::Kernels;
use super::module::Shape;
use crate::{Activation, Error};
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Number of columns whose sums one thread of a norm's backward pass computes.
const COLUMNS: i64 = 16;

/// The operation of [`rms_norm`](crate::rms_norm) on rows, or its gradient.
#[derive(Clone, Copy, Debug)]
pub struct NormRows<'a> {
    /// Input `[rows, width]`; f32, bf16 or f16.
    pub x: &'a Tensor,
    /// Weight `[width]`, of the same dtype or f32.
    pub weight: &'a Tensor,
    /// Offset added to the weight: 0 for Llama, 1 for Gemma.
    pub offset: f64,
    /// 1 / root mean square of each row, f32 `[rows]`: written by the forward pass, read by the backward
    /// pass.
    pub rstd: &'a Tensor,
    /// Normalised rows, or the gradient of x, `[rows, width]`.
    pub out: &'a Tensor,
}

#[repr(C)]
struct NormArguments {
    x: *const c_void,
    weight: *const c_void,
    grad: *const c_void,
    out: *mut c_void,
    rstd: *mut c_void,
    grad_weight: *mut c_void,
    rows: i64,
    width: i64,
    inverse_width: f64,
    eps: f64,
    offset: f32,
    weight_is_float: i32,
}

impl NormRows<'_> {
    /// Launches one block per row; `eps` is added to the mean square.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels, eps: f64) -> Result<(), Error> {
        let arguments = NormArguments { eps, ..self.arguments(kernels, "rms_norm_rows")? };
        self.start(kernels, "rms_norm_rows", arguments.rows, &arguments)
    }

    /// Computes gradients from `grad` `[rows, width]`: that of x into `out`, and that of the weight as
    /// partial sums, whose sum over the rows of `partial`, f32 `[blocks, width]`, is the gradient. With
    /// `partial` `[blocks, 0]` the weight's gradient is omitted.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch_backward(&self, kernels: &Kernels, grad: &Tensor, partial: &Tensor) -> Result<(), Error> {
        let act = "rms_norm_rows_backward";
        let operands = kernels.operands(act);
        let arguments = self.arguments(kernels, act)?;
        let NormArguments { rows, width, .. } = arguments;
        let [blocks, sums] = operands.sizes("partial", partial)?;
        let most = 512 * COLUMNS;
        operands.require(width <= most, &format!("rows of at most {most} numbers"), width)?;
        let partial = (sums != 0).then_some(partial);
        let arguments = NormArguments {
            grad: operands.address("grad", grad, self.x.kind(), &[rows, width])?,
            grad_weight: operands.address_or_null("partial", partial, Kind::Float, &[blocks, width])?,
            ..arguments
        };
        self.start(kernels, act, blocks, &arguments)
    }

    fn arguments(&self, kernels: &Kernels, act: &'static str) -> Result<NormArguments, Error> {
        let (operands, kind) = (kernels.operands(act), self.x.kind());
        let [rows, width] = operands.sizes("x", self.x)?;
        let weight_kind = self.weight.kind();
        let of_weight = if weight_kind == Kind::Float { Kind::Float } else { kind };
        Ok(NormArguments {
            x: operands.address("x", self.x, kind, &[rows, width])?,
            weight: operands.address("weight", self.weight, of_weight, &[width])?,
            grad: std::ptr::null(),
            out: operands.address("out", self.out, kind, &[rows, width])?,
            rstd: operands.address("rstd", self.rstd, Kind::Float, &[rows])?,
            grad_weight: std::ptr::null_mut(),
            rows,
            width,
            inverse_width: 1.0 / width as f64,
            eps: 0.0,
            offset: self.offset as f32,
            weight_is_float: i32::from(weight_kind == Kind::Float),
        })
    }

    /// Launches enough threads for the vectors of a row and for its columns.
    fn start(
        &self,
        kernels: &Kernels,
        family: &'static str,
        blocks: i64,
        arguments: &NormArguments,
    ) -> Result<(), Error> {
        let kind = self.x.kind();
        let of_vector = if kind == Kind::Float { 4 } else { 8 };
        let vectors = (arguments.width as usize).div_ceil(of_vector).next_multiple_of(32).min(256);
        let of_columns = (arguments.width as usize).div_ceil(COLUMNS as usize).next_multiple_of(32).min(512);
        let name = kernels.operands(family).kernel(family, kind)?;
        let shape = Shape::blocks([blocks as usize, 1, 1], vectors.max(of_columns) as u32);
        kernels.launch(&name, shape, arguments)
    }
}

/// The operation of [`gated_activation`](crate::gated_activation) on rows, or its gradients.
#[derive(Clone, Copy, Debug)]
pub struct GatedRows<'a> {
    /// Gate `[rows, width]`, contiguous in the last dimension; f32, bf16 or f16.
    pub gate: &'a Tensor,
    /// Up projection, of the gate's shape, dtype and strides.
    pub up: &'a Tensor,
    /// Activation function of the gate: SiLU, or GELU by tanh.
    pub activation: Activation,
}

#[repr(C)]
struct GatedArguments {
    gate: *const c_void,
    up: *const c_void,
    grad: *const c_void,
    out: *mut c_void,
    grad_gate: *mut c_void,
    grad_up: *mut c_void,
    width: i64,
    input_row: i64,
    grad_row: i64,
    activation: i32,
}

impl GatedRows<'_> {
    /// Launches the forward kernel, which writes `out` `[rows, width]`.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels, out: &Tensor) -> Result<(), Error> {
        let (operands, kind) = (kernels.operands("gated_rows"), self.gate.kind());
        let (shape, arguments) = self.arguments(kernels)?;
        let out = operands.address("out", out, kind, &shape)?;
        self.start(kernels, shape[0], &GatedArguments { out, ..arguments })
    }

    /// Computes the gradients of gate and up from `grad` `[rows, width]` into `to`, two tensors of equal
    /// strides.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch_backward(&self, kernels: &Kernels, grad: &Tensor, to: [&Tensor; 2]) -> Result<(), Error> {
        let (operands, kind) = (kernels.operands("gated_rows"), self.gate.kind());
        let (shape, arguments) = self.arguments(kernels)?;
        let [(grad_gate, grad_row), (grad_up, _)] = strided_pair(kernels, kind, to)?;
        let grad = operands.address("grad", grad, kind, &shape)?;
        self.start(kernels, shape[0], &GatedArguments { grad, grad_gate, grad_up, grad_row, ..arguments })
    }

    fn arguments(&self, kernels: &Kernels) -> Result<([i64; 2], GatedArguments), Error> {
        let shape = kernels.operands("gated_rows").sizes("gate", self.gate)?;
        let [(gate, input_row), (up, _)] = strided_pair(kernels, self.gate.kind(), [self.gate, self.up])?;
        let (grad, out) = (std::ptr::null(), std::ptr::null_mut());
        let (grad_gate, grad_up, grad_row) = (out, out, 0);
        let activation = self.activation as i32;
        let width = shape[1];
        let arguments = GatedArguments {
            gate,
            up,
            grad,
            out,
            grad_gate,
            grad_up,
            width,
            input_row,
            grad_row,
            activation,
        };
        Ok((shape, arguments))
    }

    fn start(&self, kernels: &Kernels, rows: i64, arguments: &GatedArguments) -> Result<(), Error> {
        const THREADS: usize = 256;
        const PER_THREAD: usize = 8;
        let name = kernels.operands("gated_rows").kernel("gated_rows", self.gate.kind())?;
        let parts = (arguments.width as usize).div_ceil(THREADS * PER_THREAD);
        kernels.launch(&name, Shape::blocks([rows as usize, parts, 1], THREADS as u32), arguments)
    }
}

/// Returns the addresses of two matrices of equal layout, and the number of elements between their rows.
fn strided_pair(kernels: &Kernels, kind: Kind, pair: [&Tensor; 2]) -> Result<[(*mut c_void, i64); 2], Error> {
    let operands = kernels.operands("gated_rows");
    let layout = |tensor: &Tensor| (tensor.size(), tensor.stride(), tensor.kind(), tensor.device());
    let [first, second] = pair.map(layout);
    let is_dense = first.1.last() == Some(&1) && first.1.len() == 2;
    let fits = first == second && is_dense && first.2 == kind && first.3 == operands.device;
    operands.require(
        fits,
        &format!("two alike {kind:?} matrices of dense rows"),
        format_args!("{first:?} and {second:?}"),
    )?;
    Ok(pair.map(|tensor| (tensor.data_ptr(), first.1[0])))
}

/// The operation of [`apply_rope`](crate::apply_rope), or its gradient.
#[derive(Clone, Copy, Debug)]
pub struct RopeRows<'a> {
    /// Input `[tokens, heads, head_dim]`; f32, bf16 or f16.
    pub x: &'a Tensor,
    /// Cosines `[tokens, head_dim]`, or `[tokens, head_dim / 2]` if both halves have the same angles.
    pub cos: &'a Tensor,
    /// Sines, shaped like `cos`.
    pub sin: &'a Tensor,
    /// Output, shaped like `x`.
    pub out: &'a Tensor,
}

#[repr(C)]
struct RopeArguments {
    x: *const c_void,
    cos: *const c_void,
    sin: *const c_void,
    out: *mut c_void,
    heads: i64,
    head_dim: i64,
    table: i64,
    is_backward: i32,
}

impl RopeRows<'_> {
    /// Launches one block per token.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels, is_backward: bool) -> Result<(), Error> {
        let (operands, kind) = (kernels.operands("rope_rows"), self.x.kind());
        let shape @ [tokens, heads, head_dim] = operands.sizes("x", self.x)?;
        let [_, table] = operands.sizes("cos", self.cos)?;
        let fits = head_dim % 2 == 0 && [head_dim, head_dim / 2].contains(&table);
        operands.require(fits, &format!("angles of {head_dim} numbers or half of them"), table)?;
        let arguments = RopeArguments {
            x: operands.address("x", self.x, kind, &shape)?,
            cos: operands.address("cos", self.cos, kind, &[tokens, table])?,
            sin: operands.address("sin", self.sin, kind, &[tokens, table])?,
            out: operands.address("out", self.out, kind, &shape)?,
            heads,
            head_dim,
            table,
            is_backward: i32::from(is_backward),
        };
        let of_vector = if kind == Kind::Float { 4 } else { 8 };
        let threads = ((heads * head_dim / 2 / of_vector) as usize).next_multiple_of(32).clamp(32, 256);
        let name = operands.kernel("rope_rows", kind)?;
        kernels.launch(&name, Shape::blocks([tokens as usize, 1, 1], threads as u32), &arguments)
    }
}
