//! The 135M-parameter Llama that benchmarks of training share: its shape, the options of its actor, and the
//! arithmetic of a job.

use rlt_models::ModelConfig;
use rlt_trainer::roles::actor::ActorOptions;

use crate::measure::has;

/// Sets the default arithmetic of a job: full fp32 by the fastest library.
pub(crate) fn prepare() -> anyhow::Result<()> {
    rlt_torch::reuse_large_buffers();
    let precision = match rlt_torch::cpu_has_amx() {
        true => rlt_torch::MatmulPrecision::Highest,
        false => rlt_torch::MatmulPrecision::Medium,
    };
    rlt_torch::set_float32_matmul_precision(precision)?;
    Ok(())
}

/// Configuration of the 135M-parameter Llama.
pub(crate) fn config() -> anyhow::Result<ModelConfig> {
    Ok(ModelConfig::from_json(&serde_json::from_str(include_str!("../rollout/model.json"))?)?)
}

/// Options of the actor; `--checkpointing` recomputes activations.
pub(crate) fn actor_options() -> ActorOptions {
    ActorOptions {
        temperature: 1.0,
        head_chunk_tokens: 256,
        activation_checkpointing: has("--checkpointing"),
        max_grad_norm: 1.0,
    }
}
