//! Types of a decoder's configuration. Parsers, writers and counters depend on them, so no file here imports
//! a module outside of this folder.

mod config;
mod error;
mod experts;
mod latent;
mod norms;
mod quantization;
mod rope;
mod routing;
mod shapes;
mod vision;

pub use config::{HiddenActivation, ModelConfig};
pub use error::ModelConfigError;
pub use experts::{ExpertForm, ExpertNames, Experts, SharedBlock};
pub use latent::LatentAttention;
pub use norms::{BlockNorms, NormKind, QkNorm};
pub use quantization::Quantization;
pub use rope::{RopeConfig, RopePairing, RopeScaling};
pub use routing::{ExpertGroups, RouterScores, Routing};
pub use shapes::{FusedProjections, ParameterShape, ProductRows, ProjectionShape, TensorShape};
pub use vision::{TOWER, VisionBlocks, VisionConfig};
