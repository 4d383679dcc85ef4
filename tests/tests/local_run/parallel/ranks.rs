//! Any number of ranks equals one rank: the same steps, the same weights, the same exit code.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::job::{ENDLESS, Ended, Place, end_of, merge, signal, tiny_with, wait_until};
use crate::memory;

/// Sums over ranks have another order than sums of one rank. They differ by a few roundings of fp32, which
/// the optimizer amplifies because it divides by small gradients.
pub(crate) const TOLERANCE: f64 = 1e-5;

pub(crate) fn on(count: u32, changes: &Value) -> Value {
    let mut manifest = tiny_with(json!({
        "training": { "promptsPerStep": 3, "optimizer": { "learningRate": 0.001 } }
    }));
    merge(&mut manifest["spec"], changes.clone());
    merge(&mut manifest["spec"], json!({ "workers": { "count": count } }));
    manifest
}

pub(crate) fn train(count: u32, changes: &Value) -> Place {
    let place = Place::new();
    place.train(&on(count, changes)).expect(0, &[]);
    place
}

/// Checks that each of two jobs, given with their numbers of ranks, continues from a checkpoint of the other
/// as if it had never been interrupted.
#[track_caller]
pub(crate) fn assert_resume_each_other(jobs: [(u32, Value); 2]) {
    let part = |of: usize, steps: u64| {
        let (count, mut changes) = jobs[of].clone();
        merge(&mut changes, json!({ "training": { "steps": steps } }));
        on(count, &changes)
    };
    let whole = Place::new();
    whole.train(&part(0, 3)).expect(0, &[]);
    for (first, second) in [(0, 1), (1, 0)] {
        let place = Place::new();
        place.train(&part(first, 2)).expect(0, &[]);
        place.train(&part(second, 3)).expect(0, &["resuming after step 2"]);
        let difference = difference(&whole, &place);
        assert!(difference < TOLERANCE, "{first} before {second}: {difference}");
    }
}

fn weights(place: &Place) -> BTreeMap<String, Vec<f64>> {
    let bytes = place.weights();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |data: &[u8]| {
        data.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
    };
    tensors.iter().map(|(name, tensor)| (name.to_owned(), numbers(tensor.data()))).collect()
}

/// Returns the largest difference between two runs, over all metrics of all steps and all weights.
#[track_caller]
pub(crate) fn difference(one: &Place, many: &Place) -> f64 {
    let mut largest = 0.0_f64;
    let (one_steps, many_steps) = (one.metrics(), many.metrics());
    assert_eq!(one_steps.len(), many_steps.len());
    for (one, many) in one_steps.iter().zip(&many_steps) {
        let names = |step: &Value| -> Vec<String> {
            step.as_object()
                .unwrap()
                .keys()
                .filter(|name| !rlt_tests::depends_on_machine(name))
                .cloned()
                .collect()
        };
        // A shorter run evaluates at its end, where the longer run may not.
        let without_evaluation = |step| names(step).into_iter().filter(|name| !name.starts_with("val-"));
        assert!(without_evaluation(one).eq(without_evaluation(many)), "{one} {many}");
        for name in names(one) {
            let (one, many) = (one[&name].as_f64(), many[&name].as_f64());
            assert_eq!(one.is_some(), many.is_some(), "{name}");
            let (one, many) = (one.unwrap_or(0.0), many.unwrap_or(0.0));
            largest = largest.max((one - many).abs() / one.abs().max(1.0));
        }
    }
    let (one, many) = (weights(one), weights(many));
    assert!(one.keys().eq(many.keys()) && !one.is_empty());
    let numbers =
        |weights: &BTreeMap<String, Vec<f64>>| weights.values().flatten().copied().collect::<Vec<_>>();
    let pairs = numbers(&one).into_iter().zip(numbers(&many)).map(|(one, many)| (one - many).abs());
    pairs.fold(largest, f64::max)
}

