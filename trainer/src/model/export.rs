//! A decoder as a Hugging Face folder: what `transformers` loads, and what [`Decoder::load`] reads back. Tokenizer
//! files are written by the tokenizer.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, View};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::decoder::Decoder;
use super::error::ModelError;
use super::lora::LoraError;
use super::projection::{Adapter, Projection};

/// What a folder of weights should hold.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// Fold the adapter into the weights. Without it the base is written, and the adapter beside it in `adapter/`.
    pub merge_lora: bool,
    /// Stored type of the weights: `Float`, `Half` or `BFloat16`.
    pub dtype: Kind,
}

impl Decoder {
    /// Writes `config.json`, `generation_config.json` and `model.safetensors` to `dir`, which is made when it is
    /// not there; an adapter goes into `adapter/` in PEFT's layout, merged or not. The model itself is not changed.
    ///
    /// # Errors
    /// [`LoraError::Model`] with the file that could not be written.
    pub fn export(&self, dir: &Path, options: &ExportOptions) -> Result<(), LoraError> {
        let adapter = if options.merge_lora { Adapter::On } else { Adapter::Off };
        write_json(dir, "config.json", &self.config.to_json(dtype_name(options.dtype)))?;
        let generation = json!({
            "bos_token_id": self.config.bos_token_id,
            "eos_token_id": self.config.to_json("")["eos_token_id"],
            "pad_token_id": self.config.pad_token_id,
        });
        write_json(dir, "generation_config.json", &generation)?;
        write_tensors(&dir.join("model.safetensors"), self.stored_weights(adapter, options.dtype))?;
        if self.lora().is_some() {
            self.save_adapter(&dir.join("adapter"), None)?;
        }
        Ok(())
    }

    fn stored_weights(&self, adapter: Adapter, dtype: Kind) -> Vec<(String, StoredAs<'_>)> {
        let projections: HashMap<String, &Projection> = self
            .layers()
            .iter()
            .flat_map(|layer| layer.projections())
            .map(|projection| (format!("{}.weight", projection.name), projection))
            .collect();
        let stored = |(name, tensor): (String, Tensor)| {
            let merged = projections.get(&name).map(|projection| (*projection, adapter));
            (name, StoredAs::new(tensor, merged, dtype))
        };
        self.base_parameters().into_iter().map(stored).collect()
    }
}

/// A tensor on its way to disk; bytes are made one tensor at a time, when they are written.
pub(super) struct StoredAs<'a> {
    tensor: Tensor,
    merged: Option<(&'a Projection, Adapter)>,
    kind: Kind,
    shape: Vec<usize>,
}

impl<'a> StoredAs<'a> {
    /// The tensor in its own dtype.
    pub(super) fn plain(tensor: &Tensor) -> Self {
        Self::new(tensor.shallow_clone(), None, tensor.kind())
    }

    fn new(tensor: Tensor, merged: Option<(&'a Projection, Adapter)>, kind: Kind) -> Self {
        let shape = tensor.size().iter().map(|dim| *dim as usize).collect();
        Self { tensor, merged, kind, shape }
    }
}

impl View for StoredAs<'_> {
    fn dtype(&self) -> Dtype {
        match self.kind {
            Kind::Half => Dtype::F16,
            Kind::BFloat16 => Dtype::BF16,
            _ => Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let tensor = match self.merged {
            Some((projection, adapter)) => projection.merged(adapter).weight,
            None => self.tensor.detach(),
        };
        let tensor = tensor.to_device(Device::Cpu).to_kind(self.kind).contiguous();
        let mut bytes = vec![0; self.data_len()];
        tensor.copy_data_u8(&mut bytes, tensor.numel());
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.kind.elt_size_in_bytes()
    }
}

/// Writes a safetensors file beside its final name and renames it, so that a half-written one is never found.
pub(super) fn write_tensors(path: &Path, tensors: Vec<(String, StoredAs<'_>)>) -> Result<(), ModelError> {
    // transformers refuses files that do not name the framework whose layout the tensors follow.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(|error| {
        let source = match error {
            safetensors::SafeTensorError::IoError(source) => source,
            other => std::io::Error::other(other),
        };
        ModelError::Write { path: path.to_owned(), source }
    })
}

/// Writes `dir/name` as indented JSON by rename; `dir` is made when it is not there.
pub(super) fn write_json(dir: &Path, name: &str, document: &Value) -> Result<(), ModelError> {
    let path = dir.join(name);
    let write_error = |source| ModelError::Write { path: path.clone(), source };
    std::fs::create_dir_all(dir).map_err(write_error)?;
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(write_error)?;
    file.write_all(format!("{document:#}\n").as_bytes()).map_err(write_error)?;
    file.persist(&path).map_err(|error| write_error(error.error))?;
    Ok(())
}

fn dtype_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Half => "float16",
        Kind::BFloat16 => "bfloat16",
        _ => "float32",
    }
}
