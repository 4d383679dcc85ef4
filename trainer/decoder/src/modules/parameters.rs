//! Parameters of a decoder: device and dtypes of their tensors, named tensors, meta tensors and ranges of
//! tensors.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

/// Device and dtypes of a decoder's weights, and whether they are trained.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Device of all tensors.
    pub device: Device,
    /// Storage dtype of weights, in which they are also updated.
    pub param_dtype: Kind,
    /// Compute dtype of activations; weights are cast to it inside each layer.
    pub compute: Kind,
    /// Whether the weights collect gradients. Attaching an adapter always freezes them.
    pub trainable: bool,
}

impl Default for LoadOptions {
    /// Options for frozen f32 weights on the CPU.
    fn default() -> Self {
        Self { device: Device::Cpu, param_dtype: Kind::Float, compute: Kind::Float, trainable: false }
    }
}

/// Tensors with their names.
pub type NamedTensors = Vec<(String, Tensor)>;

/// A tensor of zeros that takes the memory of one value.
pub(crate) fn meta(shape: &[i64], numbers: (Kind, Device)) -> Tensor {
    Tensor::zeros([1], numbers).expand(shape, false).detach()
}

/// Concatenates ranges of a dimension. A single range is returned as a view.
pub fn of_ranges(all: &Tensor, ranges: &[Range<usize>], dim: i64) -> Tensor {
    let parts = ranges.iter().map(|range| all.narrow(dim, range.start as i64, range.len() as i64));
    match parts.collect::<Vec<_>>().as_slice() {
        [one] => one.shallow_clone(),
        parts => Tensor::cat(parts, dim),
    }
}
