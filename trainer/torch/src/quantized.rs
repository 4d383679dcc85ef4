//! 4-bit and 8-bit weights in bitsandbytes' formats, bit for bit: quantization, dequantization, and products.
//!
//! ```text
//! nf4, fp4    codes [n / 2], two a byte, the first in its upper half; absmax [blocks] f32
//!   nested    absmax is codes of 8 bits itself: code * nested_absmax[block / 256] + nested_offset
//! int8        codes [out, in]; absmax [out], W = code * absmax / 127
//! ```
//! In training, each forward and backward product dequantizes the weight temporarily, and no gradient flows
//! to it. Sampling unpacks it within the product. The kernels for GPUs are in [`crate::cuda`].

mod on_device;

use std::sync::OnceLock;

use tch::{Device, Kind, Tensor, no_grad};

use crate::Error;
use crate::error::or_panic;
use crate::ffi::{
    QuantizedParts, raw, rlt_dequantize, rlt_quantized_linear, rlt_quantized_product, tensor_from,
};
use crate::tensor_data::scalar_type;
use on_device::dequantize_on_device;

/// Number format of a quantized weight's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantFormat {
    /// 4 bits: quantiles of the normal distribution (<https://arxiv.org/abs/2305.14314>).
    Nf4,
    /// 4 bits: a sign, two bits of exponent and one of mantissa.
    Fp4,
    /// 8 bits: integers, with one scale per row (<https://arxiv.org/abs/2208.07339>).
    Int8,
}

/// Format and parameters of a quantized weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantLayout {
    /// Number format of the codes.
    pub format: QuantFormat,
    /// Number of values that share a scale, even; for 4-bit formats.
    pub block_size: usize,
    /// Whether the scales are quantized to 8 bits; for 4-bit formats.
    pub nested: bool,
    /// Dtype of the weight that was quantized. Values of 4-bit formats are rounded to it first when
    /// dequantized.
    pub stored: Kind,
}

/// Number of nested 8-bit scales that share a scale.
pub const NESTED_BLOCK: usize = 256;

const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];
/// Values of the FP4 codes in twelfths.
const FP4: [f32; 16] =
    [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0, -0.0, -0.0625, -8.0, -12.0, -4.0, -6.0, -2.0, -3.0];

impl QuantFormat {
    /// Value of each 4-bit code; empty for `Int8`.
    pub fn table(self) -> &'static [f32] {
        static TWELFTHS: OnceLock<[f32; 16]> = OnceLock::new();
        match self {
            Self::Nf4 => &NF4,
            Self::Fp4 => TWELFTHS.get_or_init(|| FP4.map(|twelfths| twelfths / 12.0)),
            Self::Int8 => &[],
        }
    }
}

/// Value of each code of a nested scale: bitsandbytes' signed dynamic map of 8 bits
/// (<https://arxiv.org/abs/1511.04561>).
pub fn dynamic_map() -> &'static [f32; 256] {
    static MAP: OnceLock<[f32; 256]> = OnceLock::new();
    MAP.get_or_init(|| {
        let mut numbers = vec![0.0_f32, 1.0];
        for exponent in 0..7_i32 {
            let bounds = Tensor::linspace(0.1, 1.0, (1_i64 << exponent) + 1, (Kind::Float, Device::Cpu));
            let bounds: Vec<f32> = Vec::try_from(&bounds).unwrap_or_default();
            // Python's power, 10 ** (exponent - 6), which libtorch rounds to float32.
            let power = 10_f64.powi(exponent - 6) as f32;
            for pair in bounds.windows(2) {
                let middle = (pair[0] + pair[1]) / 2.0 * power;
                numbers.extend([middle, -middle]);
            }
        }
        numbers.sort_by(f32::total_cmp);
        std::array::from_fn(|idx| numbers[idx])
    })
}

