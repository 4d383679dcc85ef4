//! Subject of training benchmarks on one rank: an actor with the full model.

use rlt_api::spec::LoraInit;
use rlt_decoder::{Decoder, LoadOptions, LoraConfig, ModuleMatch};
use rlt_parallel::Ranks;
use rlt_trainer::roles::actor::Actor;
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};

use tch::Kind;

use crate::measure::has;
use crate::shape::{actor_options, config};

/// Builds an actor with random weights, all of them trained, or with `--lora` an adapter of rank 16 on every
/// linear layer. Activations are kept, or recomputed with `--checkpointing`; `--bf16` computes in bfloat16.
pub(crate) fn actor() -> anyhow::Result<Actor> {
    let config = config()?;
    let compute = if has("--bf16") { Kind::BFloat16 } else { Kind::Float };
    // A frozen base is stored in the compute dtype, as in a job; trained weights stay in fp32.
    let param_dtype = if has("--lora") { compute } else { Kind::Float };
    let options = LoadOptions { trainable: !has("--lora"), param_dtype, compute, ..LoadOptions::default() };
    let mut decoder = Decoder::from_config(&config, 0, &options)?;
    if has("--lora") {
        let lora = LoraConfig {
            rank: 16,
            alpha: 32.0,
            rank_stabilized: false,
            targets: ModuleMatch::AllLinear,
            target_parameters: Vec::new(),
            exclude: None,
            dropout: 0.0,
            init: LoraInit::Peft,
            ..LoraConfig::default()
        };
        decoder.attach_lora(&lora, 0)?;
    }
    let optimizer = AdamW::new(decoder.trainable_parameters(), AdamWOptions::default())?;
    Ok(Actor::new(decoder, optimizer, actor_options(), Ranks::alone()))
}
