//! A decoder's parameters in shards: each rank of a replica holds a part of every layer, and the whole of a
//! layer exists only while it is computed with.
//!
//! ```text
//! at rest      shard [n / dp_shard] on each rank; gradient and optimizer moments are as long
//! begin(part)  whole <- all-gather of the shards, while another layer computes
//! need(part)   the parameters, views of the whole, can be read
//! release      the whole is freed
//! backward     gradients add up in a whole buffer -> reduce-scatter -> gradient shard
//! ```
//! Where parameters rest (`training.offload`), a shard at rest is away from the device too: a part comes from
//! there, and for an update this rank's pieces do, one buffer after the other; whoever only reads them does
//! so where they rest. A rank that is alone with its copy has shards of one as well.
//!
//! A part is what comes at once: a layer, or all that is outside of layers. Its frozen parameters come and go
//! like those that are trained, but have no gradient. When parts come and go is the business of whoever
//! schedules (`actor`); all ranks follow one schedule, for every line of it is an exchange.

mod flat;
mod own;
mod place;
mod values;
mod whole;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use rlt_torch::collectives::Pending;
use rlt_torch::{RestingPlace, TensorFile};
use tch::{Kind, Tensor};

use self::flat::Flat;
pub use self::whole::Numbers;
use super::{MeshRanks, RankError};
use crate::model::{Decoder, NamedTensors};

/// What is gathered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Embedding, final norm and head.
    Outer,
    /// A decoder layer.
    Layer(usize),
}

impl Part {
    /// The number of the layer that it is; `None` for what is outside of the layers.
    pub fn layer_idx(self) -> Option<usize> {
        match self {
            Self::Outer => None,
            Self::Layer(layer_idx) => Some(layer_idx),
        }
    }
}

/// The parameters of one part: matrices, which travel in the numbers that layers compute with, and vectors,
/// such as a norm's weights, of which layers make exact use. Where those are the same numbers all are one.
#[derive(Debug)]
struct Unit {
    trained: Vec<Flat>,
    /// Several roles may compute with the same frozen parameters.
    frozen: Vec<Rc<Flat>>,
}

impl Unit {
    /// Takes parameters of which layers make `compute`, to rest in `place` where there is one.
    fn new(
        parameters: NamedTensors,
        ranks: &MeshRanks,
        compute: Kind,
        mut place: Option<&mut RestingPlace>,
    ) -> Result<Self, RankError> {
        let mut flats = |parameters: NamedTensors| -> Result<Vec<Flat>, RankError> {
            let is_computed = |tensor: &Tensor| tensor.dim() > 1 || tensor.kind() == compute;
            let (matrices, vectors): (NamedTensors, NamedTensors) =
                parameters.into_iter().partition(|(_, tensor)| is_computed(tensor));
            let exact = vectors.first().map_or(compute, |(_, vector)| vector.kind());
            let matrices = Flat::new(matrices, ranks, compute, place.as_deref_mut())?;
            let vectors = Flat::new(vectors, ranks, exact, place.as_deref_mut())?;
            Ok(matrices.into_iter().chain(vectors).collect())
        };
        let (trained, frozen) = parameters.into_iter().partition(|(_, leaf)| leaf.requires_grad());
        Ok(Self { trained: flats(trained)?, frozen: flats(frozen)?.into_iter().map(Rc::new).collect() })
    }

    fn flats(&self) -> impl Iterator<Item = &Flat> {
        self.frozen.iter().map(Rc::as_ref).chain(&self.trained)
    }
}

/// A sum of gradients on its way to the ranks whose shard it belongs to.
#[derive(Debug)]
struct Scattering {
    part: Part,
    /// Which of the part's trained buffers.
    flat_idx: usize,
    /// This rank's part of it, `[n / dp_shard]`.
    own: Tensor,
    pending: Pending,
}

/// Parameters of layers, first to last, and of what is outside of them.
pub(crate) type PartedTensors = (Vec<NamedTensors>, NamedTensors);

/// All parameters of a role, in shards.
#[derive(Debug)]
pub struct ShardedParameters {
    layers: Vec<Unit>,
    outer: Unit,
    ranks: Rc<MeshRanks>,
    /// Numbers that layers compute with.
    compute: Kind,
    /// The file that shards of a frozen model lie in.
    resting_place: Option<TensorFile>,
    /// One at a time, so that no more than one layer's gradient waits beside the one that is computed.
    scattering: RefCell<Option<Scattering>>,
}