/// A quantized weight `[out, in]`, which is never trained.
#[derive(Debug)]
pub struct QuantizedMatrix {
    size: [i64; 2],
    layout: QuantLayout,
    /// Codes: uint8 with two values each, or int8 `[out, in]`.
    pub codes: Tensor,
    /// Scale of each block, or of each row for `Int8`: f32, or uint8 codes if scales are nested.
    pub absmax: Tensor,
    /// Scales of the nested scales; `None` unless scales are nested.
    pub nested: Option<NestedScales>,
}

/// Tensors from which nested scales are dequantized.
#[derive(Debug)]
pub struct NestedScales {
    /// Scale of every [`NESTED_BLOCK`] scales, f32.
    pub absmax: Tensor,
    /// Offset that is added to every scale, f32 `[1]`.
    pub offset: Tensor,
}

impl QuantizedMatrix {
    /// Makes a weight of `size`, [out, in], from tensors in the formats of the fields; they may have no
    /// memory yet.
    pub fn new(
        size: [i64; 2],
        layout: QuantLayout,
        codes: Tensor,
        absmax: Tensor,
        nested: Option<NestedScales>,
    ) -> Self {
        Self { size, layout, codes, absmax, nested }
    }

    /// Quantizes a weight [out, in] on the CPU, as bitsandbytes does on CPUs. For `Int8`, values are rounded
    /// to float16 first.
    ///
    /// # Errors
    /// When libtorch fails, for example for lack of memory.
    pub fn quantize(weight: &Tensor, layout: QuantLayout) -> Result<Self, Error> {
        let failed =
            |error: tch::TchError| Error::Libtorch { act: "quantizing a weight", message: error.to_string() };
        let size = [weight.size()[0], weight.size()[1]];
        let quantized = no_grad(|| match layout.format {
            QuantFormat::Int8 => quantize_int8(weight).map(|parts| (parts, None)),
            QuantFormat::Nf4 | QuantFormat::Fp4 => {
                let (codes, absmax) = quantize_blocks(weight, layout)?;
                if !layout.nested {
                    return Ok(((codes, absmax), None));
                }
                let (codes_of_scales, nested) = nest(&absmax)?;
                Ok(((codes, codes_of_scales), Some(nested)))
            }
        });
        let ((codes, absmax), nested) = quantized.map_err(failed)?;
        Ok(Self::new(size, layout, codes, absmax, nested))
    }

    /// Size of the weight, [out, in].
    pub fn size(&self) -> [i64; 2] {
        self.size
    }

    /// Format and parameters of the quantization.
    pub fn layout(&self) -> QuantLayout {
        self.layout
    }

    /// Device of the codes and scales.
    pub fn device(&self) -> Device {
        self.codes.device()
    }

