//! FSDP units: the parameters of a decoder that are gathered together, in buffers by dtype and layout.

use std::rc::Rc;

use rlt_core::mesh::{Axis, AxisPlace};
use rlt_torch::OffloadStorage;
use tch::{Kind, Tensor};

use super::flat::FlatParameter;
use crate::model::tp_cuts::RankSharding;
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
    /// weights that `sharding` splits only this rank's values are kept. Parameters that are split along
    /// different axes are in different buffers.
    pub(super) fn new(
        parameters: NamedTensors,
        ranks: &ProcessGroups,
        sharding: &RankSharding,
        compute: Kind,
        mut place: Option<&mut OffloadStorage>,
    ) -> Result<Self, RankError> {
        let mut flats = |parameters: NamedTensors| -> Result<Vec<FlatParameter>, RankError> {
            let split_along = |axis: Axis, parameters: NamedTensors| -> [NamedTensors; 2] {
                let is_split = |name: &str| sharding.layout(name).split_axes().contains(&axis);
                let (split, others) = parameters.into_iter().partition(|(name, _)| is_split(name));
                [split, others]
            };
            let [of_experts, parameters] = split_along(Axis::Ep, parameters);
            let [cut, parameters] = split_along(Axis::Tp, parameters);
            // Codes of quantized weights are gathered in their own dtype.
            let (codes, parameters): (NamedTensors, NamedTensors) =
                parameters.into_iter().partition(|(_, tensor)| !tensor.is_floating_point());
            let [matrices, vectors] = by_use(parameters, compute);
            let [cut_matrices, cut_vectors] = by_use(cut, compute);
            let kind_of = |tensors: &NamedTensors| tensors.first().map_or(compute, |(_, one)| one.kind());
            let exact = [kind_of(&codes), kind_of(&cut_vectors), kind_of(&vectors)];
            let parts = [
                (codes, exact[0]),
                (matrices, compute),
                (cut_matrices, compute),
                (of_experts, compute),
                (cut_vectors, exact[1]),
                (vectors, exact[2]),
            ];
            let flat = |(parameters, kind)| {
                FlatParameter::new(parameters, ranks, sharding, kind, place.as_deref_mut())
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

/// Returns this rank's place in the expert-parallel group that distributes the experts of a decoder. A rank
/// is alone without expert parallelism, or without experts.
pub(super) fn expert_place(decoder: &Decoder, ranks: &ProcessGroups) -> Result<AxisPlace, RankError> {
    let Some((group, experts)) = ranks.along(Axis::Ep).zip(decoder.config.experts.as_ref()) else {
        return Ok(AxisPlace::ALONE);
    };
    let (place, num_experts) = (group.place(), experts.num_experts);
    match num_experts.is_multiple_of(place.size) {
        true => Ok(place),
        false => Err(RankError::Experts { num_experts, ep: place.size }),
    }
}
