//! Linear layers of training and decoding. [`linear`] is for training, with gradients. [`PackedLinear`] packs
//! its weight once for the CPU's matrix kernels: decoding multiplies few rows by the same weight many times,
//! and packing at each call would cost more than the product.
//!
//! Packed float32 weights use our kernel, which reads them once for up to a dozen rows (at 16 rows of a 135M
//! model 2.7 times faster than oneDNN's packed product), and the result of a row is bitwise equal in any
//! batch and with any number of threads. In bfloat16 on a CPU with AVX512_BF16 or AMX, one kernel computes
//! both, and the result of a row is bitwise equal in training, in a prefill and in decoding. On other CPUs
//! bfloat16 uses oneDNN, whose sums depend on the number of rows.

use crate::error::or_panic;
use crate::ffi::{
    raw, rlt_has_one_order, rlt_linear, rlt_linear_of_bf16_panels, rlt_linear_of_panels, rlt_pack_bf16,
    rlt_pack_linear, rlt_packed_linear, tensor_from,
};
use crate::{Error, WeightArena};
use tch::{Device, Kind, Tensor};

/// Number of adjacent outputs in a panel (`LinearPanels::PANEL` of the kernels).
const PANEL: i64 = 32;

/// Computes `x weight^T + bias` for `x` `[.., in]` and a weight `[out, in]` of the same dtype, with
/// gradients. In bfloat16 on a CPU with AVX512_BF16 or AMX the result of a row is bitwise that of
/// [`PackedLinear`], in any batch.
///
/// # Panics
/// When shapes or dtypes do not fit.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    or_panic(tensor_from("a linear layer", |out| {
        // SAFETY: borrowed tensors (the bias may be null) and a place for the result.
        unsafe { rlt_linear(raw(x), raw(weight), bias.map_or(std::ptr::null_mut(), raw), out) }
    }))
}

/// Whether this CPU adds values of `kind` in the same order in rollout and in training, so that results are
/// bitwise equal in both: true for bfloat16 with AVX512_BF16 or AMX. Says nothing about GPUs.
pub fn has_one_order(kind: Kind) -> bool {
    // SAFETY: reads what the CPU has.
    kind == Kind::BFloat16 && unsafe { rlt_has_one_order() }
}

/// A frozen linear layer in the layout that its device multiplies fastest.
#[derive(Debug)]
pub struct PackedLinear {
    weight: Weight,
    bias: Option<Tensor>,
    /// Number of rows for which the packed layout is optimised; the product is correct for any number.
    rows_hint: i64,
}

#[derive(Debug)]
enum Weight {
    /// float32 in panels of outputs, `[panels, in, panel]`.
    Panels { panels: Tensor, num_outputs: i64 },
    /// bfloat16 in panels of pairs of inputs, `[panels, in, panel]`, with the inputs padded.
    Bf16Panels { panels: Tensor, num_outputs: i64, num_inputs: i64 },
    /// oneDNN's opaque layout.
    Packed(Tensor),
    /// Unpacked, on devices and for dtypes that oneDNN does not pack.
    Plain(Tensor),
}

impl PackedLinear {
    /// Packs `weight` (`[out, in]`, f32 or bf16) with an optional `bias` (`[out]`) for products of about
    /// `rows_hint` rows. On a CPU the weight is copied; elsewhere, or if oneDNN fails, the given weight is
    /// used. A float32 copy is placed in `arena` if one is given and has enough space
    /// ([`Self::packed_bytes`]).
    ///
    /// # Errors
    /// When the shapes do not fit.
    pub fn new(
        weight: &Tensor,
        bias: Option<&Tensor>,
        rows_hint: i64,
        arena: Option<&mut WeightArena>,
    ) -> Result<PackedLinear, Error> {
        let size = weight.size();
        if size.len() != 2 || bias.is_some_and(|bias| bias.size() != size[..1]) {
            return Err(Error::Argument {
                act: "packing a linear layer",
                expected: "a weight [out, in] and a bias [out]".into(),
                got: format!("{size:?} and {:?}", bias.map(Tensor::size)),
            });
        }
        let plain = weight.detach();
        let on_cpu = weight.device() == Device::Cpu && weight.numel() > 0;
        if on_cpu && weight.kind() == Kind::Float {
            let weight = Weight::Panels { panels: pack_panels(weight, arena)?, num_outputs: size[0] };
            let bias = bias.map(|bias| bias.detach().to_kind(Kind::Float).contiguous());
            return Ok(PackedLinear { weight, bias, rows_hint });
        }
        let packable = on_cpu && weight.kind() == Kind::BFloat16;
        if packable && has_one_order(weight.kind()) {
            let weight =
                Weight::Bf16Panels { panels: pack_bf16(weight)?, num_outputs: size[0], num_inputs: size[1] };
            return Ok(PackedLinear { weight, bias: bias.map(Tensor::detach), rows_hint });
        }
        let mut layer = PackedLinear {
            weight: Weight::Plain(plain),
            bias: bias.map(Tensor::detach),
            rows_hint: rows_hint.max(1),
        };
        if packable && let Ok(packed) = pack(weight, layer.rows_hint) {
            let plain = std::mem::replace(&mut layer.weight, Weight::Packed(packed));
            // Some CPUs pack a dtype that they then cannot multiply.
            if layer.multiply(&Tensor::zeros([1, size[1]], (weight.kind(), Device::Cpu))).is_err() {
                layer.weight = plain;
            }
        }
        Ok(layer)
    }

