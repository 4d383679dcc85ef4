//! The plan as a page of text.

use std::fmt::Write as _;

use rlt_api::plan::{BatchPlan, MemoryPlan, PhaseMemory, Plan};
use serde_json::Value;

use crate::measure::bytes;

/// Width of the column of names.
const NAME_WIDTH: usize = 28;

pub(crate) fn render(plan: &Plan, objects: &[Value]) -> String {
    let mut text = format!("{}\n\n", plan.job);
    let mesh = &plan.mesh;
    for group in &plan.worker_groups {
        let (workers, ranks) = (group.num_workers, group.ranks_per_worker);
        line(
            &mut text,
            &format!("workers {}", group.name),
            &format!("{workers} x {ranks} rank, {:?}", group.device),
        );
    }
    let mut axes =
        format!("dp_replicate {} x dp_shard {} x sp {}", mesh.dp_replicate, mesh.dp_shard, mesh.sp);
    if (mesh.logprob_sp, mesh.critic_sp) != (mesh.sp, mesh.sp) {
        axes += &format!(" (log-probs {}, critic {})", mesh.logprob_sp, mesh.critic_sp);
    }
    line(&mut text, "mesh", &axes);
    if let Some(parameters) = &plan.parameters {
        line(&mut text, "parameters", &format!("{} ({} trained)", parameters.total, parameters.trainable));
    }
    text.push_str("\nBatch\n");
    write_batch(&mut text, &plan.batch);
    match &plan.memory {
        Some(memory) => write_memory(&mut text, memory),
        None => {
            text.push_str("\nMemory: an estimate needs the config.json of every model; --model-config names the policy's.\n")
        }
    }
    text.push_str("\nOn a cluster (-o yaml prints them)\n");
    for group in objects.chunk_by(|one, next| one["kind"] == next["kind"]) {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let names = match group {
            [first, .., last] => format!("{} to {}", name(first), name(last)),
            _ => group.iter().map(name).collect(),
        };
        line(&mut text, group[0]["kind"].as_str().unwrap_or_default(), &names);
    }
    text
}

fn line(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "  {name:NAME_WIDTH$} {value}");
}

fn write_batch(text: &mut String, batch: &BatchPlan) {
    let steps = batch.num_steps.map_or_else(|| "as the data has".to_owned(), |steps| steps.to_string());
    let cold_start = match batch.cold_start_steps {
        0 => String::new(),
        steps => format!(", after {steps} supervised ones"),
    };
    line(text, "steps", &format!("{steps}{cold_start}"));
    let (prompts, samples) = (batch.prompts_per_step, batch.samples_per_prompt);
    line(text, "samples of a step", &format!("{prompts} prompts x {samples} = {}", batch.samples_per_step));
    let (updates, update_samples) = (batch.updates_per_step, batch.samples_per_update);
    line(text, "updates of a step", &format!("{updates} of {update_samples} samples"));
    line(text, "longest sequence", &format!("{} tokens", batch.max_sequence_tokens));
    line(text, "tokens of a step", &format!("at most {}", batch.max_tokens_per_step));
    line(text, "micro-batches of an update", &format!("at most {}", batch.max_micro_batches_per_update));
    line(text, "scoring passes of a step", &format!("at most {}", batch.max_logprob_passes_per_step));
    line(text, "sequences decoded together", &format!("at most {}", batch.concurrent_sequences));
}

/// One row a term, one column a phase.
fn write_memory(text: &mut String, memory: &MemoryPlan) {
    let _ = writeln!(text, "\nMemory of one worker: {} in {:?}", bytes(memory.peak_bytes), memory.peak_phase);
    let columns = |cell: &dyn Fn(&PhaseMemory) -> String| -> String {
        memory.phases.iter().map(|phase| format!("{:>12}", cell(phase))).collect()
    };
    line(text, "", &columns(&|phase| format!("{:?}", phase.phase)));
    let mut names: Vec<&str> = Vec::new();
    for term in memory.phases.iter().flat_map(|phase| &phase.terms) {
        if !names.contains(&term.name) {
            names.push(term.name);
        }
    }
    for name in names {
        let cell = |phase: &PhaseMemory| {
            let term = phase.terms.iter().find(|term| term.name == name);
            term.map_or_else(|| "-".to_owned(), |term| bytes(term.bytes))
        };
        line(text, name, &columns(&cell));
    }
    line(text, "together", &columns(&|phase| bytes(phase.total_bytes)));
}
