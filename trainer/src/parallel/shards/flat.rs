//! The parameters of one FSDP unit as a flat buffer, of which this rank keeps a shard.
//!
//! ```text
//! parameters   |  a  |    b    | c |        each a view of the whole, wherever its memory is
//! whole        [.....|.........|...]pad
//! shards       [   0   |   1   |   2   ]    of one length; a piece is a parameter's part in a shard
//! ```
//! The whole is gathered in the compute dtype, or in the master dtype of the shards. Gradients are always in
//! the master dtype.
//!
//! With `dp_shard` 1 the shard is the whole buffer. Parameters then begin at aligned addresses, so that
//! products have the bits of separate tensors.
//!
//! With expert parallelism the whole of experts' weights are those of this rank's experts, sharded over the
//! ranks that have the same, and with tensor parallelism the whole of a weight that is cut is this rank's
//! part of it, sharded over the ranks of its place. All experts, and all of a weight, are gathered only where
//! a role reads the model, see [`Flat::gather_others`].

use std::cell::{Cell, RefCell};
use std::ops::Range;

use rlt_core::mesh::Shards;
use rlt_core::tensor_shard::{CutShard, TensorShard};
use rlt_torch::{FlatBuffer, OffloadStorage};
use tch::{Device, Kind, Tensor, no_grad};

use super::own::OwnShard;
use super::place::{Place, Share, places, ranges, sizes};
use super::whole::{PendingFill, UnshardState, WeightDtype, Whole};
use crate::model::NamedTensors;
use crate::model::tp_cuts::{PlaceCuts, part_of};
use crate::parallel::{EpGroup, MeshRanks, RankError, TpGroup};

/// Parameters of one dtype in one buffer, all trained or all frozen.
#[derive(Debug)]
pub(super) struct Flat {
    parameters: Vec<Parameter>,
    layout: Shards,
    /// The range of this rank's shard in the whole.
    own: Range<usize>,
    /// This rank's shard, `[shard_len]`; padding is zero.
    shard: OwnShard,
    master: Whole,
    /// `None` if the compute dtype is the master dtype.
    compute: Option<Whole>,
    state: RefCell<UnshardState>,
    gradients: RefCell<Gradients>,
    /// Whether these are weights of experts, of which other ranks have others.
    is_of_experts: bool,
    /// Whether other ranks of the tensor-parallel group have other parts of these.
    is_cut: bool,
    /// Whether leaves are those of all experts, or all of each weight.
    has_others: Cell<bool>,
}

/// Memory of gradients, which exist while an update gathers them.
#[derive(Debug, Default)]
struct Gradients {
    /// `[padded_len]`, while a backward pass adds to it.
    whole: Option<Tensor>,
    /// `[shard_len]`, summed over all passes so far.
    shard: Option<Tensor>,
}

#[derive(Debug)]
struct Parameter {
    name: String,
    /// The decoder's own tensor.
    leaf: Tensor,
    place: Place,
    /// The parameter's piece of the shard, `[len]`: a separate leaf, which the optimizer updates.
    piece: Tensor,
}

