//! 4-bit and 8-bit weights on a device: dequantized, or multiplied with few rows. Formats and roundings are
//! documented in `csrc/kernels/quantized/linear.inl`.

use super::kernels::Kernels;
use super::launch_checks::Operands;
use super::module::Shape;
use crate::{Error, NESTED_BLOCK, QuantFormat, QuantizedMatrix};
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Largest number of weights per launch.
pub const QUANTIZED_PARTS: usize = 3;
/// Largest number of rows for [`QuantizedLinear`]. It is bound by reading codes. With more rows it would be
/// bound by its multiply-adds, and dequantizing followed by libtorch's matrix product is faster.
pub const QUANTIZED_FEW_ROWS: usize = 16;

/// Number of values that a thread reads at once.
const CHUNK: usize = 8;
const THREADS: usize = 128;
/// Number of outputs per block of a product.
const OUTPUTS: usize = 4;

/// A quantized weight `[outputs, in]`, or some of its rows in another order.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedRows<'a> {
    /// The quantized weight on the device.
    pub matrix: &'a QuantizedMatrix,
    /// Stored row of each output, or -1 for zeros, i32 `[outputs]`; `None` means all rows as stored.
    pub rows: Option<&'a Tensor>,
}

/// Dequantizes weights into one matrix, stacked by rows. Each value is rounded to the dtype that was
/// quantized and then to that of `out`.
#[derive(Clone, Copy, Debug)]
pub struct Dequantize<'a> {
    /// Weights to stack, at most [`QUANTIZED_PARTS`], with equal number of inputs and layout.
    pub parts: &'a [QuantizedRows<'a>],
    /// Output `[sum of outputs, in]`; f32, bf16 or f16.
    pub out: &'a Tensor,
}

/// `x W^T + bias` for the stacked weights of [`Dequantize`], unpacked in registers: the product with their
/// dequantized values. The result of a row is bitwise equal whatever other rows there are.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedLinear<'a> {
    /// Weights to stack, at most [`QUANTIZED_PARTS`], with equal number of inputs and layout.
    pub parts: &'a [QuantizedRows<'a>],
    /// Input `[rows, in]`; f32, bf16 or f16; for speed at most [`QUANTIZED_FEW_ROWS`] rows.
    pub x: &'a Tensor,
    /// Bias `[sum of outputs]` of the same dtype.
    pub bias: Option<&'a Tensor>,
    /// Output `[rows, sum of outputs]` of the same dtype; rows may be strided.
    pub out: &'a Tensor,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    codes: *const c_void,
    scales: *const c_void,
    scale_codes: *const c_void,
    scale_scales: *const c_void,
    scale_offset: *const c_void,
    rows: *const c_void,
    outputs: i64,
}

#[repr(C)]
struct Arguments {
    parts: [Part; QUANTIZED_PARTS],
    x: *const c_void,
    bias: *const c_void,
    out: *mut c_void,
    num_rows: i64,
    inputs: i64,
    out_row: i64,
    block: i64,
    is_int8: i32,
    rounds: i32,
    is_whole: i32,
    table: [f32; 16],
}

impl QuantizedRows<'_> {
    /// Number of outputs.
    fn outputs(&self) -> i64 {
        self.rows.map_or(self.matrix.size()[0], |rows| rows.numel() as i64)
    }

    fn part(&self, operands: &Operands) -> Result<Part, Error> {
        let Self { matrix, rows } = *self;
        let [outputs, inputs] = matrix.size();
        let (layout, is_int8) = (matrix.layout(), matrix.layout().format == QuantFormat::Int8);
        let numbers = (outputs * inputs) as usize;
        let blocks = if is_int8 { outputs as usize } else { numbers.div_ceil(layout.block_size) };
        let dense = |name: &str, tensor: &Tensor, kind: Kind, count: usize| {
            operands.require(
                tensor.numel() == count,
                &format!("{count} numbers of {name}"),
                tensor.numel(),
            )?;
            operands.address(name, tensor, kind, &tensor.size()).map(<*mut c_void>::cast_const)
        };
        let none = std::ptr::null();
        let (code, count) = if is_int8 { (Kind::Int8, numbers) } else { (Kind::Uint8, numbers.div_ceil(2)) };
        let part = Part {
            codes: dense("codes", &matrix.codes, code, count)?,
            scales: none,
            scale_codes: none,
            scale_scales: none,
            scale_offset: none,
            rows: match rows {
                Some(rows) => dense("rows", rows, Kind::Int, rows.numel())?,
                None => none,
            },
            outputs: self.outputs(),
        };
        Ok(match &matrix.nested {
            None => Part { scales: dense("scales", &matrix.absmax, Kind::Float, blocks)?, ..part },
            Some(nested) => Part {
                scale_codes: dense("scales", &matrix.absmax, Kind::Uint8, blocks)?,
                scale_scales: dense(
                    "scales of scales",
                    &nested.absmax,
                    Kind::Float,
                    blocks.div_ceil(NESTED_BLOCK),
                )?,
                scale_offset: dense("their offset", &nested.offset, Kind::Float, 1)?,
                ..part
            },
        })
    }
}

