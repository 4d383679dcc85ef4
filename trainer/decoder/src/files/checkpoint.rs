//! Weights on disk: one safetensors file or several with an index, checked against the configuration before a
//! single weight is read.
//!
//! Files are read at the requested offsets, a chunk at a time. Nothing is mapped into memory: a mapped file
//! that is truncated kills the process, while a short read is an error that names the file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rlt_layout::TensorRun;
use rlt_models::TensorShape;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::Value;
use tch::{Device, Kind, Tensor, no_grad};

use super::super::error::ModelError;

/// Largest header in bytes that is read; the safetensors library has the same limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Number of values that are read at a time.
pub(crate) const CHUNK: usize = rlt_models::READ_CHUNK_NUMBERS as usize;

/// The weight files of a model folder, headers read.
#[derive(Debug)]
pub(crate) struct WeightFiles {
    dir: PathBuf,
    tensors: BTreeMap<String, StoredTensor>,
}

#[derive(Clone, Debug)]
struct StoredTensor {
    path: PathBuf,
    info: TensorInfo,
    /// Offset in bytes at which the file's data begins, after its header.
    data_start: u64,
}

impl WeightFiles {
    /// Finds the weights in `dir` and reads their headers.
    pub(crate) fn open(dir: &Path) -> Result<Self, ModelError> {
        let single = dir.join("model.safetensors");
        if single.exists() {
            return Self::open_file(&single);
        }
        let index_path = dir.join("model.safetensors.index.json");
        if !index_path.exists() {
            return Err(ModelError::NoWeights { dir: dir.to_owned() });
        }
        Self::open_shards(dir, &index_path)
    }

    /// Reads the header of one safetensors file.
    pub(crate) fn open_file(path: &Path) -> Result<Self, ModelError> {
        Ok(Self { dir: path.to_owned(), tensors: read_header(path)? })
    }

    fn open_shards(dir: &Path, index_path: &Path) -> Result<Self, ModelError> {
        let index = read_json(index_path)?;
        let weight_map =
            index.get("weight_map").and_then(Value::as_object).ok_or_else(|| ModelError::BadIndex {
                path: index_path.to_owned(),
                got: index.to_string().chars().take(80).collect(),
            })?;
        let mut files = BTreeSet::new();
        for file in weight_map.values() {
            let plain =
                file.as_str().filter(|name| Path::new(name).file_name().is_some_and(|base| base == *name));
            let bad = || ModelError::BadIndex { path: index_path.to_owned(), got: file.to_string() };
            files.insert(plain.ok_or_else(bad)?);
        }
        let mut tensors = BTreeMap::new();
        for file in files {
            tensors.extend(read_header(&dir.join(file))?);
        }
        match weight_map.iter().find(|(name, _)| !tensors.contains_key(*name)) {
            None => Ok(Self { dir: dir.to_owned(), tensors }),
            Some((tensor, file)) => Err(ModelError::NotInShard {
                path: index_path.to_owned(),
                tensor: tensor.clone(),
                file: file.to_string(),
            }),
        }
    }

    /// Renames every tensor: `name` makes its new name from the stored one.
    pub(crate) fn rename(&mut self, name: impl Fn(&str) -> String) {
        let tensors = std::mem::take(&mut self.tensors).into_iter();
        self.tensors = tensors.map(|(own, stored)| (name(&own), stored)).collect();
    }

    /// Renames every tensor as [`Self::rename`] does, and drops those for which `name` returns `None`.
    pub(crate) fn select(&mut self, name: impl Fn(&str) -> Option<String>) {
        let tensors = std::mem::take(&mut self.tensors).into_iter();
        self.tensors = tensors.filter_map(|(own, stored)| Some((name(&own)?, stored))).collect();
    }

