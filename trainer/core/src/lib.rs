//! RL arithmetic, packing, rollout scheduling, and the formulas that manifests choose: values in, values out.
//!
//! There are no tensors, threads, files or clocks here, so all of it is tested in seconds and runs the same
//! on a laptop and on a thousand devices.

pub use batches::{batch, labelled, preferences};
pub use rlt_algorithms::{
    advantage, declaration, kl, kto, loss, permutation, preference, reward, reward_model, reweighting, rows,
    whiten,
};

mod batches;
pub mod dapo;
pub mod digest;
pub mod engine;
pub mod expert_rows;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod held_out;
pub mod images;
pub mod importance;
pub mod logits;
pub mod metrics;
pub mod packed_samples;
pub mod packing;
pub mod partition;
pub mod sampling;
pub mod schedule;
pub mod task;
pub mod tensor_parallel;
pub mod types;
