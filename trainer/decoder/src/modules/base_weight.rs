//! The frozen or trained weight of a linear layer: dense, or quantized to 4 or 8 bits. Storage, sharding and
//! digests use its named tensors; computation calls [`BaseWeight::linear`].

use rlt_api::spec::{Precision, QuantizationFormat};
use rlt_models::{Quantization, QuantizedPart, QuantizedTensor};
use rlt_torch::{NestedScales, QuantFormat, QuantLayout, QuantizedMatrix};
use tch::{Device, Kind, Tensor, no_grad};

use super::super::error::ModelError;

/// The weight [out, in] of a linear layer.
#[derive(Debug)]
pub enum BaseWeight {
    /// A dense tensor in the storage dtype.
    Dense(Tensor),
    /// A frozen weight in 4 or 8 bits.
    Quantized(Box<QuantizedWeight>),
}

/// A quantized weight whose tensors have names.
#[derive(Debug)]
pub struct QuantizedWeight {
    /// Names of the tensors, in the order of [`QuantizedMatrix::tensors`].
    pub(crate) names: Vec<String>,
    /// The quantized weight, [out, in].
    pub matrix: QuantizedMatrix,
}

impl BaseWeight {
    /// Makes a quantized weight [out, in] of `tensors`, each of which `of` gives by name, shape and dtype.
    pub(crate) fn quantized(
        size: [i64; 2],
        layout: QuantLayout,
        tensors: &[QuantizedTensor],
        of: impl Fn(&QuantizedTensor, Kind) -> Result<Tensor, ModelError>,
    ) -> Result<Self, ModelError> {
        let made: Result<Vec<Tensor>, _> =
            tensors.iter().map(|tensor| of(tensor, kind_of(tensor, layout))).collect();
        let mut made = made?.into_iter();
        let mut next = || made.next().unwrap_or_default();
        let (codes, absmax) = (next(), next());
        let nested = layout.nested.then(|| NestedScales { absmax: next(), offset: next() });
        let matrix = QuantizedMatrix::new(size, layout, codes, absmax, nested);
        let names = tensors.iter().map(|tensor| tensor.name.clone()).collect();
        Ok(Self::Quantized(Box::new(QuantizedWeight { names, matrix })))
    }

    /// Shape of the weight, [out, in].
    pub fn size(&self) -> [i64; 2] {
        match self {
            Self::Dense(weight) => [weight.size()[0], weight.size()[1]],
            Self::Quantized(weight) => weight.matrix.size(),
        }
    }

    /// Device of the weight's tensors.
    pub fn device(&self) -> Device {
        match self {
            Self::Dense(weight) => weight.device(),
            Self::Quantized(weight) => weight.matrix.device(),
        }
    }

    /// Returns `x W^T + bias` in the dtype of `x`. A dense weight is cast to it, and its gradient has the
    /// weight's own dtype; a quantized weight is dequantized for this product only.
    pub(crate) fn linear(&self, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let bias = bias.map(|bias| bias.to_kind(x.kind()));
        match self {
            Self::Dense(weight) => rlt_torch::linear(x, &weight.to_kind(x.kind()), bias.as_ref()),
            Self::Quantized(weight) => weight.matrix.linear(x, bias.as_ref()),
        }
    }

    /// The weight's values: the dense tensor itself, or dequantized to the dtype that was quantized.
    pub(crate) fn numbers(&self) -> Tensor {
        match self {
            Self::Dense(weight) => weight.detach(),
            Self::Quantized(weight) => weight.matrix.dequantize(weight.matrix.layout().stored),
        }
    }

    /// The weight's values in f32.
    pub(crate) fn wide_numbers(&self) -> Tensor {
        match self {
            Self::Dense(weight) => no_grad(|| weight.to_kind(Kind::Float)),
            Self::Quantized(weight) => weight.matrix.dequantize(Kind::Float),
        }
    }

    /// Adds every tensor to `parameters`; a dense one under the name `{module}.weight`.
    pub(crate) fn push_to(&self, module: &str, parameters: &mut Vec<(String, Tensor)>) {
        match self {
            Self::Dense(weight) => parameters.push((format!("{module}.weight"), weight.shallow_clone())),
            Self::Quantized(weight) => {
                let tensors = weight.matrix.tensors().map(Tensor::shallow_clone);
                parameters.extend(weight.names.iter().cloned().zip(tensors));
            }
        }
    }

    /// A copy of the weight: `of` makes the dense tensor, `of_quantized` each tensor of a quantized one.
    pub(crate) fn map(
        &self,
        of: impl Fn(&Tensor) -> Tensor,
        of_quantized: impl Fn(&Tensor) -> Tensor,
    ) -> Self {
        match self {
            Self::Dense(weight) => Self::Dense(of(weight)),
            Self::Quantized(weight) => Self::Quantized(Box::new(QuantizedWeight {
                names: weight.names.clone(),
                matrix: weight.matrix.map(of_quantized),
            })),
        }
    }

    /// The dense tensor; `None` if the weight is quantized.
    pub(crate) fn as_dense(&self) -> Option<&Tensor> {
        match self {
            Self::Dense(weight) => Some(weight),
            Self::Quantized(_) => None,
        }
    }

    /// The quantized weight; `None` if the weight is dense.
    pub(crate) fn as_quantized(&self) -> Option<&QuantizedWeight> {
        match self {
            Self::Dense(_) => None,
            Self::Quantized(weight) => Some(weight),
        }
    }

    /// Every tensor of the weight, to be replaced.
    pub(crate) fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        match self {
            Self::Dense(weight) => vec![weight],
            Self::Quantized(weight) => weight.matrix.tensors_mut().collect(),
        }
    }
}

/// The dtype of one tensor of a quantized weight.
pub(crate) fn kind_of(tensor: &QuantizedTensor, layout: QuantLayout) -> Kind {
    match (tensor.part, layout.format) {
        (QuantizedPart::Codes, QuantFormat::Int8) => Kind::Int8,
        (QuantizedPart::Codes, _) => Kind::Uint8,
        (QuantizedPart::Absmax, _) if layout.nested => Kind::Uint8,
        _ => Kind::Float,
    }
}

/// Layout of quantized weights in memory. Values of `dtype` are quantized unless the files name another
/// dtype.
pub(crate) fn layout_of(quantization: &Quantization, dtype: Kind) -> QuantLayout {
    let of_files = quantization.stored.map(|stored| match stored {
        Precision::Fp16 => Kind::Half,
        Precision::Bf16 => Kind::BFloat16,
        Precision::Auto | Precision::Fp32 => Kind::Float,
    });
    QuantLayout {
        format: match quantization.format {
            QuantizationFormat::Nf4 => QuantFormat::Nf4,
            QuantizationFormat::Fp4 => QuantFormat::Fp4,
            QuantizationFormat::Int8 => QuantFormat::Int8,
        },
        block_size: quantization.block_size,
        nested: quantization.double,
        stored: of_files.unwrap_or(dtype),
    }
}
