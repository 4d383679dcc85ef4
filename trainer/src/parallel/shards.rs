//! FSDP: a decoder's parameters in shards. Each rank of a replica holds a shard of every unit, and a unit is
//! whole only while something computes with it.
//!
//! ```text
//! sharded         shard [n / dp_shard] on each rank; gradient and optimizer moments are as long
//! prefetch(unit)  whole <- all-gather of the shards, while another layer computes
//! unshard(unit)   waits: the parameters, views of the whole, can be read
//! reshard(unit)   the whole is freed
//! backward        gradients add up in a whole buffer -> reduce-scatter -> gradient shard
//! ```
//! With `training.offload` shards are in offload storage: a unit is prefetched from there, an update fetches
//! this rank's pieces buffer by buffer, and checkpoints and digests read them in place. With `dp_shard` 1 the
//! shard is the whole unit.
//!
//! A unit is a decoder layer, or everything outside of the layers. Frozen parameters are gathered like
//! trained ones but have no gradient. The schedule (`actor::layer_schedule`) decides when units are
//! prefetched, unsharded and resharded; all ranks follow the same schedule, because each of its steps is a
//! collective.
//!
//! With expert parallelism the weights of experts are parameters of their own layout ([`ExpertRanks`]): a
//! rank keeps, gathers and updates those of its experts alone, and has all of a layer only in [`visit`]. With
//! tensor parallelism a rank keeps, gathers and updates its part of each weight that is cut, likewise.
//!
//! [`ExpertRanks`]: super::mesh::ExpertRanks
//! [`visit`]: ShardedParameters::visit

mod flat;
mod own;
mod place;
mod values;
mod whole;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use rlt_torch::collectives::Pending;
use rlt_torch::{OffloadStorage, TensorFile};
use tch::{Kind, Tensor, no_grad};

use self::flat::Flat;
pub(crate) use self::place::copy_tensor_shard;
use self::place::{OwnExperts, Share};
pub use self::whole::WeightDtype;
use super::{EpGroup, MeshRanks, RankError, TpGroup};
use crate::model::tp_cuts::ParameterCuts;
use crate::model::{Decoder, NamedTensors, is_expert_weight};

/// An FSDP unit: parameters that are gathered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsdpUnit {
    /// Embedding, final norm and head.
    Outer,
    /// A decoder layer.
    Layer(usize),
}

impl FsdpUnit {
    /// The index of the layer; `None` for the outer unit.
    pub fn layer_idx(self) -> Option<usize> {
        match self {
            Self::Outer => None,
            Self::Layer(layer_idx) => Some(layer_idx),
        }
    }
}

/// The parameters of one unit: matrices, which are gathered in the compute dtype, and vectors, such as a
/// norm's weights, which layers use in the master dtype. If both dtypes are equal there is one buffer.
#[derive(Debug)]
struct UnitParameters {
    trained: Vec<Flat>,
    /// Several roles may compute with the same frozen parameters.
    frozen: Vec<Rc<Flat>>,
}