    /// All tensors of the weight: codes, scales, and those of nested scales.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let nested = self.nested.iter().flat_map(|nested| [&nested.absmax, &nested.offset]);
        [&self.codes, &self.absmax].into_iter().chain(nested)
    }

    /// Mutable references to all tensors, in the order of [`Self::tensors`]; replacements must have the same
    /// values.
    pub fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        let nested = self.nested.iter_mut().flat_map(|nested| [&mut nested.absmax, &mut nested.offset]);
        [&mut self.codes, &mut self.absmax].into_iter().chain(nested)
    }

    /// Returns the same weight with `of` applied to each tensor.
    #[must_use]
    pub fn map(&self, of: impl Fn(&Tensor) -> Tensor) -> Self {
        let nested = self.nested.as_ref();
        let nested =
            nested.map(|nested| NestedScales { absmax: of(&nested.absmax), offset: of(&nested.offset) });
        Self::new(self.size, self.layout, of(&self.codes), of(&self.absmax), nested)
    }

    /// Number of bytes of codes and scales.
    pub fn num_bytes(&self) -> usize {
        self.tensors().map(|tensor| tensor.numel() * tensor.kind().elt_size_in_bytes()).sum()
    }

    /// Dequantizes the weight to `kind`; each value is first rounded to the dtype that was quantized.
    ///
    /// # Panics
    /// When libtorch fails, or the kernels of a GPU cannot be launched.
    pub fn dequantize(&self, kind: Kind) -> Tensor {
        let (parts, dtype) = (self.parts(), or_panic(scalar_type(kind)));
        or_panic(tensor_from("dequantizing a weight", |out| {
            // SAFETY: borrowed tensors and tables, and a place for the result.
            unsafe { rlt_dequantize(&raw const parts, dtype, out) }
        }))
    }

    /// Computes `x W^T + bias` for `x` [rows, in], with gradients for `x` only. The weight is dequantized
    /// temporarily, here and in the backward pass.
    ///
    /// # Panics
    /// When shapes or dtypes do not fit.
    pub fn linear(&self, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let parts = self.parts();
        or_panic(tensor_from("a quantized linear layer", |out| {
            let bias = bias.map_or(std::ptr::null_mut(), raw);
            // SAFETY: borrowed tensors (the bias may be null) and tables, and a place for the result; C++
            // keeps references of its own for the backward pass, and the tables are static.
            unsafe { rlt_quantized_linear(&raw const parts, raw(x), bias, out) }
        }))
    }

    /// Computes `x W^T + bias` without gradients. Codes are unpacked as the product reads them, and the
    /// result of a row is bitwise equal in any batch. In float16, and on a GPU, the weight is dequantized
    /// temporarily instead; [`crate::cuda::QuantizedLinear`] is the product of few rows on GPUs.
    ///
    /// # Panics
    /// When shapes or dtypes do not fit.
    pub fn product(&self, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let parts = self.parts();
        or_panic(tensor_from("a quantized product", |out| {
            let bias = bias.map_or(std::ptr::null_mut(), raw);
            // SAFETY: borrowed tensors (the bias may be null) and tables, and a place for the result.
            unsafe { rlt_quantized_product(&raw const parts, raw(x), bias, out) }
        }))
    }

    fn parts(&self) -> QuantizedParts {
        let QuantLayout { format, block_size, stored, .. } = self.layout;
        // bitsandbytes dequantizes 8-bit weights to the compute dtype.
        let stored = if format == QuantFormat::Int8 { Kind::Float } else { stored };
        let nested = |of: fn(&NestedScales) -> &Tensor| {
            self.nested.as_ref().map_or(std::ptr::null_mut(), |nested| raw(of(nested)))
        };
        QuantizedParts {
            format: i64::from(format == QuantFormat::Int8),
            num_outputs: self.size[0],
            num_inputs: self.size[1],
            block: block_size as i64,
            stored: or_panic(scalar_type(stored)).into(),
            codes: raw(&self.codes),
            scales: raw(&self.absmax),
            nested_scales: nested(|nested| &nested.absmax),
            nested_offset: nested(|nested| &nested.offset),
            table: format.table().as_ptr(),
            scale_table: dynamic_map().as_ptr(),
            dequantize_on_device,
        }
    }
}

/// Number of values that are quantized at a time; a multiple of every block size.
const CHUNK: i64 = 1 << 20;

