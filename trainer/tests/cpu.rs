//! Tests of models, roles and rollout on the CPU, in one executable, since linking libtorch takes
//! seconds.

mod actor_gradients;
mod critic;
#[path = "fixtures/gradients.rs"]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod gradients;
mod half_precision;
#[path = "fixtures/models.rs"]
mod models;
mod parity;
mod parity_adamw;
mod preference_gradients;
mod report_browser;
mod reward_model_gradients;
mod rollout;
mod shared_prompt;
mod vision;
