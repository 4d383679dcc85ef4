//! Stacked weights of a layer's experts, as a GPU's grouped products read them.

use rlt_decoder::{Adapter, ExpertTensor, ExpertWeights, TpSharding};
use rlt_torch::Error;
use tch::{Kind, Tensor, no_grad};

/// Weights of all experts, or this rank's shard of each.
#[derive(Debug)]
pub(super) struct GroupedExperts {
    /// Gate and up projections, gate first, `[e, 2 i, d]`.
    pub(super) gate_up: Tensor,
    /// Down projections, `[e, d, i]`.
    pub(super) down: Tensor,
}

impl GroupedExperts {
    /// Casts the weights to `kind` with merged adapters, one expert at a time. With `shares`, weights that
    /// need no change are shared with the model.
    pub(super) fn pack(
        weights: &ExpertWeights,
        sharding: &TpSharding<'_>,
        kind: Kind,
        shares: bool,
    ) -> Result<Self, Error> {
        let stacked = |tensor: ExpertTensor| {
            let base = weights.unadapted(tensor).filter(|_| sharding.is_whole());
            base.map_or_else(
                || each(weights, sharding, tensor, kind),
                |base| cast_stacked(&base, kind, shares),
            )
        };
        let packed = |tensor| no_grad(|| stacked(tensor)).map_err(failed);
        Ok(Self { gate_up: packed(ExpertTensor::GateUp)?, down: packed(ExpertTensor::Down)? })
    }

    /// Number of bytes of the weights.
    pub(super) fn num_bytes(&self) -> usize {
        [&self.gate_up, &self.down]
            .map(|weight| weight.numel() * weight.kind().elt_size_in_bytes())
            .iter()
            .sum()
    }
}

/// Casts the stacked weights of all experts at once.
fn cast_stacked(base: &Tensor, kind: Kind, shares: bool) -> Result<Tensor, tch::TchError> {
    let cast = base.f_to_kind(kind)?.f_contiguous()?;
    if shares || cast.data_ptr() != base.data_ptr() { Ok(cast) } else { Ok(cast.copy()) }
}

/// Merges one expert after the other, so that no second set of weights exists.
fn each(
    weights: &ExpertWeights,
    sharding: &TpSharding<'_>,
    tensor: ExpertTensor,
    kind: Kind,
) -> Result<Tensor, tch::TchError> {
    let num_experts = weights.router.size()[0];
    let of = |expert: i64| {
        let merged = weights.merged(tensor, expert, Adapter::On);
        match tensor {
            ExpertTensor::GateUp => sharding.expert_gate_up(&merged),
            ExpertTensor::Down => sharding.expert_down(&merged),
        }
    };
    let first = of(0);
    let size = [&[num_experts], first.size().as_slice()].concat();
    let stacked = Tensor::f_empty(size, (kind, first.device()))?;
    for expert in 0..num_experts {
        stacked.select(0, expert).f_copy_(&of(expert))?;
    }
    Ok(stacked)
}

fn failed(source: tch::TchError) -> Error {
    Error::Libtorch { act: "packing the experts of a layer", message: source.to_string() }
}
