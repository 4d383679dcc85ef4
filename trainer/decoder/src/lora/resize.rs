//! Continues an adapter at another rank or scaling than it was stored with.
//!
//! ```text
//! larger rank    A = [A0; fresh rows]    B = [s0 / s B0, 0]      the product stays what it was
//! smaller rank   A = sqrt(S) V^T         B = s0 / s U sqrt(S)    U S V^T the best approximation of B0 A0
//!                                                                that has this rank
//! ```
//! DoRA's magnitudes are kept.

use std::path::Path;

use rlt_models::TensorShape;
use tch::{Kind, Tensor, no_grad};

use super::names::{magnitudes_name, peft_names};
use super::peft_files::open_weights;
use super::{LoraConfig, LoraError};
use crate::decoder::Decoder;
use crate::projection::LoraPair;

impl Decoder {
    /// Reads the adapter in `dir`, whose configuration is `stored`, into the attached one of another rank or
    /// scaling.
    pub(super) fn read_resized_adapter(&mut self, dir: &Path, stored: &LoraConfig) -> Result<(), LoraError> {
        let files = open_weights(dir)?;
        self.check_tying(dir)?;
        files.check(&self.stored_shapes(stored)?, |name| self.is_of_other_head(name))?;
        for (name, saved) in self.saved_in_all_units() {
            let stored = files.read(&name)?;
            no_grad(|| saved.shallow_clone().copy_(&stored));
        }
        for projection in self.projections() {
            let Some(lora) = &projection.lora else { continue };
            let [name_a, name_b] = peft_names(&projection.name);
            let (_, scaling) = stored.rank_and_scaling(&projection.name)?;
            let read = [files.read(&name_a)?, files.read(&name_b)?];
            no_grad(|| resize(lora, read, scaling));
            if let Some(magnitudes) = &lora.magnitudes {
                let stored = files.read(&magnitudes_name(&projection.name))?;
                no_grad(|| magnitudes.shallow_clone().copy_(&stored));
            }
        }
        Ok(())
    }

    /// The tensors that the file of an adapter with the configuration `stored` must hold for the modules of
    /// this one.
    fn stored_shapes(&self, stored: &LoraConfig) -> Result<Vec<TensorShape>, LoraError> {
        let whole = |(name, tensor): (String, Tensor)| TensorShape {
            name,
            shape: tensor.size().iter().map(|dim| *dim as usize).collect(),
        };
        let mut shapes: Vec<TensorShape> = self.saved_in_all_units().into_iter().map(whole).collect();
        for projection in self.projections() {
            let Some(lora) = &projection.lora else { continue };
            let (rank, _) = stored.rank_and_scaling(&projection.name)?;
            let [name_a, name_b] = peft_names(&projection.name);
            let (inputs, outputs) = (lora.a.size()[1] as usize, lora.b.size()[0] as usize);
            shapes.push(TensorShape { name: name_a, shape: vec![rank, inputs] });
            shapes.push(TensorShape { name: name_b, shape: vec![outputs, rank] });
            if lora.magnitudes.is_some() {
                shapes.push(TensorShape { name: magnitudes_name(&projection.name), shape: vec![outputs] });
            }
        }
        Ok(shapes)
    }
}

/// Overwrites a fresh pair by the stored `a` and `b`, whose product had the factor `scaling`.
fn resize(lora: &LoraPair, [a, b]: [Tensor; 2], scaling: f64) {
    let [a, b] = [a, b].map(|matrix| matrix.to_kind(Kind::Float));
    let rank = lora.a.size()[0];
    let [a, b] = if rank < a.size()[0] { truncated(&a, &b, rank) } else { [a, b] };
    // A weight with fewer rows or columns than the new rank has no more singular values than these.
    let kept = a.size()[0];
    lora.a.narrow(0, 0, kept).copy_(&a);
    let mut own_b = lora.b.shallow_clone();
    let _ = own_b.zero_();
    own_b.narrow(1, 0, kept).copy_(&(b * (scaling / lora.scaling)));
}

/// The best approximation of `b a` at rank `rank`, as matrices A and B. QR decompositions of both leave a
/// product that is small enough for a singular value decomposition.
fn truncated(a: &Tensor, b: &Tensor, rank: i64) -> [Tensor; 2] {
    let (q_b, r_b) = Tensor::linalg_qr(b, "reduced");
    let (q_a, r_a) = Tensor::linalg_qr(&a.tr(), "reduced");
    let (u, s, v) = r_b.matmul(&r_a.tr()).svd(true, true);
    let rank = rank.min(s.size()[0]);
    let root = s.narrow(0, 0, rank).sqrt();
    let new_b = q_b.matmul(&u.narrow(1, 0, rank)) * &root;
    let new_a = v.narrow(1, 0, rank).tr().matmul(&q_a.tr()) * root.unsqueeze(1);
    [new_a, new_b]
}
