//! The parameters of one FSDP unit as a flat buffer, of which this rank holds a shard.
//!
//! ```text
//! parameters   |  a  |    b    | c |        each a view of `unsharded`, also while its memory is freed
//! unsharded    [.....|.........|...]pad
//! shards       [   0   |   1   |   2   ]    of equal length; a local shard is a parameter's range in one
//! ```
//! The unsharded buffer is gathered in the compute dtype, or in the master dtype of the shards. Gradients
//! are always in the master dtype.
//!
//! With `dp_shard` 1 the shard is the full buffer. Parameters then begin at aligned addresses, so that
//! products have the bits of separate tensors.
//!
//! If weights are split along mesh axes (by expert or tensor parallelism), a buffer contains only this rank's
//! local values, and is sharded over the ranks that have the same ones. Full weights are gathered only where
//! a role reads the model, see [`FlatParameter::gather_full_tensors`].

mod copies;
mod gradients;
mod unsharded;
mod verified;

use std::cell::{Cell, RefCell};
use std::ops::Range;

use rlt_decoder::RankSharding;
use rlt_layout::{Axis, EvenSplit, TensorRun, TensorSlice};
use rlt_torch::{FlatBuffer, OffloadStorage};
use tch::{Device, Kind, Tensor, no_grad};

use self::gradients::Gradients;
use super::flat_slot::{FlatSlot, places};
use super::shard_storage::ShardStorage;
use super::unsharded_buffer::{UnshardState, UnshardedBuffer, WeightDtype};
use crate::{ProcessGroups, RankError};

/// Parameters of one dtype in one buffer, all trained or all frozen, and all split along the same axes.
#[derive(Debug)]
pub(super) struct FlatParameter {
    parameters: Vec<Parameter>,
    layout: EvenSplit,
    /// Range of this rank's shard in the buffer.
    own: Range<usize>,
    /// This rank's shard, `[shard_len]`; padding is zero.
    shard: ShardStorage,
    master: UnshardedBuffer,
    /// Buffer in the compute dtype; `None` if that is the master dtype.
    compute: Option<UnshardedBuffer>,
    state: RefCell<UnshardState>,
    gradients: RefCell<Gradients>,
    /// Axes along which ranks hold different values of these parameters.
    axes: Vec<Axis>,
    /// Whether the leaves of split parameters currently hold full tensors, gathered along the axes.
    has_others: Cell<bool>,
}

#[derive(Debug)]
struct Parameter {
    name: String,
    /// The decoder's tensor.
    leaf: Tensor,
    place: FlatSlot,
    /// The parameter's local shard, its range in this rank's shard, `[len]`: a separate leaf, which the
    /// optimizer updates.
    local_shard: Tensor,
}

impl FlatParameter {
    /// Creates the buffer of the named leaves, which have one dtype and are split along the same axes; `None`
    /// if there are none. Layers use them in the dtype `compute`. The shard is offloaded to `place` if there
    /// is one. The leaves hold full tensors, or this rank's local values by `sharding`.
    pub(super) fn new(
        leaves: Vec<(String, Tensor)>,
        ranks: &ProcessGroups,
        sharding: &RankSharding,
        compute: Kind,
        place: Option<&mut OffloadStorage>,
    ) -> Result<Option<Self>, RankError> {
        let Some((first_name, first)) = leaves.first() else { return Ok(None) };
        let axes = sharding.layout(first_name).split_axes();
        let ranks = ranks.of_weights(&axes);
        let (kind, device) = (first.kind(), first.device());
        let width = kind.elt_size_in_bytes().min(compute.elt_size_in_bytes());
        let local = |(name, leaf): &(String, Tensor)| {
            let layout = sharding.layout(name);
            (layout.local(&leaf.size(), |axis| sharding.place_along(axis)), layout)
        };
        let locals = leaves.iter().map(local).collect();
        let (places, layout) = places(locals, ranks.dp_shard(), ranks.shard(), width);
        let own = layout.range(ranks.shard());
        let master = UnshardedBuffer::new(layout, &places, (kind, device))?;
        let compute = (kind != compute)
            .then(|| UnshardedBuffer::new(layout, &places, (compute, device)))
            .transpose()?;
        let shard = FlatBuffer::new(layout.shard_len(), (kind, device))?;
        let _ = shard.tensor().shallow_clone().zero_();
        let taken = leaves.into_iter().zip(places).zip(&master.views);
        let parameters = taken.map(|((named, place), view)| {
            let local_shard = no_grad(|| place.in_shard(shard.tensor(), &own));
            Parameter::new(named, place, local_shard, view)
        });
        let parameters = parameters.collect();
        let shard = ShardStorage::new(shard, place)?;
        let state = RefCell::new(UnshardState::Resharded);
        let gradients = RefCell::default();
        Ok(Some(Self {
            parameters,
            layout,
            own,
            shard,
            master,
            compute,
            state,
            gradients,
            axes,
            has_others: Cell::new(false),
        }))
    }

