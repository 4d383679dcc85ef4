//! Requests to MLflow's REST API, version 2.0.

use std::env;
use std::time::Duration;

use reqwest::blocking::{Client as HttpClient, RequestBuilder};
use reqwest::header::CONTENT_TYPE;
use reqwest::{StatusCode, Url};
use serde_json::{Value, json};

use crate::TrackingError;

/// A request that takes longer is given up and sent again later.
const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Characters of an answer that an error quotes.
const MAX_QUOTED: usize = 300;

/// A tracking server.
pub(super) struct Client {
    http: HttpClient,
    url: String,
}

impl Client {
    pub(super) fn new(url: &str) -> Result<Self, TrackingError> {
        let url = url.trim_end_matches('/').to_owned();
        let http = HttpClient::builder().timeout(TIMEOUT).connect_timeout(CONNECT_TIMEOUT).build();
        let http = http.map_err(|source| TrackingError::Unreachable {
            act: "make requests",
            url: url.clone(),
            source,
        })?;
        Ok(Self { http, url })
    }

    /// The answer to `body` at an endpoint such as `runs/create`.
    pub(super) fn post(
        &self,
        act: &'static str,
        endpoint: &str,
        body: &Value,
    ) -> Result<Value, TrackingError> {
        let request = self.http.post(format!("{}/api/2.0/mlflow/{endpoint}", self.url));
        self.send(act, request.header(CONTENT_TYPE, "application/json").body(body.to_string()))
    }

    /// The id of an experiment, which is created if there is none of this name.
    pub(super) fn experiment(&self, name: &str) -> Result<String, TrackingError> {
        match self.find_experiment(name) {
            Err(TrackingError::Refused { status, .. }) if status == StatusCode::NOT_FOUND.as_u16() => {}
            found => return found,
        }
        match self.post("create an experiment", "experiments/create", &json!({ "name": name })) {
            // Another run was faster.
            Err(TrackingError::Refused { answer, .. }) if answer.contains("RESOURCE_ALREADY_EXISTS") => {
                self.find_experiment(name)
            }
            created => Ok(text(&created?, "/experiment_id")),
        }
    }

    fn find_experiment(&self, name: &str) -> Result<String, TrackingError> {
        let act = "find an experiment";
        let endpoint = format!("{}/api/2.0/mlflow/experiments/get-by-name", self.url);
        let url = Url::parse_with_params(&endpoint, [("experiment_name", name)]).map_err(|error| {
            TrackingError::Refused { act, url: self.url.clone(), status: 0, answer: error.to_string() }
        })?;
        Ok(text(&self.send(act, self.http.get(url))?, "/experiment/experiment_id"))
    }

    fn send(&self, act: &'static str, request: RequestBuilder) -> Result<Value, TrackingError> {
        let unreachable = |source: reqwest::Error| TrackingError::Unreachable {
            act,
            url: self.url.clone(),
            source: source.without_url(),
        };
        let answer = with_credentials(request).send().map_err(unreachable)?;
        let status = answer.status();
        let text = answer.text().map_err(unreachable)?;
        let refused = |answer: &str| TrackingError::Refused {
            act,
            url: self.url.clone(),
            status: status.as_u16(),
            answer: answer.chars().take(MAX_QUOTED).collect(),
        };
        if !status.is_success() {
            return Err(refused(&text));
        }
        serde_json::from_str(&text).map_err(|_| refused(&text))
    }
}

/// The credentials that MLflow's own clients take from the environment.
fn with_credentials(request: RequestBuilder) -> RequestBuilder {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    match (variable("MLFLOW_TRACKING_TOKEN"), variable("MLFLOW_TRACKING_USERNAME")) {
        (Some(token), _) => request.bearer_auth(token),
        (None, Some(user)) => request.basic_auth(user, variable("MLFLOW_TRACKING_PASSWORD")),
        (None, None) => request,
    }
}

/// A text of an answer by its JSON pointer; empty where it is missing.
pub(super) fn text(answer: &Value, pointer: &str) -> String {
    answer.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}
