//! What trainer and engine compare before a rollout: one 64-bit digest a parameter.

use rlt_core::digest::digest64;
use tch::{Device, Kind, Tensor};

use super::RolloutError;
use crate::model::Decoder;

/// Digests of all parameters of a decoder, adapters included, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDigest {
    parameters: Vec<(String, u64)>,
}

impl WeightDigest {
    /// Digests every parameter of `decoder`, bit by bit; reads each of them once.
    ///
    /// # Errors
    /// [`RolloutError::Tensor`] when a parameter's memory cannot be read.
    pub fn of(decoder: &Decoder) -> Result<Self, RolloutError> {
        let parameters = decoder.named_parameters().into_iter().map(|(name, tensor)| {
            let digest = digest_of(&tensor)
                .map_err(|source| RolloutError::Tensor { what: name.clone(), source })?;
            Ok((name, digest))
        });
        Ok(Self { parameters: parameters.collect::<Result<_, _>>()? })
    }

    /// Name of the first parameter that differs, is missing or is new in `other`.
    pub fn first_difference(&self, other: &Self) -> Option<&str> {
        let differing = self.parameters.iter().zip(&other.parameters).find(|(mine, theirs)| mine != theirs);
        let longer = if self.parameters.len() > other.parameters.len() { self } else { other };
        let unpaired = || longer.parameters.get(self.parameters.len().min(other.parameters.len()));
        differing.map(|(mine, _)| mine).or_else(unpaired).map(|(name, _)| name.as_str())
    }
}

fn digest_of(tensor: &Tensor) -> Result<u64, rlt_torch::Error> {
    let flat = tensor.detach().to_device(Device::Cpu).contiguous().view([-1]);
    let is_viewable = flat.kind() == Kind::Float || flat.size1().is_ok_and(|len| len % 2 == 0);
    // Half-width numbers are read in pairs; an odd one out is widened, which loses nothing.
    let values = if is_viewable { flat.view_dtype(Kind::Float) } else { flat.to_kind(Kind::Float) };
    rlt_torch::f32_slice(&values).map(digest64)
}
