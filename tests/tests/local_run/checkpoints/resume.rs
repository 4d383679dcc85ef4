//! An interrupted and resumed run equals an uninterrupted one, bit for bit.

use std::fs;
use std::net::TcpListener;
use std::process::Child;

use serde_json::{Value, json};

use crate::job::{ENDLESS, Place, end_of, merge, signal, tiny_with, wait_until};

const SIGTERM: u32 = 15;

/// Metrics that may differ: times, and metrics that were only measured at the end of a shorter run.
fn is_timing(name: &str) -> bool {
    ["timing_s/", "perf/", "timestamp", "val-", "checkpoint/"].iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the values of every step that must be the same in any run of the same job.
fn values(place: &Place) -> Vec<Value> {
    let mut metrics = place.metrics();
    for line in &mut metrics {
        line.as_object_mut().unwrap().retain(|name, _| !is_timing(name));
    }
    metrics
}

#[track_caller]
pub(crate) fn assert_same_run(whole: &Place, resumed: &Place) {
    assert_same_numbers(whole, resumed);
    let moves = |step: &Value| {
        ["actor/grad_norm", "critic/grad_norm"].iter().any(|norm| step[norm].as_f64() > Some(0.0))
    };
    assert!(whole.steps().iter().all(moves));
}

#[track_caller]
pub(crate) fn assert_same_numbers(whole: &Place, resumed: &Place) {
    let (whole_values, resumed_values) = (values(whole), values(resumed));
    assert_eq!(whole_values.len(), resumed_values.len());
    for (whole, resumed) in whole_values.iter().zip(&resumed_values) {
        assert_eq!(whole, resumed);
    }
    assert!(whole.weights() == resumed.weights(), "the exported weights differ");
}

pub(crate) fn with_steps(changes: &Value, steps: u64) -> Value {
    let mut manifest = tiny_with(changes.clone());
    merge(&mut manifest["spec"], json!({ "training": { "steps": steps } }));
    manifest
}

/// Compares a run of six steps with one of three steps that is resumed for three more.
fn prolong(changes: &Value) {
    let (whole, resumed) = prolonged(changes);
    assert_same_run(&whole, &resumed);
}

/// Trains six steps in one run, and in another three steps and, resumed, three more.
pub(crate) fn prolonged(changes: &Value) -> (Place, Place) {
    let (whole, resumed) = (Place::new(), Place::new());
    whole.train(&with_steps(changes, 6)).expect(0, &[]);
    resumed.train(&with_steps(changes, 3)).expect(0, &[]);
    resumed.train(&with_steps(changes, 6)).expect(0, &["resuming after step 3"]);
    (whole, resumed)
}

/// Ends a run early by the signal `name`, and continues it in a second process. The first run has more steps
/// than any machine trains before the signal; the second one ends two steps later.
fn interrupt(changes: &Value, name: &str, code: Option<i32>) {
    let (whole, resumed) = (Place::new(), Place::new());
    let child = resumed.start(&with_steps(changes, ENDLESS.into()));
    // A checkpoint is committed while the next steps run, and before the next checkpoint begins: that of step
    // 2 before step 5.
    resumed.wait_for_steps(5);
    assert_no_computing_thread_takes_signals(child.id());
    signal(&child, name);
    let ended = end_of(child);
    assert_eq!(ended.code, code, "{}", ended.stderr);
    assert!(!resumed.run("export").exists(), "an interrupted run has no export");
    assert!(!resumed.run("report.html").exists(), "the grace period is not for the report");
    let manifest = with_steps(changes, resumed.last_step() + 2);
    resumed.train(&manifest).expect(0, &["resuming after step"]);
    whole.train(&manifest).expect(0, &[]);
    assert_same_run(&whole, &resumed);
}

/// Checks that no computing thread takes signals. A signal's frame on its stack would overwrite memory where
/// the code of products keeps its numbers.
fn assert_no_computing_thread_takes_signals(pid: u32) {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|thread| thread.unwrap().path());
    let mut taking = Vec::new();
    for thread in threads {
        let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
        let line =
            |field: &str| status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default().trim();
        let blocked = u64::from_str_radix(line("SigBlk:"), 16).unwrap_or(0);
        if !status.is_empty() && blocked >> (SIGTERM - 1) & 1 == 0 {
            taking.push(line("Name:").to_owned());
        }
    }
    assert_eq!(taking, ["signals"]);
}

/// Message of a rank that one signal ends in its setup, after a grace period.
const STOPPED_IN_SETUP: &str = "asked to stop while the run was being set up";

/// Starts `count` ranks whose setup waits for `hub`, which takes connections and never answers.
fn start_blocked(place: &Place, hub: &TcpListener, count: u32) -> Child {
    let endpoint = format!("http://{}", hub.local_addr().unwrap());
    let hub_model = json!({ "repo": "owner/name", "endpoint": endpoint });
    let model = json!({ "architecture": null, "tokenizer": null, "hub": hub_model, "lora": { "rank": 2 } });
    let manifest = tiny_with(json!({ "model": model, "workers": { "count": count } }));
    let cache = vec![("HF_HOME", place.file("hub").display().to_string())];
    let child = place.start_in(&manifest, cache);
    // The run writes the manifest after it has begun to listen for signals, and before its setup.
    wait_until("a manifest", || place.run("manifest.yaml").exists());
    child
}

