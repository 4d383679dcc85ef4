//! One packed training step on a 135M-parameter Llama shape with random weights: 16 sequences of long-tailed
//! lengths, forward, backward and AdamW.
//!
//! `--lora` trains an adapter instead of all weights. The peer on the same lengths is `peers/update.py`; both
//! answer `--serve` to `peers/compare.py`.

#[path = "training/measure.rs"]
mod measure;
#[path = "training/rows.rs"]
mod rows;
#[path = "training/shape.rs"]
mod shape;
#[path = "training/subject.rs"]
mod subject;

use rlt_trainer::commands::gpu_check::workload::random_demonstrations;
use rlt_trainer::roles::actor::update::update;
use serde_json::json;

fn main() -> anyhow::Result<()> {
    shape::prepare()?;
    let mut actor = subject::actor()?;
    let batch = random_demonstrations(&rows::long_tailed()?, actor.learner.decoder().config.vocab_size);
    let num_tokens: usize = batch.sequence_lens().iter().sum();
    let plan = rows::plan(&batch);
    measure::serve(&["step"], |_| {
        measure::measured(|| {
            let report = update(&mut actor, &batch, &plan)?;
            Ok(json!({
                "tokens": num_tokens,
                "micro_batches": report.num_micro_batches,
                "grad_norm": report.updates.grad_norms.first(),
            }))
        })
    })
}
