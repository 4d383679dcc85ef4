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
            let digest =
                digest_of(&tensor).map_err(|source| RolloutError::Tensor { what: name.clone(), source })?;
            Ok((name, digest))
        });
        Ok(Self { parameters: parameters.collect::<Result<_, _>>()? })
    }

    /// Name of the first parameter that differs, is missing or is new in `other`.
    pub fn first_difference<'a>(&'a self, other: &'a Self) -> Option<&'a str> {
        let (mine, theirs) = (&self.parameters, &other.parameters);
        let differing = mine.iter().zip(theirs).find(|(mine, theirs)| mine != theirs).map(|(mine, _)| mine);
        let longer = if mine.len() > theirs.len() { mine } else { theirs };
        let unpaired = longer.get(mine.len().min(theirs.len()));
        differing.or(unpaired).map(|(name, _)| name.as_str())
    }
}

fn digest_of(tensor: &Tensor) -> Result<u64, rlt_torch::Error> {
    let flat = tensor.detach().to_device(Device::Cpu).contiguous().view([-1]);
    let is_viewable = flat.kind() == Kind::Float || flat.size1().is_ok_and(|len| len % 2 == 0);
    // Half-width numbers are read in pairs; an odd one out is widened, which loses nothing.
    let values = if is_viewable { flat.view_dtype(Kind::Float) } else { flat.to_kind(Kind::Float) };
    rlt_torch::f32_slice(&values).map(digest64)
}
