//! Rewards of completions: the manifest's reward functions, run by threads that may be abandoned.
//!
//! ```text
//! RewardsSpec -> RewardFunctions (compiled, checked on the data) -> RewardPool::score -> one Reward a sample
//!             -> RewardModels (loaded, fitted to the policy) -> scores ----^
//!             -> ExternalFunctions (servers) -> verdicts ------------------^
//! ```
//! The functions are in `rlt_core::reward`; this module adds names, weights, time limits and the handling of
//! panics.

mod exchange;
mod external;
mod functions;
mod models;
mod pool;
mod role;
mod sampled;
#[cfg(test)]
mod tests;

pub use external::{EndpointError, ExternalError, ExternalFunctions, ModuleError, PendingRewards, SampleId};
pub use functions::{RewardFunctions, RewardSetupError};
pub use models::{ModelScores, Policy, RewardModelError, RewardModels, Sharing};
pub use pool::{PoolOptions, RewardPool};
pub use role::RewardsRole;
pub use sampled::Sampled;
pub(crate) use sampled::SamplingCost;
