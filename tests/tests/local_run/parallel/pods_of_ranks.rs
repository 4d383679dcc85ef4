//! Pods of several ranks. The launcher of each pod starts its share of the job's ranks, with a run folder
//! that the pods share, as on a shared volume.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::job::{ENDLESS, Ended, Place, end_of, merge, tiny_with, wait_until};
use crate::ranks::{TOLERANCE, difference, is_running, send, train, workers};
use crate::resume::assert_same_run;

const RANKS_PER_WORKER: u32 = 2;

/// A job of two workers of two ranks each.
fn two_by_two(changes: &Value) -> Value {
    let mut manifest = tiny_with(json!({
        "training": { "promptsPerStep": 3, "optimizer": { "learningRate": 0.001 } }
    }));
    merge(&mut manifest["spec"], changes.clone());
    merge(&mut manifest["spec"], json!({ "workers": { "count": 2, "ranksPerWorker": RANKS_PER_WORKER } }));
    manifest
}

/// Starts both pods with the operator's variables.
fn pods(place: &Place, manifest: &Value) -> [Child; 2] {
    let job = rlt_api::validate(&manifest.to_string()).unwrap();
    let plan = rlt_plan::plan(&job, &rlt_plan::Models::default());
    let path = place.write(manifest);
    [0, 1].map(|worker_idx| {
        let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
        command.args(["launch", "--manifest"]).arg(&path).arg("--output").arg(place.run(""));
        let variables = plan.worker_groups[0].environment(worker_idx * RANKS_PER_WORKER).unwrap();
        command.envs(variables.into_iter().map(|variable| (variable.name, variable.value)));
        command.envs([("MASTER_ADDR", "localhost".to_owned()), ("MASTER_PORT", place.port())]);
        command.env("RLT_RENDEZVOUS_KEY", "k".repeat(64));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    })
}