    /// The model folder, or the one file that was opened.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The names of all tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The shape of a tensor that is stored.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|stored| stored.info.shape.as_slice())
    }

    /// Whether a tensor of this name is stored.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Checks that every `expected` tensor is stored with its shape in a supported dtype, and that no other
    /// tensor is stored, except those that `ignored` accepts.
    pub(crate) fn check(
        &self,
        expected: &[TensorShape],
        ignored: impl Fn(&str) -> bool,
    ) -> Result<(), ModelError> {
        let known: BTreeSet<&str> = expected.iter().map(|tensor| tensor.name.as_str()).collect();
        for tensor in expected {
            self.check_tensor(&tensor.name, &tensor.shape)?;
        }
        match self.tensors.iter().find(|(name, _)| !known.contains(name.as_str()) && !ignored(name)) {
            None => Ok(()),
            Some((name, stored)) => Err(ModelError::UnexpectedTensor {
                path: stored.path.clone(),
                tensor: name.clone(),
                got: stored.info.shape.clone(),
            }),
        }
    }

    fn check_tensor(&self, name: &str, expected: &[usize]) -> Result<(), ModelError> {
        let stored = self.stored(name, expected)?;
        if stored.info.shape != expected {
            return Err(ModelError::WrongShape {
                path: stored.path.clone(),
                tensor: name.to_owned(),
                expected: expected.to_vec(),
                got: stored.info.shape.clone(),
            });
        }
        stored.kind(name).map(drop)
    }

    /// Reads a tensor that [`Self::check`] has accepted, in its stored dtype, to the CPU.
    pub(crate) fn read(&self, name: &str) -> Result<Tensor, ModelError> {
        let stored = self.stored(name, &[])?;
        let shape: Vec<i64> = stored.info.shape.iter().map(|dim| *dim as i64).collect();
        let tensor = Tensor::f_empty(&shape, (stored.kind(name)?, Device::Cpu)).map_err(torch_error(name))?;
        self.read_into(&TensorRun::full(name, &shape), &tensor.view(-1))?;
        Ok(tensor)
    }

    /// Reads a range of a tensor that [`Self::check`] has accepted into `values`, `[len]`, of any
    /// floating-point dtype and on any device. In addition to `values`, at most one chunk is in memory.
    pub(crate) fn read_into(&self, tensor_run: &TensorRun<'_>, values: &Tensor) -> Result<(), ModelError> {
        let name = tensor_run.name;
        let stored = self.stored(name, &[])?;
        let (kind, width) = (stored.kind(name)?, stored.kind(name)?.elt_size_in_bytes());
        let read_error = |source| ModelError::Read { path: stored.path.clone(), source };
        let file = rlt_files::open(&stored.path).map_err(read_error)?;
        let data_start = stored.data_start + stored.info.data_offsets.0 as u64;
        let (mut bytes, mut num_bad) = (Vec::new(), 0);
        for TensorRun { range, .. } in tensor_run.chunks(CHUNK) {
            bytes.resize(range.len() * width, 0);
            file.read_exact_at(&mut bytes, data_start + (range.start * width) as u64).map_err(read_error)?;
            let copied = no_grad(|| {
                let chunk = Tensor::f_from_data_size(&bytes, &[range.len() as i64], kind)?;
                num_bad += num_non_finite(&chunk);
                values
                    .f_narrow(0, (range.start - tensor_run.range.start) as i64, range.len() as i64)?
                    .f_copy_(&chunk)
            });
            copied.map_err(torch_error(name))?;
        }
        if num_bad == 0 {
            return Ok(());
        }
        let (path, tensor) = (stored.path.clone(), name.to_owned());
        Err(ModelError::NotFinite { path, tensor, num_bad, num_values: tensor_run.range.len() })
    }

    /// The file, the stored dtype and the number of bytes of a tensor.
    pub(crate) fn find(&self, name: &str) -> Option<(&Path, Dtype, usize)> {
        self.tensors.get(name).map(|stored| {
            let (start, end) = stored.info.data_offsets;
            (stored.path.as_path(), stored.info.dtype, end - start)
        })
    }

    /// Reads a byte range of a tensor in its stored form.
    pub(crate) fn read_bytes(&self, name: &str, range: Range<usize>) -> Result<Vec<u8>, ModelError> {
        let stored = self.stored(name, &[])?;
        let read_error = |source| ModelError::Read { path: stored.path.clone(), source };
        let file = rlt_files::open(&stored.path).map_err(read_error)?;
        let start = stored.data_start + (stored.info.data_offsets.0 + range.start) as u64;
        let mut bytes = vec![0; range.len()];
        file.read_exact_at(&mut bytes, start).map_err(read_error)?;
        Ok(bytes)
    }

    /// Whether two tensors of one shape, which [`Self::check`] has accepted, hold the same values.
    pub(crate) fn are_equal(&self, names: [&str; 2]) -> Result<bool, ModelError> {
        let shape: Vec<i64> = self.stored(names[0], &[])?.info.shape.iter().map(|dim| *dim as i64).collect();
        for chunk in TensorRun::full(names[0], &shape).chunks(CHUNK) {
            let values = || Tensor::zeros([chunk.range.len() as i64], (Kind::Float, Device::Cpu));
            let both = [values(), values()];
            for (name, values) in names.iter().zip(&both) {
                self.read_into(&chunk.named(name), values)?;
            }
            if !both[0].equal(&both[1]) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn stored(&self, name: &str, expected: &[usize]) -> Result<&StoredTensor, ModelError> {
        self.tensors.get(name).ok_or_else(|| self.missing(name, expected))
    }

    /// The error that no tensor of this name is stored.
    pub(crate) fn missing(&self, name: &str, expected: &[usize]) -> ModelError {
        let (path, tensor) = (self.dir.clone(), name.to_owned());
        ModelError::MissingTensor { path, tensor, expected: expected.to_vec() }
    }
}

impl StoredTensor {
    fn kind(&self, name: &str) -> Result<Kind, ModelError> {
        match self.info.dtype {
            Dtype::F32 => Ok(Kind::Float),
            Dtype::F16 => Ok(Kind::Half),
            Dtype::BF16 => Ok(Kind::BFloat16),
            other => Err(ModelError::WrongDtype {
                path: self.path.clone(),
                tensor: name.to_owned(),
                got: format!("{other:?}"),
            }),
        }
    }
}

/// Reads a JSON file.
pub(crate) fn read_json(path: &Path) -> Result<Value, ModelError> {
    let text = rlt_files::read_to_string(path, rlt_files::MAX_MODEL_JSON_BYTES);
    let text = text.map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })
}