impl UnitParameters {
    /// Takes parameters that layers use in the dtype `compute`, offloaded to `place` if there is one; of
    /// experts' weights those of `experts`, and of weights that are cut the rank's part.
    fn new(
        parameters: NamedTensors,
        (ranks, experts, cuts): (&MeshRanks, Option<OwnExperts>, Option<&ParameterCuts>),
        compute: Kind,
        mut place: Option<&mut OffloadStorage>,
    ) -> Result<Self, RankError> {
        let mut flats = |parameters: NamedTensors| -> Result<Vec<Flat>, RankError> {
            let (of_experts, parameters): (NamedTensors, NamedTensors) =
                parameters.into_iter().partition(|(name, _)| experts.is_some() && is_expert_weight(name));
            let (cut, parameters): (NamedTensors, NamedTensors) = parameters
                .into_iter()
                .partition(|(name, _)| cuts.is_some_and(|cuts| cuts.of(name).is_some()));
            // Codes of quantized weights are gathered as they are.
            let (codes, parameters): (NamedTensors, NamedTensors) =
                parameters.into_iter().partition(|(_, tensor)| !tensor.is_floating_point());
            let [matrices, vectors] = by_use(parameters, compute);
            let [cut_matrices, cut_vectors] = by_use(cut, compute);
            let kind_of = |tensors: &NamedTensors| tensors.first().map_or(compute, |(_, one)| one.kind());
            let exact = [kind_of(&codes), kind_of(&cut_vectors), kind_of(&vectors)];
            let own = cuts.map_or(Share::Whole, Share::Cut);
            let parts = [
                (codes, Share::Whole, exact[0]),
                (matrices, Share::Whole, compute),
                (cut_matrices, own, compute),
                (of_experts, experts.map_or(Share::Whole, Share::Experts), compute),
                (cut_vectors, own, exact[1]),
                (vectors, Share::Whole, exact[2]),
            ];
            let flat =
                |(parameters, share, kind)| Flat::new(parameters, (ranks, share), kind, place.as_deref_mut());
            parts.into_iter().map(flat).filter_map(Result::transpose).collect()
        };
        let (trained, frozen) = parameters.into_iter().partition(|(_, leaf)| leaf.requires_grad());
        Ok(Self { trained: flats(trained)?, frozen: flats(frozen)?.into_iter().map(Rc::new).collect() })
    }

    fn flats(&self) -> impl Iterator<Item = &Flat> {
        self.frozen.iter().map(Rc::as_ref).chain(&self.trained)
    }
}

/// Matrices, which layers use in the dtype `compute`, and vectors, of which they make exact use.
fn by_use(parameters: NamedTensors, compute: Kind) -> [NamedTensors; 2] {
    let is_computed = |tensor: &Tensor| tensor.dim() > 1 || tensor.kind() == compute;
    let (matrices, vectors) = parameters.into_iter().partition(|(_, tensor)| is_computed(tensor));
    [matrices, vectors]
}

/// A reduce-scatter of gradients in flight.
#[derive(Debug)]
struct Scattering {
    unit: FsdpUnit,
    /// The index of the buffer among the unit's trained ones.
    flat_idx: usize,
    /// This rank's shard of the result, `[n / dp_shard]`.
    own: Tensor,
    pending: Pending,
}

/// Parameters of the layers, first to last, and of the outer unit.
pub(crate) type TensorsByUnit = (Vec<NamedTensors>, NamedTensors);

/// The tensor-parallel group of a sharded role.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorParallel<'a> {
    pub(crate) group: &'a TpGroup,
    pub(crate) cuts: &'a ParameterCuts,
}

/// All parameters of a role, sharded.
#[derive(Debug)]
pub struct ShardedParameters {
    layers: Vec<UnitParameters>,
    outer: UnitParameters,
    ranks: Rc<MeshRanks>,
    /// How weights are cut; `None` without tensor parallelism.
    cuts: Option<Rc<ParameterCuts>>,
    /// The file with the shards of a frozen model.
    offload_file: Option<TensorFile>,
    /// The number of last layers that stay unsharded between forward and backward pass.
    unsharded_layers: usize,
    /// One at a time, so that at most one layer's gradient is pending beside the one that is computed.
    scattering: RefCell<Option<Scattering>>,
}

impl ShardedParameters {
    /// Takes the parameters of `decoder`, whose memory is freed: from now on they can be read while their
    /// unit is unsharded. With a folder shards are offloaded, on the CPU to an unlinked file there.
    ///
    /// # Errors
    /// [`RankError::Shards`] when there is not enough memory, or the file cannot be written.
    pub fn new(
        decoder: &Decoder,
        ranks: Rc<MeshRanks>,
        offload_to: Option<&Path>,
    ) -> Result<Self, RankError> {
        Self::from_units(decoder, decoder.parameters_by_layer(), ranks, offload_to)
    }

