//! LoftQ (Li et al. 2023, arXiv 2310.08659), one iteration: the adapter of a weight W that is quantized to Q
//! starts as the best approximation of W - Q at its rank.
//!
//! ```text
//! W - Q = U S V^T        A = sqrt(S / s) V^T        B = U sqrt(S / s)        s B A of rank r
//! ```
//! PEFT omits the division by the scaling s, so its start is the best only if s is 1. Further iterations
//! would quantize W - s B A instead of W, but other roles share Q.

use rlt_api::spec::LoraInit;
use tch::{Tensor, no_grad};

use super::names::peft_names;
use super::{LoraConfig, LoraError};
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::parameters::NamedTensors;
use crate::weights::Weights;

impl Decoder {
    /// Whether a fresh adapter starts from the quantization error.
    pub fn starts_from_error(&self) -> bool {
        self.lora.as_ref().is_some_and(|lora| lora.init == LoraInit::Loftq)
    }

    /// Refuses LoftQ if no weights are quantized on loading.
    pub(super) fn check_loftq(&self, config: &LoraConfig) -> Result<(), LoraError> {
        let got = match &self.config.quantization {
            _ if config.init != LoraInit::Loftq => return Ok(()),
            Some(quantization) if !quantization.is_stored => return Ok(()),
            Some(_) => "a model that is stored quantized",
            None => "a model that is not quantized",
        };
        Err(LoraError::NothingQuantized { got })
    }

    /// A and B of every quantized module under LoftQ, f32 on the CPU, by PEFT's names. If ranks divide the
    /// modules, `is_own` says by index which ones this rank computes; the others are zero. Only `weights` are
    /// read, so the decoder may have meta tensors.
    ///
    /// # Errors
    /// [`ModelError`] if `weights`, those before quantization, cannot be read.
    pub fn adapter_from_error(
        &self,
        weights: &Weights,
        is_own: impl Fn(usize) -> bool,
    ) -> Result<NamedTensors, ModelError> {
        let projections = self.layers.iter().flat_map(|layer| &layer.projections);
        let quantized = projections.filter(|one| one.weight.as_quantized().is_some());
        let adapted = quantized.filter_map(|one| Some((one, one.lora.as_ref()?)));
        let started = adapted.enumerate().map(|(idx, (projection, lora))| {
            let matrices = if is_own(idx) {
                let error = weights.quantization_error(&projection.name, projection.weight.size())?;
                no_grad(|| factors(&error, lora.a.size()[0], lora.scaling))
            } else {
                [&lora.a, &lora.b].map(|matrix| Tensor::zeros(matrix.size(), tch::kind::FLOAT_CPU))
            };
            Ok(peft_names(&projection.name).into_iter().zip(matrices))
        });
        Ok(started.collect::<Result<Vec<_>, ModelError>>()?.into_iter().flatten().collect())
    }
}

/// A and B whose product, times `scaling`, approximates `error` best; beyond the rank of `error` they are
/// zero.
fn factors(error: &Tensor, rank: i64, scaling: f64) -> [Tensor; 2] {
    let (u, s, v) = error.svd(true, true);
    let kept = rank.min(s.size()[0]);
    let root = (s.narrow(0, 0, kept) / scaling).sqrt();
    let a = v.narrow(1, 0, kept).tr() * root.unsqueeze(1);
    let b = u.narrow(1, 0, kept) * root;
    let missing = rank - kept;
    [a.constant_pad_nd([0, 0, 0, missing]).contiguous(), b.constant_pad_nd([0, missing]).contiguous()]
}
