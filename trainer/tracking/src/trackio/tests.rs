//! A run on a real server of Trackio: created, resumed, completed after the server was down.

use rlt_tests::{HeldPort, TrackioServer};

use super::*;
use crate::{Metrics, Tracker as _, error_chain};

fn step(step: u64) -> StepMetrics {
    let values = Metrics::from([
        ("critic/rewards/mean".to_owned(), step as f64 / 4.0),
        ("actor/kl_loss".to_owned(), f64::NAN),
    ]);
    StepMetrics { stage: Stage::Training, step, timestamp: 1.7e9 + step as f64, values }
}

fn run() -> RunDescription {
    RunDescription { name: "job".into(), spec: json!({ "training": { "steps": 4 } }) }
}

fn credentials() -> Credentials {
    Credentials { write_token: Some(TrackioServer::WRITE_TOKEN.into()), hub_token: None }
}

/// Asks the server about the one run of a project, and returns its answer.
fn ask(url: &str, endpoint: &str, project: &str, id: &str) -> Value {
    let rest = Rest::new(url).unwrap();
    let body = json!({ "project": project, "run": "first", "run_id": id });
    rest.send("ask", rest.post(&format!("api/{endpoint}"), &body)).unwrap()["data"].clone()
}

#[test]
fn a_server_gets_every_step_once_though_the_run_is_resumed_and_the_server_was_down() {
    let folder = tempfile::tempdir().unwrap();
    let port = HeldPort::new().unwrap();
    let Some(server) = TrackioServer::start(folder.path(), &port) else { return };
    let options =
        TrackioOptions { url: server.url(), project: Some("math".into()), run_name: Some("first".into()) };
    let cold_start = StepMetrics { stage: Stage::ColdStart, ..step(1) };
    let id = run().id(&cold_start);
    let mut tracker = Trackio::with(credentials(), &options, run(), &History::default()).unwrap();
    tracker.log_step(&cold_start).unwrap();
    (1..=3).for_each(|idx| tracker.log_step(&step(idx)).unwrap());
    assert_eq!(tracker.num_pending(), 0);

    // The server goes down; steps wait, and the run ends before it is back.
    drop(server);
    tracker.log_step(&step(4)).unwrap();
    let error = error_chain(&tracker.end(RunEnd::Stopped).unwrap_err());
    assert!(error.contains("1 steps were not logged") && error.contains(&options.url), "{error}");
    let server = TrackioServer::start(folder.path(), &port).unwrap();

    // Resumed after step 2: steps 3 and 4 are trained again.
    let history = vec![cold_start, step(1), step(2)].into();
    let mut tracker = Trackio::with(credentials(), &options, run(), &history).unwrap();
    (3..=400).for_each(|idx| tracker.log_step(&step(idx)).unwrap());
    tracker.end(RunEnd::Complete).unwrap();
    let logs = ask(&server.url(), "get_logs", "math", &id);
    let logged = |name: &str| -> Vec<(u64, f64)> {
        let point = |log: &Value| Some((log["step"].as_u64()?, log.get(name)?.as_f64()?));
        logs.as_array().unwrap().iter().filter_map(point).collect()
    };
    assert_eq!(logged("critic/rewards/mean"), Vec::from_iter((1..=400).map(|idx| (idx, idx as f64 / 4.0))));
    assert_eq!(logged("cold_start/critic/rewards/mean"), [(1, 0.25)]);
    assert_eq!(logged("actor/kl_loss"), []);
    let summary = ask(&server.url(), "get_run_summary", "math", &id);
    assert_eq!((&summary["num_logs"], &summary["config"]["training.steps"]), (&json!(401), &json!("4")));
}

#[test]
fn a_server_refuses_a_run_without_its_write_token_and_the_error_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let port = HeldPort::new().unwrap();
    let Some(server) = TrackioServer::start(folder.path(), &port) else { return };
    let options = TrackioOptions { url: server.url(), project: None, run_name: None };
    let wrong = Credentials { write_token: Some("guessed".into()), hub_token: None };
    let mut tracker = Trackio::with(wrong, &options, run(), &vec![step(1)].into()).unwrap();
    let error = error_chain(&tracker.flush().unwrap_err());
    assert!(error.contains("400") && error.contains("write_token"), "{error}");
    assert_eq!(tracker.num_pending(), 1);
}

#[test]
fn the_token_of_the_hub_is_sent_only_to_spaces() {
    for (url, expected) in [
        ("https://team-board.hf.space", true),
        ("http://team-board.hf.space", false),
        ("https://hf.space.example.com", false),
        ("http://trackio.tools:7860", false),
    ] {
        assert_eq!(is_space(url), expected, "{url}");
        // Every variable is set, and those that are read are exactly those that are named to the user.
        let Credentials { write_token, hub_token } = Credentials::read(url, |name| Some(name.to_owned()));
        let read: Vec<_> = write_token.into_iter().chain(hub_token).collect();
        assert_eq!(read, credentials_for(url), "{url}");
    }
}
