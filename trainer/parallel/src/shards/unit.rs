//! FSDP units: the parameters of a decoder that are gathered together, in buffers by dtype and layout.

use std::collections::BTreeMap;
use std::rc::Rc;

use rlt_decoder::{Decoder, NamedTensors, RankSharding};
use rlt_layout::{Axis, AxisPlace};
use rlt_torch::OffloadStorage;
use tch::{Kind, Tensor};

use super::flat::FlatParameter;
use crate::{ProcessGroups, RankError};

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
    /// Shards parameters that layers use in the dtype `compute`, offloaded to `place` if there is one. Only
    /// this rank's values of weights that `sharding` splits are kept. Parameters that are split along
    /// different axes are in different buffers.
    pub(super) fn new(
        parameters: NamedTensors,
        ranks: &ProcessGroups,
        sharding: &RankSharding,
        compute: Kind,
        mut place: Option<&mut OffloadStorage>,
    ) -> Result<Self, RankError> {
        let mut flats = |parameters: NamedTensors| -> Result<Vec<FlatParameter>, RankError> {
            let mut buffers: BTreeMap<(Form, Vec<Axis>), NamedTensors> = BTreeMap::new();
            for (name, tensor) in parameters {
                let key = (Form::of(&tensor, compute), sharding.layout(&name).split_axes());
                buffers.entry(key).or_default().push((name, tensor));
            }
            let mut sharded = Vec::new();
            for ((form, _), parameters) in buffers {
                let kind = match (form, parameters.first()) {
                    (Form::Code | Form::Vector, Some((_, first))) => first.kind(),
                    _ => compute,
                };
                sharded.extend(FlatParameter::new(parameters, ranks, sharding, kind, place.as_deref_mut())?);
            }
            Ok(sharded)
        };
        let (trained, frozen) = parameters.into_iter().partition(|(_, leaf)| leaf.requires_grad());
        Ok(Self { trained: flats(trained)?, frozen: flats(frozen)?.into_iter().map(Rc::new).collect() })
    }

    pub(super) fn flats(&self) -> impl Iterator<Item = &FlatParameter> {
        self.frozen.iter().map(Rc::as_ref).chain(&self.trained)
    }
}

/// The form of a parameter, which decides the dtype in which it is gathered. Buffers of a unit are in this
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// Codes of quantized weights, in their own dtype.
    Code,
    /// Weights that layers use in the compute dtype.
    Matrix,
    /// Weights that layers use in the master dtype.
    Vector,
}

impl Form {
    /// The form of `tensor` for layers that compute in `compute`.
    fn of(tensor: &Tensor, compute: Kind) -> Self {
        if !tensor.is_floating_point() {
            Self::Code
        } else if tensor.dim() > 1 || tensor.kind() == compute {
            Self::Matrix
        } else {
            Self::Vector
        }
    }
}

/// Returns this rank's place in the expert-parallel group that distributes the experts of a decoder. A rank
/// is alone without expert parallelism, or without experts.
pub(super) fn expert_place(decoder: &Decoder, ranks: &ProcessGroups) -> Result<AxisPlace, RankError> {
    let Some((group, experts)) = ranks.group_along(Axis::Ep).zip(decoder.config.experts.as_ref()) else {
        return Ok(AxisPlace::ALONE);
    };
    let (place, num_experts) = (group.place(), experts.num_experts);
    match num_experts.is_multiple_of(place.size) {
        true => Ok(place),
        false => Err(RankError::Experts { num_experts, ep: place.size }),
    }
}