impl ShardedParameters {
    /// Takes the parameters of `decoder`, which lose their memory: from now on they can be read where a part
    /// is whole. With a folder shards rest away from the device, on the CPU in a nameless file there.
    ///
    /// # Errors
    /// [`RankError::Shards`] when there is not enough memory, or the file cannot be written.
    pub fn new(decoder: &Decoder, ranks: Rc<MeshRanks>, rest_in: Option<&Path>) -> Result<Self, RankError> {
        Self::of_parts(decoder.parameters_by_layer(), ranks, decoder.compute_kind(), rest_in)
    }

    /// The same of any parameters by part, of which layers make `compute`.
    pub(crate) fn of_parts(
        (layers, outer): PartedTensors,
        ranks: Rc<MeshRanks>,
        compute: Kind,
        rest_in: Option<&Path>,
    ) -> Result<Self, RankError> {
        let device = layers.iter().flatten().chain(&outer).map(|(_, leaf)| leaf.device()).next();
        let place = rest_in.zip(device).map(|(folder, device)| RestingPlace::new(folder, device));
        let mut place = place.transpose()?;
        let mut unit = |parameters: NamedTensors| Unit::new(parameters, &ranks, compute, place.as_mut());
        let (layers, outer) = (layers.into_iter().map(&mut unit).collect::<Result<_, _>>()?, unit(outer)?);
        Ok(Self { layers, outer, ranks, compute, resting_place: None, scattering: RefCell::new(None) })
    }

