//! Requests to the REST API of a tracking server: limits of time and length, no redirects, and errors that
//! name the server.

use std::time::Duration;

use reqwest::blocking::{Client, RequestBuilder};
use reqwest::header::CONTENT_TYPE;
use serde_json::Value;

use crate::{Secrets, TrackingError, http};

/// Timeout of a request, which is then sent again later.
const TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of characters of an answer that an error quotes.
const MAX_QUOTED: usize = 300;

/// A server with a JSON API.
pub(crate) struct Rest {
    http: Client,
    url: String,
}

impl Rest {
    pub(crate) fn new(url: &str) -> Result<Self, TrackingError> {
        let url = url.trim_end_matches('/').to_owned();
        let http = http::client(CONNECT_TIMEOUT).timeout(TIMEOUT).build();
        let http = http.map_err(|source| TrackingError::Unreachable {
            act: "make requests",
            url: url.clone(),
            source,
        })?;
        Ok(Self { http, url })
    }

    /// Address of the server, without a trailing slash.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn get(&self, url: reqwest::Url) -> RequestBuilder {
        self.http.get(url)
    }

    /// Creates a request with `body` to a path below the server's address.
    pub(crate) fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        let request = self.http.post(format!("{}/{path}", self.url));
        request.header(CONTENT_TYPE, "application/json").body(body.to_string())
    }

    /// Sends a request and returns its answer. `act` names the request in errors.
    pub(crate) fn send(&self, act: &'static str, request: RequestBuilder) -> Result<Value, TrackingError> {
        let unreachable = |source: reqwest::Error| TrackingError::Unreachable {
            act,
            url: self.url.clone(),
            source: source.without_url(),
        };
        let (client, request) = request.build_split();
        let request = request.map_err(unreachable)?;
        let secrets = Secrets::of_headers(request.headers());
        let answer = client.execute(request).map_err(unreachable)?;
        let status = answer.status();
        let text = http::text_of(answer, TIMEOUT);
        let text = text.map_err(|source| TrackingError::Answer { act, url: self.url.clone(), source })?;
        let refused = || self.refused(act, status.as_u16(), &secrets.redact(&text));
        if !status.is_success() {
            return Err(refused());
        }
        serde_json::from_str(&text).map(|answer| secrets.redact_json(answer)).map_err(|_| refused())
    }

    /// Creates the error of a rejected request, with the beginning of the answer, from which secrets are
    /// removed.
    pub(crate) fn refused(&self, act: &'static str, status: u16, answer: &str) -> TrackingError {
        let answer = answer.chars().take(MAX_QUOTED).collect();
        TrackingError::Refused { act, url: self.url.clone(), status, answer }
    }
}

/// Returns the value of an environment variable; `None` if it is unset or empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests;
