//! Splits of one layer's parameters, and of its adapters', over the ranks of a tensor-parallel group.

use std::collections::BTreeMap;

use super::super::super::{ExpertForm, Experts, ModelConfig, ProductRows, ProjectionShape};
use super::{Blocks, DimSplit, ParameterSplit};

/// Suffixes of a projection's parameters, and of its adapter's, after the projection's name.
pub(super) const WEIGHT: &str = ".weight";
pub(super) const BIAS: &str = ".bias";
pub(super) const ADAPTER_A: &str = ".lora_A.weight";
pub(super) const ADAPTER_B: &str = ".lora_B.weight";

/// Module of the experts inside a layer, in the inner of two PEFT wrappers.
pub(super) const INNER_EXPERTS: &str = "mlp.experts.base_layer";
/// Module of the experts inside a layer, in the only PEFT wrapper or the outer one.
pub(super) const OUTER_EXPERTS: &str = "mlp.experts";

/// Returns the splits of a layer's parameters that are not replicated, by their names inside the layer.
pub(super) fn splits_of_layer(model: &ModelConfig, layer_idx: usize) -> BTreeMap<String, ParameterSplit> {
    let (products, of_products) = (model.products(layer_idx), model.product_splits(layer_idx));
    let mut splits = BTreeMap::new();
    for (idx, shape) in model.projections(layer_idx).into_iter().enumerate() {
        let own = products.iter().zip(&of_products).filter(|(product, _)| product.projection_idx == idx);
        add_projection(&mut splits, &shape, of_projection(&shape, own));
    }
    // Norms of queries and keys act on a rank's local heads, so their gradients are partial.
    if model.qk_norm_shapes().is_some() {
        let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|norm| format!("{norm}{WEIGHT}"));
        splits.extend(norms.map(|norm| (norm, ParameterSplit::Partial)));
    }
    // Experts with biases are not split, see `conflicts`.
    let experts = model.experts_of(layer_idx).filter(|experts| experts.form == ExpertForm::Gated);
    experts.into_iter().for_each(|experts| add_experts(&mut splits, experts));
    splits
}

/// Adds the splits of a projection's parameters and of its adapter's. `split` is the split of the weight. It
/// is `None` for the gate of a shared expert: the gate scales a rank's partial output of the expert, so its
/// gradient is partial.
fn add_projection(
    splits: &mut BTreeMap<String, ParameterSplit>,
    shape: &ProjectionShape,
    split: Option<DimSplit>,
) {
    let of_parts = match split {
        None => [(); 4].map(|()| ParameterSplit::Partial),
        Some(split) => {
            let is_of_rows = split.dim == 0;
            let split = ParameterSplit::Dim(split);
            match is_of_rows {
                true => [split.clone(), split.clone(), ParameterSplit::Partial, split],
                false => [split.clone(), ParameterSplit::Partial, split, ParameterSplit::Partial],
            }
        }
    };
    let parts = [WEIGHT, BIAS, ADAPTER_A, ADAPTER_B].map(|part| format!("{}{part}", shape.name));
    splits.extend(parts.into_iter().zip(of_parts));
}

/// Returns the split of the weight [out, in] of a projection, from the splits of its `products`; `None` if it
/// has no product.
fn of_projection<'a>(
    shape: &ProjectionShape,
    products: impl Iterator<Item = (&'a ProductRows, &'a DimSplit)>,
) -> Option<DimSplit> {
    let mut joined: Option<DimSplit> = None;
    for (product, split) in products {
        let (len, offset) = match split.dim {
            0 => (shape.out_features, product.rows.start),
            _ => (shape.in_features, 0),
        };
        let parts = split.parts.iter().map(|part| Blocks { start: offset + part.start, ..*part });
        let joined = joined.get_or_insert(DimSplit { dim: split.dim, len, parts: Vec::new() });
        joined.parts.extend(parts);
    }
    joined
}

/// Adds the splits of a router, of its experts and of the adapters of both. The router's weights scale a
/// rank's partial outputs, so its gradient is partial too.
fn add_experts(splits: &mut BTreeMap<String, ParameterSplit>, experts: &Experts) {
    let [gate_up, down] = experts.splits();
    let router = [WEIGHT, ADAPTER_A, ADAPTER_B].map(|part| format!("mlp.gate{part}"));
    splits.extend(router.map(|name| (name, ParameterSplit::Partial)));
    splits.extend([
        (format!("{OUTER_EXPERTS}.gate_up_proj"), ParameterSplit::Dim(gate_up.stacked())),
        (format!("{OUTER_EXPERTS}.down_proj"), ParameterSplit::Dim(down.stacked())),
        (format!("{INNER_EXPERTS}{ADAPTER_A}"), ParameterSplit::Partial),
        (format!("{INNER_EXPERTS}{ADAPTER_B}"), ParameterSplit::Dim(gate_up)),
        (format!("{OUTER_EXPERTS}{ADAPTER_A}"), ParameterSplit::Dim(down)),
        (format!("{OUTER_EXPERTS}{ADAPTER_B}"), ParameterSplit::Partial),
    ]);
}