    /// The same for parameters of `decoder` by unit, or others that belong to it.
    pub(crate) fn from_units(
        decoder: &Decoder,
        (layers, outer): TensorsByUnit,
        ranks: Rc<MeshRanks>,
        offload_to: Option<&Path>,
    ) -> Result<Self, RankError> {
        let (compute, experts) = (decoder.compute_kind(), own_experts(decoder, &ranks)?);
        let device = layers.iter().flatten().chain(&outer).map(|(_, leaf)| leaf.device()).next();
        let place = offload_to.zip(device).map(|(folder, device)| OffloadStorage::new(folder, device));
        let mut place = place.transpose()?;
        let cuts = ranks.tp_group().map(|group| Rc::new(ParameterCuts::new(&decoder.config, group.shard())));
        let mut unit = |parameters| {
            UnitParameters::new(parameters, (&ranks, experts, cuts.as_deref()), compute, place.as_mut())
        };
        let (layers, outer) = (layers.into_iter().map(&mut unit).collect::<Result<_, _>>()?, unit(outer)?);
        let scattering = RefCell::new(None);
        Ok(Self { layers, outer, ranks, cuts, offload_file: None, unsharded_layers: 1, scattering })
    }

    /// The same, with the last `unsharded_layers` layers unsharded between forward and backward pass (FSDP2's
    /// `reshard_after_forward`); at least the very last, whose backward pass follows at once.
    #[must_use]
    pub fn keeping_unsharded(self, unsharded_layers: usize) -> Self {
        Self { unsharded_layers: unsharded_layers.max(1), ..self }
    }

    /// The number of layers that stay unsharded between forward and backward pass.
    pub(crate) fn unsharded_layers(&self) -> usize {
        self.unsharded_layers
    }

    /// Whether a layer stays unsharded between its forward and its backward pass.
    pub(crate) fn stays_unsharded(&self, layer_idx: usize) -> bool {
        layer_idx + self.unsharded_layers >= self.layers.len()
    }

