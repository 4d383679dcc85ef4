//! LoftQ (Li et al. 2023, arXiv 2310.08659), one iteration: the adapter of a weight W that is quantized to Q
//! starts as the best approximation of W - Q that has its rank.
//!
//! ```text
//! W - Q = U S V^T        A = sqrt(S / s) V^T        B = U sqrt(S / s)        s B A of rank r
//! ```
//! PEFT leaves out the division by the scaling s, so that its start is the best only where s is 1. Further
//! iterations would quantize W - s B A instead of W, and other roles share Q.

use rlt_api::spec::LoraInit;
use tch::{Tensor, no_grad};

use super::{LoraConfig, LoraError, peft_names};
use crate::model::decoder::{Decoder, NamedTensors};
use crate::model::error::ModelError;
use crate::model::weights::Weights;

impl Decoder {
    /// Whether a fresh adapter starts from the error of quantization.
    pub(crate) fn starts_from_error(&self) -> bool {
        self.lora.as_ref().is_some_and(|lora| lora.init == LoraInit::Loftq)
    }

    /// Refuses such an adapter where no weights are quantized here.
    pub(super) fn check_loftq(&self, config: &LoraConfig) -> Result<(), LoraError> {
        let got = match &self.config.quantization {
            _ if config.init != LoraInit::Loftq => return Ok(()),
            Some(quantization) if !quantization.is_stored => return Ok(()),
            Some(_) => "a model that is stored quantized",
            None => "a model that is not quantized",
        };
        Err(LoraError::NothingQuantized { got })
    }

    /// A and B of every quantized module with this start, f32 on the CPU, by their names. Where modules are
    /// divided among ranks, `is_own` says which ones, counted from 0, this rank computes: the others are
    /// zero. They follow from `weights` alone, so the decoder may be an outline.
    ///
    /// # Errors
    /// [`ModelError`] when `weights`, those that were quantized, cannot be read.
    pub(crate) fn adapter_from_error(
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

/// Matrices whose product, times `scaling`, is next to `error`; what exceeds the rank that it has is zero.
fn factors(error: &Tensor, rank: i64, scaling: f64) -> [Tensor; 2] {
    let (u, s, v) = error.svd(true, true);
    let kept = rank.min(s.size()[0]);
    let root = (s.narrow(0, 0, kept) / scaling).sqrt();
    let a = v.narrow(1, 0, kept).tr() * root.unsqueeze(1);
    let b = u.narrow(1, 0, kept) * root;
    let missing = rank - kept;
    [a.constant_pad_nd([0, 0, 0, missing]).contiguous(), b.constant_pad_nd([0, missing]).contiguous()]
}
