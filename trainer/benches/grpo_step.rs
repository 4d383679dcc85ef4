//! One full GRPO step on a 135M-parameter Llama shape with random weights: 2 prompts of 64 tokens, 8 samples
//! of 64 tokens each, KL term of 0.04 against a reference, one update. Rewards are random, as no model learns
//! here.
//!
//! `--lora` trains an adapter, whose reference is the base. The peer on the same load is
//! `peers/grpo_step.py`; both answer `--serve` to `peers/compare.py`.

#[path = "training/measure.rs"]
mod measure;
#[path = "training/shape.rs"]
mod shape;
#[path = "training/subject.rs"]
mod subject;

use rlt_trainer::commands::gpu_check::workload::{GrpoLoad, GrpoWorkload};
use rlt_trainer::roles::reference::{CopyOptions, FrozenPolicy};
use serde_json::json;

/// Load of one step. Its micro-batch is the default of a job of this size: one group.
const LOAD: GrpoLoad =
    GrpoLoad { num_prompts: 2, samples_per_prompt: 8, prompt_len: 64, new_tokens: 64, max_tokens: 1024 };

fn main() -> anyhow::Result<()> {
    shape::prepare()?;
    let actor = subject::actor()?;
    // A job on the CPU keeps the reference in a file, too.
    let in_file = || FrozenPolicy::copy_of(&actor, &CopyOptions::in_folder(&std::env::temp_dir(), false));
    let reference = (!measure::has("--lora")).then(in_file).transpose()?;
    let mut workload = GrpoWorkload::new(actor, reference, LOAD);
    measure::serve(&["step"], |_| {
        measure::measured(|| {
            let times = workload.step().map_err(|error| anyhow::anyhow!(error))?;
            Ok(json!({
                "tokens": times.num_tokens,
                "new_tokens": times.num_new_tokens,
                "computed_tokens": times.num_computed_tokens,
                "rollout_seconds": times.rollout_seconds,
                "reference_seconds": times.reference_seconds,
                "update_seconds": times.update_seconds,
                "grad_norm": times.grad_norm,
            }))
        })
    })
}
