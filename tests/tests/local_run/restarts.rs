//! Failed ranks are restarted, and the run's result is that of an undisturbed one; permanent failures and
//! requested stops are not retried.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::bad_model::diverging;
use crate::job::{Ended, Place, merge, signal};
use crate::ranks::{is_running, on, send, workers};
use crate::resume::assert_same_run;

/// Numbers that look random and follow from a seed that a failure prints.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = std::env::var("RLT_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(now);
        let mut console = std::io::stderr();
        writeln!(console, "RLT_TEST_SEED={seed}").unwrap();
        Self(seed)
    }

    /// Below `end`, by the linear congruence of Knuth's MMIX.
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

/// Waits until other workers run than the ones that are `known`; none where the launcher has ended.
fn next_workers(launcher: &mut Child, count: usize, known: &[u32]) -> Option<Vec<u32>> {
    let started = Instant::now();
    loop {
        let pids: Vec<u32> = workers(launcher).into_values().collect();
        if pids.len() == count && !pids.iter().any(|pid| known.contains(pid)) {
            return Some(pids);
        }
        if launcher.try_wait().unwrap().is_some() {
            return None;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "no attempt has begun");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn last_step(place: &Place) -> u64 {
    place.steps().last().map_or(0, |step| step["step"].as_u64().unwrap())
}

fn wait_for_step(place: &Place, launcher: &mut Child, step: u64) {
    while last_step(place) < step && launcher.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn retries(retries: Value) -> Value {
    json!({ "runPolicy": { "retries": retries } })
}

/// Kills a random rank at a random moment `num_kills` times: while ranks start, in a step, or beside a
/// checkpoint.
fn survives(count: u32, num_kills: usize, dice: &mut Dice) {
    let mut changes = retries(json!({ "crash": 1000 }));
    let num_steps = 16 * num_kills as u64;
    merge(&mut changes, json!({ "training": { "steps": num_steps }, "checkpoint": { "everySteps": 2 } }));
    let whole = Place::new();
    whole.train(&on(count, &changes)).expect(0, &[]);
    let place = Place::new();
    let mut launcher = place.start(&on(count, &changes));
    let said = listen(&mut launcher);
    let (mut known, mut killed) = (Vec::new(), 0);
    while killed < num_kills
        && let Some(pids) = next_workers(&mut launcher, count as usize, &known)
    {
        if dice.below(3) > 0 {
            let step = last_step(&place) + 1 + dice.below(3);
            wait_for_step(&place, &mut launcher, step);
            std::thread::sleep(Duration::from_micros(dice.below(20_000)));
        } else {
            std::thread::sleep(Duration::from_millis(dice.below(900)));
        }
        let victim = pids[dice.below(count.into()) as usize];
        // A run that has ended before counts as one kill less.
        let sent = Command::new("kill").args(["-s", "KILL", &victim.to_string()]).output().unwrap();
        killed += usize::from(sent.status.success());
        known = pids;
    }
    let ended = launcher.wait().unwrap();
    let said = said.join().unwrap();
    assert_eq!(ended.code(), Some(0), "{said}");
    assert!(killed * 2 > num_kills, "{killed} kills only: {said}");
    // One that hit a rank after its work was done ended nothing.
    let failed = said.matches(" from the last complete checkpoint (").count();
    assert!(failed == killed || failed + 1 == killed, "{killed} kills, {failed} attempts: {said}");
    assert_same_run(&whole, &place);
    let steps: Vec<u64> = place.steps().iter().map(|step| step["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=num_steps).collect::<Vec<_>>(), "every step once");
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
    merge(&mut changes, json!({ "training": { "steps": 4000 } }));
    let mut launcher = place.start(&on(2, &changes));
    let first = next_workers(&mut launcher, 2, &[]).unwrap();
    place.wait_for_steps(1);
    send(first[1], "KILL");
    let second = next_workers(&mut launcher, 2, &first).unwrap();
    assert!(first.iter().all(|pid| !is_running(*pid)), "no rank of an attempt lives into the next");
    send(second[0], "SEGV");
    let said =
        ["attempt 1 failed: rank 1 was killed by signal 9", "attempt 2 begins now", "1 of retries.crash 1"];
    let ended = Ended::of(launcher.wait_with_output().unwrap()).expect(76, &said);
    ended.expect(76, &["error: rank 0 was killed by signal 11", "retries.crash of 1 used up"]);
}

#[test]
fn a_run_that_starts_afresh_does_so_once() {
    let place = Place::new();
    let mut changes = retries(json!({ "crash": 3 }));
    merge(&mut changes, json!({ "training": { "steps": 6 } }));
    place.train(&on(2, &changes)).expect(0, &[]);
    merge(&mut changes, json!({ "training": { "steps": 40, "seed": 7 } }));
    let path = place.write(&on(2, &changes));
    let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    command.args(["launch", "--overwrite", "--manifest"]).arg(path).arg("--output").arg(place.run(""));
    let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let said = listen(&mut launcher);
    let first = next_workers(&mut launcher, 2, &[]).unwrap();
    // Only the second run has a ninth step.
    wait_for_step(&place, &mut launcher, 9);
    send(first[0], "KILL");
    assert_eq!(launcher.wait().unwrap().code(), Some(0));
    let said = said.join().unwrap();
    assert!(said.contains("attempt 2 begins"), "{said}");
    let resumed = said.lines().filter(|line| line.contains("resuming after step")).count();
    assert_eq!(resumed, 1, "{said}");
    assert_eq!(place.steps().len(), 40);
}

#[test]
fn a_launcher_does_not_restart_ranks_that_the_environment_assigned() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let place = Place::new();
    let path = place.write(&on(2, &json!({ "training": { "steps": 4000 } })));
    let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    command.args(["launch", "--manifest"]).arg(path).arg("--output").arg(place.run(""));
    command.envs([
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "localhost"),
    ]);
    command.env("MASTER_PORT", port.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut launcher = command.spawn().unwrap();
    let pids = next_workers(&mut launcher, 2, &[]).unwrap();
    place.wait_for_steps(1);
    send(pids[1], "KILL");
    let ended = Ended::of(launcher.wait_with_output().unwrap());
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
        &json!({ "training": { "steps": 4000 }, "runPolicy": { "terminationGracePeriodSeconds": 1 } }),
    ));
    let pids = next_workers(&mut launcher, 2, &[]).unwrap();
    place.wait_for_steps(1);
    send(pids[1], "STOP");
    signal(&launcher, "TERM");
    let asked = Instant::now();
    let ended = Ended::of(launcher.wait_with_output().unwrap());
    let ended = ended.expect(76, &["did not end within 1 s of a signal and was killed"]);
    assert!(
        !ended.stderr.contains("attempt"),
        "a run that was asked to stop is not restarted: {}",
        ended.stderr
    );
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    assert!(pids.iter().all(|pid| !is_running(*pid)));
}

#[test]
fn a_signal_at_any_moment_of_the_start_stops_all_ranks_as_preempted() {
    for delay in [0, 30, 200] {
        let place = Place::new();
        let mut launcher = place.start(&on(3, &json!({ "training": { "steps": 4000 } })));
        let pids = next_workers(&mut launcher, 3, &[]).unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        signal(&launcher, "TERM");
        Ended::of(launcher.wait_with_output().unwrap()).expect(80, &[]);
        assert!(pids.iter().all(|pid| !is_running(*pid)));
    }
}