    /// Number of bytes of a packed float32 weight `[out, in]` in an arena.
    pub fn packed_bytes(num_outputs: i64, num_inputs: i64) -> usize {
        let padded = (num_outputs + PANEL - 1) & !(PANEL - 1);
        (padded * num_inputs) as usize * size_of::<f32>() + 64
    }

    /// Computes `x weight^T + bias` for `x` of `[.., in]`, without gradients.
    ///
    /// # Panics
    /// When the width or dtype of `x` is not that of the layer.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        or_panic(self.multiply(x))
    }

    /// Writes `x weight^T + bias` for `x` `[rows, in]` to `out` `[rows, out]`, in one product and without
    /// allocations. Only for unpacked weights, as on GPUs.
    ///
    /// # Errors
    /// When shapes or dtypes do not fit, or the weight is packed.
    pub fn forward_into(&self, x: &Tensor, out: &Tensor) -> Result<(), Error> {
        let act = "a linear layer into a given tensor";
        let Weight::Plain(weight) = &self.weight else {
            let (expected, got) = ("a weight as it was given".into(), "a packed one".into());
            return Err(Error::Argument { act, expected, got });
        };
        let weight_io = weight.tr();
        let product = tch::no_grad(|| match &self.bias {
            Some(bias) => bias.f_addmm_out(out, x, &weight_io),
            None => x.f_mm_out(out, &weight_io),
        });
        product.map(drop).map_err(|error| Error::Libtorch { act, message: error.to_string() })
    }

    /// Number of outputs.
    pub fn num_outputs(&self) -> i64 {
        match &self.weight {
            Weight::Panels { num_outputs, .. } | Weight::Bf16Panels { num_outputs, .. } => *num_outputs,
            Weight::Packed(weight) | Weight::Plain(weight) => weight.size()[0],
        }
    }

    /// The weight `[out, in]` if it is not packed.
    pub fn plain_weight(&self) -> Option<&Tensor> {
        if let Weight::Plain(weight) = &self.weight { Some(weight) } else { None }
    }

    /// Whether the weight is a packed copy.
    pub fn is_packed(&self) -> bool {
        !matches!(self.weight, Weight::Plain(_))
    }

    /// Number of bytes of the weight in its current layout.
    pub fn num_bytes(&self) -> usize {
        let (Weight::Panels { panels: weight, .. }
        | Weight::Bf16Panels { panels: weight, .. }
        | Weight::Packed(weight)
        | Weight::Plain(weight)) = &self.weight;
        weight.numel() * weight.kind().elt_size_in_bytes()
    }

    fn multiply(&self, x: &Tensor) -> Result<Tensor, Error> {
        match &self.weight {
            Weight::Plain(weight) => Ok(tch::no_grad(|| x.linear(weight, self.bias.as_ref()))),
            Weight::Panels { panels, num_outputs } => tensor_from("a packed linear layer", |out| {
                let bias = self.bias.as_ref().map_or(std::ptr::null_mut(), raw);
                // SAFETY: borrowed tensors (the bias may be null) and a place for the result.
                unsafe { rlt_linear_of_panels(raw(x), raw(panels), *num_outputs, bias, out) }
            }),
            Weight::Bf16Panels { panels, num_outputs, num_inputs } => {
                if x.size().last() != Some(num_inputs) {
                    return Err(Error::Argument {
                        act: "a packed linear layer",
                        expected: format!("a tensor [.., {num_inputs}]"),
                        got: format!("{:?}", x.size()),
                    });
                }
                tensor_from("a packed linear layer", |out| {
                    let bias = self.bias.as_ref().map_or(std::ptr::null_mut(), raw);
                    // SAFETY: borrowed tensors (the bias may be null) and a place for the result.
                    unsafe { rlt_linear_of_bf16_panels(raw(x), raw(panels), *num_outputs, bias, out) }
                })
            }
            Weight::Packed(packed) => tensor_from("a packed linear layer", |out| {
                let bias = self.bias.as_ref().map_or(std::ptr::null_mut(), raw);
                // SAFETY: borrowed tensors (the bias may be null) and a place for the result.
                unsafe { rlt_packed_linear(raw(x), raw(packed), bias, out) }
            }),
        }
    }
}

/// Reorders `[out, in]` to `[panels, in, PANEL]`; outputs that pad the last panel are zero.
fn pack_panels(weight: &Tensor, arena: Option<&mut WeightArena>) -> Result<Tensor, Error> {
    let (num_outputs, num_inputs) = (weight.size()[0], weight.size()[1]);
    let missing = -num_outputs & (PANEL - 1);
    let whole = match missing {
        0 => weight.detach(),
        _ => tch::no_grad(|| weight.detach().constant_pad_nd([0, 0, 0, missing])),
    };
    let panels = whole.contiguous().view([-1, PANEL, num_inputs]).transpose(1, 2);
    match arena {
        Some(arena) => arena.keep(&panels),
        None => Ok(panels.contiguous()),
    }
}

fn pack_bf16(weight: &Tensor) -> Result<Tensor, Error> {
    tensor_from("packing a linear layer", |out| {
        // SAFETY: a borrowed tensor and a place for the result.
        unsafe { rlt_pack_bf16(raw(weight), out) }
    })
}

fn pack(weight: &Tensor, rows_hint: i64) -> Result<Tensor, Error> {
    tensor_from("packing a linear layer", |out| {
        // SAFETY: a borrowed tensor and a place for the result.
        unsafe { rlt_pack_linear(raw(weight), rows_hint, out) }
    })
}
