//! Tests that the documentation's figures for the largest models on 64 GPUs are those of the plan.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rlt_models::ModelConfig;
use rlt_plan::{Machine, MemoryPlan, Models, Phase, Place, plan_on};
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../../docs/memory-and-speed.md");

/// The published `config.json` of DeepSeek-V3, in the fields that shape the model.
const DEEPSEEK_V3: &str = include_str!("../../models/tests/fixtures/deepseek_v3.json");

/// Plans GRPO on `nodes` nodes of 8 H100: 64 prompts of 8 samples a step, sequences of at most 2048 tokens.
fn memory(lora: bool, offload: &Value, nodes: u32) -> MemoryPlan {
    let mut spec = json!({
        "model": {"path": "/models/deepseek-v3"},
        "data": {"train": ["train.parquet"], "maxPromptTokens": 1024},
        "rewards": {"functions": [{"name": "answer", "kind": "Math"}]},
        "algorithm": {"kind": "GRPO"},
        "rollout": {"samplesPerPrompt": 8, "maxCompletionTokens": 1024, "memoryFraction": 0.9},
        "training": {
            "promptsPerStep": 64, "steps": 10, "activationCheckpointing": true, "maxTokensPerMicroBatch": 4096,
            "maxLogprobTokens": 4096, "offload": offload
        },
        "workers": {
            "count": nodes, "ranksPerWorker": 8, "mesh": {"dpShard": 8 * nodes, "rolloutTp": 64}, "device": "Cuda"
        },
    });
    if lora {
        spec["model"]["lora"] = json!({"rank": 16});
    }
    let manifest = json!({
        "apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "metadata": {"name": "large"}, "spec": spec
    });
    let job = rlt_api::validate(&serde_saphyr::to_string(&manifest).unwrap()).unwrap();
    let deepseek = ModelConfig::from_json(&serde_json::from_str(DEEPSEEK_V3).unwrap()).unwrap();
    let models = Models { policy: Some(deepseek), reward: Vec::new() };
    plan_on(&job, &models, &Machine::gpu("h100").unwrap()).memory.unwrap()
}

/// Returns the GiB of terms on the GPU in a phase.
fn gib(memory: &MemoryPlan, phase: Phase, names: &[&str]) -> f64 {
    let phase = memory.phases.iter().find(|candidate| candidate.phase == phase).unwrap();
    let terms = phase.terms.iter().filter(|term| term.place == Place::Device && names.contains(&term.name));
    terms.map(|term| term.bytes).sum::<u64>() as f64 / f64::from(1 << 30)
}

/// Returns the memory of an H100 in bytes.
fn available() -> u64 {
    Machine::gpu("h100").unwrap().memory_bytes.unwrap()
}

/// Returns a row of the page's table.
fn row(name: &str, lora: bool, offload: &Value) -> String {
    let memory = memory(lora, offload, 8);
    let of = |phase, names: &[&str]| format!("{:.1}", gib(&memory, phase, names));
    let (peak, host) = (memory.peak_device_bytes, memory.peak_host_bytes);
    let of_bytes = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 30));
    let cells = [
        name.to_owned(),
        of(Phase::Update, &["weights"]),
        of(Phase::Update, &["gathered weights", "fetched weights"]),
        of(Phase::Update, &["gradients", "gathered gradients"]),
        of(Phase::Update, &["optimizer state", "fetched moments"]),
        of(Phase::Rollout, &["rollout weights", "rollout embeddings"]),
        format!("{} ({:?})", of_bytes(peak), memory.peak_phase),
        of_bytes(host),
        (if peak <= available() { "yes" } else { "no" }).to_owned(),
    ];
    format!("| {} |", cells.join(" | "))
}

#[test]
fn the_pages_figures_for_671_billion_parameters_are_the_plans() {
    let nothing = json!({});
    let states = json!({"optimizer": true, "parameters": true, "activations": true});
    let parameters = json!({"parameters": true, "activations": true});
    let rows = [
        row("all weights", false, &nothing),
        row("all weights, all of `training.offload`", false, &states),
        row("adapter of rank 16", true, &nothing),
        row("adapter of rank 16, `offload.parameters` and `activations`", true, &parameters),
    ];
    let missing: Vec<&String> = rows.iter().filter(|row| !PAGE.contains(row.as_str())).collect();
    assert!(missing.is_empty(), "the page lacks\n{}", rows.join("\n"));
}

#[test]
fn more_gpus_do_not_make_room_for_whole_layers_of_experts() {
    let all = json!({"optimizer": true, "parameters": true, "activations": true});
    let on_1024 = |lora| memory(lora, &all, 128);
    assert!(on_1024(true).peak_device_bytes > available(), "an adapter");
    let largest = on_1024(false);
    assert!(largest.peak_device_bytes > available(), "all weights");
    let of_layers = gib(&largest, Phase::Update, &["gathered weights", "fetched weights"]);
    assert!(
        PAGE.contains(&format!("on 1024 GPUs too {of_layers:.1} GiB")),
        "the page lacks {of_layers:.1} GiB"
    );
}
