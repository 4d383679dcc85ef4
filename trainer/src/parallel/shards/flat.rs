//! Parameters of one part as one flat buffer, of which this rank keeps a shard.
//!
//! ```text
//! parameters   |  a  |    b    | c |        each a view of the whole, wherever its memory is
//! whole        [.....|.........|...]pad
//! shards       [   0   |   1   |   2   ]    all of one length; a piece is what of a parameter lies in a shard
//! ```
//! A rank that is alone with its copy has one shard, the whole itself: it keeps it where that rests, and its gradients add up
//! where they stay. Parameters then begin where memory is read fastest, so that products are those of tensors of their own.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use rlt_api::plan::READ_CHUNK_NUMBERS;
use rlt_core::excerpt::Excerpt;
use rlt_core::mesh::Shards;
use rlt_torch::collectives::Pending;
use rlt_torch::{Coming, FlatBuffer, RestingPlace};
use tch::{Device, Kind, Tensor, no_grad};

use super::own::OwnShard;
use crate::parallel::{MeshRanks, RankError};

/// Bytes between places where memory is read fastest.
const CACHE_LINE: usize = 64;

/// Parameters of one dtype in one buffer, all trained or all frozen.
#[derive(Debug)]
pub(super) struct Flat {
    parameters: Vec<Parameter>,
    layout: Shards,
    /// Where this rank's part lies in the whole.
    own: Range<usize>,
    /// This rank's part, `[shard_len]`; what is nobody's is zero.
    shard: OwnShard,
    whole: FlatBuffer,
    presence: RefCell<Presence>,
    /// Whether the whole stays for whoever reads all of the model.
    is_held: Cell<bool>,
    gradients: RefCell<Gradients>,
}

/// Where the whole is.
#[derive(Debug)]
enum Presence {
    Away,
    Coming(Arrival),
    Here,
}

/// How the whole comes.
#[derive(Debug)]
enum Arrival {
    /// From the shards of all ranks.
    Gathered(Pending),
    /// From where it rests.
    Fetched(Coming),
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
    /// The part of the shard that is this parameter's, `[len]`: a leaf of its own, which the optimizer updates.
    piece: Tensor,
}

/// A parameter's place in the buffer, and what of it lies in this rank's shard.
#[derive(Clone, Debug)]
pub(super) struct Place {
    range: Range<usize>,
    size: Vec<i64>,
    part: Range<usize>,
}

impl Place {
    /// What of the parameter lies in the shard.
    pub(super) fn excerpt<'a>(&'a self, name: &'a str) -> Excerpt<'a> {
        // A part that is empty may lie beyond the parameter's end.
        let start = self.part.start.saturating_sub(self.range.start).min(self.range.len());
        Excerpt { name, shape: &self.size, range: start..start + self.part.len() }
    }
}

/// Copies an excerpt of the whole tensor over `values`, `[len]`. Of a tensor whose numbers do not lie in order, such as one that
/// has a single number for all, a chunk is laid out at a time.
pub(super) fn copy_excerpt(excerpt: &Excerpt<'_>, whole: &Tensor, values: &Tensor) {
    let whole = if whole.dim() == 0 { whole.detach().view(1) } else { whole.detach() };
    let chunks = excerpt.chunks(READ_CHUNK_NUMBERS as usize);
    no_grad(|| {
        chunks.for_each(|chunk| {
            let (rows, place) = (chunk.rows(), chunk.place_in_rows());
            let rows = whole.narrow(0, rows.start as i64, rows.len() as i64).contiguous().view(-1);
            let start = (chunk.range.start - excerpt.range.start) as i64;
            let len = place.len() as i64;
            values.narrow(0, start, len).copy_(&rows.narrow(0, place.start as i64, len));
        });
    });
}

