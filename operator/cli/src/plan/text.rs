//! The plan as a page of text.

use std::fmt::Write as _;

use rlt_api::failure::{rule_in_words, rule_name};
use rlt_api::spec::Device;
use rlt_plan::{BatchPlan, Fit, MemoryPlan, Mesh, PhaseMemory, Place, Plan, SpeedPlan};
use serde_json::Value;

use super::measured_run::MeasuredRun;
use crate::measure::bytes;

/// Width of the column of names, in characters.
const NAME_WIDTH: usize = 28;

pub(crate) fn render(plan: &Plan, objects: &[Value], run: Option<&MeasuredRun>) -> String {
    let mut text = format!("{}\n\n", plan.job);
    write_workers(&mut text, plan);
    write_model(&mut text, plan);
    text.push_str("\nBatch\n");
    write_batch(&mut text, &plan.batch);
    match &plan.memory {
        Some(memory) => write_memory(&mut text, memory, plan.fit.as_ref()),
        None => {
            text.push_str("\nMemory: an estimate needs the config.json of every model; --model-config names the policy's.\n")
        }
    }
    plan.speed.iter().for_each(|speed| write_speed(&mut text, speed, run));
    if let Some(policy) = &plan.failure_policy {
        text.push_str("\nFailures, by the first rule that matches\n");
        for (idx, rule) in policy.rules.iter().enumerate() {
            line(&mut text, &rule_name(idx, rule), &rule_in_words(policy, rule));
        }
    }
    write_objects(&mut text, objects);
    text
}

/// Writes the groups of workers and the mesh of their ranks.
fn write_workers(text: &mut String, plan: &Plan) {
    for group in &plan.worker_groups {
        let (workers, ranks) = (group.num_workers, group.ranks_per_worker);
        line(
            text,
            &format!("workers {}", group.name),
            &format!(
                "{workers} x {ranks} rank{}, {}",
                if ranks == 1 { "" } else { "s" },
                device(group.device)
            ),
        );
    }
    line(text, "mesh", &axes(&plan.mesh));
    for group in plan.worker_groups.iter().filter(|group| group.num_workers > 1) {
        for (field, degree) in plan.mesh.across_workers(group.ranks_per_worker) {
            line(text, "", &across_workers(field, degree, group.ranks_per_worker));
        }
    }
}

/// Describes the degrees of a mesh in words.
fn axes(mesh: &Mesh) -> String {
    let mut axes =
        format!("dp_replicate {} x dp_shard {} x sp {}", mesh.dp_replicate, mesh.dp_shard, mesh.sp);
    if mesh.reference_sp != mesh.logprob_sp {
        let (logprobs, reference, critic) = (mesh.logprob_sp, mesh.reference_sp, mesh.critic_sp);
        axes += &format!(" (log-probs {logprobs}, reference {reference}, critic {critic})");
    } else if (mesh.logprob_sp, mesh.critic_sp) != (mesh.sp, mesh.sp) {
        axes += &format!(" (log-probs {}, critic {})", mesh.logprob_sp, mesh.critic_sp);
    }
    if mesh.tp > 1 {
        axes += &format!(" x tp {}", mesh.tp);
    }
    if mesh.ep > 1 {
        axes += &format!(", experts over {}", mesh.ep);
    }
    if mesh.rollout_tp > 1 {
        axes += &format!(", rollout tp {}", mesh.rollout_tp);
    }
    axes
}

/// Writes the size of the model, and the values chosen for its passes.
fn write_model(text: &mut String, plan: &Plan) {
    if let Some(parameters) = &plan.parameters {
        line(text, "parameters", &format!("{} ({} trained)", parameters.total, parameters.trainable));
    }
    let choices = &plan.choices;
    let rollout = match choices.rollout_precision {
        same if same == choices.precision => String::new(),
        other => format!(", rollout {other:?}"),
    };
    line(text, "precision", &format!("{:?}{rollout}", choices.precision));
    let checkpointing = if choices.activation_checkpointing { "layers' inputs are kept" } else { "off" };
    line(text, "activation checkpointing", checkpointing);
    if let (Some(merges), Some(sync)) = (choices.merge_lora, plan.weight_sync) {
        let place =
            if merges { "folded into the rollout's weights" } else { "next to the rollout's weights" };
        let mib = sync.bytes as f64 / f64::from(1 << 20);
        line(text, "adapter", &format!("{place}, a weight sync copies {mib:.1} MiB"));
    }
}

/// Writes the names of the objects that a cluster gets, one line for each kind.
fn write_objects(text: &mut String, objects: &[Value]) {
    text.push_str("\nOn a cluster (-o yaml prints them)\n");
    for group in objects.chunk_by(|one, next| one["kind"] == next["kind"]) {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let names = match group {
            [first, .., last] => format!("{} to {}", name(first), name(last)),
            _ => group.iter().map(name).collect(),
        };
        line(text, group[0]["kind"].as_str().unwrap_or_default(), &names);
    }
}