/// Starts one pod with all ranks of a job, which may restart them in place as often as `retries` says.
fn pod_of_all(place: &Place, manifest: &Value, retries: &Value) -> Child {
    let job = rlt_api::validate(&manifest.to_string()).unwrap();
    let plan = rlt_plan::plan(&job, &rlt_plan::Models::default());
    let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    command.args(["launch", "--manifest"]).arg(place.write(manifest)).arg("--output").arg(place.run(""));
    let variables = plan.worker_groups[0].environment(0).unwrap();
    command.envs(variables.into_iter().map(|variable| (variable.name, variable.value)));
    command.envs([("MASTER_PORT", place.port()), ("RLT_RETRIES_LEFT", retries.to_string())]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn end_of_both(pods: [Child; 2]) -> [Ended; 2] {
    pods.map(end_of)
}

#[test]
fn two_pods_of_two_ranks_train_as_one_rank() {
    let changes = |mesh: Value| json!({ "training": { "steps": 2 }, "workers": { "mesh": mesh } });
    let one = train(1, &changes(json!({})));
    for mesh in [json!({ "dpShard": 4 }), json!({ "dpShard": 2, "sp": 2, "rolloutTp": 2 })] {
        let many = Place::new();
        for pod in end_of_both(pods(&many, &two_by_two(&changes(mesh.clone())))) {
            pod.expect(0, &[]);
        }
        let difference = difference(&one, &many);
        assert!(difference < TOLERANCE, "{mesh}: {difference}");
    }
    let here = Place::new();
    here.train(&two_by_two(&changes(json!({ "sp": 2 })))).expect(0, &[]);
    let difference = difference(&one, &here);
    assert!(difference < TOLERANCE, "all on one machine: {difference}");
}

#[test]
fn a_rank_that_dies_in_one_pod_ends_both_and_they_go_on_from_the_checkpoint() {
    let changes = |steps: u32| json!({ "training": { "steps": steps }, "checkpoint": { "everySteps": 1 } });
    let (place, whole) = (Place::new(), Place::new());
    let mut running = pods(&place, &two_by_two(&changes(ENDLESS)));
    // The first checkpoint is committed before the second one begins.
    place.wait_for_steps(3);
    let of_second = workers(&running[1]);
    assert!(of_second.keys().eq(["2", "3"]), "{of_second:?}");
    send(of_second["3"], "KILL");
    assert!(running[0].wait().unwrap().code() != Some(0));
    let [first, second] = end_of_both(running);
    second.expect(76, &["error: rank 3 was killed by signal 9"]);
    assert!(first.stderr.contains("rank 3"), "{}", first.stderr);
    assert!(of_second.values().all(|pid| !is_running(*pid)));
    let num_steps = u32::try_from(place.steps().len()).unwrap() + 2;
    let [first, _] = end_of_both(pods(&place, &two_by_two(&changes(num_steps))));
    first.expect(0, &["resuming after step"]);
    whole.train(&two_by_two(&changes(num_steps))).expect(0, &[]);
    assert_same_run(&whole, &place);
}

/// A job of one worker with `ranks` ranks, which trains `steps` steps with a checkpoint after every `every`
/// steps.
fn one_by(ranks: u32, steps: u32, every: u32) -> Value {
    let mut manifest = tiny_with(json!({
        "training": { "promptsPerStep": 3, "steps": steps }, "checkpoint": { "everySteps": every },
    }));
    let mesh = json!({ "dpShard": ranks });
    let workers = json!({ "workers": { "count": 1, "ranksPerWorker": ranks, "mesh": mesh } });
    merge(&mut manifest["spec"], workers);
    manifest
}

/// Waits for ranks that replace the `known` ones in place, and for their first steps. Returns the new ranks.
fn restarted(pod: &Child, place: &Place, known: &BTreeMap<String, u32>) -> BTreeMap<String, u32> {
    let mut ranks = BTreeMap::new();
    wait_until("a restart in place", || {
        ranks = workers(pod);
        ranks.len() == known.len() && ranks.values().all(|pid| !known.values().any(|old| old == pid))
    });
    assert!(known.values().all(|pid| !is_running(*pid)), "a process of the failed attempt lives on");
    // In three further steps a new checkpoint is committed.
    place.wait_for_steps(place.steps().len() + 3);
    ranks
}

#[test]
fn a_pod_with_all_ranks_restarts_them_in_place_as_often_as_a_new_checkpoint_comes_before() {
    let (place, whole) = (Place::new(), Place::new());
    let mut pod = pod_of_all(&place, &one_by(3, ENDLESS, 1), &json!({ "crash": 1 }));
    place.wait_for_steps(3);
    let mut ranks = workers(&pod);
    for victim in ["2", "0"] {
        send(ranks[victim], "KILL");
        ranks = restarted(&pod, &place, &ranks);
        assert!(pod.try_wait().unwrap().is_none(), "the pod is alive");
    }
    send(pod.id(), "TERM");
    let ended = end_of(pod);
    let said = format!("{}{}", ended.stdout, ended.stderr);
    assert_eq!(said.matches("the ranks are restarted in place").count(), 2, "{said}");
    ended.expect(80, &[]);
    let num_steps = u32::try_from(place.steps().len()).unwrap() + 2;
    let last = pod_of_all(&place, &one_by(3, num_steps, 1), &json!({}));
    end_of(last).expect(0, &["resuming after step"]);
    whole.train(&one_by(3, num_steps, 1)).expect(0, &[]);
    assert_same_run(&whole, &place);
}

#[test]
fn a_pod_whose_ranks_crash_twice_without_a_checkpoint_ends_and_counts_what_it_restarted() {
    let place = Place::new();
    let pod = pod_of_all(&place, &one_by(2, ENDLESS, ENDLESS), &json!({ "crash": 9 }));
    place.wait_for_steps(2);
    let first = workers(&pod);
    send(first["1"], "KILL");
    let second = restarted(&pod, &place, &first);
    send(second["1"], "KILL");
    let said = ["another node may do better", "restarts in place: Signalled=1"];
    end_of(pod).expect(76, &said);
}

#[test]
fn a_pod_without_retries_of_its_own_ends_with_its_first_rank() {
    let place = Place::new();
    let pod = pod_of_all(&place, &one_by(2, ENDLESS, 1), &json!({ "crash": 0 }));
    place.wait_for_steps(1);
    send(workers(&pod)["0"], "KILL");
    end_of(pod).expect(76, &["rank 0 was killed by signal 9"]);
}

/// The operator does not answer, and the ranks run in separate processes.
#[test]
fn the_last_report_of_a_complete_run_is_the_termination_message_of_its_launcher() {
    let place = Place::new();
    let message = place.file("message");
    let variables = [
        ("RLT_CHANNEL_ADDRESS", "https://127.0.0.1:1"),
        ("RLT_CHANNEL_CA_FILE", "/nowhere/ca"),
        ("RLT_CHANNEL_TOKEN_FILE", "/nowhere/token"),
        ("RLT_JOB_UID", "u"),
        ("RLT_JOB_NAMESPACE", "team"),
        ("RLT_JOB_NAME", "tiny"),
        (rlt_api::TERMINATION_MESSAGE_VARIABLE, message.to_str().unwrap()),
    ];
    let variables = variables.map(|(name, value)| (name, value.to_owned())).to_vec();
    end_of(place.start_in(&one_by(2, 3, 3), variables)).expect(0, &[]);
    let said = std::fs::read_to_string(message).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, "step 3 of 3 is done"), "{said}");
    assert!(lines[1].starts_with("last report: "), "{said}");
}