#[test]
fn any_number_of_ranks_equals_one_rank() {
    let changes = json!({
        "algorithm": { "coldStart": { "steps": 2, "batchSize": 5 } },
        "training": { "steps": 3, "evaluateEvery": 1, "evaluateBefore": true }
    });
    let one = train(1, &changes);
    assert!(one.steps().iter().all(|step| step["actor/grad_norm"].as_f64() > Some(0.0)));
    for (count, balance) in [(2, "Work"), (3, "Count"), (4, "Order")] {
        let mut changes = changes.clone();
        merge(&mut changes, json!({ "workers": { "balance": balance } }));
        let many = train(count, &changes);
        let difference = difference(&one, &many);
        assert!(difference < TOLERANCE, "{count} ranks by {balance} differ by {difference}");
        // Weights differ by rounding, but the sampled tokens must be the same.
        let completions = |place: &Place| -> Vec<Value> {
            let written = ["step", "held_out", "group", "sample", "token_ids", "reward"];
            place.completions().iter().map(|line| written.map(|name| line[name].clone()).into()).collect()
        };
        assert_eq!(completions(&one), completions(&many));
    }
}

#[test]
fn batch_statistics_are_the_same_on_two_ranks() {
    for changes in [
        json!({ "algorithm": { "kind": "DAPO" }, "training": { "promptsPerUpdate": 1, "epochsPerBatch": 2 } }),
        json!({ "algorithm": { "kind": "ReMax" } }),
        json!({ "algorithm": { "kind": "PPO" }, "training": { "promptsPerUpdate": 1 } }),
        json!({ "algorithm": { "kind": "ReinforcePlusPlus" } }),
        json!({ "algorithm": { "loss": { "policy": "ClipCov" }, "kl": { "adaptive": { "target": 0.1 } } } }),
        json!({ "algorithm": { "advantage": { "estimator": "OptimalTokenBaseline" } } }),
        json!({ "model": { "lora": { "rank": 4, "alpha": 8 } } }),
    ] {
        let (one, two) = (train(1, &changes), train(2, &changes));
        let difference = difference(&one, &two);
        assert!(difference < TOLERANCE, "{changes} differs by {difference}");
    }
}

#[test]
fn a_run_resumes_with_another_number_of_ranks() {
    let steps = |steps: u32| json!({ "training": { "steps": steps } });
    let (whole, resumed) = (train(1, &steps(6)), Place::new());
    for (count, num_steps, says) in [(3, 2, None), (2, 4, Some("after step 2")), (1, 6, Some("after step 4"))]
    {
        resumed.train(&on(count, &steps(num_steps))).expect(0, says.as_slice());
    }
    let difference = difference(&whole, &resumed);
    assert!(difference < TOLERANCE, "{difference}");
}

/// Returns the workers of a launcher: the process of each rank.
pub(crate) fn workers(launcher: &Child) -> BTreeMap<String, u32> {
    let pid = launcher.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    // A process that is ending has no environment any more.
    let rank = |pid: &str| {
        let environment = fs::read_to_string(format!("/proc/{pid}/environ")).ok()?;
        environment.split('\0').find_map(|line| line.strip_prefix("RANK=").map(str::to_owned))
    };
    children.split_whitespace().filter_map(|pid| Some((rank(pid)?, pid.parse().unwrap()))).collect()
}

/// Changes for a job whose crashed ranks are never restarted.
fn never_again() -> Value {
    json!({ "runPolicy": { "retries": { "crash": 0 } } })
}

fn merged(mut base: Value, changes: Value) -> Value {
    merge(&mut base, changes);
    base
}

pub(crate) fn send(pid: u32, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap().success());
}

