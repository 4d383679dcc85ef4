//! Export of a decoder as a Hugging Face folder: `transformers` loads it, and [`Decoder::load`] reads it
//! back. The tokenizer writes its own files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rlt_models::{OutputHead, ParameterShape, stored_ranges};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};
use tempfile::NamedTempFile;

use super::super::decoder::Decoder;
use super::super::error::ModelError;
use super::super::expert_lora::ExpertTensor;
use super::super::experts::ExpertWeights;
use super::super::parameters::meta;
use super::super::projection::{Adapter, Linear};
use super::names::{self, is_of_tower};

/// Options of an exported folder.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// Whether the adapter is merged into the weights; otherwise the base weights are exported.
    pub merge_lora: bool,
    /// Stored dtype of the weights: `Float`, `Half` or `BFloat16`.
    pub dtype: Kind,
}

impl Decoder {
    /// Writes `config.json`, `generation_config.json` (not of a classifier) and `model.safetensors` to `dir`,
    /// which is created if it does not exist. The model is not changed; an adapter is written only by
    /// [`Decoder::save_adapter`].
    ///
    /// # Errors
    /// [`ModelError`] with the file that could not be written.
    pub fn export(&self, dir: &Path, options: &ExportOptions) -> Result<(), ModelError> {
        let mut export = Export::begin(self, dir, options)?;
        self.parts().try_for_each(|layer_idx| export.write(layer_idx))?;
        export.finish()
    }

    /// The units of a decoder in the order of writing: `None` for the unit outside of the layers, then each
    /// layer's index.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Option<usize>> + use<> {
        std::iter::once(None).chain((0..self.layers.len()).map(Some))
    }

    /// The weights of a unit as they are stored. Values are read only while the unit is unsharded.
    fn stored_weights(
        &self,
        layer_idx: Option<usize>,
        ExportOptions { merge_lora, dtype }: ExportOptions,
        reads: Reads,
    ) -> Vec<(String, StoredAs<'_>)> {
        let adapter = if merge_lora { Adapter::On } else { Adapter::Off };
        let projections: HashMap<String, &Linear> = layer_idx
            .map(|layer_idx| &self.layers[layer_idx])
            .into_iter()
            .flat_map(|layer| layer.projections())
            .map(|projection| (format!("{}.weight", projection.name), projection))
            .collect();
        let of_part =
            |(name, _): &(String, Tensor)| names::layer_idx(name) == layer_idx && !is_of_tower(name);
        let mut saved = if merge_lora { self.saved_by_base(layer_idx) } else { BTreeMap::new() };
        let parameters = self.base_parameters().into_iter().filter(of_part);
        let parameters = parameters.map(|(name, base)| match saved.remove(&name) {
            Some((saved, _)) => (name, saved),
            None => (name, base),
        });
        let parameters = parameters.map(|(name, tensor)| (name, reads.of(tensor)));
        let shapes = self.config.parameters().into_iter().map(|shape| (shape.name.clone(), shape));
        let shapes: HashMap<String, ParameterShape> = shapes.collect();
        let experts = layer_idx.and_then(|layer_idx| self.layers[layer_idx].experts());
        let experts = experts.filter(|_| merge_lora);
        // A quantized weight is written dequantized, and its other tensors are not.
        let parts: HashSet<&str> = projections
            .values()
            .filter_map(|projection| projection.weight.as_quantized())
            .flat_map(|weight| weight.names.iter().map(String::as_str))
            .collect();
        let stored = |(name, tensor): (String, Tensor)| match shapes.get(&name) {
            _ if parts.contains(name.as_str()) => {
                let projection = projections.get(&name).map(|projection| {
                    let whole = meta(&projection.weight.size(), (dtype, Device::Cpu));
                    let merged = Some(Merged::Linear(projection, adapter));
                    (name.clone(), StoredAs::new(whole, merged, dtype))
                });
                projection.into_iter().collect()
            }
            Some(shape) if shape.stored.len() > 1 || shape.stored[0].name != name => {
                tensors_of(shape, &tensor, dtype, experts)
            }
            _ => {
                let merged = projections.get(&name).map(|one| Merged::Linear(one, adapter));
                let merged = merged.or_else(|| router_of(experts, &name));
                let tensor = shapes.get(&name).map_or_else(
                    || tensor.shallow_clone(),
                    |whole| in_size(&tensor, &whole.shape.iter().map(|dim| *dim as i64).collect::<Vec<_>>()),
                );
                vec![(name, StoredAs::new(tensor, merged, dtype))]
            }
        };
        let tower = if layer_idx.is_none() { self.stored_tower(adapter, dtype, reads) } else { Vec::new() };
        let stored = parameters.flat_map(stored).chain(tower);
        stored.map(|(name, weight)| (names::stored_name(&self.config, name), weight)).collect()
    }

    /// The weights of the vision tower as they are stored, by the tower's names; none without a tower.
    fn stored_tower(&self, adapter: Adapter, dtype: Kind, reads: Reads) -> Vec<(String, StoredAs<'_>)> {
        let tensors = self.vision.iter().flat_map(|tower| tower.tensors());
        let stored = tensors.map(|(name, tensor, linear)| {
            let merged = linear.map(|linear| Merged::Linear(linear, adapter));
            (name, StoredAs::new(reads.of(tensor), merged, dtype))
        });
        stored.collect()
    }
}

