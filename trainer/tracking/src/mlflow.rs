//! Tracking with MLflow: a run on a tracking server, by its REST API.
//!
//! The run is found by a tag with its identity ([`crate::RunDescription::id`]). Steps that the server has are
//! not sent again, since it never replaces points. So a resumed run continues, and a replay sends what was
//! missed while the server was down.
//!
//! Credentials are those of MLflow's own clients: `MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and
//! `MLFLOW_TRACKING_PASSWORD`.

mod client;
mod names;

use serde_json::{Value, json};

use crate::{Backlog, History, RunDescription, RunEnd, Stage, StepMetrics, TrackingError, TrackingServer};
use client::Client;

/// Largest number of metrics in one request, by MLflow's limit.
const MAX_METRICS: usize = 1000;
/// Largest number of parameters in one request, by MLflow's limit.
const MAX_PARAMS: usize = 100;
/// Variable with a bearer token.
const TOKEN: &str = "MLFLOW_TRACKING_TOKEN";
/// Variable with the name of a user, for basic authentication.
const USERNAME: &str = "MLFLOW_TRACKING_USERNAME";
/// Variable with the password of the user.
const PASSWORD: &str = "MLFLOW_TRACKING_PASSWORD";
/// Variables of the environment that are sent to the server.
pub const CREDENTIALS: [&str; 3] = [TOKEN, USERNAME, PASSWORD];
/// Name of the tag with a run's identity.
const IDENTITY: &str = "rltraining.run";

/// Server, experiment and name under which a run is logged.
#[derive(Clone, Debug, PartialEq)]
pub struct MlflowOptions {
    /// Address of the server, `http://` or `https://`.
    pub url: String,
    /// Name of the experiment; by default the job's name.
    pub experiment: Option<String>,
    /// Name of the run; by default the job's name.
    pub run_name: Option<String>,
}

/// An MLflow tracking server to which a run is logged.
pub struct Mlflow {
    client: Client,
    options: MlflowOptions,
    session: Option<Session>,
}

/// The run on the server.
struct Session {
    run_id: String,
    /// Last step of each stage that the server has, `[cold start, training]`.
    logged: [Option<u64>; 2],
}

impl Session {
    fn has(&self, metrics: &StepMetrics) -> bool {
        self.logged[stage_idx(metrics.stage)].is_some_and(|last| metrics.step <= last)
    }
}

fn stage_idx(stage: Stage) -> usize {
    usize::from(stage == Stage::Training)
}

impl Mlflow {
    /// Makes the tracker of a run, with `history` to be sent; makes no request yet.
    ///
    /// # Errors
    /// [`TrackingError::Unreachable`] if this machine cannot make requests, [`TrackingError::File`] if the
    /// history cannot be read.
    pub fn open(
        options: &MlflowOptions,
        run: RunDescription,
        history: &History,
    ) -> Result<Backlog<Self>, TrackingError> {
        let server = Self { client: Client::new(&options.url)?, options: options.clone(), session: None };
        Backlog::new(server, run, history)
    }

    /// Finds the run with this identity on the server, or creates one with all settings as parameters.
    fn connect(&self, run: &RunDescription, id: &str, first: &StepMetrics) -> Result<Session, TrackingError> {
        let experiment = self.options.experiment.as_ref().unwrap_or(&run.name);
        let experiment_id = self.client.experiment(experiment)?;
        let query = json!({
            "experiment_ids": [experiment_id], "filter": format!("tags.`{IDENTITY}` = '{id}'"), "max_results": 1
        });
        let found = self.client.post("search runs", "runs/search", &query)?;
        let session = match found.pointer("/runs/0") {
            Some(known) => {
                let session =
                    Session { run_id: client::text(known, "/info/run_id"), logged: names::last_steps(known) };
                let body = json!({ "run_id": session.run_id, "status": "RUNNING" });
                self.client.post("update a run", "runs/update", &body)?;
                self.log_settings(run, &session.run_id, &names::params(known))?;
                session
            }
            None => {
                let run_id = self.create(run, &experiment_id, id, first)?;
                let session = Session { run_id, logged: [None; 2] };
                self.log_settings(run, &session.run_id, &[])?;
                session
            }
        };
        Ok(session)
    }

    fn create(
        &self,
        run: &RunDescription,
        experiment_id: &str,
        id: &str,
        first: &StepMetrics,
    ) -> Result<String, TrackingError> {
        let name = self.options.run_name.as_ref().unwrap_or(&run.name);
        let started = names::milliseconds(first);
        let body = json!({
            "experiment_id": experiment_id, "run_name": name, "start_time": started,
            "tags": [{ "key": IDENTITY, "value": id }, { "key": "mlflow.source.name", "value": "rlt-trainer" }]
        });
        let created = self.client.post("create a run", "runs/create", &body)?;
        Ok(client::text(&created, "/run/info/run_id"))
    }

    /// Logs the settings that the server does not have. A parameter is never changed, so a run that is
    /// resumed with a changed manifest keeps its first values.
    fn log_settings(
        &self,
        run: &RunDescription,
        run_id: &str,
        known: &[String],
    ) -> Result<(), TrackingError> {
        let settings = run.settings();
        let new: Vec<Value> = settings
            .iter()
            .map(|(name, value)| names::param(name, value))
            .filter(|param| !known.iter().any(|known| param["key"] == *known))
            .collect();
        for params in new.chunks(MAX_PARAMS) {
            let body = json!({ "run_id": run_id, "params": params });
            self.client.post("log parameters", "runs/log-batch", &body)?;
        }
        Ok(())
    }
}

impl TrackingServer for Mlflow {
    const NAME: &'static str = "mlflow";

    fn send(
        &mut self,
        run: &RunDescription,
        id: &str,
        steps: &[StepMetrics],
    ) -> Result<usize, TrackingError> {
        let session = match self.session.take() {
            Some(session) => session,
            None => self.connect(run, id, &steps[0])?,
        };
        let session = self.session.insert(session);
        let num_known = steps.iter().take_while(|metrics| session.has(metrics)).count();
        if num_known > 0 {
            return Ok(num_known);
        }
        let steps = &steps[..steps_of_request(steps)];
        let metrics: Vec<Value> = steps.iter().flat_map(names::metrics).collect();
        for metrics in metrics.chunks(MAX_METRICS) {
            let body = json!({ "run_id": session.run_id, "metrics": metrics });
            self.client.post("log metrics", "runs/log-batch", &body)?;
        }
        for metrics in steps {
            session.logged[stage_idx(metrics.stage)] = Some(metrics.step);
        }
        Ok(steps.len())
    }

    fn end(&mut self, end: RunEnd) -> Result<(), TrackingError> {
        let Some(session) = &self.session else { return Ok(()) };
        let status = match end {
            RunEnd::Complete => "FINISHED",
            RunEnd::Stopped => "KILLED",
            RunEnd::Failed => "FAILED",
        };
        let body = json!({ "run_id": session.run_id, "status": status, "end_time": names::now() });
        self.client.post("update a run", "runs/update", &body).map(drop)
    }
}

/// Returns how many of the first steps fit into a request; at least one, which may need several requests.
fn steps_of_request(steps: &[StepMetrics]) -> usize {
    let mut num_metrics = 0;
    let fitting = steps.iter().take_while(|metrics| {
        num_metrics += metrics.values.len();
        num_metrics <= MAX_METRICS
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests;