pub(crate) fn is_running(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_killed_rank_ends_all_with_one_named_cause_and_nothing_is_lost() {
    let place = Place::new();
    // The remaining ranks end without waiting for the peer timeout.
    let changes =
        |steps: u32| json!({ "training": { "steps": steps }, "workers": { "peerTimeoutSeconds": 3600 } });
    let job = |steps: u32| on(3, &merged(never_again(), changes(steps)));
    let launcher = place.start(&job(ENDLESS));
    // The first checkpoint is committed before the second one begins.
    place.wait_for_steps(3);
    let workers = workers(&launcher);
    assert_eq!(workers.len(), 3);
    send(workers["1"], "KILL");
    let ended = end_of(launcher);
    ended.expect(76, &["rank 1 was killed by signal 9", "exit code 76: PeerLost"]);
    assert!(workers.values().all(|pid| !is_running(*pid)));
    let last = place.steps().last().unwrap()["step"].as_u64().unwrap();
    place.train(&job(last as u32 + 3)).expect(0, &["resuming after step"]);
    let steps: Vec<u64> = place.steps().iter().map(|step| step["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=last + 3).collect::<Vec<_>>(), "every step once");
}

#[test]
fn a_rank_that_hangs_is_named_after_the_timeout() {
    let place = Place::new();
    let launcher = place.start(&on(
        2,
        &json!({
            // Ranks that start on a busy machine find each other in less time than that.
            "training": { "steps": ENDLESS }, "workers": { "peerTimeoutSeconds": 30 },
            "runPolicy": never_again()["runPolicy"]
        }),
    ));
    place.wait_for_steps(1);
    let workers = workers(&launcher);
    send(workers["1"], "STOP");
    let ended = end_of(launcher);
    ended.expect(
        76,
        &["rank 0 ended with exit code 76", "no sign of life from rank 1", "rank 1 was ended after it"],
    );
    assert!(!is_running(workers["1"]));
}

#[test]
fn a_signal_to_the_launcher_saves_a_checkpoint_on_all_ranks_together() {
    let place = Place::new();
    let launcher =
        place.start(&on(2, &json!({ "training": { "steps": ENDLESS }, "checkpoint": { "everySteps": 0 } })));
    place.wait_for_steps(2);
    signal(&launcher, "TERM");
    end_of(launcher).expect(80, &[]);
    assert_eq!(fs::read_dir(place.run("checkpoints")).unwrap().count(), 1);
}

#[test]
fn workers_end_with_their_launcher() {
    let place = Place::new();
    let mut launcher = place.start(&on(2, &json!({ "training": { "steps": ENDLESS } })));
    place.wait_for_steps(1);
    let workers = workers(&launcher);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    wait_until("the end of the workers", || !workers.values().any(|pid| is_running(*pid)));
}

#[test]
fn an_error_of_all_ranks_has_its_own_exit_code() {
    let place = Place::new();
    let changes = json!({ "model": { "architecture": null, "tokenizer": null, "path": "/nowhere" } });
    place.train(&on(2, &changes)).expect(78, &["/nowhere", "exit code 78: BadConfig"]);
}

#[test]
fn a_worker_alone_does_not_pretend_to_be_two() {
    let place = Place::new();
    let manifest = place.write(&on(2, &json!({})));
    let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    command.args(["worker", "--manifest"]).arg(manifest).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ended::of(command.output().unwrap()).expect(2, &["spec.workers.count is 2", "rlt-trainer launch"]);
}

#[test]
fn the_example_of_two_ranks_trains() {
    let example = rlt_tests::workspace_root().join("examples/ranks/job.yaml");
    let job = rlt_api::validate(&fs::read_to_string(example).unwrap()).unwrap();
    assert_eq!(job.spec().workers.count, 2);
    let mut manifest = json!({
        "apiVersion": "rltraining.dev/v1alpha1", "kind": "RLTrainingJob", "metadata": { "name": job.name() },
        "spec": job.spec()
    });
    merge(
        &mut manifest["spec"],
        json!({ "algorithm": { "coldStart": { "steps": 3 } }, "training": { "steps": 2, "evaluateEvery": 0, "schedule": { "warmupSteps": 0 } } }),
    );
    let place = Place::on_disk();
    let estimate = memory::estimate(&place.write(&manifest), &place.file(""));
    place.train(&manifest).expect(0, &[]);
    assert_eq!(place.steps().len(), 2);
    memory::assert_taken("one of two ranks", estimate, &place.run(""));
}
