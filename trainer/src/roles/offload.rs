//! What of actor and critic is offloaded between uses, and to which storage. When it is offloaded and
//! prefetched is decided by [`crate::roles::optim`], [`crate::parallel`] and [`crate::roles::actor`].

use std::path::{Path, PathBuf};

use rlt_api::spec::OffloadSpec;
use tch::Tensor;

use crate::roles::optim::{AdamW, AdamWOptions, OptimError};

/// What is offloaded, and the folder whose unlinked files hold it on the CPU.
#[derive(Clone, Debug, Default)]
pub struct Offload {
    spec: OffloadSpec,
    folder: PathBuf,
}

impl Offload {
    /// The manifest's offload, in a run's folder.
    pub fn new(spec: OffloadSpec, folder: &Path) -> Self {
        Self { spec, folder: folder.to_owned() }
    }

    /// Where parameters are offloaded to between uses; `None` where they stay.
    pub fn parameters(&self) -> Option<&Path> {
        self.spec.parameters.then_some(&self.folder)
    }

    /// Where layer inputs are offloaded to between forward and backward pass; `None` where they stay.
    pub fn activations(&self) -> Option<&Path> {
        self.spec.activations.then_some(&self.folder)
    }

    /// The optimizer of a role's trained parameters.
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
