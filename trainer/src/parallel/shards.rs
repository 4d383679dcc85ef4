//! A decoder's parameters in shards: each rank of a replica holds a part of every layer, and the whole of a layer exists
//! only while it is computed with.
//!
//! ```text
//! at rest      shard [n / dp_shard] on each rank; gradient and optimizer moments are as long
//! begin(part)  whole <- all-gather of the shards, while another layer computes
//! need(part)   the parameters, views of the whole, can be read
//! release      the whole is freed
//! backward     gradients add up in a whole buffer -> reduce-scatter -> gradient shard
//! ```
//! Where parameters rest (`training.offload`), a shard at rest is away from the device too: a part comes from there, and before
//! an update or a checkpoint this rank's pieces do, part by part. A rank that is alone with its copy has shards of one as well.
//!
//! A part is what comes at once: a layer, or all that is outside of layers. Its frozen parameters come and go like those
//! that are trained, but have no gradient. When parts come and go is the business of whoever schedules (`actor`); all ranks follow
//! one schedule, for every line of it is an exchange.

mod flat;
mod own;
mod values;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use rlt_torch::collectives::Pending;
use rlt_torch::{RestingPlace, TensorFile};
use tch::Tensor;

use self::flat::Flat;
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

/// The parameters of one part.
#[derive(Debug)]
struct Unit {
    trained: Option<Flat>,
    /// Several roles may compute with the same frozen parameters.
    frozen: Option<Rc<Flat>>,
}

impl Unit {
    fn flats(&self) -> impl Iterator<Item = &Flat> {
        self.frozen.as_deref().into_iter().chain(&self.trained)
    }
}

/// A sum of gradients on its way to the ranks whose shard it belongs to.
#[derive(Debug)]
struct Scattering {
    part: Part,
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
    /// The file that shards of a frozen model lie in.
    resting_place: Option<TensorFile>,
    /// One at a time, so that no more than one layer's gradient waits beside the one that is computed.
    scattering: RefCell<Option<Scattering>>,
}

impl ShardedParameters {
    /// Takes the parameters of `decoder`, which lose their memory: from now on they can be read where a part is whole. With a
    /// folder shards rest away from the device, on the CPU in a nameless file there.
    ///
    /// # Errors
    /// [`RankError::Shards`] when there is not enough memory, or the file cannot be written.
    pub fn new(decoder: &Decoder, ranks: Rc<MeshRanks>, rest_in: Option<&Path>) -> Result<Self, RankError> {
        Self::of_parts(decoder.parameters_by_layer(), ranks, rest_in)
    }

    /// The same of any parameters by part.
    pub(crate) fn of_parts(
        (layers, outer): PartedTensors,
        ranks: Rc<MeshRanks>,
        rest_in: Option<&Path>,
    ) -> Result<Self, RankError> {
        let device = layers.iter().flatten().chain(&outer).map(|(_, leaf)| leaf.device()).next();
        let place = rest_in.zip(device).map(|(folder, device)| RestingPlace::new(folder, device));
        let mut place = place.transpose()?;
        let mut unit = |parameters: NamedTensors| -> Result<Unit, RankError> {
            let (trained, frozen) = parameters.into_iter().partition(|(_, leaf)| leaf.requires_grad());
            let trained = Flat::new(trained, &ranks, place.as_mut())?;
            Ok(Unit { trained, frozen: Flat::new(frozen, &ranks, place.as_mut())?.map(Rc::new) })
        };
        let (layers, outer) = (layers.into_iter().map(&mut unit).collect::<Result<_, _>>()?, unit(outer)?);
        Ok(Self { layers, outer, ranks, resting_place: None, scattering: RefCell::new(None) })
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
        let mut own = Self::of_parts(trained, base.ranks(), rest_in)?;
        for (own, base) in own.layers.iter_mut().zip(&base.layers).chain([(&mut own.outer, &base.outer)]) {
            own.frozen = base.frozen.clone();
        }
        Ok(own)
    }

    /// The ranks that share the parameters.
    pub(crate) fn ranks(&self) -> Rc<MeshRanks> {
        Rc::clone(&self.ranks)
    }

