//! Parameters of one part as one flat buffer, of which this rank keeps a shard.
//!
//! ```text
//! parameters   |  a  |    b    | c |        each a view of the whole, wherever its memory is
//! whole        [.....|.........|...]pad
//! shards       [   0   |   1   |   2   ]    all of one length; a piece is what of a parameter lies in a shard
//! ```
//! The whole is there in the numbers that layers compute with, which are what travels, or exactly as shards hold it. Gradients
//! are always as exact as shards.

use std::cell::RefCell;
use std::ops::Range;

use rlt_api::plan::READ_CHUNK_NUMBERS;
use rlt_core::excerpt::Excerpt;
use rlt_core::mesh::Shards;
use rlt_torch::FlatBuffer;
use rlt_torch::collectives::Pending;
use tch::{Device, Kind, Tensor, no_grad};

use crate::parallel::{MeshRanks, RankError};

/// Parameters of one dtype in one buffer, all trained or all frozen.
#[derive(Debug)]
pub(super) struct Flat {
    parameters: Vec<Parameter>,
    layout: Shards,
    /// Where this rank's part lies in the whole.
    own: Range<usize>,
    /// This rank's part, `[shard_len]`; what pads the last one is zero.
    shard: Tensor,
    exact: Whole,
    /// `None` where layers compute with what shards hold.
    computed: Option<Whole>,
    presence: RefCell<Presence>,
    gradients: RefCell<Gradients>,
}

/// In which numbers a whole is wanted; the later covers the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Numbers {
    /// As layers compute with them.
    Computed,
    /// As shards hold them.
    Exact,
}

/// Memory for all parameters, which comes and goes.
#[derive(Debug)]
struct Whole {
    buffer: FlatBuffer,
    /// Of each parameter.
    views: Vec<Tensor>,
}

impl Whole {
    /// Without memory until it is taken.
    fn new(layout: Shards, places: &[Place], numbers: (Kind, Device)) -> Result<Self, rlt_torch::Error> {
        let buffer = FlatBuffer::new(layout.padded_len(), numbers)?;
        let views = places.iter().map(|place| buffer.view(place.range.start, &place.size)).collect();
        buffer.release()?;
        Ok(Self { buffer, views })
    }
}

/// Where the whole is.
#[derive(Debug)]
enum Presence {
    Away,
    Coming(Numbers, Pending),
    Here(Numbers),
}

impl Presence {
    /// What it is there in, or will be.
    fn numbers(&self) -> Option<Numbers> {
        match self {
            Self::Away => None,
            Self::Coming(numbers, _) | Self::Here(numbers) => Some(*numbers),
        }
    }
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
    /// Takes the named leaves, all of one dtype, of which layers make `compute`; `None` without any.
    pub(super) fn new(
        leaves: Vec<(String, Tensor)>,
        ranks: &MeshRanks,
        compute: Kind,
    ) -> Result<Option<Self>, RankError> {
        let Some((_, first)) = leaves.first() else { return Ok(None) };
        let (kind, device) = (first.kind(), first.device());
        let layout = Shards::new(leaves.iter().map(|(_, leaf)| leaf.numel()).sum(), ranks.dp_shard());
        let own = layout.range(ranks.shard());
        let places = places(&leaves, layout, ranks.shard());
        let exact = Whole::new(layout, &places, (kind, device))?;
        let computed =
            (kind != compute).then(|| Whole::new(layout, &places, (compute, device))).transpose()?;
        let shard = Tensor::zeros([layout.shard_len() as i64], (kind, device));
        let parameter = |(((name, mut leaf), place), view): (((String, Tensor), Place), &Tensor)| {
            let piece = no_grad(|| {
                let piece = narrow(&shard, &own, &place);
                copy_excerpt(&place.excerpt(&name), &leaf, &piece);
                leaf.set_data(view);
                piece
            });
            let piece = piece.detach().set_requires_grad(leaf.requires_grad());
            Parameter { name, leaf, place, piece }
        };
        let parameters = leaves.into_iter().zip(places).zip(&exact.views).map(parameter).collect();
        let presence = RefCell::new(Presence::Away);
        Ok(Some(Self {
            parameters,
            layout,
            own,
            shard,
            exact,
            computed,
            presence,
            gradients: RefCell::default(),
        }))
    }

