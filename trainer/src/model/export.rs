//! A decoder as a Hugging Face folder: what `transformers` loads, and what [`Decoder::load`] reads back. Tokenizer
//! files are written by the tokenizer.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};
use tempfile::NamedTempFile;

use super::decoder::Decoder;
use super::error::ModelError;
use super::projection::{Adapter, Projection};

/// What a folder of weights should hold.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// Fold the adapter into the weights; otherwise they are the base's.
    pub merge_lora: bool,
    /// Stored type of the weights: `Float`, `Half` or `BFloat16`.
    pub dtype: Kind,
}

impl Decoder {
    /// Writes `config.json`, `generation_config.json` and `model.safetensors` to `dir`, which is made when it is
    /// not there. The model itself is not changed, and an adapter is only written by [`Decoder::save_adapter`].
    ///
    /// # Errors
    /// [`ModelError`] with the file that could not be written.
    pub fn export(&self, dir: &Path, options: &ExportOptions) -> Result<(), ModelError> {
        let adapter = if options.merge_lora { Adapter::On } else { Adapter::Off };
        write_json(&dir.join("config.json"), &self.config.to_json(dtype_name(options.dtype)))?;
        let generation = json!({
            "bos_token_id": self.config.bos_token_id,
            "eos_token_id": self.config.to_json("")["eos_token_id"],
            "pad_token_id": self.config.pad_token_id,
        });
        write_json(&dir.join("generation_config.json"), &generation)?;
        write_tensors(&dir.join("model.safetensors"), self.stored_weights(adapter, options.dtype))
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
}

impl<'a> StoredAs<'a> {
    /// The tensor in its own dtype.
    pub(super) fn plain(tensor: &Tensor) -> Self {
        Self::new(tensor.shallow_clone(), None, tensor.kind())
    }

    fn new(tensor: Tensor, merged: Option<(&'a Projection, Adapter)>, kind: Kind) -> Self {
        Self { tensor, merged, kind }
    }

    fn dtype(&self) -> &'static str {
        match self.kind {
            Kind::Half => "F16",
            Kind::BFloat16 => "BF16",
            _ => "F32",
        }
    }

    fn num_bytes(&self) -> usize {
        self.tensor.numel() * self.kind.elt_size_in_bytes()
    }

    fn bytes(&self) -> Vec<u8> {
        let tensor = match self.merged {
            Some((projection, adapter)) => projection.merged(adapter).weight,
            None => self.tensor.detach(),
        };
        let tensor = tensor.to_device(Device::Cpu).to_kind(self.kind).contiguous();
        let mut bytes = vec![0; self.num_bytes()];
        tensor.copy_data_u8(&mut bytes, tensor.numel());
        bytes
    }
}

/// Writes tensors of one dtype as a safetensors file.
pub(super) fn write_tensors(path: &Path, tensors: Vec<(String, StoredAs<'_>)>) -> Result<(), ModelError> {
    let header = header_bytes(&tensors);
    write_whole(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        tensors.iter().try_for_each(|(_, tensor)| file.write_all(&tensor.bytes()))
    })
}

/// Writes indented JSON; the folder of `path` is made when it is not there.
pub(super) fn write_json(path: &Path, document: &Value) -> Result<(), ModelError> {
    write_whole(path, |file| writeln!(file, "{document:#}"))
}

/// The header of a safetensors file in which the tensors lie one after the other, padded so that they are aligned.
fn header_bytes(tensors: &[(String, StoredAs<'_>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    // transformers refuses files that do not name the framework whose layout the tensors follow.
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut start = 0;
    for (name, tensor) in tensors {
        let end = start + tensor.num_bytes();
        let entry =
            json!({"dtype": tensor.dtype(), "shape": tensor.tensor.size(), "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
        start = end;
    }
    let mut bytes = Value::Object(header).to_string().into_bytes();
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    bytes
}

/// Fills a new file beside `path`, syncs it and renames it, so that a half-written one is never found; with the mode
/// of any new file, as others read exports too.
fn write_whole(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut NamedTempFile>) -> io::Result<()>,
) -> Result<(), ModelError> {
    let write = || {
        let dir = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(dir)?;
        let mode = fs::Permissions::from_mode(0o666);
        let mut file = tempfile::Builder::new().prefix(".export-").permissions(mode).tempfile_in(dir)?;
        let mut writer = BufWriter::with_capacity(1 << 20, &mut file);
        fill(&mut writer)?;
        writer.flush()?;
        drop(writer);
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)
    };
    write().map(drop).map_err(|source| ModelError::Write { path: path.to_owned(), source })
}

fn dtype_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Half => "float16",
        Kind::BFloat16 => "bfloat16",
        _ => "float32",
    }
}
