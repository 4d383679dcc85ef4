//! The source of shards' values, and the storage of a frozen model's: each rank requests only its own pieces,
//! so that no rank ever loads the whole model. The meaning of values is not known here.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use rlt_core::tensor_shard::{CutShard, TensorShard};
use rlt_torch::TensorFile;
use tch::{Device, Tensor};

use super::flat::Flat;
use super::place::copy_tensor_shard;
use super::{FsdpUnit, ShardedParameters};
use crate::model::{Decoder, ModelError, NamedTensors, Weights};
use crate::parallel::RankError;

impl ShardedParameters {
    /// Lets `fill` write every piece that this rank has, `[len]`, from the whole tensor of which it is a
    /// shard: stretch by stretch where the tensor is cut.
    ///
    /// # Errors
    /// The error of `fill`, or when an offloaded piece cannot be fetched or put back.
    pub fn fill<E: From<rlt_torch::Error>>(
        &self,
        mut fill: impl FnMut(&TensorShard<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.units().try_for_each(|unit| self.fill_unit(unit, &mut fill))
    }

    /// The same of the trained parameters alone.
    ///
    /// # Errors
    /// As [`Self::fill`].
    pub(crate) fn fill_trained<E: From<rlt_torch::Error>>(
        &self,
        mut fill: impl FnMut(&TensorShard<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.trained().try_for_each(|flat| flat.fill(&mut fill))
    }

    /// Shows `see` every piece that this rank has, `[len]`, where it is: an offloaded one is on the host, and
    /// takes memory while it is read. It may be kept, but not beyond the next change of the parameters.
    ///
    /// # Errors
    /// The error of `see`, or when an offloaded piece cannot be read.
    pub(crate) fn show<E: From<RankError>>(
        &self,
        mut see: impl FnMut(&CutShard<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut flats = self.units().flat_map(|unit| self.held(unit).flats());
        flats.try_for_each(|flat| flat.show(&mut see))
    }

    /// The same of the trained parameters alone.
    ///
    /// # Errors
    /// As [`Self::show`].
    pub(crate) fn show_trained<E: From<RankError>>(
        &self,
        mut see: impl FnMut(&CutShard<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.trained().try_for_each(|flat| flat.show(&mut see))
    }

    /// Reads the weights of this rank's pieces of a model's parameters; an adapter is not changed.
    ///
    /// # Errors
    /// As [`Weights::fill`].
    pub fn read(&self, weights: &Weights) -> Result<(), ModelError> {
        self.fill(|tensor_shard, values| match weights.contains(tensor_shard.name) {
            true => weights.fill(tensor_shard, values),
            false => Ok(()),
        })
    }

    fn fill_unit<E: From<rlt_torch::Error>>(
        &self,
        unit: FsdpUnit,
        fill: &mut impl FnMut(&TensorShard<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.held(unit).flats().try_for_each(|flat| flat.fill(fill))
    }

    /// Lets `fill` write a moment for this rank's piece of the trained parameter `name`, `[len]`. An empty
    /// piece requests nothing.
    ///
    /// # Errors
    /// The error of `fill`.
    pub fn fill_beside<E>(
        &self,
        name: &str,
        values: &Tensor,
        mut fill: impl FnMut(&TensorShard<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        let shard = self.trained().find_map(|flat| flat.place_of(name)).map(|place| place.tensor_shard(name));
        let runs = shard.into_iter().flat_map(|shard| shard.runs()).filter(|(_, own)| !own.is_empty());
        runs.into_iter()
            .try_for_each(|(run, own)| fill(&run, &values.narrow(0, own.start as i64, own.len() as i64)))
    }

    /// Copies the values of another role's parameters, unit by unit: those with the names that `name_there`
    /// returns. Parameters that the other role does not have are not changed.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(crate) fn copy_from(&self, other: &Self, name_there: impl Fn(&str) -> &str) -> Result<(), RankError> {
        self.fill_beside_role(other, name_there, |tensor_shard, values, theirs| {
            copy_tensor_shard(tensor_shard, theirs, values);
            Ok(())
        })
    }

    /// Lets `fill` write every piece that this rank has, `[len]`, with the gathered tensor of another role of
    /// the name that `name_there` returns, in the master dtype, unit by unit. Parameters that the other role
    /// does not have are left out. Collective.
    ///
    /// # Errors
    /// The error of `fill`, or [`RankError`] when a rank is lost.
    pub(crate) fn fill_beside_role(
        &self,
        other: &Self,
        name_there: impl Fn(&str) -> &str,
        fill: impl Fn(&TensorShard<'_>, &Tensor, &Tensor) -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        self.units().try_for_each(|unit| {
            other.unshard_master(unit)?;
            let mut beside = |tensor_shard: &TensorShard<'_>, values: &Tensor| {
                let name = name_there(tensor_shard.name);
                let theirs = other.held(unit).flats().find_map(|flat| flat.leaf(name));
                theirs.map_or(Ok(()), |theirs| fill(tensor_shard, values, theirs))
            };
            self.fill_unit(unit, &mut beside)?;
            other.reshard(unit)
        })
    }

    /// The file that the shards of a frozen model are in; `None` where they can be written to.
    pub(crate) fn file(&self) -> Option<&TensorFile> {
        self.offload_file.as_ref()
    }

    /// Initializes the parameters of a fresh adapter that depend on the base weights, unit by unit;
    /// `name_there` returns the decoder's name of a parameter. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub(crate) fn start_adapter(
        &self,
        decoder: &Decoder,
        name_there: impl Fn(&str) -> &str,
    ) -> Result<(), RankError> {
        if !decoder.adapter_follows_from_weights() {
            return Ok(());
        }
        self.units().try_for_each(|unit| {
            self.unshard_master(unit)?;
            let values: BTreeMap<_, _> = decoder.adapter_from_weights(unit.layer_idx()).into_iter().collect();
            self.reshard(unit)?;
            self.fill_unit(unit, &mut |tensor_shard: &TensorShard<'_>, piece: &Tensor| {
                if let Some(whole) = values.get(name_there(tensor_shard.name)) {
                    copy_tensor_shard(tensor_shard, whole, piece);
                }
                Ok::<(), RankError>(())
            })
        })
    }

    /// All parameters of a unit by name, to be read while it is unsharded.
    pub(crate) fn parameters_of(&self, unit: FsdpUnit) -> NamedTensors {
        self.held(unit).flats().flat_map(Flat::leaves).collect()
    }

    /// Moves the shards of a frozen model on the CPU into an unlinked file of `folder`, from where they are
    /// gathered in place: after [`Self::release_pages`] they take none of the process's memory.
    /// Elsewhere than on the CPU nothing happens, nor where they are offloaded.
    ///
    /// # Errors
    /// When the file cannot be written; the shards then stay where they are.
    pub(crate) fn move_to_file(&mut self, folder: &Path) -> Result<(), rlt_torch::Error> {
        let units = self.layers.iter_mut().chain([&mut self.outer]);
        let frozen = units.flat_map(|unit| &mut unit.frozen);
        let mut flats: Vec<&mut Flat> = frozen.filter_map(Rc::get_mut).collect();
        if flats.iter().any(|flat| flat.shard().device() != Device::Cpu || flat.is_offloaded()) {
            return Ok(());
        }
        let resident: Vec<Tensor> = flats.iter().map(|flat| flat.shard().shallow_clone()).collect();
        let (file, lying) = TensorFile::write(folder, &resident)?;
        drop(resident);
        flats.iter_mut().zip(lying).for_each(|(flat, shard)| flat.lie_in(shard));
        self.offload_file = Some(file);
        Ok(())
    }

    /// Whether shards are offloaded from the device.
    pub(crate) fn is_offloaded(&self) -> bool {
        self.units().flat_map(|unit| self.held(unit).flats()).any(Flat::is_offloaded)
    }

    /// Gives the memory of shards that are in a file back until they are read again; nothing changes
    /// otherwise.
    pub(crate) fn release_pages(&self) {
        if let Some(file) = &self.offload_file {
            file.release();
        }
    }
}