#[test]
fn a_signal_ends_a_setup_that_never_would() {
    for count in [1, 2] {
        let (place, hub) = (Place::new(), TcpListener::bind("127.0.0.1:0").unwrap());
        let child = start_blocked(&place, &hub, count);
        signal(&child, "TERM");
        end_of(child).expect(80, &[STOPPED_IN_SETUP]);
    }
}

/// A launcher reads one signal after the other, and signals of one kind that arrive together count as one. So
/// the test sends them until the end.
#[test]
fn a_second_signal_ends_all_ranks_at_once() {
    for count in [1, 2] {
        let (place, hub) = (Place::new(), TcpListener::bind("127.0.0.1:0").unwrap());
        let mut child = start_blocked(&place, &hub, count);
        // The setup blocks from here on.
        let connection = hub.accept().unwrap();
        // Both signals are pending before any thread can end the setup because of the first one.
        ["STOP", "TERM", "INT", "CONT"].iter().for_each(|name| signal(&child, name));
        wait_until("the end", || {
            let is_ended = child.try_wait().unwrap().is_some();
            if !is_ended {
                signal(&child, "INT");
            }
            is_ended
        });
        drop(connection);
        let ended = end_of(child);
        let expected: &[i32] = if count == 1 { &[130, 143] } else { &[80] };
        let (code, words) = (ended.code, ended.stderr);
        assert!(code.is_some_and(|code| expected.contains(&code)), "{code:?}: {words}");
        assert!(!words.contains(STOPPED_IN_SETUP), "the grace period was waited for: {words}");
    }
}

fn cold_start() -> Value {
    json!({
        "algorithm": { "coldStart": { "steps": 2, "batchSize": 4 }, "kl": { "coefficient": 0.1 } },
        "training": { "epochsPerBatch": 2, "promptsPerUpdate": 1 }
    })
}

fn lora() -> Value {
    json!({ "model": { "lora": { "rank": 4, "alpha": 8, "dropout": 0.1 } } })
}

#[test]
fn a_run_that_was_prolonged_equals_one_that_was_not() {
    prolong(&json!({ "rollout": { "temperature": 0.8, "topP": 0.9 } }));
}

/// Each expert and the router have an adapter. The routers' loss counts choices in a separate pass.
#[test]
fn adapters_of_experts_are_resumed() {
    let (whole, resumed) = prolonged(&json!({
        "model": {
            "architecture": { "family": "Qwen3Moe", "experts": { "count": 4, "perToken": 2 } },
            "lora": {
                "rank": 2, "targetModules": ["q_proj"],
                "targetParameters": ["gate.weight", "experts.gate_up_proj", "experts.down_proj"]
            }
        },
        "training": { "routerAuxLossCoef": 0.01 }
    }));
    assert_same_run(&whole, &resumed);
    for step in whole.steps() {
        assert!(step["moe/route_agreement"].as_f64() > Some(0.99), "{step}");
        let [mean, first] =
            ["moe/busiest_expert", "moe/busiest_expert/layer_0"].map(|name| step[name].as_f64());
        assert!(mean > Some(0.2499) && first > Some(0.2499) && mean <= Some(0.5), "{step}");
    }
}

#[test]
fn a_cold_start_and_its_reference_are_resumed() {
    prolong(&cold_start());
}

#[test]
fn an_adapter_with_dropout_is_resumed() {
    prolong(&lora());
}

/// The policy differs from its reference, which is the quantized base without the adapter, even before the
/// first update. A resumed run reads the adapter and does not decompose weights again.
#[test]
fn an_adapter_that_corrects_quantization_is_resumed() {
    let mut loftq = json!({
        "model": { "lora": { "rank": 4, "init": "Loftq" }, "quantization": { "format": "Nf4" } },
        "algorithm": { "kl": { "coefficient": 0.1 } }
    });
    let first_kl = |run: &Place| run.steps()[0]["actor/kl_loss"].as_f64();
    for workers in [json!({}), json!({ "ranksPerWorker": 2, "mesh": { "dpShard": 2 } })] {
        merge(&mut loftq, json!({ "workers": workers }));
        let (whole, resumed) = prolonged(&loftq);
        assert_same_run(&whole, &resumed);
        assert!(first_kl(&whole) > Some(1e-7), "{:?}", first_kl(&whole));
    }
}

#[test]
fn an_adaptive_kl_in_the_reward_is_resumed() {
    prolong(&json!({ "algorithm": { "kl": {
        "placement": "Reward", "coefficient": 0.1, "adaptive": { "target": 0.01, "horizon": 100 }
    } } }));
}