    pub(super) fn shard(&self) -> &Tensor {
        &self.shard
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = (String, Tensor)> {
        self.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.piece.shallow_clone()))
    }

    /// Lets `fill` write the pieces that lie in this rank's shard.
    pub(super) fn fill<E>(
        &self,
        fill: &mut impl FnMut(&Excerpt<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut own = self.parameters.iter().filter(|parameter| !parameter.place.part.is_empty());
        own.try_for_each(|Parameter { name, place, piece, .. }| fill(&place.excerpt(name), &piece.detach()))
    }

    /// Lets the shard of frozen parameters be `shard`, which holds the same numbers elsewhere.
    pub(super) fn lie_in(&mut self, shard: Tensor) {
        for Parameter { place, piece, .. } in &mut self.parameters {
            *piece = narrow(&shard, &self.own, place);
        }
        self.shard = shard;
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
        let gradient = |tensor: &Option<Tensor>| tensor.as_ref().map_or(0, Tensor::numel);
        let exact = self.shard.numel() + gradient(&gradients.whole) + gradient(&gradients.shard);
        let whole = self.presence.borrow().numbers().map_or(0, |numbers| {
            let tensor = self.whole(numbers).buffer.tensor();
            tensor.numel() * tensor.kind().elt_size_in_bytes()
        });
        exact * self.shard.kind().elt_size_in_bytes() + whole
    }

    fn whole(&self, numbers: Numbers) -> &Whole {
        self.computed.as_ref().filter(|_| numbers == Numbers::Computed).unwrap_or(&self.exact)
    }

    /// Starts to gather the whole, unless it is there in at least these numbers or on its way.
    pub(super) fn begin(&self, ranks: &MeshRanks, wanted: Numbers) -> Result<(), RankError> {
        let wanted = if self.computed.is_some() { wanted } else { Numbers::Exact };
        let present = self.presence.borrow().numbers();
        if present >= Some(wanted) {
            return Ok(());
        }
        self.release()?;
        let whole = self.whole(wanted);
        whole.buffer.take()?;
        if self.computed.is_some() {
            for (parameter, view) in self.parameters.iter().zip(&whole.views) {
                no_grad(|| parameter.leaf.shallow_clone().set_data(view));
            }
        }
        let gathered = whole.buffer.tensor();
        let shard = no_grad(|| self.shard.detach().to_kind(gathered.kind()));
        self.presence.replace(Presence::Coming(wanted, ranks.all_gather(gathered, &shard)?));
        Ok(())
    }

    pub(super) fn need(&self) -> Result<(), RankError> {
        let Some(numbers) = self.presence.borrow().numbers() else { return Ok(()) };
        if let Presence::Coming(_, pending) = self.presence.replace(Presence::Here(numbers)) {
            pending.wait()?;
        }
        Ok(())
    }

    pub(super) fn release(&self) -> Result<(), RankError> {
        self.need()?;
        match self.presence.replace(Presence::Away).numbers() {
            Some(numbers) => Ok(self.whole(numbers).buffer.release()?),
            None => Ok(()),
        }
    }

    /// See [`super::ShardedParameters::is_as_held`].
    pub(super) fn is_as_held<E: From<RankError>>(
        &self,
        ranks: &MeshRanks,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<bool, E> {
        let numbers = self.presence.borrow().numbers().unwrap_or(Numbers::Exact);
        let whole = self.whole(numbers).buffer.tensor();
        let sent = no_grad(|| self.shard.detach().to_kind(whole.kind()));
        let own = Tensor::from_slice(&[digest(&sent)?.cast_signed()]).to_device(sent.device());
        let all = Tensor::zeros([ranks.dp_shard() as i64], (Kind::Int64, self.shard.device()));
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
        let whole = Tensor::zeros([self.layout.padded_len() as i64], self.numbers());
        for Parameter { leaf, place: Place { range, size, .. }, .. } in &self.parameters {
            let view = whole.narrow(0, range.start as i64, range.len() as i64).view(size.as_slice());
            rlt_torch::set_grad(leaf, Some(&view));
        }
        self.gradients.borrow_mut().whole = Some(whole);
    }

    /// The whole gradient, `[padded_len]`, which the leaves lose.
    pub(super) fn take_gradient(&self) -> Option<Tensor> {
        let whole = self.gradients.borrow_mut().whole.take()?;
        self.parameters.iter().for_each(|parameter| rlt_torch::set_grad(&parameter.leaf, None));
        Some(whole)
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
        gradients.shard.get_or_insert_with(|| self.shard.zeros_like()).shallow_clone()
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
        let whole = Tensor::empty([self.layout.padded_len() as i64], self.numbers());
        ranks.all_gather(&whole, &shard)?.wait()?;
        let one = |Parameter { name, place: Place { range, size, .. }, .. }: &Parameter| {
            let view = whole.narrow(0, range.start as i64, range.len() as i64);
            (name.clone(), view.view(size.as_slice()))
        };
        Ok(self.parameters.iter().map(one).collect())
    }

    fn numbers(&self) -> (Kind, Device) {
        (self.shard.kind(), self.shard.device())
    }
}

/// Where leaves lie that follow each other in a buffer, and what of each is this rank's.
fn places(leaves: &[(String, Tensor)], layout: Shards, shard: usize) -> Vec<Place> {
    let mut start = 0;
    let place = |(_, leaf): &(String, Tensor)| {
        let range = start..start + leaf.numel();
        start = range.end;
        Place { part: layout.part_of(&range, shard), size: leaf.size(), range }
    };
    leaves.iter().map(place).collect()
}

/// What of a shard that lies at `own` is a parameter's, `[len]`.
fn narrow(shard: &Tensor, own: &Range<usize>, place: &Place) -> Tensor {
    shard.narrow(0, (place.part.start - own.start) as i64, place.part.len() as i64)
}
