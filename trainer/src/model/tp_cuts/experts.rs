//! Tensor-parallel placements of a layer's experts: a rank has its part of the width of every expert that is
//! local to it.
//!
//! ```text
//! gate and up [e, 2 i, d]   rows of local width, of gate and of up
//! down [e, d, i]            columns of local width
//! router                    full; its weights scale a rank's summands, so its gradient is one, too
//! adapter                   of gate and up: full A, rows of B;  of down: columns of A, full B
//! ```
//! Expert parallelism splits the same tensors by experts.

use std::collections::BTreeMap;

use rlt_api::plan::model_config::ModelConfig;
use rlt_core::local_tensor::{DimRanges, Placement};
use rlt_core::mesh::AxisPlace;

use super::super::expert_lora::ExpertTensor;
use super::super::layer::DecoderLayer;
use super::{ADAPTER_A, ADAPTER_B, WEIGHT, inside_layer, rows_of, split};

/// Adds the placements of the router, the experts and their adapters of `layer`, if it has some. Experts with
/// biases are not split, see [`rlt_api::conflicts`].
pub(super) fn place_experts(
    placements: &mut BTreeMap<String, Placement>,
    config: &ModelConfig,
    layer: &DecoderLayer,
    place: AxisPlace,
) {
    let Some((weights, experts)) = layer.experts().zip(config.experts_of(layer.shape.layer_idx)) else {
        return;
    };
    let width = experts.intermediate_size;
    let rows = |dim| Placement::Shard(split(dim, place, |place| both_halves(width, place)));
    let columns = |dim| Placement::Shard(split(dim, place, |place| rows_of(width, place)));
    let mut add = |name: &str, placement: Placement| {
        placements.extend(inside_layer(name).map(|name| (name.to_owned(), placement)));
    };
    let router = weights.router_name();
    add(&router, Placement::Partial);
    for part in [ADAPTER_A, ADAPTER_B] {
        add(&router.replace(WEIGHT, part), Placement::Partial);
    }
    add(&weights.tensor_name(ExpertTensor::GateUp), rows(1));
    add(&weights.tensor_name(ExpertTensor::Down), columns(2));
    for (tensor, _, [name_a, name_b]) in weights.adapted() {
        let [a, b] = match tensor {
            ExpertTensor::GateUp => [Placement::Partial, rows(0)],
            ExpertTensor::Down => [columns(1), Placement::Partial],
        };
        add(&name_a, a);
        add(&name_b, b);
    }
}

/// A rank's part of the gates and of the ups, which follow each other.
fn both_halves(width: usize, place: AxisPlace) -> DimRanges {
    let own = place.range(width);
    DimRanges { len: 2 * width, ranges: vec![own.clone(), width + own.start..width + own.end] }
}