impl Flat {
    /// Takes the named leaves, all of one dtype; `None` without any. The shard rests in `place` where there is one.
    pub(super) fn new(
        leaves: Vec<(String, Tensor)>,
        ranks: &MeshRanks,
        place: Option<&mut RestingPlace>,
    ) -> Result<Option<Self>, RankError> {
        let Some((_, first)) = leaves.first() else { return Ok(None) };
        let numbers = (first.kind(), first.device());
        let ranges = ranges(&leaves, ranks);
        let layout = Shards::new(ranges.last().map_or(0, |last| last.end), ranks.dp_shard());
        let own = layout.range(ranks.shard());
        let whole = FlatBuffer::new(layout.padded_len(), numbers)?;
        let shard = FlatBuffer::new(layout.shard_len(), numbers)?;
        let _ = shard.tensor().shallow_clone().zero_();
        let parameters = leaves.into_iter().zip(ranges).map(|((name, mut leaf), range)| {
            let place = Place { part: layout.part_of(&range, ranks.shard()), size: leaf.size(), range };
            let piece = no_grad(|| {
                let piece = narrow(shard.tensor(), &own, &place);
                copy_excerpt(&place.excerpt(&name), &leaf, &piece);
                leaf.set_data(&whole.view(place.range.start, &place.size));
                piece
            });
            let piece = piece.detach().set_requires_grad(leaf.requires_grad());
            Parameter { name, leaf, place, piece }
        });
        let parameters = parameters.collect();
        whole.release()?;
        let shard = OwnShard::new(shard, place)?;
        let (presence, is_held) = (RefCell::new(Presence::Away), Cell::new(false));
        Ok(Some(Self {
            parameters,
            layout,
            own,
            shard,
            whole,
            presence,
            is_held,
            gradients: RefCell::default(),
        }))
    }

    /// This rank's part, whose values can be read unless they rest.
    pub(super) fn shard(&self) -> &Tensor {
        self.shard.tensor()
    }

    pub(super) fn is_resting(&self) -> bool {
        self.shard.resting().is_some()
    }

    /// Whether this rank's part is all there is.
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

    /// Lets `fill` write the pieces that lie in this rank's shard.
    pub(super) fn fill<E: From<rlt_torch::Error>>(
        &self,
        fill: &mut impl FnMut(&Excerpt<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut own = self.parameters.iter().filter(|parameter| !parameter.place.part.is_empty());
        self.change(|| {
            own.try_for_each(|Parameter { name, place, piece, .. }| {
                fill(&place.excerpt(name), &piece.detach())
            })
        })
    }

    /// Lets the shard of frozen parameters be `shard`, which holds the same numbers elsewhere.
    pub(super) fn lie_in(&mut self, shard: Tensor) {
        for Parameter { place, piece, .. } in &mut self.parameters {
            *piece = narrow(&shard, &self.own, place);
        }
        self.shard = OwnShard::Here(shard);
    }

    /// The decoder's own tensor of this name, to be read while the part is whole.
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
        let whole = match *self.presence.borrow() {
            Presence::Away => 0,
            Presence::Coming(_) | Presence::Here => self.layout.padded_len(),
        };
        let gradient = |tensor: &Option<Tensor>| tensor.as_ref().map_or(0, Tensor::numel);
        let shard = if self.is_resting() { 0 } else { self.shard().numel() };
        let numbers = shard + whole + gradient(&gradients.whole) + gradient(&gradients.shard);
        numbers * self.shard().kind().elt_size_in_bytes()
    }

    pub(super) fn begin(&self, ranks: &MeshRanks) -> Result<(), RankError> {
        let mut presence = self.presence.borrow_mut();
        if matches!(*presence, Presence::Away) {
            self.whole.take()?;
            *presence = Presence::Coming(self.depart(ranks)?);
        }
        Ok(())
    }

    fn depart(&self, ranks: &MeshRanks) -> Result<Arrival, RankError> {
        let whole = self.whole.tensor();
        Ok(match self.shard.resting().filter(|_| self.is_whole()) {
            Some(resting) => Arrival::Fetched(resting.depart(whole)?),
            None => Arrival::Gathered(ranks.all_gather(whole, &self.shard.values()?)?),
        })
    }