    /// Returns the groups of `ranks` over which the buffer is sharded.
    pub(super) fn own_ranks<'a>(&self, ranks: &'a ProcessGroups) -> &'a ProcessGroups {
        ranks.of_weights(&self.axes)
    }

    /// Axes along which ranks hold different values of these parameters.
    pub(super) fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// This rank's shard, whose values can be read unless they are offloaded.
    pub(super) fn shard(&self) -> &Tensor {
        self.shard.tensor()
    }

    pub(super) fn is_offloaded(&self) -> bool {
        self.shard.offloaded().is_some()
    }

    /// Whether this rank's shard is the full buffer (`dp_shard` 1).
    fn has_full_shard(&self) -> bool {
        self.own.len() == self.layout.padded_len()
    }

    /// Lets `change` read and write the local shards, which are fetched and written back if they are
    /// offloaded.
    pub(super) fn with_resident_shards<E: From<rlt_torch::Error>>(
        &self,
        change: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.shard.with_resident_shards(change)
    }

    pub(super) fn local_shards(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.parameters
            .iter()
            .map(|parameter| (parameter.name.clone(), parameter.local_shard.shallow_clone()))
    }

    /// Lets `fill` write the local shards, run by run.
    pub(super) fn load_shards<E: From<rlt_torch::Error>>(
        &self,
        fill: &mut impl FnMut(&TensorRun<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.fill_slices(&mut |slice: &TensorSlice<'_>, local_shard: &Tensor| {
            slice.runs().into_iter().try_for_each(|(run, own)| {
                fill(&run, &local_shard.narrow(0, own.start as i64, own.len() as i64))
            })
        })
    }

    /// Lets `fill` write the local shards.
    pub(super) fn fill_slices<E: From<rlt_torch::Error>>(
        &self,
        fill: &mut impl FnMut(&TensorSlice<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.with_resident_shards(|| {
            self.own_parameters().try_for_each(|Parameter { name, place, local_shard, .. }| {
                fill(&place.slice(name), &local_shard.detach())
            })
        })
    }

    /// Calls `see` with every local shard, in place.
    pub(super) fn for_each_shard<E: From<RankError>>(
        &self,
        see: &mut impl FnMut(&TensorSlice<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        let shard = self.shard.in_place().map_err(RankError::from)?;
        self.own_parameters().try_for_each(|Parameter { name, place, .. }| {
            see(&place.slice(name), &no_grad(|| place.in_shard(&shard, &self.own)))
        })
    }

    fn own_parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter().filter(|parameter| !parameter.place.part.is_empty())
    }

    /// Rebinds the shard of frozen parameters to `shard`, other memory with the same values.
    pub(super) fn replace_storage(&mut self, shard: Tensor) {
        for Parameter { place, local_shard, .. } in &mut self.parameters {
            *local_shard = place.in_shard(&shard, &self.own);
        }
        self.shard = ShardStorage::Resident(shard);
    }

    /// The decoder's tensor of this name, which can be read while the unit is unsharded.
    pub(super) fn leaf(&self, name: &str) -> Option<&Tensor> {
        self.parameters.iter().find(|parameter| parameter.name == name).map(|parameter| &parameter.leaf)
    }

    pub(super) fn leaves(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.leaf.detach()))
    }

    pub(super) fn place_of(&self, name: &str) -> Option<&FlatSlot> {
        self.parameters.iter().find(|parameter| parameter.name == name).map(|parameter| &parameter.place)
    }

    /// Bytes of parameters and gradients that are allocated at present.
    pub(super) fn num_bytes(&self) -> usize {
        let gradients = self.gradients.borrow();
        let gradient = |tensor: &Option<Tensor>| tensor.as_ref().map_or(0, Tensor::numel);
        let shard = if self.is_offloaded() { 0 } else { self.shard().numel() };
        // Without sharding the gradient exists once.
        let unsharded_gradient = if self.has_full_shard() { 0 } else { gradient(&gradients.unsharded) };
        let sharded = shard + unsharded_gradient + gradient(&gradients.shard);
        let unsharded =
            self.state.borrow().dtype().map_or(0, |dtype| self.unsharded_buffer(dtype).num_bytes());
        sharded * self.shard().kind().elt_size_in_bytes() + unsharded
    }

    fn unsharded_buffer(&self, dtype: WeightDtype) -> &UnshardedBuffer {
        self.compute.as_ref().filter(|_| dtype == WeightDtype::Compute).unwrap_or(&self.master)
    }

    fn dtype(&self) -> (Kind, Device) {
        (self.shard().kind(), self.shard().device())
    }
}

impl Parameter {
    /// Copies this rank's shard of a leaf to `local_shard`, and rebinds the leaf to a view of the buffer.
    fn new((name, mut leaf): (String, Tensor), place: FlatSlot, local_shard: Tensor, view: &Tensor) -> Self {
        place.copy_local_shard(&name, &leaf, &local_shard);
        no_grad(|| leaf.set_data(view));
        let local_shard = local_shard.detach().set_requires_grad(leaf.requires_grad());
        Self { name, leaf, place, local_shard }
    }
}
