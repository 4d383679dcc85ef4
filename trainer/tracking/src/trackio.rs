//! Tracking with Trackio: a run on a self-hosted server or on a Space of the Hugging Face Hub, by its REST
//! API.
//!
//! Each step has an id that is derived from the run's identity ([`crate::RunDescription::id`]), and the
//! server keeps the first step with an id. So a resumed run continues, and a replay sends what was missed
//! while the server was down. Trackio does not record the end of a run.
//!
//! Credentials are those of Trackio's own client: `TRACKIO_WRITE_TOKEN`, and for a Space `HF_TOKEN`, which is
//! sent to no other address.

use std::collections::BTreeMap;

use reqwest::Url;
use reqwest::blocking::RequestBuilder;
use reqwest::header::HeaderValue;
use serde_json::{Value, json};

use crate::rest::{Rest, variable};
use crate::{Backlog, History, RunDescription, RunEnd, Stage, StepMetrics, TrackingError, TrackingServer};

/// Largest number of steps in one request.
const MAX_STEPS: usize = 200;
/// Variable with the write token of a server.
const TOKEN: &str = "TRACKIO_WRITE_TOKEN";
/// Variable with the user's token of the Hugging Face Hub.
const HUB_TOKEN: &str = "HF_TOKEN";
/// Name of the header with a server's write token.
const WRITE_TOKEN: &str = "x-trackio-write-token";

/// Server, project and name under which a run is logged.
#[derive(Clone, Debug, PartialEq)]
pub struct TrackioOptions {
    /// Address of the server, `http://` or `https://`.
    pub url: String,
    /// Name of the project; by default the job's name.
    pub project: Option<String>,
    /// Name of the run; by default the job's name.
    pub run_name: Option<String>,
}

/// A Trackio server to which a run is logged.
pub struct Trackio {
    rest: Rest,
    options: TrackioOptions,
    credentials: Credentials,
    /// Whether the server has the run's settings.
    knows_settings: bool,
}

impl Trackio {
    /// Makes the tracker of a run, with `history` to be sent; makes no request yet.
    ///
    /// # Errors
    /// [`TrackingError::Unreachable`] if this machine cannot make requests, [`TrackingError::File`] if the
    /// history cannot be read.
    pub fn open(
        options: &TrackioOptions,
        run: RunDescription,
        history: &History,
    ) -> Result<Backlog<Self>, TrackingError> {
        Self::with(Credentials::for_server(&options.url), options, run, history)
    }

    fn with(
        credentials: Credentials,
        options: &TrackioOptions,
        run: RunDescription,
        history: &History,
    ) -> Result<Backlog<Self>, TrackingError> {
        let (rest, options) = (Rest::new(&options.url)?, options.clone());
        let server = Self { rest, options, credentials, knows_settings: false };
        Backlog::new(server, run, history)
    }

    /// Returns the settings by their paths, which Trackio shows as the configuration.
    fn settings(run: &RunDescription) -> BTreeMap<String, String> {
        run.settings().into_iter().collect()
    }
}

impl TrackingServer for Trackio {
    const NAME: &'static str = "trackio";

    fn send(
        &mut self,
        run: &RunDescription,
        id: &str,
        steps: &[StepMetrics],
    ) -> Result<usize, TrackingError> {
        let steps = &steps[..steps.len().min(MAX_STEPS)];
        let name = |given: &Option<String>| given.clone().unwrap_or_else(|| run.name.clone());
        let (project, run_name) = (name(&self.options.project), name(&self.options.run_name));
        let entry = |metrics: &StepMetrics| {
            json!({
                "project": project, "run": run_name, "run_id": id, "step": metrics.step,
                "metrics": values(metrics), "log_id": log_id(id, metrics)
            })
        };
        let mut logs: Vec<Value> = steps.iter().map(entry).collect();
        if !self.knows_settings {
            logs[0]["config"] = json!(Self::settings(run));
        }
        let request = self.rest.post("api/bulk_log", &json!({ "logs": logs, "hf_token": null }));
        self.rest.send("log metrics", self.credentials.added_to(request))?;
        self.knows_settings = true;
        Ok(steps.len())
    }

    fn end(&mut self, _end: RunEnd) -> Result<(), TrackingError> {
        Ok(())
    }
}

/// Returns the finite metrics of a step. Those of a cold start, whose steps are counted separately, have a
/// prefix.
fn values(metrics: &StepMetrics) -> BTreeMap<String, f64> {
    let finite = metrics.values.iter().filter(|(_, value)| value.is_finite());
    finite.map(|(name, value)| (format!("{}{name}", metrics.stage.prefix()), *value)).collect()
}

/// Returns the id of a step, the same whenever it is sent.
fn log_id(run_id: &str, metrics: &StepMetrics) -> String {
    let stage = if metrics.stage == Stage::ColdStart { "cold_start" } else { "training" };
    format!("{run_id}/{stage}/{}", metrics.step)
}

/// Tokens with which a server authorises the logging of a run.
#[derive(Default)]
struct Credentials {
    write_token: Option<String>,
    /// Token of the Hugging Face Hub, for its Spaces only.
    hub_token: Option<String>,
}

impl Credentials {
    /// Reads the tokens that Trackio's own client takes from the environment for an address.
    fn for_server(url: &str) -> Self {
        Self::read(url, variable)
    }

    fn read(url: &str, variable: impl Fn(&str) -> Option<String>) -> Self {
        let read = |name: &str| variable(name).filter(|_| credentials_for(url).contains(&name));
        Self { write_token: read(TOKEN), hub_token: read(HUB_TOKEN) }
    }

    fn added_to(&self, mut request: RequestBuilder) -> RequestBuilder {
        if let Some(token) = &self.write_token {
            request = match HeaderValue::from_str(token) {
                Ok(mut token) => {
                    token.set_sensitive(true);
                    request.header(WRITE_TOKEN, token)
                }
                // A token that is no valid header value becomes an error when the request is sent.
                Err(_) => request.header(WRITE_TOKEN, token),
            };
        }
        if let Some(token) = &self.hub_token {
            request = request.bearer_auth(token);
        }
        request
    }
}

/// Names of the variables that are sent to a server.
pub fn credentials_for(url: &str) -> &'static [&'static str] {
    if is_space(url) { &[TOKEN, HUB_TOKEN] } else { &[TOKEN] }
}

/// Whether an address is that of a Space of the Hugging Face Hub.
fn is_space(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| {
        url.scheme() == "https" && url.host_str().is_some_and(|host| host.ends_with(".hf.space"))
    })
}

#[cfg(test)]
mod tests;
