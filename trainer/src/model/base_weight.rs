//! The frozen or trained weight of a linear layer: dense, or in 4 or 8 bits. Storage, sharding and digests
//! use its named tensors; computation calls its product.

use rlt_api::plan::model_config::{Quantization, QuantizedPart, QuantizedTensor};
use rlt_api::spec::{Precision, QuantizationFormat};
use rlt_torch::{NestedScales, QuantFormat, QuantLayout, QuantizedMatrix};
use tch::{Device, Kind, Tensor, no_grad};

use super::error::ModelError;

/// The weight [out, in] of a linear layer.
#[derive(Debug)]
pub(crate) enum BaseWeight {
    /// Numbers of the storage dtype.
    Dense(Tensor),
    /// 4 or 8 bits, frozen.
    Quantized(Box<QuantizedWeight>),
}

/// A quantized weight whose tensors have names.
#[derive(Debug)]
pub(crate) struct QuantizedWeight {
    /// In the order of [`QuantizedMatrix::tensors`].
    pub(super) names: Vec<String>,
    pub(crate) matrix: QuantizedMatrix,
}

impl BaseWeight {
    /// The quantized weight [out, in] whose `tensors` are `of` their names, shapes and dtypes.
    pub(super) fn quantized(
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
        let matrix = QuantizedMatrix::new(size, layout, (codes, absmax), nested);
        let names = tensors.iter().map(|tensor| tensor.name.clone()).collect();
        Ok(Self::Quantized(Box::new(QuantizedWeight { names, matrix })))
    }

    /// [out, in].
    pub(crate) fn size(&self) -> [i64; 2] {
        match self {
            Self::Dense(weight) => [weight.size()[0], weight.size()[1]],
            Self::Quantized(weight) => weight.matrix.size(),
        }
    }

    /// Where its tensors are.
    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Dense(weight) => weight.device(),
            Self::Quantized(weight) => weight.matrix.device(),
        }
    }

    /// `x W^T + bias` in the dtype of `x`, to which a dense weight is cast; the gradient of one that is
    /// trained has its dtype. A quantized one is dequantized for the length of the product.
    pub(crate) fn linear(&self, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let bias = bias.map(|bias| bias.to_kind(x.kind()));
        match self {
            Self::Dense(weight) => rlt_torch::linear(x, &weight.to_kind(x.kind()), bias.as_ref()),
            Self::Quantized(weight) => weight.matrix.linear(x, bias.as_ref()),
        }
    }

    /// The numbers: the very tensor, or those of a quantized weight in the dtype that was quantized.
    pub(crate) fn numbers(&self) -> Tensor {
        match self {
            Self::Dense(weight) => weight.detach(),
            Self::Quantized(weight) => weight.matrix.dequantize(weight.matrix.layout().stored),
        }
    }

    /// The numbers in f32.
    pub(crate) fn wide_numbers(&self) -> Tensor {
        match self {
            Self::Dense(weight) => no_grad(|| weight.to_kind(Kind::Float)),
            Self::Quantized(weight) => weight.matrix.dequantize(Kind::Float),
        }
    }

    /// Adds every tensor to `parameters`; a dense one is `module`'s `weight`.
    pub(super) fn push_to(&self, module: &str, parameters: &mut Vec<(String, Tensor)>) {
        match self {
            Self::Dense(weight) => parameters.push((format!("{module}.weight"), weight.shallow_clone())),
            Self::Quantized(weight) => {
                let tensors = weight.matrix.tensors().map(Tensor::shallow_clone);
                parameters.extend(weight.names.iter().cloned().zip(tensors));
            }
        }
    }

    /// The same with a dense tensor as `of` makes it, or each of a quantized one as `of_quantized` does.
    pub(super) fn map(
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

    /// One that is not quantized.
    pub(super) fn as_dense(&self) -> Option<&Tensor> {
        match self {
            Self::Dense(weight) => Some(weight),
            Self::Quantized(_) => None,
        }
    }

    /// A quantized one.
    pub(crate) fn as_quantized(&self) -> Option<&QuantizedWeight> {
        match self {
            Self::Dense(_) => None,
            Self::Quantized(weight) => Some(weight),
        }
    }

    /// Every tensor, to be replaced.
    pub(super) fn tensors_mut(&mut self) -> Vec<&mut Tensor> {
        match self {
            Self::Dense(weight) => vec![weight],
            Self::Quantized(weight) => weight.matrix.tensors_mut().collect(),
        }
    }
}

/// The dtype of one of its tensors.
pub(super) fn kind_of(tensor: &QuantizedTensor, layout: QuantLayout) -> Kind {
    match (tensor.part, layout.format) {
        (QuantizedPart::Codes, QuantFormat::Int8) => Kind::Int8,
        (QuantizedPart::Codes, _) => Kind::Uint8,
        (QuantizedPart::Absmax, _) if layout.nested => Kind::Uint8,
        _ => Kind::Float,
    }
}

/// How weights are quantized in memory that are made of numbers of `dtype` unless their files say otherwise.
pub(super) fn layout_of(quantization: &Quantization, dtype: Kind) -> QuantLayout {
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
