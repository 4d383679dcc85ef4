//! A run on a real MLflow server: created, resumed, completed after the server was down.

use rlt_tests::{HeldPort, MlflowServer};

use super::*;
use crate::{Metrics, Tracker as _, error_chain};

/// A server with the requests that tests send to it.
struct Server {
    url: String,
    _process: MlflowServer,
}

impl Server {
    fn start(folder: &std::path::Path, port: &HeldPort) -> Option<Self> {
        let process = MlflowServer::start(folder, port)?;
        Some(Self { url: process.url(), _process: process })
    }

    fn options(&self) -> MlflowOptions {
        MlflowOptions {
            url: self.url.clone(),
            experiment: Some("math".into()),
            run_name: Some("first".into()),
        }
    }

    fn runs(&self) -> Vec<Value> {
        let client = Client::new(&self.url).unwrap();
        let query = json!({ "experiment_ids": [client.experiment("math").unwrap()] });
        let found = client.post("search runs", "runs/search", &query).unwrap();
        found["runs"].as_array().cloned().unwrap_or_default()
    }

    /// (step, value) of every point of a metric.
    fn history(&self, run: &Value, metric: &str) -> Vec<(u64, f64)> {
        let run_id = client::text(run, "/info/run_id");
        let address = format!("{}/api/2.0/mlflow/metrics/get-history", self.url);
        let url =
            reqwest::Url::parse_with_params(&address, [("run_id", run_id.as_str()), ("metric_key", metric)]);
        let answer: Value =
            serde_json::from_str(&reqwest::blocking::get(url.unwrap()).unwrap().text().unwrap()).unwrap();
        let points = answer["metrics"].as_array().cloned().unwrap_or_default();
        points
            .iter()
            .map(|point| (point["step"].as_u64().unwrap(), point["value"].as_f64().unwrap()))
            .collect()
    }
}

fn step(step: u64) -> StepMetrics {
    let values = Metrics::from([
        ("critic/rewards/mean".to_owned(), step as f64 / 4.0),
        ("val-core/arithmetic/reward/mean@4".to_owned(), 0.5),
        ("actor/kl_loss".to_owned(), f64::NAN),
    ]);
    StepMetrics { stage: Stage::Training, step, timestamp: 1.7e9 + step as f64, values }
}

fn run() -> RunDescription {
    let fields = (0..150).map(|idx| (format!("field{idx}"), json!(idx))).collect::<serde_json::Map<_, _>>();
    RunDescription { name: "job".into(), spec: Value::Object(fields) }
}

#[test]
fn a_server_gets_every_step_once_though_the_run_is_resumed_and_the_server_was_down() {
    let folder = tempfile::tempdir().unwrap();
    let port = HeldPort::new().unwrap();
    let Some(server) = Server::start(folder.path(), &port) else { return };
    let options = server.options();
    let cold_start = StepMetrics { stage: Stage::ColdStart, ..step(1) };
    let mut tracker = Mlflow::open(&options, run(), &History::default()).unwrap();
    tracker.log_step(&cold_start).unwrap();
    (1..=3).for_each(|idx| tracker.log_step(&step(idx)).unwrap());
    assert_eq!(tracker.num_pending(), 0);
    let runs = server.runs();
    assert_eq!(
        (runs.len(), &runs[0]["info"]["status"], &runs[0]["info"]["run_name"]),
        (1, &json!("RUNNING"), &json!("first"))
    );
    assert_eq!(runs[0]["data"]["params"].as_array().unwrap().len(), 150);

    // The server goes down; steps wait, and the run ends before it is back.
    drop(server);
    tracker.log_step(&step(4)).unwrap();
    let error = error_chain(&tracker.end(RunEnd::Stopped).unwrap_err());
    assert!(error.contains("1 steps were not logged") && error.contains(&options.url), "{error}");
    let server = Server::start(folder.path(), &port).unwrap();

    // Resumed after step 2: steps 3 and 4 are trained again.
    let history = vec![cold_start, step(1), step(2)].into();
    let mut tracker = Mlflow::open(&options, run(), &history).unwrap();
    (3..=400).for_each(|idx| tracker.log_step(&step(idx)).unwrap());
    tracker.end(RunEnd::Complete).unwrap();
    let runs = server.runs();
    assert_eq!((runs.len(), &runs[0]["info"]["status"]), (1, &json!("FINISHED")));
    let expected: Vec<_> = (1..=400).map(|idx| (idx, idx as f64 / 4.0)).collect();
    assert_eq!(server.history(&runs[0], "critic/rewards/mean"), expected);
    assert_eq!(server.history(&runs[0], "val-core/arithmetic/reward/mean_at_4").len(), 400);
    assert_eq!(server.history(&runs[0], "cold_start/critic/rewards/mean"), [(1, 0.25)]);
    assert_eq!(server.history(&runs[0], "actor/kl_loss"), []);
}

#[test]
fn requests_hold_whole_steps_up_to_the_limit() {
    let pending: Vec<StepMetrics> = (1..=400).map(step).collect();
    assert_eq!(steps_of_request(&pending), 333);
    let wide = StepMetrics { values: (0..2000).map(|idx| (idx.to_string(), 0.0)).collect(), ..step(1) };
    assert_eq!(steps_of_request(&[wide]), 1);
}
