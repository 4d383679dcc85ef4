//! Conversion between libtorch's kinds and safetensors' dtypes.

use safetensors::Dtype;
use tch::Kind;

/// Returns the dtype of `kind`; `None` if safetensors has none for it.
pub(super) fn of_kind(kind: Kind) -> Option<Dtype> {
    Some(match kind {
        Kind::Uint8 => Dtype::U8,
        Kind::Int8 => Dtype::I8,
        Kind::Int16 => Dtype::I16,
        Kind::Int => Dtype::I32,
        Kind::Int64 => Dtype::I64,
        Kind::Half => Dtype::F16,
        Kind::Float => Dtype::F32,
        Kind::Double => Dtype::F64,
        Kind::Bool => Dtype::BOOL,
        Kind::BFloat16 => Dtype::BF16,
        _ => return None,
    })
}

/// Returns the kind of `dtype`; `None` if libtorch has none for it.
pub(super) fn to_kind(dtype: Dtype) -> Option<Kind> {
    const KINDS: [Kind; 10] = [
        Kind::Uint8,
        Kind::Int8,
        Kind::Int16,
        Kind::Int,
        Kind::Int64,
        Kind::Half,
        Kind::Float,
        Kind::Double,
        Kind::Bool,
        Kind::BFloat16,
    ];
    KINDS.into_iter().find(|&kind| of_kind(kind) == Some(dtype))
}

/// Size of one element in bytes, which is a whole number for every dtype of [`of_kind`].
pub(super) fn num_bytes(dtype: Dtype) -> u64 {
    dtype.bitsize() as u64 / 8
}
