//! Whole runs with external reward servers, and with failing ones.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::job::{Ended, Place, end_of, tiny_with, wait_until};

/// The example's server, which is stopped on drop.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start() -> Self {
        let program = rlt_tests::workspace_root().join("examples/rewards/server.py");
        let mut command = Command::new("python3");
        command.arg(program).arg("0").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(' ').next().unwrap();
        Self { url: format!("http://127.0.0.1:{port}/"), process }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Returns the tiny job, rewarded only by `function`.
pub(crate) fn judged_by(function: Value, rewards: Value) -> Value {
    let mut spec = json!({
        "rewards": { "functions": [function] },
        "tracking": { "completionsPerStep": 8 },
        "training": { "steps": 2 },
    });
    crate::job::merge(&mut spec["rewards"], rewards);
    tiny_with(spec)
}

/// Returns all metrics of a run except times.
pub(crate) fn learned(place: &Place) -> Vec<Value> {
    let is_time = |name: &str| name.contains("tim") || name.starts_with("perf/") || name.contains("memory");
    let mut lines = place.metrics();
    for line in &mut lines {
        line.as_object_mut().unwrap().retain(|name, _| !is_time(name));
    }
    assert!(lines.len() > 1, "{lines:?}");
    lines.extend(place.completions());
    lines
}

#[test]
fn a_server_that_judges_while_others_are_sampled_gives_the_run_that_the_trainer_gives_itself() {
    let own = Place::new();
    own.train(&judged_by(json!({ "name": "right", "kind": "Exact" }), json!({}))).expect(0, &[]);
    let mut expected = learned(&own);
    // Only the trainer's own functions extract answers, which are needed to vote.
    expected.iter_mut().for_each(without_votes);
    let server = Server::start();
    for (max_batch, workers) in [(1, 1), (5, 2)] {
        let http = json!({ "url": server.url, "maxBatch": max_batch });
        let place = Place::new();
        let mut manifest = judged_by(json!({ "name": "right", "kind": "Server", "server": http }), json!({}));
        manifest["spec"]["workers"]["count"] = json!(workers);
        place.train(&manifest).expect(0, &[]);
        let mut got = learned(&place);
        got.iter_mut().for_each(without_votes);
        if workers == 1 {
            assert_eq!(got, expected);
        }
        let rewards =
            |lines: &[Value]| -> Vec<Value> { lines.iter().map(|line| line["reward"].clone()).collect() };
        assert_eq!(rewards(&got), rewards(&expected));
    }
}

pub(crate) fn without_votes(line: &mut Value) {
    line.as_object_mut().unwrap().retain(|name, _| name != "answer" && !name.contains("/maj@"));
}

#[test]
fn an_unreachable_reward_server_masks_its_samples_and_the_step_ends_in_time() {
    // This port accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let function = json!({
        "name": "right", "kind": "Server",
        "server": { "url": url, "timeoutSeconds": 0.2, "retries": 0, "maxBatch": 100 },
    });
    let zero = Place::new();
    // A run that waited for the answer would never end.
    end_of(zero.start(&judged_by(function.clone(), json!({ "onTimeout": "Zero" })))).expect(0, &[]);
    for step in zero.steps() {
        assert_eq!((&step["reward/num_ok"], &step["reward/num_infra"]), (&json!(0.0), &json!(0.0)), "{step}");
        assert!(step["reward/num_timeout"].as_f64().unwrap() > 0.0, "{step}");
    }
    assert!(zero.completions().iter().all(|line| line["reward_status"] == "timeout"));
    // If all samples are masked, the run fails and gives the reason.
    let masked = Place::new();
    let ended = masked.train(&judged_by(function, json!({ "onError": "Zero" })));
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("no whole answer within 200ms"), "{}", ended.stderr);
}

#[test]
fn a_variable_of_the_user_goes_to_a_server_of_the_manifest_only_if_the_user_allows_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let job = |workers: u32| {
        let headers = json!([{ "name": "X-Key", "env": "RLT_TEST_KEY" }]);
        let server = json!({ "url": format!("{origin}/judge"), "headers": headers });
        let mut job = judged_by(json!({ "name": "far", "kind": "Server", "server": server }), json!({}));
        job["spec"]["workers"]["count"] = json!(workers);
        job
    };
    let secret = || vec![("RLT_TEST_KEY", "of the user".to_owned())];
    for workers in [1, 2] {
        let place = Place::new();
        let ended = place.start_with(&job(workers), &["--send-env", "PATH"], secret());
        let named = format!("RLT_TEST_KEY to {origin} (spec.rewards.functions[0].server)");
        let words = [named.as_str(), "--send-env RLT_TEST_KEY"];
        let ended = Ended::of(ended.wait_with_output().unwrap()).expect(2, &words);
        assert!(!ended.stderr.contains("of the user"), "{}", ended.stderr);
    }
    assert!(listener.accept().is_err(), "nothing was sent");

    let place = Place::new();
    let mut allowed = place.start_with(&job(1), &["--send-env", "RLT_TEST_KEY"], secret());
    let mut stream = None;
    wait_until("a request", || {
        stream = listener.accept().ok();
        stream.is_some()
    });
    let (stream, _) = stream.unwrap();
    stream.set_nonblocking(false).unwrap();
    let mut head = BufReader::new(&stream).lines().map(Result::unwrap).take_while(|line| !line.is_empty());
    assert!(head.any(|line| line.eq_ignore_ascii_case("x-key: of the user")));
    allowed.kill().unwrap();
    allowed.wait().unwrap();
}

#[test]
fn a_module_in_the_sandbox_gives_the_run_that_the_trainer_gives_itself() {
    let Some(module) = rlt_tests::reward_module().unwrap() else {
        rlt_skipped::skip_also_under_ci("the example needs `rustup target add wasm32-unknown-unknown`");
        return;
    };
    let (own, place) = (Place::new(), Place::new());
    own.train(&judged_by(json!({ "name": "right", "kind": "Exact" }), json!({}))).expect(0, &[]);
    let wasm = json!({ "name": "right", "kind": "Wasm", "wasm": { "path": module } });
    place.train(&judged_by(wasm, json!({}))).expect(0, &[]);
    let (mut got, mut expected) = (learned(&place), learned(&own));
    got.iter_mut().chain(&mut expected).for_each(without_votes);
    assert_eq!(got, expected);
}
