//! What trainer and engine compare before a rollout: one 64-bit digest a parameter, or a rank's piece of it.

use rlt_core::digest::digest64;
use tch::{Device, Kind, Tensor};

use super::RolloutError;
use crate::parallel::DecoderParts;

/// Digests of all parameters of a decoder, adapters included, at one moment; where ranks share it, of what
/// this rank holds of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDigest {
    parameters: Vec<(String, u64)>,
}

impl WeightDigest {
    /// Digests every parameter of `policy` that is here, bit by bit; reads each of them once and gathers
    /// nothing.
    ///
    /// # Errors
    /// [`RolloutError::Tensor`] when a parameter's memory cannot be read.
    pub fn of<'a>(policy: impl Into<DecoderParts<'a>>) -> Result<Self, RolloutError> {
        let policy = policy.into();
        let mut parameters = Vec::new();
        let mut add = |name: &str, tensor: &Tensor| -> Result<(), RolloutError> {
            parameters.push((name.to_owned(), digest_of(name, tensor)?));
            Ok(())
        };
        match policy.shards() {
            Some(shards) => shards.show(|excerpt, piece| add(excerpt.name, piece))?,
            None => {
                let whole = policy.decoder().named_parameters();
                whole.iter().try_for_each(|(name, tensor)| add(name, tensor))?;
            }
        }
        Ok(Self { parameters })
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

/// The digest of a tensor of `what`.
pub(super) fn digest_of(what: &str, tensor: &Tensor) -> Result<u64, RolloutError> {
    let flat = tensor.detach().to_device(Device::Cpu).contiguous().view([-1]);
    let is_viewable = flat.kind() == Kind::Float || flat.size1().is_ok_and(|len| len % 2 == 0);
    // Half-width numbers are read in pairs; an odd one out is widened, which loses nothing.
    let values = if is_viewable { flat.view_dtype(Kind::Float) } else { flat.to_kind(Kind::Float) };
    let digest = rlt_torch::f32_slice(&values).map(digest64);
    digest.map_err(|source| RolloutError::Tensor { what: what.to_owned(), source })
}