/// Returns `tensor` if it has the full size `whole`, else a meta tensor of that size. Unless a unit is being
/// visited, this rank may hold only its shard of a weight, and only sizes are read.
pub(crate) fn in_size(tensor: &Tensor, whole: &[i64]) -> Tensor {
    match tensor.size() == whole {
        true => tensor.shallow_clone(),
        false => meta(whole, (tensor.kind(), tensor.device())),
    }
}

/// Whether values of the weights are read, or only shapes.
#[derive(Clone, Copy)]
enum Reads {
    /// Shapes alone, for a file's header: the memory of units may be freed, and views of it cannot be made.
    Shapes,
    Values,
}

impl Reads {
    /// Returns `tensor`, or only its shape.
    fn of(self, tensor: Tensor) -> Tensor {
        match self {
            Self::Values => tensor,
            Self::Shapes => meta(&tensor.size(), (tensor.kind(), Device::Cpu)),
        }
    }
}

/// Returns views of a parameter, one for each tensor as which it is stored.
fn tensors_of<'a>(
    parameter: &ParameterShape,
    tensor: &Tensor,
    dtype: Kind,
    experts: Option<&'a ExpertWeights>,
) -> Vec<(String, StoredAs<'a>)> {
    let num_values: usize = parameter.shape.iter().product();
    // Unless the unit is being visited, this rank may hold only its local experts, and only shapes are read.
    let flat = match tensor.numel() == num_values {
        true => tensor.detach().view(-1),
        false => meta(&[num_values as i64], (tensor.kind(), tensor.device())),
    };
    let adapted = experts.and_then(|experts| {
        let mut adapted = experts.adapted().map(|(tensor, ..)| tensor);
        adapted.find(|tensor| experts.tensor_name(*tensor) == parameter.name).map(|tensor| (experts, tensor))
    });
    let of_expert: usize = parameter.shape[1..].iter().product();
    let stored = stored_ranges(&parameter.stored).map(|(stored, range)| {
        let shape: Vec<i64> = stored.shape.iter().map(|dim| *dim as i64).collect();
        let own = flat.narrow(0, range.start as i64, range.len() as i64).view(shape.as_slice());
        let merged = adapted.map(|(experts, tensor)| {
            let first_row = range.start % of_expert / stored.shape[1];
            let rows = first_row as i64..(first_row + stored.shape[0]) as i64;
            Merged::Expert { experts, tensor, expert: (range.start / of_expert) as i64, rows }
        });
        let merged = merged.or_else(|| router_of(experts, &parameter.name));
        (stored.name.clone(), StoredAs::new(own, merged, dtype))
    });
    stored.collect()
}

/// The router, if `name` is that of its weight.
fn router_of<'a>(experts: Option<&'a ExpertWeights>, name: &str) -> Option<Merged<'a>> {
    experts.filter(|experts| experts.router_name() == name).map(Merged::Router)
}

/// An export in progress, which writes unit by unit and reads only the current one.
#[derive(Debug)]
pub struct Export<'a> {
    decoder: &'a Decoder,
    options: ExportOptions,
    file: TensorWriter,
}

impl<'a> Export<'a> {
    /// Begins [`Decoder::export`]: writes the JSON files and the header of the weights.
    ///
    /// # Errors
    /// [`ModelError`] with the file that could not be written.
    pub fn begin(decoder: &'a Decoder, dir: &Path, options: &ExportOptions) -> Result<Self, ModelError> {
        write_json(&dir.join("config.json"), &decoder.config.to_json(dtype_name(options.dtype)))?;
        if decoder.config.head == OutputHead::Vocabulary {
            write_json(&dir.join("generation_config.json"), &decoder.config.generation_json())?;
        }
        let all =
            decoder.parts().flat_map(|layer_idx| decoder.stored_weights(layer_idx, *options, Reads::Shapes));
        let all: Vec<_> = all.collect();
        let file = TensorWriter::begin(&dir.join("model.safetensors"), &all)?;
        Ok(Self { decoder, options: *options, file })
    }