    /// Every part, in the order in which a pass needs them.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        std::iter::once(Part::Outer).chain((0..self.layers.len()).map(Part::Layer))
    }

    /// What the optimizer updates: this rank's piece of every trained parameter, `[len]`, which may be empty, under the
    /// parameter's name.
    pub fn pieces(&self) -> Vec<(String, Tensor)> {
        self.parts().filter_map(|part| self.unit(part).trained.as_ref()).flat_map(Flat::pieces).collect()
    }

    /// Bytes that parameters and gradients take on this rank now.
    pub fn num_bytes(&self) -> usize {
        self.parts().flat_map(|part| self.unit(part).flats()).map(Flat::num_bytes).sum()
    }

    /// Makes every part whole and keeps it so: for what reads the model as one.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn hold(&self) -> Result<(), RankError> {
        self.parts().try_for_each(|part| self.need(part))?;
        self.set_held(true);
        Ok(())
    }

    /// Frees every part; from now on they come and go with the layers.
    ///
    /// # Errors
    /// [`RankError::Shards`] when libtorch cannot.
    pub fn let_go(&self) -> Result<(), RankError> {
        self.set_held(false);
        self.parts().try_for_each(|part| self.release(part))
    }

    fn set_held(&self, is_held: bool) {
        self.parts().flat_map(|part| self.unit(part).flats()).for_each(|flat| flat.set_held(is_held));
    }

    /// Starts to gather a part that is not whole.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn begin(&self, part: Part) -> Result<(), RankError> {
        self.unit(part).flats().try_for_each(|flat| flat.begin(&self.ranks))
    }

    /// Returns when a part is whole.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn need(&self, part: Part) -> Result<(), RankError> {
        self.begin(part)?;
        self.unit(part).flats().try_for_each(Flat::need)
    }

    /// Frees a part, unless all are held.
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
        let Some(flat) = &self.unit(part).trained else { return Ok(()) };
        let Some(gradient) = flat.take_gradient() else { return Ok(()) };
        self.settle()?;
        let own = flat.shard().zeros_like();
        let pending = self.ranks.reduce_scatter(&own, &gradient)?;
        self.scattering.replace(Some(Scattering { part, own, pending }));
        Ok(())
    }

    /// Waits for all gradients and adds up those of all copies: the pieces' gradients are then those of all ranks.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn finish_gradients(&self) -> Result<(), RankError> {
        self.settle()?;
        let trained = || self.parts().filter_map(|part| self.unit(part).trained.as_ref());
        let gradients: Vec<Tensor> = trained().map(Flat::gradient_shard).collect();
        self.ranks.sum_over_copies(&gradients)?;
        trained().for_each(Flat::hand_over_gradient);
        Ok(())
    }

    /// Frees the gradients, after the optimizer has let go of those of the pieces.
    pub fn clear_gradients(&self) {
        self.parts().filter_map(|part| self.unit(part).trained.as_ref()).for_each(Flat::clear_gradient);
    }

    /// The norm of what is spread over the replica, from the norm of each rank's part: the same bits on all ranks.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn norm_over_shards(&self, own_norm: f64) -> Result<f64, RankError> {
        Ok(self.ranks.sum_in_replica(own_norm * own_norm)?.sqrt())
    }

    /// Lets `change` read and write this rank's pieces of a part's trained parameters, which are here meanwhile.
    ///
    /// # Errors
    /// What `change` fails with, or when pieces that rest cannot be fetched or put back.
    pub(crate) fn change<E: From<rlt_torch::Error>>(
        &self,
        part: Part,
        change: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.unit(part).trained.as_ref().map_or(Ok(()), |flat| flat.change(change))
    }

    /// Whether a part trains a parameter of this name.
    pub(crate) fn trains(&self, part: Part, name: &str) -> bool {
        self.unit(part).trained.as_ref().is_some_and(|flat| flat.place_of(name).is_some())
    }

    /// The trained parameters of a part, whole and by name, in memory of their own.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost, or what rests cannot be fetched.
    pub(crate) fn gather_parameters(&self, part: Part) -> Result<NamedTensors, RankError> {
        let trained = &self.unit(part).trained;
        trained.as_ref().map_or(Ok(Vec::new()), |flat| flat.gather_parameters(&self.ranks))
    }

    /// One tensor for each trained parameter of a part, whole and by name, from this rank's pieces of them, `[len]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn gather(
        &self,
        part: Part,
        piece_of: impl Fn(&str) -> Option<Tensor>,
    ) -> Result<Vec<(String, Tensor)>, RankError> {
        let trained = &self.unit(part).trained;
        trained.as_ref().map_or(Ok(Vec::new()), |flat| flat.gather(&self.ranks, piece_of))
    }

    fn unit(&self, part: Part) -> &Unit {
        match part {
            Part::Outer => &self.outer,
            Part::Layer(layer_idx) => &self.layers[layer_idx],
        }
    }

    /// Adds what was under way to the gradient shard that it belongs to.
    fn settle(&self) -> Result<(), RankError> {
        if let Some(Scattering { part, own, pending }) = self.scattering.take() {
            pending.wait()?;
            self.unit(part).trained.iter().for_each(|flat| flat.add_to_gradient(&own));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