#[test]
fn a_critic_is_resumed_in_and_after_its_warmup() {
    let critic = json!({ "kind": "PPO", "critic": { "learningRate": 0.01, "warmupSteps": 2 } });
    prolong(&json!({ "algorithm": critic }));
    prolong(&json!({ "algorithm": critic, "model": lora()["model"] }));
}

#[test]
fn half_precision_is_resumed_with_the_scales_of_its_losses() {
    let half = json!({ "training": { "precision": "Fp16" }, "algorithm": { "kind": "PPO" } });
    let (whole, resumed) = prolonged(&half);
    // Some of the first steps overflow and change no weights.
    assert_same_numbers(&whole, &resumed);
    let state = |place: &Place| -> Value {
        serde_json::from_slice(&fs::read(place.run("checkpoints/step-000006/state.json")).unwrap()).unwrap()
    };
    let (whole, resumed) = (state(&whole), state(&resumed));
    for role in ["loss_scale", "critic_loss_scale"] {
        assert_eq!(whole[role], resumed[role], "{role}");
        // A scale that was reset would have its first factor, and would have counted only the last three
        // updates.
        let (factor, num_good) = (whole[role]["factor"].as_f64(), whole[role]["numGood"].as_u64());
        assert!(num_good >= Some(1) && (factor < Some(65536.0) || num_good > Some(3)), "{whole}");
    }
}

#[test]
fn a_rollout_in_other_numbers_than_the_training_is_resumed() {
    prolong(&json!({ "rollout": { "precision": "Bf16" } }));
}

#[test]
fn supervised_training_is_resumed() {
    prolong(&json!({ "algorithm": { "kind": "SFT" }, "rewards": null }));
}

#[test]
fn a_term_signal_ends_a_run_with_a_checkpoint_and_its_own_exit_code() {
    // Checkpoints are so rare that the only one is written because of the signal.
    let mut changes = cold_start();
    merge(&mut changes, json!({ "checkpoint": { "everySteps": 1000 } }));
    interrupt(&changes, "TERM", Some(80));
}

#[test]
fn a_kill_costs_no_more_than_the_steps_since_the_last_checkpoint() {
    let mut changes = lora();
    merge(&mut changes, json!({ "checkpoint": { "everySteps": 2 } }));
    interrupt(&changes, "KILL", None);
}

/// The step of the newest committed checkpoint; 0 before the first.
fn newest_checkpoint(place: &Place) -> u64 {
    let Ok(entries) = fs::read_dir(place.run("checkpoints")) else { return 0 };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).max().unwrap_or(0)
}

#[test]
fn a_kill_beside_every_commit_loses_no_line_of_the_log() {
    let (whole, resumed) = (Place::new(), Place::new());
    for step in [1, 4, 9, 15] {
        let mut child = resumed.start(&with_steps(&json!({}), ENDLESS.into()));
        // Waits for a commit, at which the log must already contain the step. On a busy machine it may be the
        // commit of a later step.
        while newest_checkpoint(&resumed) < step {
            assert!(child.try_wait().unwrap().is_none(), "the run has ended by itself");
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        signal(&child, "KILL");
        child.wait().unwrap();
        let committed = newest_checkpoint(&resumed);
        assert!(resumed.last_step() >= committed, "step {committed} is committed and not logged");
    }
    let manifest = with_steps(&json!({}), resumed.last_step() + 2);
    resumed.train(&manifest).expect(0, &["resuming after step"]);
    whole.train(&manifest).expect(0, &[]);
    assert_same_run(&whole, &resumed);
}

#[test]
fn a_checkpoint_of_another_run_is_resumed() {
    let (whole, first, second) = (Place::new(), Place::new(), Place::new());
    let changes = json!({ "algorithm": { "kl": { "placement": "Loss", "coefficient": 0.1 } } });
    whole.train(&with_steps(&changes, 6)).expect(0, &[]);
    first.train(&with_steps(&changes, 3)).expect(0, &[]);
    let mut manifest = with_steps(&changes, 6);
    merge(
        &mut manifest["spec"],
        json!({ "checkpoint": { "resumeFrom": first.run("checkpoints/step-000003") } }),
    );
    second.train(&manifest).expect(0, &["resuming after step 3"]);
    assert_eq!(
        values(&whole)[4..],
        values(&second)[..],
        "the last three of six steps and the evaluation before them"
    );
    assert!(whole.weights() == second.weights(), "the exported weights differ");
}

#[test]
fn a_checkpoint_that_is_not_there_or_of_another_model_is_refused() {
    let (small, other) = (Place::new(), Place::new());
    let resume_from = |path| json!({ "checkpoint": { "resumeFrom": path } });
    small.train(&tiny_with(resume_from(small.file("nowhere")))).expect(78, &["nowhere"]);
    other.train(&tiny_with(json!({ "training": { "steps": 1 } }))).expect(0, &[]);
    let mut manifest = tiny_with(resume_from(other.run("checkpoints/step-000001")));
    merge(&mut manifest["spec"], json!({ "model": { "architecture": { "hiddenSize": 64 } } }));
    Place::new().train(&manifest).expect(78, &["step-000001", "model.", "64"]);
}