    /// Trained parameters of another role on the frozen ones of `base`, which are its very shards.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn beside(
        base: &Self,
        trained: PartedTensors,
        rest_in: Option<&Path>,
    ) -> Result<Self, RankError> {
        let mut own = Self::of_parts(trained, base.ranks(), base.compute, rest_in)?;
        for (own, base) in own.layers.iter_mut().zip(&base.layers).chain([(&mut own.outer, &base.outer)]) {
            own.frozen = base.frozen.clone();
        }
        Ok(own)
    }

    /// Numbers that layers compute with.
    pub(crate) fn compute_kind(&self) -> Kind {
        self.compute
    }

    /// The ranks that share the parameters.
    pub(crate) fn ranks(&self) -> Rc<MeshRanks> {
        Rc::clone(&self.ranks)
    }

    /// Every part, in the order in which a pass needs them.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        std::iter::once(Part::Outer).chain((0..self.layers.len()).map(Part::Layer))
    }

    /// What the optimizer updates: this rank's piece of every trained parameter, `[len]`, which may be empty,
    /// under the parameter's name.
    pub fn pieces(&self) -> Vec<(String, Tensor)> {
        self.trained().flat_map(Flat::pieces).collect()
    }

    /// Bytes that parameters and gradients take on this rank now.
    pub fn num_bytes(&self) -> usize {
        self.parts().flat_map(|part| self.unit(part).flats()).map(Flat::num_bytes).sum()
    }

    /// Lets `read` see every part while it is whole, in `numbers`, in the order of [`Self::parts`]; the next
    /// one sets out meanwhile. All ranks do so together.
    ///
    /// # Errors
    /// What `read` fails with, or [`RankError`] when a rank is lost or memory is short.
    pub fn visit<E: From<RankError>>(
        &self,
        numbers: Numbers,
        mut read: impl FnMut(Part) -> Result<(), E>,
    ) -> Result<(), E> {
        let parts: Vec<Part> = self.parts().collect();
        for (idx, part) in parts.iter().enumerate() {
            self.need_in(*part, numbers)?;
            parts.get(idx + 1).map_or(Ok(()), |next| self.begin_in(*next, numbers))?;
            read(*part)?;
            self.release(*part)?;
        }
        Ok(())
    }

    /// Whether a part, which is whole here, is what the ranks of this copy hold, by the `digest` of each
    /// one's shard. All ranks ask together.
    ///
    /// # Errors
    /// What `digest` fails with, or [`RankError`] when a rank is lost.
    pub(crate) fn is_as_held<E: From<RankError>>(
        &self,
        part: Part,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<bool, E> {
        let mut is_as_held = true;
        for flat in self.unit(part).flats() {
            is_as_held &= flat.is_as_held(&self.ranks, &digest)?;
        }
        Ok(is_as_held)
    }

    /// Starts to gather a part that is not whole.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn begin(&self, part: Part) -> Result<(), RankError> {
        self.begin_in(part, Numbers::Computed)
    }

    /// Returns when a part is whole, for layers to compute with.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn need(&self, part: Part) -> Result<(), RankError> {
        self.need_in(part, Numbers::Computed)
    }

    /// Returns when a part is whole, in the very numbers that shards hold.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn need_exact(&self, part: Part) -> Result<(), RankError> {
        self.need_in(part, Numbers::Exact)
    }

    fn begin_in(&self, part: Part, numbers: Numbers) -> Result<(), RankError> {
        self.unit(part).flats().try_for_each(|flat| flat.begin(&self.ranks, numbers))
    }

    fn need_in(&self, part: Part, numbers: Numbers) -> Result<(), RankError> {
        self.begin_in(part, numbers)?;
        self.unit(part).flats().try_for_each(Flat::need)
    }

    /// Frees a part.
    ///
    /// # Errors
    /// [`RankError::Shards`] when libtorch cannot.
    pub fn release(&self, part: Part) -> Result<(), RankError> {
        self.unit(part).flats().try_for_each(Flat::release)
    }

    /// Gives the trained parameters of a part gradients of zero, for a backward pass to add to.
    pub fn begin_gradient(&self, part: Part) {
        self.unit(part).trained.iter().for_each(Flat::begin_gradient);
    }

    /// Sends a part's gradients to the ranks whose shard they belong to.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn end_gradient(&self, part: Part) -> Result<(), RankError> {
        for (flat_idx, flat) in self.unit(part).trained.iter().enumerate() {
            let Some(gradient) = flat.take_gradient() else { continue };
            self.settle()?;
            let own = flat.shard().zeros_like();
            let pending = self.ranks.reduce_scatter(&own, &gradient)?;
            self.scattering.replace(Some(Scattering { part, flat_idx, own, pending }));
        }
        Ok(())
    }

    /// Waits for all gradients and adds up those of all copies: the pieces' gradients are then those of all
    /// ranks.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn finish_gradients(&self) -> Result<(), RankError> {
        self.settle()?;
        let gradients: Vec<Tensor> = self.trained().map(Flat::gradient_shard).collect();
        self.ranks.sum_over_copies(&gradients)?;
        self.trained().for_each(Flat::hand_over_gradient);
        Ok(())
    }

    /// Frees the gradients, after the optimizer has let go of those of the pieces.
    pub fn clear_gradients(&self) {
        self.trained().for_each(Flat::clear_gradient);
    }

    /// The norm of what is spread over the replica, from the norm of each rank's part: the same bits on all
    /// ranks.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn norm_over_shards(&self, own_norm: f64) -> Result<f64, RankError> {
        Ok(self.ranks.sum_in_replica(own_norm * own_norm)?.sqrt())
    }

    /// Lets `change` read and write this rank's pieces of the trained parameters, those of one buffer after
    /// the other; it is told which are here.
    ///
    /// # Errors
    /// What `change` fails with, or when pieces that rest cannot be fetched or put back.
    pub(crate) fn change<E: From<rlt_torch::Error>>(
        &self,
        mut change: impl FnMut(&dyn Fn(&str) -> bool) -> Result<(), E>,
    ) -> Result<(), E> {
        self.trained().try_for_each(|flat| flat.change(|| change(&|name| flat.place_of(name).is_some())))
    }

    /// The trained parameters of a part, whole and by name, in memory of their own.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost, or what rests cannot be fetched.
    pub(crate) fn gather_parameters(&self, part: Part) -> Result<NamedTensors, RankError> {
        let mut whole = NamedTensors::new();
        for flat in &self.unit(part).trained {
            whole.extend(flat.gather_parameters(&self.ranks)?);
        }
        Ok(whole)
    }

    /// One tensor for each trained parameter of a part, whole and by name, from this rank's pieces of them,
    /// `[len]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn gather(
        &self,
        part: Part,
        mut piece_of: impl FnMut(&str) -> Option<Tensor>,
    ) -> Result<NamedTensors, RankError> {
        let mut whole = NamedTensors::new();
        for flat in &self.unit(part).trained {
            whole.extend(flat.gather(&self.ranks, &mut piece_of)?);
        }
        Ok(whole)
    }

    fn trained(&self) -> impl Iterator<Item = &Flat> {
        self.parts().flat_map(move |part| &self.unit(part).trained)
    }

    fn unit(&self, part: Part) -> &Unit {
        match part {
            Part::Outer => &self.outer,
            Part::Layer(layer_idx) => &self.layers[layer_idx],
        }
    }

    /// Adds what was under way to the gradient shard that it belongs to.
    fn settle(&self) -> Result<(), RankError> {
        if let Some(Scattering { part, flat_idx, own, pending }) = self.scattering.take() {
            pending.wait()?;
            self.unit(part).trained[flat_idx].add_to_gradient(&own);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