fn read_header(path: &Path) -> Result<BTreeMap<String, StoredTensor>, ModelError> {
    let read_error = |source| ModelError::Read { path: path.to_owned(), source };
    let bad = |reason: String| ModelError::BadHeader { path: path.to_owned(), reason };
    let file = rlt_files::open(path).map_err(read_error)?;
    let file_len = file.metadata().map_err(read_error)?.len();
    let mut prefix = [0; 8];
    if file_len < 8 {
        return Err(bad(format!("expected at least 8 bytes, got {file_len}")));
    }
    file.read_exact_at(&mut prefix, 0).map_err(read_error)?;
    let header_len = u64::from_le_bytes(prefix);
    if header_len > MAX_HEADER_BYTES || header_len + 8 > file_len {
        return Err(bad(format!("expected a header of {header_len} bytes in a file of {file_len}")));
    }
    let mut header = vec![0; header_len as usize];
    file.read_exact_at(&mut header, 8).map_err(read_error)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| bad(error.to_string()))?;
    let data_start = 8 + header_len;
    let expected = data_start + metadata.data_len() as u64;
    if expected != file_len {
        return Err(ModelError::WrongLength { path: path.to_owned(), expected, got: file_len });
    }
    let stored = |info: &TensorInfo| StoredTensor { path: path.to_owned(), info: info.clone(), data_start };
    Ok(metadata.tensors().into_iter().map(|(name, info)| (name, stored(info))).collect())
}

/// Number of values that are NaN or infinite. Minimum and maximum show in one pass whether there are any;
/// only then are they counted.
fn num_non_finite(tensor: &Tensor) -> i64 {
    if tensor.numel() == 0 {
        return 0;
    }
    let (low, high) = tensor.aminmax(None, false);
    if low.double_value(&[]).is_finite() && high.double_value(&[]).is_finite() {
        return 0;
    }
    tensor.isfinite().logical_not().sum(Kind::Int64).int64_value(&[])
}

fn torch_error(name: &str) -> impl FnOnce(tch::TchError) -> ModelError {
    let tensor = name.to_owned();
    move |source| ModelError::Torch { tensor, device: "the CPU".to_owned(), source }
}
