//! Failed ranks are restarted, and the run's result is that of an undisturbed one; permanent failures and
//! requested stops are not retried.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bad_model::diverging;
use crate::job::{ENDLESS, Place, end_of, merge, signal, wait_until};
use crate::ranks::{is_running, on, send, workers};
use crate::resume::assert_same_run;

/// Seed of the kills, unless the variable `RLT_TEST_SEED` names another one.
const SEED: u64 = 1;

/// Pseudo-random numbers from a seed, which is printed.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let seed = std::env::var("RLT_TEST_SEED").map_or(SEED, |text| text.parse().unwrap());
        std::io::stderr().write_all(format!("RLT_TEST_SEED={seed}\n").as_bytes()).unwrap();
        Self(seed)
    }

    /// Draws a number below `end`, by the linear congruence of Knuth's MMIX.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Reads a process's output while it runs: a full pipe would block it.
fn listen(child: &mut Child) -> std::thread::JoinHandle<String> {
    let mut stream = child.stderr.take().unwrap();
    std::thread::spawn(move || {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    })
}

/// Waits for workers that are not among the `known` ones, and returns their processes.
fn next_workers(launcher: &mut Child, count: usize, known: &[u32]) -> Vec<u32> {
    let mut pids = Vec::new();
    wait_until("workers of the next attempt", || {
        assert!(launcher.try_wait().unwrap().is_none(), "the run has ended");
        pids = workers(launcher).into_values().collect();
        pids.len() == count && !pids.iter().any(|pid| known.contains(pid))
    });
    pids
}

fn wait_for_step(place: &Place, step: u64) {
    wait_until(&format!("step {step}"), || place.last_step() >= step);
}