/// Returns a hint about collectives of every layer that cross machines, and how to avoid that.
fn across_workers(field: &str, degree: u32, ranks: u32) -> String {
    format!(
        "{field} {degree} exchanges between workers, over the network: a degree that divides ranksPerWorker ({ranks}) \
         stays within one"
    )
}

fn device(device: Device) -> &'static str {
    match device {
        Device::Cuda => "Cuda: on a cluster each rank asks for a GPU",
        Device::Auto | Device::Cpu => "Cpu: on a cluster no rank asks for a GPU",
    }
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

/// Writes the memory estimate with one row per term and one column per phase; a GPU and its host have one
/// table each.
fn write_memory(text: &mut String, memory: &MemoryPlan, fit: Option<&Fit>) {
    let of_phase = format!("in {:?}", memory.peak_phase);
    if memory.peak_device_bytes == 0 {
        let _ = writeln!(text, "\nMemory of one rank: {} {of_phase}", bytes(memory.peak_bytes));
        return write_terms(text, memory, Place::Host);
    }
    let available = fit.map_or_else(String::new, |fit| format!(", of {}", bytes(fit.available_bytes)));
    let _ = writeln!(
        text,
        "\nMemory of one rank's GPU: {} {of_phase}{available}",
        bytes(memory.peak_device_bytes)
    );
    write_terms(text, memory, Place::Device);
    let _ = writeln!(text, "\nMemory of its host, a rank: {}", bytes(memory.peak_host_bytes));
    write_terms(text, memory, Place::Host);
}

/// Writes the terms of the device or of the host.
fn write_terms(text: &mut String, memory: &MemoryPlan, place: Place) {
    let columns = |cell: &dyn Fn(&PhaseMemory) -> String| -> String {
        memory.phases.iter().map(|phase| format!("{:>12}", cell(phase))).collect()
    };
    line(text, "", &columns(&|phase| format!("{:?}", phase.phase)));
    let mut names: Vec<&str> = Vec::new();
    let terms = memory.phases.iter().flat_map(|phase| &phase.terms);
    for term in terms.filter(|term| term.place == place) {
        if !names.contains(&term.name) {
            names.push(term.name);
        }
    }
    for name in names {
        let cell = |phase: &PhaseMemory| {
            let term = phase.terms.iter().find(|term| term.name == name && term.place == place);
            term.map_or_else(|| "-".to_owned(), |term| bytes(term.bytes))
        };
        line(text, name, &columns(&cell));
    }
    let total = |phase: &PhaseMemory| match place {
        Place::Device => phase.device_bytes,
        Place::Host => phase.host_bytes,
    };
    line(text, "together", &columns(&|phase| bytes(total(phase))));
}

/// Writes one row per phase, with the times of a run next to the prediction.
fn write_speed(text: &mut String, speed: &SpeedPlan, run: Option<&MeasuredRun>) {
    let (prompt, completion) = (speed.lengths.prompt_tokens(), speed.lengths.completion_tokens());
    let _ = writeln!(
        text,
        "\nPredicted on {}, prompts of {prompt} and completions of {completion} tokens",
        speed.machine
    );
    let measured = run.map_or_else(String::new, |run| format!("{:>12}", format!("{} steps", run.num_steps)));
    line(text, "", &format!("{:>12}{measured}{:>12}{:>12}  bound by", "seconds", "TFLOP", "GB"));
    let of_run = |seconds: fn(&MeasuredRun, &str) -> Option<f64>, phase: &str| {
        let cell = |run| seconds(run, phase).map_or_else(|| "-".to_owned(), |taken| format!("{taken:.3}"));
        run.map_or_else(String::new, |run| format!("{:>12}", cell(run)))
    };
    for phase in &speed.phases {
        let (flop, bytes) = (phase.flop / 1e12, phase.bytes / 1e9);
        let measured = of_run(|run, phase| run.phases.get(phase).copied(), phase.name);
        let numbers =
            format!("{:>12.3}{measured}{flop:>12.2}{bytes:>12.1}  {:?}", phase.seconds, phase.bound);
        line(text, phase.name, &numbers);
    }
    let measured = of_run(|run, _| Some(run.step_seconds), "step");
    line(text, "step", &format!("{:>12.3}{measured}", speed.step_seconds));
    if speed.rollout_tokens_per_second > 0.0 {
        line(text, "rollout, tokens/s", &format!("{:>12.0}", speed.rollout_tokens_per_second));
    }
    line(text, "update, tokens/s", &format!("{:>12.0}", speed.update_tokens_per_second));
    line(text, "update, MFU", &format!("{:>11.0}%", 100.0 * speed.update_mfu));
}
