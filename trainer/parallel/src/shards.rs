//! FSDP: a decoder's parameters in shards. Each rank of a replica holds a shard of every unit, and a unit is
//! unsharded only while something computes with it.
//!
//! ```text
//! sharded         shard [n / dp_shard] on each rank; gradient and optimizer moments have its length
//! prefetch(unit)  unit <- all-gather of the shards, while another layer computes
//! unshard(unit)   waits: the parameters, views of the unsharded buffer, can be read
//! reshard(unit)   the unsharded buffer is freed
//! backward        gradients accumulate in an unsharded buffer -> reduce-scatter -> gradient shard
//! ```
//! With `training.offload` shards are in offload storage: a unit is prefetched from there, an update fetches
//! this rank's shards buffer by buffer, and checkpoints and digests read them in place. With `dp_shard` 1 a
//! shard is the full unit.
//!
//! A unit is a decoder layer, or everything outside of the layers. Frozen parameters are gathered like
//! trained ones but have no gradient. The schedule ([`crate::schedule`]) decides when units are
//! prefetched, unsharded and resharded. All ranks follow the same schedule, because each of its steps is a
//! collective.
//!
//! Expert and tensor parallelism split weights before they are sharded ([`RankSharding::layout`]): a rank
//! holds, gathers and updates only its local values, and has full weights only in
//! [`ShardedParameters::visit`]. The weights of experts are sharded over separate groups
//! ([`ProcessGroups::experts`]).

mod flat;
mod flat_slot;
mod gradients;
mod shard_storage;
mod unit;
mod unsharded;
mod unsharded_buffer;
mod values;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use rlt_decoder::{Decoder, NamedTensors, RankSharding};
use rlt_layout::{Axis, AxisPlace};
use rlt_torch::{OffloadStorage, TensorFile};
use tch::Tensor;

use self::flat::FlatParameter;
pub use self::flat_slot::copy_tensor_run;
use self::gradients::PendingReduceScatter;
pub use self::unit::FsdpUnit;
use self::unit::{UnitParameters, expert_place};
pub use self::unsharded_buffer::WeightDtype;
use super::{AxisGroup, ProcessGroups, RankError, TensorParallel};

/// Sharded parameters of a role.
#[derive(Debug)]
pub struct ShardedParameters {
    layers: Vec<UnitParameters>,
    outer: UnitParameters,
    ranks: Rc<ProcessGroups>,
    /// Placement of the parameters along the axes that split weights.
    sharding: RankSharding,
    /// File with the shards of a frozen model, see [`Self::move_to_file`]; `None` if they are elsewhere.
    offload_file: Option<TensorFile>,
    /// Number of last layers that stay unsharded between forward and backward pass.
    unsharded_layers: usize,
    /// Reduce-scatter in flight. There is at most one, so that at most two layers have unsharded gradients:
    /// the layer that is computed, and the one whose gradient is being reduced.
    scattering: RefCell<Option<PendingReduceScatter>>,
}

impl ShardedParameters {
    /// Shards the parameters of `decoder` and frees its memory: from now on they can be read only while their
    /// unit is unsharded. If `offload_to` is given, shards are offloaded; on the CPU, to an unlinked file in
    /// that folder.
    ///
    /// # Errors
    /// [`RankError::Shards`] when there is not enough memory, or the file cannot be written.
    pub fn new(
        decoder: &Decoder,
        ranks: Rc<ProcessGroups>,
        offload_to: Option<&Path>,
    ) -> Result<Self, RankError> {
        let (layers, outer) = decoder.parameters_by_layer();
        Self::from_units(decoder, layers, outer, ranks, offload_to)
    }

    /// Shards the given parameters of `decoder`, or those of another role with the same units, like
    /// [`Self::new`].
    pub fn from_units(
        decoder: &Decoder,
        layers: Vec<NamedTensors>,
        outer: NamedTensors,
        ranks: Rc<ProcessGroups>,
        offload_to: Option<&Path>,
    ) -> Result<Self, RankError> {
        let tp = ranks.group_along(Axis::Tp).map_or(AxisPlace::ALONE, AxisGroup::place);
        let sharding = RankSharding::new(decoder, tp, expert_place(decoder, &ranks)?);
        decoder.hold_shards(&sharding);
        let device = layers.iter().flatten().chain(&outer).map(|(_, leaf)| leaf.device()).next();
        let place = offload_to.zip(device).map(|(folder, device)| OffloadStorage::new(folder, device));
        let mut place = place.transpose()?;
        let compute = decoder.compute_kind();
        let mut unit =
            |parameters| UnitParameters::new(parameters, &ranks, &sharding, compute, place.as_mut());
        let (layers, outer) = (layers.into_iter().map(&mut unit).collect::<Result<_, _>>()?, unit(outer)?);
        let scattering = RefCell::new(None);
        Ok(Self { layers, outer, ranks, sharding, offload_file: None, unsharded_layers: 1, scattering })
    }