    /// Writes the weights of layer `layer_idx`, or with `None` of the unit outside of the layers, which must
    /// be first.
    ///
    /// # Errors
    /// [`ModelError::Write`].
    pub fn write(&mut self, layer_idx: Option<usize>) -> Result<(), ModelError> {
        let weights = self.decoder.stored_weights(layer_idx, self.options, Reads::Values);
        weights.iter().try_for_each(|(_, weight)| self.file.write(weight))
    }

    /// Renames the finished file of weights to its final name, after the last layer.
    ///
    /// # Errors
    /// [`ModelError::Write`].
    pub fn finish(self) -> Result<(), ModelError> {
        self.file.finish()
    }
}

/// A tensor to be written; its bytes are computed when it is written.
pub(crate) struct StoredAs<'a> {
    tensor: Tensor,
    merged: Option<Merged<'a>>,
    kind: Kind,
}

/// How the stored values of a weight with an adapter are computed.
enum Merged<'a> {
    Linear(&'a Linear, Adapter),
    Router(&'a ExpertWeights),
    /// A range of rows of one expert's weight.
    Expert {
        experts: &'a ExpertWeights,
        tensor: ExpertTensor,
        expert: i64,
        rows: Range<i64>,
    },
}

impl<'a> StoredAs<'a> {
    /// A tensor that is stored in its own dtype.
    pub(crate) fn plain(tensor: &Tensor) -> Self {
        Self::new(tensor.shallow_clone(), None, tensor.kind())
    }

    fn new(tensor: Tensor, merged: Option<Merged<'a>>, kind: Kind) -> Self {
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
        let tensor = match &self.merged {
            Some(Merged::Linear(projection, adapter)) => projection.merged(*adapter).weight,
            Some(Merged::Router(experts)) => experts.merged_router(Adapter::On),
            Some(Merged::Expert { experts, tensor, expert, rows }) => {
                let merged = experts.merged(*tensor, *expert, Adapter::On);
                merged.narrow(0, rows.start, rows.end - rows.start)
            }
            None => self.tensor.detach(),
        };
        let tensor = tensor.to_device(Device::Cpu).to_kind(self.kind).contiguous();
        let mut bytes = vec![0; self.num_bytes()];
        tensor.copy_data_u8(&mut bytes, tensor.numel());
        bytes
    }
}

/// A safetensors file under a temporary name, whose tensors are written in the order of its header.
#[derive(Debug)]
pub(crate) struct TensorWriter {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
}

impl TensorWriter {
    /// Writes the header of a file of `tensors`.
    pub(crate) fn begin(path: &Path, tensors: &[(String, StoredAs<'_>)]) -> Result<Self, ModelError> {
        let header = header_bytes(tensors);
        let begin = || {
            let mut file = BufWriter::with_capacity(1 << 20, new_beside(path)?);
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(&header)?;
            Ok(file)
        };
        let file = begin().map_err(|source| ModelError::Write { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes the next tensor.
    pub(crate) fn write(&mut self, tensor: &StoredAs<'_>) -> Result<(), ModelError> {
        let written = self.file.write_all(&tensor.bytes());
        written.map_err(|source| ModelError::Write { path: self.path.clone(), source })
    }

    /// Renames the finished file to its final name, after the last tensor.
    pub(crate) fn finish(self) -> Result<(), ModelError> {
        let Self { path, file } = self;
        let named = file.into_inner().map_err(io::IntoInnerError::into_error);
        named
            .and_then(|file| persist(file, &path))
            .map_err(|source| ModelError::Write { path: path.clone(), source })
    }
}

/// Writes indented JSON; creates the folder of `path` if it does not exist.
pub(crate) fn write_json(path: &Path, document: &Value) -> Result<(), ModelError> {
    let written = new_beside(path).and_then(|mut file| {
        writeln!(file, "{document:#}")?;
        persist(file, path)
    });
    written.map_err(|source| ModelError::Write { path: path.to_owned(), source })
}

/// The header of a safetensors file in which the tensors are contiguous, padded for alignment.
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

/// A temporary file in the folder of `path`, so that a half-written file is never found under that name. It
/// has the mode of any new file, because other users read exports, too.
fn new_beside(path: &Path) -> io::Result<NamedTempFile> {
    let dir = path.parent().unwrap_or(Path::new("."));
    if !dir.is_dir() {
        fs::create_dir_all(dir)?;
        // A new folder survives a power loss only if its parent is synced.
        rlt_files::sync_folder(dir.parent().unwrap_or(Path::new(".")))?;
    }
    let mode = fs::Permissions::from_mode(0o666);
    tempfile::Builder::new().prefix(".export-").permissions(mode).tempfile_in(dir)
}

/// Syncs a finished file and renames it to `path`, where it survives a power loss: a run whose result is
/// written never exports again.
fn persist(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    rlt_files::sync_folder(path.parent().unwrap_or(Path::new(".")))
}

fn dtype_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Half => "float16",
        Kind::BFloat16 => "bfloat16",
        _ => "float32",
    }
}
