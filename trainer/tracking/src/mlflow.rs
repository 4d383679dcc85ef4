//! MLflow: a run on a tracking server, by its REST API.
//!
//! The run is found again by a tag with its identity ([`crate::RunDescription::id`]), and steps that the
//! server has are not sent again: it never replaces points. So a resumed run continues, and a replay sends
//! what was missed while the server was down. While a server does not answer, steps wait in memory, up to a
//! limit.
//!
//! Credentials are those of MLflow's own clients: `MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME`
//! and `MLFLOW_TRACKING_PASSWORD`.

mod client;
mod names;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{RunDescription, RunEnd, Stage, StepMetrics, Tracker, TrackingError, error_chain};
use client::Client;

/// Steps that wait for a server, at most.
const MAX_PENDING: usize = 10_000;
/// Metrics of one request, at most: MLflow's limit.
const MAX_METRICS: usize = 1000;
/// Parameters of one request, at most: MLflow's limit.
const MAX_PARAMS: usize = 100;
/// The longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// The tag with a run's identity.
const IDENTITY: &str = "rltraining.run";

/// Where a run is logged.
#[derive(Clone, Debug, PartialEq)]
pub struct MlflowOptions {
    /// The server's address, `http://` or `https://`.
    pub url: String,
    /// The experiment; by default the job's name.
    pub experiment: Option<String>,
    /// The run's name; by default the job's.
    pub run_name: Option<String>,
}

/// A run on a tracking server.
pub struct Mlflow {
    client: Client,
    options: MlflowOptions,
    run: RunDescription,
    /// The run's identity, once its first step is known.
    id: Option<String>,
    session: Option<Session>,
    pending: VecDeque<StepMetrics>,
    next_try: Instant,
    pause: Duration,
}

/// A run that the server knows.
struct Session {
    run_id: String,
    /// The last step of each stage that the server has.
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
    /// The run, with `history` waiting to be sent; nothing is asked of the server yet.
    ///
    /// # Errors
    /// [`TrackingError::Unreachable`] where this machine cannot make requests.
    pub fn open(
        options: &MlflowOptions,
        run: RunDescription,
        history: &[StepMetrics],
    ) -> Result<Self, TrackingError> {
        Ok(Self {
            client: Client::new(&options.url)?,
            options: options.clone(),
            id: history.first().map(|first| run.id(first)),
            run,
            session: None,
            pending: history.iter().cloned().collect(),
            next_try: Instant::now(),
            pause: Duration::from_secs(1),
        })
    }

    /// Steps that the server does not have yet, as far as this process knows.
    pub fn num_pending(&self) -> usize {
        self.pending.len()
    }

    /// Sends everything that waits.
    ///
    /// # Errors
    /// The server cannot be reached or refuses; what was not sent waits.
    pub fn flush(&mut self) -> Result<(), TrackingError> {
        let Some(id) = self.id.clone().filter(|_| !self.pending.is_empty()) else { return Ok(()) };
        let session = match self.session.take() {
            Some(session) => session,
            None => self.connect(&id)?,
        };
        let session = self.session.insert(session);
        while let Some(first) = self.pending.front() {
            if session.has(first) {
                self.pending.pop_front();
                continue;
            }
            let num_steps = steps_of_request(&self.pending);
            let metrics: Vec<Value> = self.pending.iter().take(num_steps).flat_map(names::metrics).collect();
            for metrics in metrics.chunks(MAX_METRICS) {
                let body = json!({ "run_id": session.run_id, "metrics": metrics });
                self.client.post("log metrics", "runs/log-batch", &body)?;
            }
            for metrics in self.pending.drain(..num_steps) {
                session.logged[stage_idx(metrics.stage)] = Some(metrics.step);
            }
        }
        Ok(())
    }

    /// The run on the server: the one with this identity, or a new one with all settings as parameters.
    fn connect(&self, id: &str) -> Result<Session, TrackingError> {
        let experiment = self.options.experiment.as_ref().unwrap_or(&self.run.name);
        let experiment_id = self.client.experiment(experiment)?;
        let query = json!({
            "experiment_ids": [experiment_id], "filter": format!("tags.`{IDENTITY}` = '{id}'"), "max_results": 1
        });
        let found = self.client.post("search runs", "runs/search", &query)?;
        let session = match found.pointer("/runs/0") {
            Some(run) => {
                let session =
                    Session { run_id: client::text(run, "/info/run_id"), logged: names::last_steps(run) };
                let body = json!({ "run_id": session.run_id, "status": "RUNNING" });
                self.client.post("update a run", "runs/update", &body)?;
                self.log_settings(&session.run_id, &names::params(run))?;
                session
            }
            None => {
                let session = Session { run_id: self.create(&experiment_id, id)?, logged: [None; 2] };
                self.log_settings(&session.run_id, &[])?;
                session
            }
        };
        Ok(session)
    }

    fn create(&self, experiment_id: &str, id: &str) -> Result<String, TrackingError> {
        let name = self.options.run_name.as_ref().unwrap_or(&self.run.name);
        let started = self.pending.front().map_or(0, names::milliseconds);
        let body = json!({
            "experiment_id": experiment_id, "run_name": name, "start_time": started,
            "tags": [{ "key": IDENTITY, "value": id }, { "key": "mlflow.source.name", "value": "rlt-trainer" }]
        });
        let created = self.client.post("create a run", "runs/create", &body)?;
        Ok(client::text(&created, "/run/info/run_id"))
    }

    /// Logs the settings that the server does not have: a parameter is never changed, so those of a run
    /// that was resumed by a changed manifest stay.
    fn log_settings(&self, run_id: &str, known: &[String]) -> Result<(), TrackingError> {
        let settings = self.run.settings();
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

    /// Sends what waits, unless a failure is too recent.
    fn try_now_and_then(&mut self) {
        if Instant::now() < self.next_try {
            return;
        }
        match self.flush() {
            Ok(()) => self.pause = Duration::from_secs(1),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(tracker = "mlflow", error, "steps wait for the server");
                self.next_try = Instant::now() + self.pause;
                self.pause = (2 * self.pause).min(MAX_PAUSE);
            }
        }
    }
}

impl Tracker for Mlflow {
    fn log_step(&mut self, metrics: &StepMetrics) -> Result<(), TrackingError> {
        if self.id.is_none() {
            self.id = Some(self.run.id(metrics));
        }
        if self.pending.len() >= MAX_PENDING {
            self.try_now_and_then();
        }
        if self.pending.len() >= MAX_PENDING {
            return Err(TrackingError::Full { limit: MAX_PENDING });
        }
        self.pending.push_back(metrics.clone());
        self.try_now_and_then();
        Ok(())
    }

    fn is_file(&self) -> bool {
        false
    }

    fn end(&mut self, end: RunEnd) -> Result<(), TrackingError> {
        let num_steps = self.pending.len();
        self.flush().map_err(|source| TrackingError::Pending { num_steps, source: Box::new(source) })?;
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

/// How many of the first steps fit into a request; at least one, which may need several.
fn steps_of_request(pending: &VecDeque<StepMetrics>) -> usize {
    let mut num_metrics = 0;
    let fitting = pending.iter().take_while(|metrics| {
        num_metrics += metrics.values.len();
        num_metrics <= MAX_METRICS
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests;
