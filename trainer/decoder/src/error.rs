//! Errors of reading, making and writing models.

use std::io;
use std::path::PathBuf;

use rlt_api::ExitCode;
use rlt_models::ModelConfigError;

/// An operation on a model folder failed. Variants name the file, and the tensor where there is one.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read.
    #[error("reading {path}", path = path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("writing {path}", path = path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An offloaded tensor that receives weights could not be read or written back.
    #[error("reading weights into offload storage")]
    Rest(#[from] rlt_torch::Error),
    /// A file is not the JSON document it should be.
    #[error("parsing {path} as JSON", path = path.display())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// The parser's error, with line and column.
        source: serde_json::Error,
    },
    /// `config.json` describes no model that can be run.
    #[error("reading the model configuration {path}", path = path.display())]
    Config {
        /// Path of the `config.json`.
        path: PathBuf,
        /// The field, and what is wrong with it.
        source: ModelConfigError,
    },
    /// Neither one weight file nor an index of shards is in the folder.
    #[error("looking for weights in {dir}: expected model.safetensors or model.safetensors.index.json, got neither", dir = dir.display())]
    NoWeights {
        /// The model folder.
        dir: PathBuf,
    },
    /// The index of shards lacks its map from tensor to file.
    #[error("reading {path}: expected an object `weight_map` of file names, got {got}", path = path.display())]
    BadIndex {
        /// The index file.
        path: PathBuf,
        /// The actual value.
        got: String,
    },
    /// The index promises a tensor that its shard does not hold.
    #[error("reading {path}: expected tensor {tensor} in {file}, got a file without it", path = path.display())]
    NotInShard {
        /// The index file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// The shard that the index names.
        file: String,
    },
    /// The header of a weight file is not one of safetensors.
    #[error("reading the safetensors header of {path}: {reason}", path = path.display())]
    BadHeader {
        /// Path of the file.
        path: PathBuf,
        /// The parser's error.
        reason: String,
    },
    /// A weight file is shorter or longer than its header says.
    #[error("reading {path}: expected {expected} bytes by its header, got {got}", path = path.display())]
    WrongLength {
        /// Path of the file.
        path: PathBuf,
        /// Bytes that the header promises.
        expected: u64,
        /// Bytes on disk.
        got: u64,
    },
    /// A tensor that the configuration asks for is not stored.
    #[error("reading the weights in {path}: tensor {tensor} is missing, expected shape {expected:?}", path = path.display())]
    MissingTensor {
        /// The folder or file.
        path: PathBuf,
        /// Name of the missing tensor.
        tensor: String,
        /// The shape it should have.
        expected: Vec<usize>,
    },
    /// A stored tensor is not one that the model reads.
    #[error("reading {path}: unexpected tensor {tensor} of shape {got:?}, which the configuration does not have", path = path.display())]
    UnexpectedTensor {
        /// Path of the file.
        path: PathBuf,
        /// Name of the unexpected tensor.
        tensor: String,
        /// Shape of the unexpected tensor.
        got: Vec<usize>,
    },
    /// A tensor has another shape than the configuration gives.
    #[error("reading {path}: tensor {tensor}: expected shape {expected:?}, got {got:?}", path = path.display())]
    WrongShape {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Shape by the configuration.
        expected: Vec<usize>,
        /// Shape on disk.
        got: Vec<usize>,
    },
    /// A tensor is stored in a dtype that is not supported.
    #[error("reading {path}: tensor {tensor}: expected F32, F16 or BF16, got {got}", path = path.display())]
    WrongDtype {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Type on disk.
        got: String,
    },
    /// A tensor holds NaN or infinity.
    #[error("reading {path}: tensor {tensor}: expected finite numbers, got {num_bad} of {num_values} that are NaN or infinite", path = path.display())]
    NotFinite {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Number of values that are NaN or infinite.
        num_bad: i64,
        /// Number of values that were read.
        num_values: usize,
    },
    /// A field of a quantized weight's state, or one of its tensors, is not as bitsandbytes writes it.
    #[error("reading {path}: tensor {tensor}: field `{field}`: {mismatch}", path = path.display())]
    QuantState {
        /// Path of the file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Name of the field.
        field: String,
        /// The expected and the actual value.
        mismatch: String,
    },
    /// Quantized weights were asked to be trained; they are always frozen.
    #[error(
        "loading a model whose linear layers have 4 or 8 bits: expected frozen weights, got trained ones"
    )]
    QuantizedUse,
    /// The model has a part that is computed on CPUs only, and a GPU was asked for.
    #[error("loading a model of {family:?} on a GPU: expected a CPU, as {part} have no kernels for GPUs yet")]
    PartOnGpu {
        /// The model's family.
        family: rlt_models::Family,
        /// The part without GPU kernels.
        part: &'static str,
    },
    /// The job's quantization does not fit the model's.
    #[error("spec.model.quantization")]
    Quantization(#[source] ModelConfigError),
    /// The tokenizer has ids without a row in the embedding.
    #[error(
        "pairing tokenizer and model: expected token ids below vocab_size {vocab_size}, got ids up to {max_token_id}"
    )]
    VocabularyMismatch {
        /// Rows of the embedding.
        vocab_size: usize,
        /// The tokenizer's largest id.
        max_token_id: u32,
    },
    /// libtorch refused an operation on data from outside.
    #[error("placing tensor {tensor} on {device}")]
    Torch {
        /// Name of the tensor.
        tensor: String,
        /// The device of the tensor.
        device: String,
        /// The error of libtorch.
        source: tch::TchError,
    },
}

impl ModelError {
    /// The exit code of a process that ends with this error: a full disk may be freed, an invalid model stays
    /// invalid.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Write { .. } => ExitCode::RetryableIo,
            _ => ExitCode::BadConfig,
        }
    }
}
