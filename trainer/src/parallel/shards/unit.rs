//! FSDP units: the parameters of a decoder that are gathered together, in buffers by dtype and layout.

use std::rc::Rc;

use rlt_api::plan::model_config::is_expert_weight;
use rlt_core::local_tensor::DimRanges;
use rlt_torch::OffloadStorage;
use tch::{Kind, Tensor};

use super::flat::FlatParameter;
use crate::model::tp_cuts::ModelSharding;
use crate::model::{Decoder, NamedTensors};
use crate::parallel::{ProcessGroups, RankError};

/// An FSDP unit: parameters that are gathered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsdpUnit {
    /// Embedding, final norm and head.
    Root,
    /// A decoder layer.
    Layer(usize),
}

impl FsdpUnit {
    /// The index of the layer; `None` for the root unit.
    pub fn layer_idx(self) -> Option<usize> {
        match self {
            Self::Root => None,
            Self::Layer(layer_idx) => Some(layer_idx),
        }
    }
}

/// Parameters of one unit: matrices, which are gathered in the compute dtype, and vectors, such as a norm's
/// weights, which layers use in the master dtype. If both dtypes are equal they share a buffer.
#[derive(Debug)]
pub(super) struct UnitParameters {
    pub(super) trained: Vec<FlatParameter>,
    /// Frozen parameters; several roles may compute with the same ones.
    pub(super) frozen: Vec<Rc<FlatParameter>>,
}

impl UnitParameters {
    /// Shards parameters that layers use in the dtype `compute`, offloaded to `place` if there is one. Of
    /// experts' weights only those of `experts` are kept, of tensor-parallel weights this rank's shard.
    pub(super) fn new(
        parameters: NamedTensors,
        ranks: &ProcessGroups,
        experts: Option<&DimRanges>,
        cuts: Option<&ModelSharding>,
        compute: Kind,
        mut place: Option<&mut OffloadStorage>,
    ) -> Result<Self, RankError> {
        let mut flats = |parameters: NamedTensors| -> Result<Vec<FlatParameter>, RankError> {
            let (of_experts, parameters): (NamedTensors, NamedTensors) =
                parameters.into_iter().partition(|(name, _)| experts.is_some() && is_expert_weight(name));
            let (cut, parameters): (NamedTensors, NamedTensors) = parameters
                .into_iter()
                .partition(|(name, _)| cuts.is_some_and(|cuts| cuts.of(name).is_some()));
            // Codes of quantized weights are gathered in their own dtype.
            let (codes, parameters): (NamedTensors, NamedTensors) =
                parameters.into_iter().partition(|(_, tensor)| !tensor.is_floating_point());
            let [matrices, vectors] = by_use(parameters, compute);
            let [cut_matrices, cut_vectors] = by_use(cut, compute);
            let kind_of = |tensors: &NamedTensors| tensors.first().map_or(compute, |(_, one)| one.kind());
            let exact = [kind_of(&codes), kind_of(&cut_vectors), kind_of(&vectors)];
            let parts = [
                (codes, None, exact[0]),
                (matrices, None, compute),
                (cut_matrices, None, compute),
                (of_experts, experts, compute),
                (cut_vectors, None, exact[1]),
                (vectors, None, exact[2]),
            ];
            let flat = |(parameters, experts, kind)| {
                FlatParameter::new(parameters, ranks, experts, cuts, kind, place.as_deref_mut())
            };
            parts.into_iter().map(flat).filter_map(Result::transpose).collect()
        };
        let (trained, frozen) = parameters.into_iter().partition(|(_, leaf)| leaf.requires_grad());
        Ok(Self { trained: flats(trained)?, frozen: flats(frozen)?.into_iter().map(Rc::new).collect() })
    }

    pub(super) fn flats(&self) -> impl Iterator<Item = &FlatParameter> {
        self.frozen.iter().map(Rc::as_ref).chain(&self.trained)
    }
}

/// Splits parameters into matrices, which layers use in the dtype `compute`, and vectors, which they use
/// unrounded.
fn by_use(parameters: NamedTensors, compute: Kind) -> [NamedTensors; 2] {
    let is_computed = |tensor: &Tensor| tensor.dim() > 1 || tensor.kind() == compute;
    let (matrices, vectors) = parameters.into_iter().partition(|(_, tensor)| is_computed(tensor));
    [matrices, vectors]
}

/// Returns the experts of a decoder that this rank holds, as indices of the first dimension of their tensors;
/// `None` without expert parallelism, or without experts.
pub(super) fn own_experts(decoder: &Decoder, ranks: &ProcessGroups) -> Result<Option<DimRanges>, RankError> {
    let Some((group, experts)) = ranks.ep_group().zip(decoder.config.experts.as_ref()) else {
        return Ok(None);
    };
    let (place, num_experts) = (group.place(), experts.num_experts);
    if !num_experts.is_multiple_of(place.size) {
        return Err(RankError::Experts { num_experts, ep: place.size });
    }
    Ok(Some(DimRanges { len: num_experts, ranges: vec![place.range(num_experts)] }))
}
