//! Command-line options by which `score` and `generate` name and load a model.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rlt_api::ExitCode;
use rlt_decoder::{Decoder, LoadOptions, LoraError, ModelError};
use rlt_torch::cuda::{CudaStatus, detect_cuda};
use tch::{Device, Kind};

/// Model of a forward pass: its folder, adapter, compute dtype and device.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Hugging Face folder of the model
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Folder of a PEFT adapter to apply to the model
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Compute dtype of the forward pass, in which weights are also kept
    #[arg(long, value_enum, default_value_t = Dtype::Fp32)]
    pub dtype: Dtype,
    /// Device of the forward pass; auto takes the first GPU, or else the CPU
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
}

/// Compute dtype of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// 32-bit floating point.
    #[value(alias = "float32")]
    Fp32,
    /// 16-bit floating point (bfloat16).
    #[value(alias = "bfloat16")]
    Bf16,
}

/// Device of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// The first GPU if there is one, else the CPU.
    Auto,
    /// The CPU, even if there is a GPU.
    Cpu,
    /// The first GPU.
    Cuda,
}

/// The named model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelArgsError {
    /// A GPU was requested, but none is usable.
    #[error("choosing the device: expected a CUDA device, got none: {0}")]
    NoCuda(&'static CudaStatus),
    /// The model cannot be loaded.
    #[error("loading the model {dir}", dir = dir.display())]
    Model {
        /// Folder of the model.
        dir: PathBuf,
        /// Error of the model.
        source: Box<ModelError>,
    },
    /// The adapter cannot be loaded, or does not fit the model.
    #[error("loading the adapter {dir}", dir = dir.display())]
    Adapter {
        /// Folder of the adapter.
        dir: PathBuf,
        /// Error of the adapter.
        source: Box<LoraError>,
    },
}

impl ModelArgsError {
    /// Returns the exit code of a process that ends with this error, the same as that of a job with this
    /// model.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoCuda(_) => ExitCode::BadConfig,
            Self::Model { source, .. } => source.exit_code(),
            Self::Adapter { source, .. } => source.exit_code(),
        }
    }
}

impl ModelArgs {
    /// Loads the model with its adapter, frozen.
    ///
    /// # Errors
    /// [`ModelArgsError`].
    pub fn load(&self) -> Result<Decoder, ModelArgsError> {
        let kind = match self.dtype {
            Dtype::Fp32 => Kind::Float,
            Dtype::Bf16 => Kind::BFloat16,
        };
        let options =
            LoadOptions { device: self.device()?, param_dtype: kind, compute: kind, trainable: false };
        let mut decoder = Decoder::load(&self.model, &options)
            .map_err(|source| ModelArgsError::Model { dir: self.model.clone(), source: Box::new(source) })?;
        if let Some(dir) = &self.adapter {
            decoder
                .load_adapter(dir)
                .map_err(|source| ModelArgsError::Adapter { dir: dir.clone(), source: Box::new(source) })?;
        }
        Ok(decoder)
    }

    fn device(&self) -> Result<Device, ModelArgsError> {
        if self.device == DeviceChoice::Cpu {
            return Ok(Device::Cpu);
        }
        let search = detect_cuda();
        match (search.num_gpus(), self.device) {
            (0, DeviceChoice::Cuda) => Err(ModelArgsError::NoCuda(search)),
            (0, _) => {
                if search.has_unusable_gpu() {
                    tracing::warn!("computing on the CPU, although this machine has a GPU: {search}");
                }
                Ok(Device::Cpu)
            }
            _ => Ok(Device::Cuda(0)),
        }
    }
}
