//! Settings of offload for actor and critic: which tensors are offloaded between uses, and to which storage.
//! When they are offloaded and prefetched is decided in [`crate::roles::optim`], [`rlt_parallel`] and
//! [`crate::roles::learner`].

use std::path::{Path, PathBuf};

use rlt_api::spec::OffloadSpec;
use tch::Tensor;

use crate::roles::optim::{AdamW, AdamWOptions, OptimError};

/// Choice of the tensors that are offloaded, and the folder whose unlinked files hold them on the CPU.
#[derive(Clone, Debug, Default)]
pub struct Offload {
    spec: OffloadSpec,
    folder: PathBuf,
}

impl Offload {
    /// Creates the offload of the manifest, with files in a run's folder.
    pub fn new(spec: OffloadSpec, folder: &Path) -> Self {
        Self { spec, folder: folder.to_owned() }
    }

    /// Returns the folder for offloaded parameters; `None` if parameters stay on the device.
    pub fn parameters(&self) -> Option<&Path> {
        self.spec.parameters.then_some(&self.folder)
    }

    /// Returns the folder for layer inputs that are offloaded between forward and backward pass; `None` if
    /// they stay on the device.
    pub fn activations(&self) -> Option<&Path> {
        self.spec.activations.then_some(&self.folder)
    }

    /// Creates the optimizer of a role's trained parameters, with offloaded moments if the manifest says so.
    ///
    /// # Errors
    /// As [`AdamW::with_offloaded_moments`].
    pub fn optimizer(
        &self,
        trained: Vec<(String, Tensor)>,
        options: AdamWOptions,
    ) -> Result<AdamW, OptimError> {
        match self.spec.optimizer {
            true => AdamW::with_offloaded_moments(trained, options, &self.folder),
            false => AdamW::new(trained, options),
        }
    }
}
