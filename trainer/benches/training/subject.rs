//! What the benchmarks of training share: the 135M-parameter Llama as an actor, and the arithmetic that a job runs with.

use rlt_api::plan::model_config::ModelConfig;
use rlt_api::spec::LoraInit;
use rlt_trainer::actor::{Actor, ActorOptions};
use rlt_trainer::model::{Decoder, LoadOptions, LoraConfig, ModuleMatch};
use rlt_trainer::optim::{AdamW, AdamWOptions};
use rlt_trainer::parallel::Ranks;

use crate::measure::has;

/// The arithmetic of a job that sets nothing: full fp32 by the fastest library.
pub(crate) fn prepare() -> anyhow::Result<()> {
    rlt_torch::reuse_large_buffers();
    let precision = match rlt_torch::cpu_has_amx() {
        true => rlt_torch::MatmulPrecision::Highest,
        false => rlt_torch::MatmulPrecision::Medium,
    };
    rlt_torch::set_float32_matmul_precision(precision)?;
    Ok(())
}

/// Random weights, all of them trained, or with `--lora` an adapter of rank 16 on every linear layer. Activations are
/// kept, or recomputed with `--checkpointing`.
pub(crate) fn actor() -> anyhow::Result<Actor> {
    let config = ModelConfig::from_json(&serde_json::from_str(include_str!("../rollout/model.json"))?)?;
    let options = LoadOptions { trainable: !has("--lora"), ..LoadOptions::default() };
    let mut decoder = Decoder::from_config(&config, 0, &options)?;
    if has("--lora") {
        let lora = LoraConfig {
            rank: 16,
            alpha: 32.0,
            rank_stabilized: false,
            targets: ModuleMatch::AllLinear,
            exclude: None,
            dropout: 0.0,
            init: LoraInit::Peft,
        };
        decoder.attach_lora(&lora, 0)?;
    }
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default())?;
    let options = ActorOptions {
        temperature: 1.0,
        head_chunk_tokens: 256,
        activation_checkpointing: has("--checkpointing"),
        max_grad_norm: 1.0,
    };
    Ok(Actor::new(decoder, optimizer, options, Ranks::alone()))
}