/// Returns codes `[n / 2, 1]` and scales of a weight, block by block in row-major order. An odd last value is
/// paired with zero.
fn quantize_blocks(weight: &Tensor, layout: QuantLayout) -> Result<(Tensor, Tensor), tch::TchError> {
    let block = layout.block_size as i64;
    let table = Tensor::from_slice(layout.format.table());
    let order = table.f_argsort(0, false)?;
    let sorted = table.f_index_select(0, &order)?;
    let last = sorted.size()[0] - 1;
    let bounds = (sorted.f_narrow(0, 0, last)?.f_add(&sorted.f_narrow(0, 1, last)?)?).f_div_scalar(2.0)?;
    let flat = weight.f_contiguous()?.f_view([-1])?;
    let (mut codes, mut absmax) = (Vec::new(), Vec::new());
    let mut start = 0;
    while start < flat.size()[0] {
        let len = CHUNK.min(flat.size()[0] - start);
        let numbers = flat.f_narrow(0, start, len)?.f_to_kind(Kind::Float)?;
        let whole = len / block * block;
        let blocks = numbers.f_narrow(0, 0, whole)?.f_view([-1, block])?;
        let largest = blocks.f_abs()?.f_amax([-1], true)?;
        let inverse = largest.f_clamp_min(1e-38)?.f_reciprocal()?;
        let mut scaled = vec![blocks.f_mul(&inverse)?.f_clamp(-1.0, 1.0)?.f_view([-1])?];
        absmax.push(largest.f_view([-1])?);
        if whole < len {
            // bitsandbytes divides, instead of multiplying by the inverse, in a partial last block.
            let rest = numbers.f_narrow(0, whole, len - whole)?;
            let largest = rest.f_abs()?.f_amax([-1], true)?.f_clamp_min(1e-38)?;
            scaled.push(rest.f_div(&largest)?.f_clamp(-1.0, 1.0)?);
            absmax.push(largest);
        }
        if len % 2 == 1 {
            scaled.push(Tensor::f_zeros([1], (Kind::Float, Device::Cpu))?);
        }
        let code = Tensor::f_cat(&scaled, 0)?.f_bucketize(&bounds, true, false)?;
        let code = order.f_index_select(0, &code)?.f_to_kind(Kind::Uint8)?.f_view([-1, 2])?;
        let upper = code.f_select(1, 0)?.f_mul_scalar(16)?;
        codes.push(upper.f_bitwise_or_tensor(&code.f_select(1, 1)?)?);
        start += len;
    }
    Ok((Tensor::f_cat(&codes, 0)?.f_unsqueeze(1)?, Tensor::f_cat(&absmax, 0)?))
}

/// Quantizes scales to 8 bits around their mean, where each [`NESTED_BLOCK`] scales share a scale.
fn nest(absmax: &Tensor) -> Result<(Tensor, NestedScales), tch::TchError> {
    let offset = absmax.f_mean(Kind::Float)?;
    let shifted: Vec<f32> = Vec::try_from(absmax.f_sub(&offset)?)?;
    let (mut codes, mut scales) = (Vec::with_capacity(shifted.len()), Vec::new());
    for block in shifted.chunks(NESTED_BLOCK) {
        let largest = block.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
        scales.push(largest);
        let inverse = 1.0 / largest;
        let code = |number: &f32| if largest == 0.0 { 0 } else { nearest_places()[place(number * inverse)] };
        codes.extend(block.iter().map(code));
    }
    let nested = NestedScales { absmax: Tensor::from_slice(&scales), offset: offset.f_view([1])? };
    Ok((Tensor::from_slice(&codes), nested))
}

/// Number of points from -1 to 1 for which bitsandbytes tabulates the nearest value of the dynamic map.
const PLACES: usize = 1 << 16;

/// Returns the index of the point nearest to `number`, with bitsandbytes' arithmetic: the last sum is fused.
fn place(number: f32) -> usize {
    let half = (number.clamp(-1.0, 1.0) + 1.0) * 0.5;
    half.mul_add((PLACES - 1) as f32, 0.5) as usize
}

/// Nearest code of each point.
fn nearest_places() -> &'static [u8] {
    static NEAREST: OnceLock<Vec<u8>> = OnceLock::new();
    NEAREST.get_or_init(|| {
        let map = dynamic_map();
        let mut code = 0;
        let nearest = |place: usize| {
            let number = -1.0 + (2.0 * place as f32) / (PLACES - 1) as f32;
            while code < map.len() - 1 && 0.5 * (map[code] + map[code + 1]) < number {
                code += 1;
            }
            code as u8
        };
        (0..PLACES).map(nearest).collect()
    })
}

/// Returns the codes [out, in] and the largest magnitude of each row, of the weight in float16.
fn quantize_int8(weight: &Tensor) -> Result<(Tensor, Tensor), tch::TchError> {
    let narrow = weight.f_to_kind(Kind::Half)?;
    let largest = narrow.f_abs()?.f_amax([1], false)?.f_to_kind(Kind::Float)?;
    let factor = largest.f_unsqueeze(1)?.f_reciprocal()?.f_mul_scalar(127.0)?;
    let codes = narrow.f_to_kind(Kind::Float)?.f_mul(&factor)?.f_round()?.f_to_kind(Kind::Int8)?;
    Ok((codes, largest))
}