/// Makes the arguments that both kernels take; `x`, `bias` and `out` are null.
fn arguments(operands: &Operands, rows: &[QuantizedRows<'_>]) -> Result<Arguments, Error> {
    let expected = format!("one to {QUANTIZED_PARTS} weights of one layout and number of inputs");
    let alike = |one: &QuantizedRows<'_>| (one.matrix.layout(), one.matrix.size()[1]);
    let are_alike = rows.windows(2).all(|pair| alike(&pair[0]) == alike(&pair[1]));
    operands.require((1..=QUANTIZED_PARTS).contains(&rows.len()) && are_alike, &expected, rows.len())?;
    let (layout, inputs) = alike(&rows[0]);
    let is_int8 = layout.format == QuantFormat::Int8;
    let null = std::ptr::null::<c_void>();
    let empty = Part {
        codes: null,
        scales: null,
        scale_codes: null,
        scale_scales: null,
        scale_offset: null,
        rows: null,
        outputs: 0,
    };
    let mut parts = [empty; QUANTIZED_PARTS];
    for (part, own) in parts.iter_mut().zip(rows) {
        *part = own.part(operands)?;
    }
    let mut table = [0.0; 16];
    let numbers = layout.format.table();
    table[..numbers.len()].copy_from_slice(numbers);
    let step = if is_int8 { CHUNK } else { CHUNK / 2 };
    let is_whole = (inputs as usize).is_multiple_of(CHUNK)
        && (is_int8 || layout.block_size.is_multiple_of(CHUNK))
        && parts.iter().all(|part| part.codes.addr().is_multiple_of(step));
    let rounds = match layout.stored {
        _ if is_int8 => 0,
        Kind::BFloat16 => 1,
        Kind::Half => 2,
        _ => 0,
    };
    Ok(Arguments {
        parts,
        x: null,
        bias: null,
        out: std::ptr::null_mut(),
        num_rows: 0,
        inputs,
        out_row: 0,
        block: layout.block_size as i64,
        is_int8: i32::from(is_int8),
        rounds,
        is_whole: i32::from(is_whole),
        table,
    })
}

impl Arguments {
    /// Makes the kernel read one value at a time if `data` is not aligned to 16 bytes.
    fn read_wide(&mut self, data: *const c_void) {
        self.is_whole &= i32::from(data.addr().is_multiple_of(16));
    }

    fn outputs(&self) -> i64 {
        self.parts.iter().map(|part| part.outputs).sum()
    }
}

impl Dequantize<'_> {
    /// Launches the kernel.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("dequantizing weights");
        let name = operands.kernel("dequantize", self.out.kind())?;
        let mut arguments = arguments(&operands, self.parts)?;
        let size = [arguments.outputs(), arguments.inputs];
        arguments.out = operands.address("out", self.out, self.out.kind(), &size)?;
        arguments.read_wide(arguments.out);
        let parts = (size[1] as usize).div_ceil(THREADS * CHUNK);
        kernels.launch(&name, Shape::blocks([size[0] as usize, parts, 1], THREADS as u32), &arguments)
    }
}

impl QuantizedLinear<'_> {
    /// Launches the kernel.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("a quantized product of few rows");
        let kind = self.x.kind();
        let mut arguments = arguments(&operands, self.parts)?;
        let [rows, _] = operands.sizes("x", self.x)?;
        let outputs = arguments.outputs();
        arguments.x = operands.address("x", self.x, kind, &[rows, arguments.inputs])?;
        arguments.read_wide(arguments.x);
        arguments.bias = operands.address_or_null("bias", self.bias, kind, &[outputs])?;
        let (strides, size) = (self.out.stride(), self.out.size());
        let fits = size == [rows, outputs] && strides[1] == 1 && self.out.kind() == kind;
        operands.require(
            fits && self.out.device() == kernels.device(),
            &format!("out as {kind:?} [{rows}, {outputs}] on {:?}, each row dense", kernels.device()),
            format!("{:?} {size:?} with strides {strides:?} on {:?}", self.out.kind(), self.out.device()),
        )?;
        (arguments.out, arguments.out_row, arguments.num_rows) = (self.out.data_ptr(), strides[0], rows);
        let groups: usize = self.parts.iter().map(|part| (part.outputs() as usize).div_ceil(OUTPUTS)).sum();
        let tile = (rows as usize).next_power_of_two().clamp(1, 8);
        let name = operands.kernel(&format!("quantized_linear_r{tile}"), kind)?;
        let tiles = (rows as usize).div_ceil(tile);
        kernels.launch(&name, Shape::blocks([groups, tiles, 1], THREADS as u32), &arguments)
    }
}
