//! Requests to MLflow's REST API, version 2.0.

use reqwest::blocking::RequestBuilder;
use reqwest::{StatusCode, Url};
use serde_json::{Value, json};

use super::{PASSWORD, TOKEN, USERNAME};
use crate::TrackingError;
use crate::rest::{Rest, variable};

/// Client of a tracking server.
pub(super) struct Client(Rest);

impl Client {
    pub(super) fn new(url: &str) -> Result<Self, TrackingError> {
        Ok(Self(Rest::new(url)?))
    }

    /// Sends `body` to an endpoint such as `runs/create` and returns the answer.
    pub(super) fn post(
        &self,
        act: &'static str,
        endpoint: &str,
        body: &Value,
    ) -> Result<Value, TrackingError> {
        self.0.send(act, with_credentials(self.0.post(&format!("api/2.0/mlflow/{endpoint}"), body)))
    }

    /// Returns the id of an experiment, which is created if it does not exist.
    pub(super) fn experiment(&self, name: &str) -> Result<String, TrackingError> {
        match self.find_experiment(name) {
            Err(TrackingError::Refused { status, .. }) if status == StatusCode::NOT_FOUND.as_u16() => {}
            found => return found,
        }
        match self.post("create an experiment", "experiments/create", &json!({ "name": name })) {
            // Another run has created it meanwhile.
            Err(TrackingError::Refused { answer, .. }) if answer.contains("RESOURCE_ALREADY_EXISTS") => {
                self.find_experiment(name)
            }
            created => Ok(text(&created?, "/experiment_id")),
        }
    }

    fn find_experiment(&self, name: &str) -> Result<String, TrackingError> {
        let act = "find an experiment";
        let endpoint = format!("{}/api/2.0/mlflow/experiments/get-by-name", self.0.url());
        let url = Url::parse_with_params(&endpoint, [("experiment_name", name)])
            .map_err(|error| self.0.refused(act, 0, &error.to_string()))?;
        let found = self.0.send(act, with_credentials(self.0.get(url)))?;
        Ok(text(&found, "/experiment/experiment_id"))
    }
}

/// Adds the credentials that MLflow's own clients take from the environment.
fn with_credentials(request: RequestBuilder) -> RequestBuilder {
    match (variable(TOKEN), variable(USERNAME)) {
        (Some(token), _) => request.bearer_auth(token),
        (None, Some(user)) => request.basic_auth(user, variable(PASSWORD)),
        (None, None) => request,
    }
}

/// Returns the text at a JSON pointer of an answer; empty if it is missing.
pub(super) fn text(answer: &Value, pointer: &str) -> String {
    answer.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}