    /// Sets how many last layers stay unsharded between forward and backward pass (FSDP2's
    /// `reshard_after_forward`); at least the very last, whose backward pass follows at once.
    #[must_use]
    pub fn keeping_unsharded(self, unsharded_layers: usize) -> Self {
        Self { unsharded_layers: unsharded_layers.max(1), ..self }
    }

    /// The number of layers that stay unsharded between forward and backward pass.
    pub fn unsharded_layers(&self) -> usize {
        self.unsharded_layers
    }

    /// Whether a layer stays unsharded between its forward and its backward pass.
    pub fn stays_unsharded(&self, layer_idx: usize) -> bool {
        layer_idx + self.unsharded_layers >= self.layers.len()
    }

    /// Shards the trained parameters of another role: `layers` are those of each layer, `outer` those outside
    /// of the layers. The role shares the shards of frozen parameters with `base`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_frozen_of(
        base: &Self,
        decoder: &Decoder,
        layers: Vec<NamedTensors>,
        outer: NamedTensors,
        offload_to: Option<&Path>,
    ) -> Result<Self, RankError> {
        let mut own = Self::from_units(decoder, layers, outer, base.ranks(), offload_to)?;
        for (own, base) in own.layers.iter_mut().zip(&base.layers).chain([(&mut own.outer, &base.outer)]) {
            own.frozen = base.frozen.clone();
        }
        Ok(own)
    }

    /// The ranks over which the parameters are sharded.
    pub fn ranks(&self) -> Rc<ProcessGroups> {
        Rc::clone(&self.ranks)
    }

    /// Group of the ranks that compute the experts of each other's tokens; `None` if every rank has all
    /// experts.
    pub fn ep_group(&self) -> Option<&AxisGroup> {
        let mut flats = self.layers.iter().flat_map(UnitParameters::flats);
        let is_distributed = flats.any(|flat| flat.axes().contains(&Axis::Ep));
        self.ranks.ep_group().filter(|_| is_distributed)
    }

    /// Group of the ranks with the other tensor-parallel shards of every weight; `None` without tensor
    /// parallelism.
    pub fn tensor_parallel(&self) -> Option<TensorParallel<'_>> {
        Some(TensorParallel { group: self.ranks.group_along(Axis::Tp)? })
    }

    /// Index of this rank among the ranks that hold the same values of weights split along `axes`, and their
    /// number.
    pub fn copies(&self, axes: &[Axis]) -> AxisPlace {
        let copies = self.ranks.of_weights(axes).copies();
        // All ranks of a tensor-parallel group have copies of parameters that it does not split.
        let tp =
            if axes.contains(&Axis::Tp) { AxisPlace::ALONE } else { self.sharding.place_along(Axis::Tp) };
        AxisPlace { index: copies.index * tp.size + tp.index, size: copies.size * tp.size }
    }

    /// Axes along which a parameter is split, so that ranks hold different values of it.
    pub fn split_axes(&self, name: &str) -> Vec<Axis> {
        self.sharding.layout(name).split_axes()
    }

    /// All units, in the order of a forward pass.
    pub fn units(&self) -> impl Iterator<Item = FsdpUnit> + use<> {
        std::iter::once(FsdpUnit::Root).chain((0..self.layers.len()).map(FsdpUnit::Layer))
    }

    /// Leaves of the optimizer by parameter name: this rank's shard of every trained parameter, `[len]`. A
    /// shard may be empty.
    pub fn local_shards(&self) -> Vec<(String, Tensor)> {
        self.trained().flat_map(FlatParameter::local_shards).collect()
    }

    /// Bytes of parameters and gradients that this rank holds at present.
    pub fn num_bytes(&self) -> usize {
        self.units().flat_map(|unit| self.unit_parameters(unit).flats()).map(FlatParameter::num_bytes).sum()
    }

    /// Computes the norm over the replica, in which each value of the model counts once. `norm_of` computes
    /// the norm of those local shards whose names its argument accepts. All ranks get the same bits.
    ///
    /// # Errors
    /// The error of `norm_of`, or [`RankError`] when a rank is lost.
    pub fn norm_over_shards<E: From<RankError>>(
        &self,
        norm_of: impl Fn(&dyn Fn(&str) -> bool) -> Result<f64, E>,
    ) -> Result<f64, E> {
        // All ranks train the same parameters, so they take part in the same collectives, in the same order.
        let mut all_axes: Vec<&[Axis]> = Vec::new();
        for axes in self.trained().map(FlatParameter::axes) {
            if !all_axes.contains(&axes) {
                all_axes.push(axes);
            }
        }
        all_axes.sort_by_key(|axes| axes.len());
        let mut square = 0.0;
        for axes in all_axes {
            let norm = norm_of(&|name| self.split_axes(name) == axes)?;
            square += self.sum_over_holders(axes, norm * norm)?;
        }
        Ok(square.sqrt())
    }

    /// Returns the sum of `number` over the ranks that hold different values of weights split along `axes`.
    fn sum_over_holders(&self, axes: &[Axis], number: f64) -> Result<f64, RankError> {
        let of_shards = self.ranks.of_weights(axes).sum_over_shards(number)?;
        axes.iter()
            .filter_map(|axis| self.ranks.group_along(*axis))
            .try_fold(of_shards, |sum, group| group.sum(sum))
    }

    /// Calls `change` while this rank's shards of trained parameters can be read and written: once for all of
    /// them or, if any are offloaded, once for each flat buffer. The argument of `change` says whether a
    /// parameter is in the buffers of that call.
    ///
    /// # Errors
    /// The error of `change`, or when offloaded shards cannot be fetched or put back.
    pub fn with_resident_shards<E: From<rlt_torch::Error>>(
        &self,
        mut change: impl FnMut(&dyn Fn(&str) -> bool) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.trained().any(FlatParameter::is_offloaded) {
            return change(&|_| true);
        }
        self.trained()
            .try_for_each(|flat| flat.with_resident_shards(|| change(&|name| flat.place_of(name).is_some())))
    }

    /// The full trained parameters of a unit, gathered into new memory, by name.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost, or an offloaded shard cannot be fetched.
    pub fn gather_parameters(&self, unit: FsdpUnit) -> Result<NamedTensors, RankError> {
        let mut full = NamedTensors::new();
        for flat in &self.unit_parameters(unit).trained {
            full.extend(flat.gather_parameters(&self.ranks)?);
        }
        Ok(full)
    }

    /// [`Self::gather_parameters`] with verification: `None` if the gathered values differ from the ranks'
    /// shards, by the `digest` of each shard.
    ///
    /// # Errors
    /// The error of `digest`, or as [`Self::gather_parameters`].
    pub fn gather_verified<E: From<RankError>>(
        &self,
        unit: FsdpUnit,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<Option<NamedTensors>, E> {
        let (mut full, mut matches_shards) = (NamedTensors::new(), true);
        for flat in &self.unit_parameters(unit).trained {
            let (parameters, matches) = flat.gather_verified(&self.ranks, &digest)?;
            full.extend(parameters);
            matches_shards &= matches;
        }
        Ok(matches_shards.then_some(full))
    }

    /// Gathers one tensor for each trained parameter of a unit, such as an optimizer moment. `local_shard_of`
    /// returns this rank's shard of that tensor, `[len]`, by the parameter's name. The results have the
    /// parameters' names and full shapes.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn gather(
        &self,
        unit: FsdpUnit,
        mut local_shard_of: impl FnMut(&str) -> Option<Tensor>,
    ) -> Result<NamedTensors, RankError> {
        let mut full = NamedTensors::new();
        for flat in &self.unit_parameters(unit).trained {
            full.extend(flat.gather(&self.ranks, &mut local_shard_of)?);
        }
        Ok(full)
    }

    fn trained(&self) -> impl Iterator<Item = &FlatParameter> {
        self.units().flat_map(move |unit| &self.unit_parameters(unit).trained)
    }

    fn unit_parameters(&self, unit: FsdpUnit) -> &UnitParameters {
        match unit {
            FsdpUnit::Root => &self.outer,
            FsdpUnit::Layer(layer_idx) => &self.layers[layer_idx],
        }
    }
}