    /// Trainable parameters of another role with the frozen ones of `base`, whose shards are shared.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn beside(
        base: &Self,
        decoder: &Decoder,
        trained: TensorsByUnit,
        offload_to: Option<&Path>,
    ) -> Result<Self, RankError> {
        let mut own = Self::from_units(decoder, trained, base.ranks(), offload_to)?;
        for (own, base) in own.layers.iter_mut().zip(&base.layers).chain([(&mut own.outer, &base.outer)]) {
            own.frozen = base.frozen.clone();
        }
        Ok(own)
    }

    /// The ranks over which the parameters are sharded.
    pub(crate) fn ranks(&self) -> Rc<MeshRanks> {
        Rc::clone(&self.ranks)
    }

    /// The ranks that compute the experts of each other's tokens; `None` where every rank has all experts.
    pub(crate) fn ep_group(&self) -> Option<&EpGroup> {
        let is_distributed = self.layers.iter().flat_map(UnitParameters::flats).any(Flat::is_of_experts);
        self.ranks.experts().filter(|_| is_distributed).map(|experts| &experts.group)
    }

    /// The ranks that have the other parts of every weight, and how it is cut; `None` without tensor
    /// parallelism.
    pub(crate) fn tensor_parallel(&self) -> Option<TensorParallel<'_>> {
        let group = self.ranks.tp_group()?;
        Some(TensorParallel { group, cuts: self.cuts.as_deref()? })
    }

    /// Whether other ranks of the expert-parallel group have other parts of a parameter, or of what belongs
    /// to it.
    pub(crate) fn is_of_experts(&self, name: &str) -> bool {
        is_expert_weight(name) && self.ep_group().is_some()
    }

    /// All units, in the order of a forward pass.
    pub fn units(&self) -> impl Iterator<Item = FsdpUnit> + use<> {
        std::iter::once(FsdpUnit::Outer).chain((0..self.layers.len()).map(FsdpUnit::Layer))
    }

    /// The leaves of the optimizer: this rank's piece of every trained parameter, `[len]`, which may be
    /// empty, under the parameter's name.
    pub fn pieces(&self) -> Vec<(String, Tensor)> {
        self.trained().flat_map(Flat::pieces).collect()
    }

    /// The present bytes of parameters and gradients on this rank.
    pub fn num_bytes(&self) -> usize {
        self.units().flat_map(|unit| self.held(unit).flats()).map(Flat::num_bytes).sum()
    }

    /// Calls `read` for every unit while it is unsharded in `dtype`, all of it, in the order of
    /// [`Self::units`]; the next one is prefetched meanwhile. Collective.
    ///
    /// # Errors
    /// The error of `read`, or [`RankError`] when a rank is lost or memory is short.
    pub fn visit<E: From<RankError>>(
        &self,
        dtype: WeightDtype,
        mut read: impl FnMut(FsdpUnit) -> Result<(), E>,
    ) -> Result<(), E> {
        let units: Vec<FsdpUnit> = self.units().collect();
        for (idx, unit) in units.iter().enumerate() {
            self.unshard_as(*unit, dtype)?;
            self.gather_others(*unit)?;
            units.get(idx + 1).map_or(Ok(()), |next| self.prefetch_as(*next, dtype))?;
            read(*unit)?;
            self.reshard(*unit)?;
        }
        Ok(())
    }

    /// Whether an unsharded unit equals the shards of the replica's ranks, by the `digest` of each shard.
    /// Collective.
    ///
    /// # Errors
    /// The error of `digest`, or [`RankError`] when a rank is lost.
    pub(crate) fn matches_shards<E: From<RankError>>(
        &self,
        unit: FsdpUnit,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<bool, E> {
        let mut matches_shards = true;
        for flat in self.held(unit).flats() {
            matches_shards &= flat.matches_shards(&self.ranks, &digest)?;
        }
        Ok(matches_shards)
    }

    /// Starts the all-gather of a sharded unit.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn prefetch(&self, unit: FsdpUnit) -> Result<(), RankError> {
        self.prefetch_as(unit, WeightDtype::Compute)
    }

    /// Waits until a unit is unsharded in the compute dtype.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn unshard(&self, unit: FsdpUnit) -> Result<(), RankError> {
        self.unshard_as(unit, WeightDtype::Compute)
    }

    /// Waits until a unit is unsharded in the master dtype of the shards, all of it.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn unshard_master(&self, unit: FsdpUnit) -> Result<(), RankError> {
        self.unshard_as(unit, WeightDtype::Master)?;
        self.gather_others(unit)
    }

    fn gather_others(&self, unit: FsdpUnit) -> Result<(), RankError> {
        self.held(unit).flats().try_for_each(|flat| flat.gather_others(&self.ranks))
    }

    fn prefetch_as(&self, unit: FsdpUnit, dtype: WeightDtype) -> Result<(), RankError> {
        self.held(unit).flats().try_for_each(|flat| flat.prefetch(&self.ranks, dtype))
    }

    fn unshard_as(&self, unit: FsdpUnit, dtype: WeightDtype) -> Result<(), RankError> {
        self.prefetch_as(unit, dtype)?;
        self.held(unit).flats().try_for_each(Flat::unshard)
    }

    /// Frees the unsharded parameters of a unit.
    ///
    /// # Errors
    /// [`RankError::Shards`] when libtorch cannot.
    pub fn reshard(&self, unit: FsdpUnit) -> Result<(), RankError> {
        self.held(unit).flats().try_for_each(Flat::reshard)
    }

    /// Gives the trained parameters of a unit gradients of zero, for a backward pass to add to.
    pub fn begin_gradient(&self, unit: FsdpUnit) {
        self.held(unit).trained.iter().for_each(Flat::begin_gradient);
    }

    /// Starts the reduce-scatter of a unit's gradients.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn end_gradient(&self, unit: FsdpUnit) -> Result<(), RankError> {
        for (flat_idx, flat) in self.held(unit).trained.iter().enumerate() {
            let Some(gradient) = flat.take_gradient() else { continue };
            self.settle()?;
            let own = flat.shard().zeros_like();
            let pending = flat.own_ranks(&self.ranks).reduce_scatter(&own, &gradient)?;
            self.scattering.replace(Some(Scattering { unit, flat_idx, own, pending }));
        }
        Ok(())
    }

    /// Waits for all gradients and all-reduces them over the replicas: the pieces' gradients are then those
    /// of all ranks.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn finish_gradients(&self) -> Result<(), RankError> {
        self.settle()?;
        // Rows of all ranks reach an expert, so that its gradient is that of the whole group.
        let (of_experts, others): (Vec<&Flat>, Vec<&Flat>) =
            self.trained().partition(|flat| flat.is_of_experts());
        for flats in [others, of_experts] {
            let Some(first) = flats.first() else { continue };
            let gradients: Vec<Tensor> = flats.iter().map(|flat| flat.gradient_shard()).collect();
            first.own_ranks(&self.ranks).all_reduce_over_replicas(&gradients)?;
        }
        self.sum_over_tensor_parallel()?;
        self.trained().for_each(Flat::hand_over_gradient);
        Ok(())
    }

    /// All-reduces the gradients of whole parameters of which each rank of the tensor-parallel group has a
    /// summand, in one call. They have the same places on all of its ranks.
    fn sum_over_tensor_parallel(&self) -> Result<(), RankError> {
        let Some(TensorParallel { group, cuts }) = self.tensor_parallel() else { return Ok(()) };
        let whole = self.trained().filter(|flat| !flat.is_cut());
        let gradients: Vec<Tensor> =
            whole.flat_map(|flat| flat.gradients_of(|name| cuts.is_summed(name))).collect();
        if gradients.is_empty() {
            return Ok(());
        }
        let all = Tensor::cat(&gradients, 0);
        group.all_reduce(&all)?;
        let mut start = 0;
        for gradient in &gradients {
            let len = gradient.numel() as i64;
            no_grad(|| gradient.shallow_clone().copy_(&all.narrow(0, start, len)));
            start += len;
        }
        Ok(())
    }

    /// Frees the gradients, after the optimizer has dropped those of the pieces.
    pub fn clear_gradients(&self) {
        self.trained().for_each(Flat::clear_gradient);
    }

    /// The norm over the replica, from the norms `norm_of` of some of this rank's pieces: each number of the
    /// model counts once. The same bits on all ranks.
    ///
    /// # Errors
    /// The error of `norm_of`, or [`RankError`] when a rank is lost.
    pub(crate) fn norm_over_shards<E: From<RankError>>(
        &self,
        norm_of: impl Fn(&dyn Fn(&str) -> bool) -> Result<f64, E>,
    ) -> Result<f64, E> {
        let square_of = |is_of: &dyn Fn(&str) -> bool| norm_of(is_of).map(|norm| norm * norm);
        if let Some(TensorParallel { group, cuts }) = self.tensor_parallel() {
            let whole = self.ranks.sum_over_shards(square_of(&|name| cuts.of(name).is_none())?)?;
            let cut = self.ranks.sum_over_shards(square_of(&|name| cuts.of(name).is_some())?)?;
            return Ok((whole + group.sum(cut)?).sqrt());
        }
        if self.ep_group().is_none() {
            return Ok(self.ranks.sum_over_shards(square_of(&|_| true)?)?.sqrt());
        }
        let shared = self.ranks.sum_over_shards(square_of(&|name| !self.is_of_experts(name))?)?;
        let Some(experts) = self.ranks.experts() else { return Ok(shared.sqrt()) };
        let of_experts = experts.mesh.sum_over_shards(square_of(&|name| self.is_of_experts(name))?)?;
        Ok((shared + experts.group.sum(of_experts)?).sqrt())
    }

    /// Calls `change` with this rank's pieces of the trained parameters, buffer by buffer, to read and write
    /// them.
    ///
    /// # Errors
    /// The error of `change`, or when offloaded pieces cannot be fetched or put back.
    pub(crate) fn change<E: From<rlt_torch::Error>>(
        &self,
        mut change: impl FnMut(&dyn Fn(&str) -> bool) -> Result<(), E>,
    ) -> Result<(), E> {
        self.trained().try_for_each(|flat| flat.change(|| change(&|name| flat.place_of(name).is_some())))
    }

    /// The trained parameters of a unit, gathered, by name, in new memory.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost, or an offloaded shard cannot be fetched.
    pub(crate) fn gather_parameters(&self, unit: FsdpUnit) -> Result<NamedTensors, RankError> {
        let mut whole = NamedTensors::new();
        for flat in &self.held(unit).trained {
            whole.extend(flat.gather_parameters(&self.ranks)?);
        }
        Ok(whole)
    }

    /// The same, where what was gathered is what the ranks hold, by the `digest` of each one's shard; `None`
    /// where it is not.
    ///
    /// # Errors
    /// What `digest` fails with, or as [`Self::gather_parameters`].
    pub(crate) fn gather_verified<E: From<RankError>>(
        &self,
        unit: FsdpUnit,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<Option<NamedTensors>, E> {
        let (mut whole, mut matches_shards) = (NamedTensors::new(), true);
        for flat in &self.held(unit).trained {
            let (parameters, matches) = flat.gather_verified(&self.ranks, &digest)?;
            whole.extend(parameters);
            matches_shards &= matches;
        }
        Ok(matches_shards.then_some(whole))
    }

    /// One gathered tensor for each trained parameter of a unit, by name, from this rank's pieces of them,
    /// `[len]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn gather(
        &self,
        unit: FsdpUnit,
        mut piece_of: impl FnMut(&str) -> Option<Tensor>,
    ) -> Result<NamedTensors, RankError> {
        let mut whole = NamedTensors::new();
        for flat in &self.held(unit).trained {
            whole.extend(flat.gather(&self.ranks, &mut piece_of)?);
        }
        Ok(whole)
    }

    fn trained(&self) -> impl Iterator<Item = &Flat> {
        self.units().flat_map(move |unit| &self.held(unit).trained)
    }

    fn held(&self, unit: FsdpUnit) -> &UnitParameters {
        match unit {
            FsdpUnit::Outer => &self.outer,
            FsdpUnit::Layer(layer_idx) => &self.layers[layer_idx],
        }
    }

    /// Waits for the reduce-scatter in flight, and adds its result to the gradient shard.
    fn settle(&self) -> Result<(), RankError> {
        if let Some(Scattering { unit, flat_idx, own, pending }) = self.scattering.take() {
            pending.wait()?;
            self.held(unit).trained[flat_idx].add_to_gradient(&own);
        }
        Ok(())
    }
}

/// The experts of a decoder that this rank has; `None` without expert parallelism, or without experts.
fn own_experts(decoder: &Decoder, ranks: &MeshRanks) -> Result<Option<OwnExperts>, RankError> {
    let Some((ranks, experts)) = ranks.experts().zip(decoder.config.experts.as_ref()) else {
        return Ok(None);
    };
    let (shard, num_experts) = (ranks.group.shard(), experts.num_experts);
    if !num_experts.is_multiple_of(shard.num_shards) {
        return Err(RankError::Experts { num_experts, ep: shard.num_shards });
    }
    Ok(Some(OwnExperts { shard, num_experts }))
}

#[cfg(test)]
mod tests;