fn assert_every_step_once(place: &Place, num_steps: u64) {
    let steps: Vec<u64> = place.steps().iter().map(|step| step["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=num_steps).collect::<Vec<_>>(), "every step once");
}

fn retries(retries: Value) -> Value {
    json!({ "runPolicy": { "retries": retries } })
}

/// Kills a random rank at a random time, `num_kills` times: while ranks start, during a step, or while a
/// checkpoint is written. The run has more steps than any machine trains in that time. After the last kill it
/// is asked to stop, and it must have trained the same steps as an undisturbed run.
fn survives(count: u32, num_kills: usize, dice: &mut Dice) {
    let job = |num_steps: u64| {
        let mut changes = retries(json!({ "crash": 1000 }));
        merge(&mut changes, json!({ "training": { "steps": num_steps }, "checkpoint": { "everySteps": 2 } }));
        on(count, &changes)
    };
    let place = Place::new();
    let mut launcher = place.start(&job(ENDLESS.into()));
    let said = listen(&mut launcher);
    let mut pids = next_workers(&mut launcher, count as usize, &[]);
    for _ in 0..num_kills {
        if dice.below(3) > 0 {
            wait_for_step(&place, place.last_step() + 1 + dice.below(3));
            std::thread::sleep(Duration::from_micros(dice.below(20_000)));
        } else {
            std::thread::sleep(Duration::from_millis(dice.below(900)));
        }
        send(pids[dice.below(count.into()) as usize], "KILL");
        pids = next_workers(&mut launcher, count as usize, &pids);
    }
    wait_for_step(&place, place.last_step() + 1);
    signal(&launcher, "TERM");
    let ended = launcher.wait().unwrap();
    let said = said.join().unwrap();
    assert_eq!(ended.code(), Some(80), "{said}");
    assert_eq!(said.matches(" from the last complete checkpoint (").count(), num_kills, "{said}");
    let num_steps = place.last_step() + 1;
    place.train(&job(num_steps)).expect(0, &["resuming after step"]);
    let whole = Place::new();
    whole.train(&job(num_steps)).expect(0, &[]);
    assert_same_run(&whole, &place);
    assert_every_step_once(&place, num_steps);
}

#[test]
fn kills_of_any_rank_at_any_moment_change_nothing() {
    let mut dice = Dice::new();
    let soak = std::env::var("RLT_TEST_KILLS").ok().and_then(|text| text.parse().ok());
    survives(2, soak.unwrap_or(5), &mut dice);
    survives(3, soak.unwrap_or(3), &mut dice);
}

#[test]
fn a_budget_that_is_used_up_ends_the_run_with_the_last_cause() {
    let place = Place::new();
    let mut changes = retries(json!({ "crash": 1 }));
    merge(&mut changes, json!({ "training": { "steps": ENDLESS } }));
    let mut launcher = place.start(&on(2, &changes));
    let first = next_workers(&mut launcher, 2, &[]);
    place.wait_for_steps(1);
    send(first[1], "KILL");
    let second = next_workers(&mut launcher, 2, &first);
    assert!(first.iter().all(|pid| !is_running(*pid)), "no rank of an attempt lives into the next");
    send(second[0], "SEGV");
    let said =
        ["attempt 1 failed: rank 1 was killed by signal 9", "attempt 2 begins now", "1 of retries.crash 1"];
    let ended = end_of(launcher).expect(76, &said);
    ended.expect(76, &["error: rank 0 was killed by signal 11", "retries.crash of 1 used up"]);
}

#[test]
fn a_run_that_starts_afresh_does_so_once() {
    let place = Place::new();
    let mut changes = retries(json!({ "crash": 3 }));
    merge(&mut changes, json!({ "training": { "steps": 6 } }));
    place.train(&on(2, &changes)).expect(0, &[]);
    merge(&mut changes, json!({ "training": { "steps": ENDLESS, "seed": 7 } }));
    let path = place.write(&on(2, &changes));
    let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    command.args(["launch", "--overwrite", "--manifest"]).arg(path).arg("--output").arg(place.run(""));
    let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let said = listen(&mut launcher);
    let first = next_workers(&mut launcher, 2, &[]);
    // Only the second run has a ninth step.
    wait_for_step(&place, 9);
    send(first[0], "KILL");
    next_workers(&mut launcher, 2, &first);
    wait_for_step(&place, place.last_step() + 1);
    signal(&launcher, "TERM");
    assert_eq!(launcher.wait().unwrap().code(), Some(80));
    let said = said.join().unwrap();
    assert!(said.contains("attempt 2 begins"), "{said}");
    let resumed = said.lines().filter(|line| line.contains("resuming after step")).count();
    assert_eq!(resumed, 1, "{said}");
    assert_every_step_once(&place, place.last_step());
}

#[test]
fn a_launcher_does_not_restart_ranks_that_the_environment_assigned() {
    let place = Place::new();
    let path = place.write(&on(2, &json!({ "training": { "steps": ENDLESS } })));
    let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    command.args(["launch", "--manifest"]).arg(path).arg("--output").arg(place.run(""));
    command.envs([
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "localhost"),
    ]);
    command.env("MASTER_PORT", place.port()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut launcher = command.spawn().unwrap();
    let pids = next_workers(&mut launcher, 2, &[]);
    place.wait_for_steps(1);
    send(pids[1], "KILL");
    let ended = end_of(launcher);
    let ended = ended.expect(76, &["error: rank 1 was killed by signal 9"]);
    assert!(!ended.stderr.contains("attempt"), "{}", ended.stderr);
}

#[test]
fn ranks_that_diverge_end_together_with_one_cause_and_are_not_tried_again() {
    let place = Place::new();
    let mut manifest = diverging(&place);
    merge(
        &mut manifest["spec"],
        json!({ "workers": { "count": 2 }, "runPolicy": { "retries": { "failure": 9, "crash": 9 } } }),
    );
    let ended = place.train(&manifest);
    let ended = ended.expect(77, &["4 steps in a row", "exit code 77: Diverged"]);
    assert!(!ended.stderr.contains("attempt"), "{}", ended.stderr);
    assert_eq!(place.steps().len(), 4);
}

#[test]
fn a_rank_that_does_not_stop_in_time_is_killed_and_named() {
    let place = Place::new();
    let mut launcher = place.start(&on(
        2,
        &json!({ "training": { "steps": ENDLESS }, "workers": { "peerTimeoutSeconds": 3600 },
                 "runPolicy": { "terminationGracePeriodSeconds": 1 } }),
    ));
    let pids = next_workers(&mut launcher, 2, &[]);
    place.wait_for_steps(1);
    send(pids[1], "STOP");
    signal(&launcher, "TERM");
    let ended = end_of(launcher);
    let ended = ended.expect(76, &["did not end within 1 s of a signal and was killed"]);
    assert!(
        !ended.stderr.contains("attempt"),
        "a run that was asked to stop is not restarted: {}",
        ended.stderr
    );
    assert!(pids.iter().all(|pid| !is_running(*pid)));
}

#[test]
fn a_signal_at_any_moment_of_the_start_stops_all_ranks_as_preempted() {
    for delay in [0, 30, 200] {
        let place = Place::new();
        let mut launcher = place.start(&on(3, &json!({ "training": { "steps": ENDLESS } })));
        let pids = next_workers(&mut launcher, 3, &[]);
        std::thread::sleep(Duration::from_millis(delay));
        signal(&launcher, "TERM");
        end_of(launcher).expect(80, &[]);
        assert!(pids.iter().all(|pid| !is_running(*pid)));
    }
}