impl Flat {
    /// Takes the named leaves, all of one dtype, of which layers make `compute`; `None` without any. The
    /// shard is offloaded to `place` where there is one. Of `share` leaves hold all, or what is here.
    pub(super) fn new(
        leaves: Vec<(String, Tensor)>,
        (ranks, share): (&MeshRanks, Share<'_>),
        compute: Kind,
        place: Option<&mut OffloadStorage>,
    ) -> Result<Option<Self>, RankError> {
        let ranks = Self::ranks_of(ranks, share.is_of_experts());
        let Some((_, first)) = leaves.first() else { return Ok(None) };
        let (kind, device) = (first.kind(), first.device());
        let width = kind.elt_size_in_bytes().min(compute.elt_size_in_bytes());
        let sizes = sizes(&leaves, share);
        let ranges = ranges(&sizes, ranks.dp_shard(), width);
        let layout = Shards::new(ranges.last().map_or(0, |last| last.end), ranks.dp_shard());
        let own = layout.range(ranks.shard());
        let at = sizes.into_iter().zip(ranges);
        let places = places(&leaves, share, at, (layout, ranks.shard()));
        let master = Whole::new(layout, &places, (kind, device))?;
        let compute =
            (kind != compute).then(|| Whole::new(layout, &places, (compute, device))).transpose()?;
        let shard = FlatBuffer::new(layout.shard_len(), (kind, device))?;
        let _ = shard.tensor().shallow_clone().zero_();
        let taken = leaves.into_iter().zip(places).zip(&master.views);
        let parameters = taken.map(|((named, place), view)| {
            let piece = no_grad(|| place.in_shard(shard.tensor(), &own));
            Parameter::new(named, place, piece, view)
        });
        let parameters = parameters.collect();
        let shard = OwnShard::new(shard, place)?;
        let state = RefCell::new(UnshardState::Resharded);
        let gradients = RefCell::default();
        let (is_of_experts, is_cut) = (share.is_of_experts(), share.is_cut());
        Ok(Some(Self {
            parameters,
            layout,
            own,
            shard,
            master,
            compute,
            state,
            gradients,
            is_of_experts,
            is_cut,
            has_others: Cell::new(false),
        }))
    }

    fn ranks_of(ranks: &MeshRanks, is_of_experts: bool) -> &MeshRanks {
        ranks.experts().filter(|_| is_of_experts).map_or(ranks, |experts| &experts.mesh)
    }

    /// The ranks over which the buffer is sharded, of those of its role.
    pub(super) fn own_ranks<'a>(&self, ranks: &'a MeshRanks) -> &'a MeshRanks {
        Self::ranks_of(ranks, self.is_of_experts)
    }

    /// The ranks that have all experts together; `None` for other parameters.
    fn ep_group<'a>(&self, ranks: &'a MeshRanks) -> Option<&'a EpGroup> {
        ranks.experts().filter(|_| self.is_of_experts).map(|experts| &experts.group)
    }

    /// Whether these are weights of experts, of which other ranks have others.
    pub(super) fn is_of_experts(&self) -> bool {
        self.is_of_experts
    }

    /// The ranks that have the other parts of weights that are cut; `None` for other parameters.
    fn tp_group<'a>(&self, ranks: &'a MeshRanks) -> Option<&'a TpGroup> {
        ranks.tp_group().filter(|_| self.is_cut).map(|group| group.as_ref())
    }

    /// Whether other ranks of the tensor-parallel group have other parts of these.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Makes the leaves of an unsharded unit those of all experts, and all of each weight that is cut, until
    /// it is resharded. Collective.
    pub(super) fn gather_others(&self, ranks: &MeshRanks) -> Result<(), RankError> {
        if self.has_others.get() || (self.ep_group(ranks).is_none() && self.tp_group(ranks).is_none()) {
            return Ok(());
        }
        for Parameter { leaf, place, .. } in &self.parameters {
            let all = self.with_others(leaf, place, ranks)?;
            no_grad(|| leaf.shallow_clone().set_data(&all));
        }
        self.has_others.set(true);
        Ok(())
    }

    /// All of a parameter from what this rank has of it.
    fn with_others(&self, own: &Tensor, place: &Place, ranks: &MeshRanks) -> Result<Tensor, RankError> {
        match (self.ep_group(ranks), self.tp_group(ranks), &place.cuts) {
            (Some(group), ..) => group.all_gather(own),
            (None, Some(group), Some(cuts)) => {
                let padding = cuts.longest(&place.whole_size) - own.numel() as i64;
                let own = own.detach().contiguous().view(-1).constant_pad_nd([0, padding]);
                Ok(cuts.join(&group.all_gather(&own)?, &place.whole_size))
            }
            _ => Ok(own.shallow_clone()),
        }
    }

    /// Lets the leaves be views of this rank's buffer again.
    fn drop_others(&self, whole: &Whole) {
        if self.has_others.take() {
            for (parameter, view) in self.parameters.iter().zip(&whole.views) {
                no_grad(|| parameter.leaf.shallow_clone().set_data(view));
            }
        }
    }

    /// This rank's shard, whose values can be read unless they are offloaded.
    pub(super) fn shard(&self) -> &Tensor {
        self.shard.tensor()
    }

    pub(super) fn is_offloaded(&self) -> bool {
        self.shard.offloaded().is_some()
    }

    /// Whether this rank's shard is the whole buffer (`dp_shard` 1).
    fn is_whole(&self) -> bool {
        self.own.len() == self.layout.padded_len()
    }

    /// Lets `change` read and write this rank's pieces.
    pub(super) fn change<E: From<rlt_torch::Error>>(
        &self,
        change: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.shard.change(change)
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.piece.shallow_clone()))
    }

    /// Lets `fill` write the pieces in this rank's shard.
    pub(super) fn fill<E: From<rlt_torch::Error>>(
        &self,
        fill: &mut impl FnMut(&TensorShard<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.change(|| {
            self.own_parameters().try_for_each(|Parameter { name, place, piece, .. }| {
                place.tensor_shard(name).runs().into_iter().try_for_each(|(run, own)| {
                    fill(&run, &piece.detach().narrow(0, own.start as i64, own.len() as i64))
                })
            })
        })
    }

    /// Shows `see` the pieces in this rank's shard, in place.
    pub(super) fn show<E: From<RankError>>(
        &self,
        see: &mut impl FnMut(&CutShard<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        let shard = self.shard.in_place().map_err(RankError::from)?;
        self.own_parameters().try_for_each(|Parameter { name, place, .. }| {
            see(&place.tensor_shard(name), &no_grad(|| place.in_shard(&shard, &self.own)))
        })
    }

    fn own_parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter().filter(|parameter| !parameter.place.part.is_empty())
    }

    /// Lets the shard of frozen parameters be `shard`, which holds the same numbers elsewhere.
    pub(super) fn lie_in(&mut self, shard: Tensor) {
        for Parameter { place, piece, .. } in &mut self.parameters {
            *piece = place.in_shard(&shard, &self.own);
        }
        self.shard = OwnShard::Here(shard);
    }

    /// The decoder's own tensor of this name, to be read while the unit is unsharded.
    pub(super) fn leaf(&self, name: &str) -> Option<&Tensor> {
        self.parameters.iter().find(|parameter| parameter.name == name).map(|parameter| &parameter.leaf)
    }

    pub(super) fn leaves(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.leaf.detach()))
    }

    pub(super) fn place_of(&self, name: &str) -> Option<&Place> {
        self.parameters.iter().find(|parameter| parameter.name == name).map(|parameter| &parameter.place)
    }

    /// Bytes of parameters and gradients that are there now.
    pub(super) fn num_bytes(&self) -> usize {
        let gradients = self.gradients.borrow();
        let gradient = |tensor: &Option<Tensor>| tensor.as_ref().map_or(0, Tensor::numel);
        let shard = if self.is_offloaded() { 0 } else { self.shard().numel() };
        // Without sharding the gradient exists once.
        let whole_gradient = if self.is_whole() { 0 } else { gradient(&gradients.whole) };
        let sharded = shard + whole_gradient + gradient(&gradients.shard);
        let whole = self.state.borrow().dtype().map_or(0, |dtype| self.whole(dtype).num_bytes());
        sharded * self.shard().kind().elt_size_in_bytes() + whole
    }

    fn whole(&self, dtype: WeightDtype) -> &Whole {
        self.compute.as_ref().filter(|_| dtype == WeightDtype::Compute).unwrap_or(&self.master)
    }

    /// Starts to gather the whole, unless it is unsharded or being gathered in at least this dtype.
    pub(super) fn prefetch(&self, ranks: &MeshRanks, wanted: WeightDtype) -> Result<(), RankError> {
        let wanted = if self.compute.is_some() { wanted } else { WeightDtype::Master };
        let present = self.state.borrow().dtype();
        if present >= Some(wanted) {
            return Ok(());
        }
        self.reshard()?;
        let ranks = self.own_ranks(ranks);
        let whole = self.whole(wanted);
        whole.buffer.take()?;
        if self.compute.is_some() {
            for (parameter, view) in self.parameters.iter().zip(&whole.views) {
                no_grad(|| parameter.leaf.shallow_clone().set_data(view));
            }
        }
        let fill = self.start_gather(ranks, whole.buffer.tensor())?;
        self.state.replace(UnshardState::Prefetch(wanted, fill));
        Ok(())
    }

    fn start_gather(&self, ranks: &MeshRanks, whole: &Tensor) -> Result<PendingFill, RankError> {
        if let Some(offloaded) = self.shard.offloaded().filter(|_| self.is_whole()) {
            let is_as_stored = whole.kind() == self.shard().kind();
            let coming = if is_as_stored { offloaded.prefetch(whole)? } else { offloaded.prefetch_new()? };
            return Ok(PendingFill::Fetched(coming));
        }
        let values = self.shard.values()?;
        let sent = no_grad(|| values.detach().to_kind(whole.kind()));
        Ok(PendingFill::Gathered(ranks.all_gather(whole, &sent)?))
    }

    pub(super) fn unshard(&self) -> Result<(), RankError> {
        let Some(dtype) = self.state.borrow().dtype() else { return Ok(()) };
        match self.state.replace(UnshardState::Unsharded(dtype)) {
            UnshardState::Prefetch(_, fill) => fill.complete(self.whole(dtype).buffer.tensor()),
            UnshardState::Resharded | UnshardState::Unsharded(_) => Ok(()),
        }
    }

    pub(super) fn reshard(&self) -> Result<(), RankError> {
        let dtype = match self.state.replace(UnshardState::Resharded) {
            UnshardState::Resharded => return Ok(()),
            UnshardState::Prefetch(dtype, fill) => {
                fill.give_up()?;
                dtype
            }
            UnshardState::Unsharded(dtype) => dtype,
        };
        self.drop_others(self.whole(dtype));
        Ok(self.whole(dtype).buffer.release()?)
    }

    /// See [`super::ShardedParameters::matches_shards`].
    pub(super) fn matches_shards<E: From<RankError>>(
        &self,
        ranks: &MeshRanks,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<bool, E> {
        let dtype = self.state.borrow().dtype().unwrap_or(WeightDtype::Master);
        let whole = self.whole(dtype);
        let matches_shards = self.equals_shards(whole.buffer.tensor(), self.own_ranks(ranks), &digest)?;
        if !self.has_others.get() {
            return Ok(matches_shards);
        }
        let mut others_match = true;
        for (Parameter { leaf, place, .. }, own) in self.parameters.iter().zip(&whole.views) {
            let sent = Tensor::from_slice(&[digest(&own.detach().contiguous().view(-1))?.cast_signed()]);
            let (expected, parts) = match (self.ep_group(ranks), self.tp_group(ranks), &place.cuts) {
                (Some(group), ..) => {
                    let parts = leaf.detach().chunk(group.shard().num_shards as i64, 0);
                    (group.all_gather(&sent)?, parts)
                }
                (None, Some(group), Some(PlaceCuts { of_places, .. })) => {
                    let parts = of_places.iter().map(|cut| part_of(cut, &leaf.detach())).collect();
                    (group.all_gather(&sent)?.view(-1), parts)
                }
                _ => continue,
            };
            for (place, part) in parts.iter().enumerate() {
                let got = digest(&part.contiguous().view(-1))?.cast_signed();
                others_match &= got == expected.int64_value(&[place as i64]);
            }
        }
        Ok(matches_shards && others_match)
    }

    /// Whether `whole` is what the ranks hold, by the `digest` of each one's shard.
    fn equals_shards<E: From<RankError>>(
        &self,
        whole: &Tensor,
        ranks: &MeshRanks,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<bool, E> {
        let held = self.shard.in_place().map_err(RankError::from)?;
        let sent = no_grad(|| held.detach().to_kind(whole.kind()));
        let device = self.shard().device();
        let own = Tensor::from_slice(&[digest(&sent)?.cast_signed()]).to_device(device);
        let all = Tensor::zeros([ranks.dp_shard() as i64], (Kind::Int64, device));
        ranks.all_gather(&all, &own)?.wait().map_err(RankError::from)?;
        for shard in 0..ranks.dp_shard() {
            let Range { start, end } = self.layout.range(shard);
            let gathered = digest(&whole.narrow(0, start as i64, (end - start) as i64))?;
            if gathered.cast_signed() != all.int64_value(&[shard as i64]) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn begin_gradient(&self) {
        let whole = match self.is_whole() {
            true => self.gradient_shard(),
            false => Tensor::zeros([self.layout.padded_len() as i64], self.dtype()),
        };
        for Parameter { leaf, place, .. } in &self.parameters {
            rlt_torch::set_grad(leaf, Some(&place.in_whole(&whole)));
        }
        self.gradients.borrow_mut().whole = Some(whole);
    }

    /// The whole gradient, `[padded_len]`, which the leaves lose; `None` where it is this rank's own.
    pub(super) fn take_gradient(&self) -> Option<Tensor> {
        let whole = self.gradients.borrow_mut().whole.take()?;
        self.parameters.iter().for_each(|parameter| rlt_torch::set_grad(&parameter.leaf, None));
        (!self.is_whole()).then_some(whole)
    }

    /// Adds `[shard_len]` to this rank's gradient.
    pub(super) fn add_to_gradient(&self, own: &Tensor) {
        let mut gradients = self.gradients.borrow_mut();
        match &mut gradients.shard {
            Some(shard) => no_grad(|| drop(shard.g_add_(own))),
            None => gradients.shard = Some(own.shallow_clone()),
        }
    }

    /// This rank's gradient, `[shard_len]`; zeros where no pass has made one.
    pub(super) fn gradient_shard(&self) -> Tensor {
        let mut gradients = self.gradients.borrow_mut();
        gradients.shard.get_or_insert_with(|| self.shard().zeros_like()).shallow_clone()
    }

    /// Makes the gradient that of the pieces.
    pub(super) fn hand_over_gradient(&self) {
        let gradient = self.gradient_shard();
        for Parameter { place, piece, .. } in &self.parameters {
            rlt_torch::set_grad(piece, Some(&place.in_shard(&gradient, &self.own)));
        }
    }

    pub(super) fn clear_gradient(&self) {
        *self.gradients.borrow_mut() = Gradients::default();
    }

    /// See [`super::ShardedParameters::gather`].
    pub(super) fn gather(
        &self,
        ranks: &MeshRanks,
        mut piece_of: impl FnMut(&str) -> Option<Tensor>,
    ) -> Result<Vec<(String, Tensor)>, RankError> {
        let shard = Tensor::zeros([self.layout.shard_len() as i64], self.dtype());
        for Parameter { name, place, .. } in &self.parameters {
            if let Some(piece) = piece_of(name) {
                no_grad(|| place.in_shard(&shard, &self.own).copy_(&piece.detach()));
            }
        }
        self.gather_shards(ranks, &shard)
    }

    /// The parameters themselves, whole and by name, in memory of their own.
    pub(super) fn gather_parameters(&self, ranks: &MeshRanks) -> Result<Vec<(String, Tensor)>, RankError> {
        self.gather_shards(ranks, &self.shard.values()?)
    }

    /// See [`super::ShardedParameters::gather_verified`].
    pub(super) fn gather_verified<E: From<RankError>>(
        &self,
        ranks: &MeshRanks,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<(NamedTensors, bool), E> {
        let values = self.shard.values().map_err(RankError::from)?;
        let whole = self.gather_whole(ranks, &values)?;
        let matches_shards = self.equals_shards(&whole, self.own_ranks(ranks), digest)?;
        Ok((self.parameters_in(&whole, ranks)?, matches_shards))
    }

    fn gather_shards(&self, ranks: &MeshRanks, shard: &Tensor) -> Result<NamedTensors, RankError> {
        self.parameters_in(&self.gather_whole(ranks, shard)?, ranks)
    }

    fn gather_whole(&self, ranks: &MeshRanks, shard: &Tensor) -> Result<Tensor, RankError> {
        let whole = Tensor::empty([self.layout.padded_len() as i64], self.dtype());
        self.own_ranks(ranks).all_gather(&whole, shard)?.wait()?;
        Ok(whole)
    }

    /// This rank's gradients of the parameters that `is_wanted`, `[len]` each, as views.
    pub(super) fn gradients_of(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<Tensor> {
        let gradient = self.gradient_shard();
        let wanted = self.own_parameters().filter(|parameter| is_wanted(&parameter.name));
        wanted.map(|Parameter { place, .. }| place.in_shard(&gradient, &self.own)).collect()
    }

    /// The parameters in a buffer, with what other ranks have of experts and of weights that are cut.
    fn parameters_in(&self, whole: &Tensor, ranks: &MeshRanks) -> Result<NamedTensors, RankError> {
        let one = |Parameter { name, place, .. }: &Parameter| {
            Ok((name.clone(), self.with_others(&place.in_whole(whole), place, ranks)?))
        };
        self.parameters.iter().map(one).collect()
    }

    fn dtype(&self) -> (Kind, Device) {
        (self.shard().kind(), self.shard().device())
    }
}

impl Parameter {
    /// Takes a leaf, which becomes a view of the whole, and copies this rank's part of its values to its
    /// `piece`.
    fn new((name, mut leaf): (String, Tensor), place: Place, piece: Tensor, view: &Tensor) -> Self {
        place.copy_piece(&name, &leaf, &piece);
        no_grad(|| leaf.set_data(view));
        let piece = piece.detach().set_requires_grad(leaf.requires_grad());
        Self { name, leaf, place, piece }
    }
}
