//! Values of shards, and the storage of a frozen model's shards. Each rank requests only its local shards, so
//! that no rank ever loads the full model. Callers decide which values these are, such as weights of a
//! checkpoint or optimizer moments.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use rlt_decoder::{Decoder, ModelError, NamedTensors, Weights};
use rlt_layout::{TensorRun, TensorSlice};
use rlt_torch::TensorFile;
use tch::{Device, Tensor};

use super::flat::FlatParameter;
use super::flat_slot::copy_tensor_run;
use super::{FsdpUnit, ShardedParameters};
use crate::RankError;

impl ShardedParameters {
    /// Lets `fill` write every local shard, `[len]`, from the full tensor's range. A tensor-parallel
    /// shard that is not contiguous in the full tensor is filled run by run.
    ///
    /// # Errors
    /// The error of `fill`, or when an offloaded shard cannot be fetched or put back.
    pub fn load_shards<E: From<rlt_torch::Error>>(
        &self,
        mut fill: impl FnMut(&TensorRun<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.units().try_for_each(|unit| self.fill_unit(unit, &mut fill))
    }

    /// [`Self::load_shards`] for the trained parameters only.
    ///
    /// # Errors
    /// As [`Self::load_shards`].
    pub fn fill_trained<E: From<rlt_torch::Error>>(
        &self,
        mut fill: impl FnMut(&TensorRun<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.trained().try_for_each(|flat| flat.load_shards(&mut fill))
    }

    /// Calls `see` with every local shard, `[len]`, in place. An offloaded shard is on the host, and takes
    /// memory while it is read. `see` may keep a shard only until the parameters change.
    ///
    /// # Errors
    /// The error of `see`, or when an offloaded shard cannot be read.
    pub fn for_each_shard<E: From<RankError>>(
        &self,
        mut see: impl FnMut(&TensorSlice<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut flats = self.units().flat_map(|unit| self.unit_parameters(unit).flats());
        flats.try_for_each(|flat| flat.for_each_shard(&mut see))
    }

    /// [`Self::for_each_shard`] for the trained parameters only.
    ///
    /// # Errors
    /// As [`Self::for_each_shard`].
    pub fn show_trained<E: From<RankError>>(
        &self,
        mut see: impl FnMut(&TensorSlice<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.trained().try_for_each(|flat| flat.for_each_shard(&mut see))
    }

    /// Reads this rank's shards of a model's weights; an adapter is not changed.
    ///
    /// # Errors
    /// As [`Weights::fill`].
    pub fn read(&self, weights: &Weights) -> Result<(), ModelError> {
        let mut read = |slice: &TensorSlice<'_>, values: &Tensor| match weights.contains(slice.name) {
            true => weights.fill_slice(slice, values),
            false => Ok(()),
        };
        let mut flats = self.units().flat_map(|unit| self.unit_parameters(unit).flats());
        flats.try_for_each(|flat| flat.fill_slices(&mut read))
    }

    fn fill_unit<E: From<rlt_torch::Error>>(
        &self,
        unit: FsdpUnit,
        fill: &mut impl FnMut(&TensorRun<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.unit_parameters(unit).flats().try_for_each(|flat| flat.load_shards(fill))
    }

    /// Lets `fill` write this rank's shard of a tensor that belongs to the trained parameter `name`, such as
    /// an optimizer moment, into `values`, `[len]`. `fill` is not called for an empty shard.
    ///
    /// # Errors
    /// The error of `fill`.
    pub fn fill_beside<E>(
        &self,
        name: &str,
        values: &Tensor,
        mut fill: impl FnMut(&TensorRun<'_>, &Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        let slice = self.trained().find_map(|flat| flat.place_of(name)).map(|place| place.slice(name));
        let mut runs = slice.into_iter().flat_map(|slice| slice.runs());
        runs.try_for_each(|(run, own)| fill(&run, &values.narrow(0, own.start as i64, own.len() as i64)))
    }

    /// Copies the values of another role's parameters, unit by unit; `name_there` gives a parameter's name in
    /// the other role. Parameters that the other role does not have are not changed.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn copy_from(&self, other: &Self, name_there: impl Fn(&str) -> &str) -> Result<(), RankError> {
        self.fill_beside_role(other, name_there, |tensor_run, values, theirs| {
            copy_tensor_run(tensor_run, theirs, values);
            Ok(())
        })
    }

    /// Calls `fill` with every local shard, `[len]`, and the other role's full tensor of that parameter in
    /// the master dtype, unit by unit. `name_there` maps a parameter's name to its name in the other role.
    /// Parameters that the other role does not have are skipped. Collective.
    ///
    /// # Errors
    /// The error of `fill`, or [`RankError`] when a rank is lost.
    pub fn fill_beside_role(
        &self,
        other: &Self,
        name_there: impl Fn(&str) -> &str,
        fill: impl Fn(&TensorRun<'_>, &Tensor, &Tensor) -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        self.units().try_for_each(|unit| {
            other.unshard_master(unit)?;
            let mut beside = |tensor_run: &TensorRun<'_>, values: &Tensor| {
                let name = name_there(tensor_run.name);
                let theirs = other.unit_parameters(unit).flats().find_map(|flat| flat.leaf(name));
                theirs.map_or(Ok(()), |theirs| fill(tensor_run, values, theirs))
            };
            self.fill_unit(unit, &mut beside)?;
            other.reshard(unit)
        })
    }

    /// File with the shards of a frozen model, see [`Self::move_to_file`]; `None` if they are elsewhere.
    pub fn file(&self) -> Option<&TensorFile> {
        self.offload_file.as_ref()
    }

    /// Initializes those parameters of a fresh adapter that are computed from the base weights (DoRA
    /// magnitudes and saved modules), unit by unit. `name_there` maps a parameter's name to its name in the
    /// decoder. Collective.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn start_adapter(
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
            self.fill_unit(unit, &mut |tensor_run: &TensorRun<'_>, local_shard: &Tensor| {
                if let Some(full) = values.get(name_there(tensor_run.name)) {
                    copy_tensor_run(tensor_run, full, local_shard);
                }
                Ok::<(), RankError>(())
            })
        })
    }

    /// All parameters of a unit by name. They can be read while the unit is unsharded.
    pub fn parameters_of(&self, unit: FsdpUnit) -> NamedTensors {
        self.unit_parameters(unit).flats().flat_map(FlatParameter::leaves).collect()
    }

    /// Moves the shards of a frozen model on the CPU into an unlinked file of `folder` that is mapped into
    /// memory and gathered from there. After [`Self::release_pages`] they take none of the process's memory.
    /// Nothing happens on a GPU, or if shards are offloaded.
    ///
    /// # Errors
    /// When the file cannot be written; the shards then stay where they are.
    pub fn move_to_file(&mut self, folder: &Path) -> Result<(), rlt_torch::Error> {
        let units = self.layers.iter_mut().chain([&mut self.outer]);
        let frozen = units.flat_map(|unit| &mut unit.frozen);
        let mut flats: Vec<&mut FlatParameter> = frozen.filter_map(Rc::get_mut).collect();
        if flats.iter().any(|flat| flat.shard().device() != Device::Cpu || flat.is_offloaded()) {
            return Ok(());
        }
        let resident: Vec<Tensor> = flats.iter().map(|flat| flat.shard().shallow_clone()).collect();
        let (file, lying) = TensorFile::write(folder, &resident)?;
        drop(resident);
        flats.iter_mut().zip(lying).for_each(|(flat, shard)| flat.replace_storage(shard));
        self.offload_file = Some(file);
        Ok(())
    }

    /// Whether shards are offloaded from the device.
    pub fn is_offloaded(&self) -> bool {
        self.units().flat_map(|unit| self.unit_parameters(unit).flats()).any(FlatParameter::is_offloaded)
    }

    /// Releases the memory of shards in a file until they are read again.
    pub fn release_pages(&self) {
        if let Some(file) = &self.offload_file {
            file.release();
        }
    }
}