    pub(super) fn need(&self) -> Result<(), RankError> {
        match self.presence.replace(Presence::Here) {
            Presence::Coming(Arrival::Gathered(pending)) => pending.wait()?,
            Presence::Coming(Arrival::Fetched(coming)) => drop(coming.arrive()?),
            Presence::Away | Presence::Here => {}
        }
        Ok(())
    }

    /// Keeps the whole from the next [`Self::need`] on, or lets [`Self::release`] free it again.
    pub(super) fn set_held(&self, is_held: bool) {
        self.is_held.set(is_held);
    }

    pub(super) fn release(&self) -> Result<(), RankError> {
        if self.is_held.get() {
            return Ok(());
        }
        if let Presence::Coming(Arrival::Gathered(pending)) = self.presence.replace(Presence::Away) {
            pending.wait()?;
        }
        Ok(self.whole.release()?)
    }

    pub(super) fn begin_gradient(&self) {
        let whole = match self.is_whole() {
            true => self.gradient_shard(),
            false => Tensor::zeros([self.layout.padded_len() as i64], self.numbers()),
        };
        for Parameter { leaf, place: Place { range, size, .. }, .. } in &self.parameters {
            let view = whole.narrow(0, range.start as i64, range.len() as i64).view(size.as_slice());
            rlt_torch::set_grad(leaf, Some(&view));
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
            rlt_torch::set_grad(piece, Some(&narrow(&gradient, &self.own, place)));
        }
    }

    pub(super) fn clear_gradient(&self) {
        *self.gradients.borrow_mut() = Gradients::default();
    }

    /// See [`super::ShardedParameters::gather`].
    pub(super) fn gather(
        &self,
        ranks: &MeshRanks,
        piece_of: impl Fn(&str) -> Option<Tensor>,
    ) -> Result<Vec<(String, Tensor)>, RankError> {
        let shard = Tensor::zeros([self.layout.shard_len() as i64], self.numbers());
        for Parameter { name, place, .. } in &self.parameters {
            if let Some(piece) = piece_of(name) {
                no_grad(|| narrow(&shard, &self.own, place).copy_(&piece.detach()));
            }
        }
        self.gather_shards(ranks, &shard)
    }

    /// The parameters themselves, whole and by name, in memory of their own.
    pub(super) fn gather_parameters(&self, ranks: &MeshRanks) -> Result<Vec<(String, Tensor)>, RankError> {
        self.gather_shards(ranks, &self.shard.values()?)
    }

    fn gather_shards(&self, ranks: &MeshRanks, shard: &Tensor) -> Result<Vec<(String, Tensor)>, RankError> {
        let whole = Tensor::empty([self.layout.padded_len() as i64], self.numbers());
        ranks.all_gather(&whole, shard)?.wait()?;
        let one = |Parameter { name, place: Place { range, size, .. }, .. }: &Parameter| {
            let view = whole.narrow(0, range.start as i64, range.len() as i64);
            (name.clone(), view.view(size.as_slice()))
        };
        Ok(self.parameters.iter().map(one).collect())
    }

    fn numbers(&self) -> (Kind, Device) {
        (self.shard().kind(), self.shard().device())
    }
}

/// Where each leaf lies in the whole: one behind the other, or from a cache line on.
fn ranges(leaves: &[(String, Tensor)], ranks: &MeshRanks) -> Vec<Range<usize>> {
    let mut end = 0_usize;
    let range = |(_, leaf): &(String, Tensor)| {
        let step = if ranks.dp_shard() == 1 { CACHE_LINE / leaf.kind().elt_size_in_bytes() } else { 1 };
        let start = end.next_multiple_of(step);
        end = start + leaf.numel();
        start..end
    };
    leaves.iter().map(range).collect()
}

/// What of a shard that lies at `own` is a parameter's, `[len]`.
fn narrow(shard: &Tensor, own: &Range<usize>, place: &Place) -> Tensor {
    shard.narrow(0, (place.part.start - own.start) as i64, place.part.len() as i64)
}
