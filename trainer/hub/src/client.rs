//! HTTP requests to the hub. The size of every answer is limited: that of metadata by a constant, that of a
//! file by its size in the commit's list of files.
//!
//! Redirects are followed, because the hub keeps large files on other servers. The user's token is sent only
//! to the origin of the hub.

use std::io;
use std::time::Duration;

use reqwest::blocking::{Client, Response};
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderValue, LINK, LOCATION};
use reqwest::{StatusCode, Url};
use rlt_tracking::{Secrets, http};
use serde::Deserialize;
use serde_json::Value;

/// Maximum size of an answer without a file, and of all pages of a list together, in bytes.
const MAX_METADATA_BYTES: u64 = 64 << 20;
/// Maximum number of bytes of an answer that an error quotes.
const MAX_SHOWN_BYTES: usize = 500;
/// Maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 10;
/// Number of times that a request is sent while the hub is overloaded or does not answer.
const NUM_ATTEMPTS: u32 = 5;
/// Wait before a request is sent again; each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Timeout for connecting to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the head of an answer, and for the next bytes of its body.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time of an answer without a file.
const METADATA_TIMEOUT: Duration = Duration::from_secs(300);

/// A failed request to the hub.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The address of the hub is invalid.
    #[error("the address of the hub is invalid: {reason}")]
    Address {
        /// Reason of the parser.
        reason: String,
    },
    /// The HTTP client could not be created.
    #[error("creating the HTTP client")]
    Client(#[source] reqwest::Error),
    /// The server does not answer.
    #[error("the hub does not answer")]
    NoAnswer(#[source] reqwest::Error),
    /// The server rejects the request.
    #[error("the hub answers {status}: {text}")]
    Refused {
        /// Status of the answer.
        status: StatusCode,
        /// Beginning of the answer, without the user's token.
        text: String,
    },
    /// The answer redirects to an address that is not followed.
    #[error("the hub redirects {reason}")]
    Redirect {
        /// Reason why the redirect is not followed.
        reason: &'static str,
    },
    /// The answer is too long, takes too long, or ends early.
    #[error("the hub's answer cannot be read")]
    Body(#[source] io::Error),
    /// The answer is no JSON of the expected form.
    #[error("the hub's answer is not as expected")]
    Json(#[source] serde_json::Error),
}

impl RequestError {
    /// Whether a retry cannot help: the token lacks a right, or the repository, revision or file does not
    /// exist.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Address { .. } | Self::Redirect { .. } => true,
            Self::Refused { status, .. } => matches!(status.as_u16(), 400 | 401 | 403 | 404 | 410 | 451),
            _ => false,
        }
    }
}

/// Kind of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RepositoryKind {
    Model,
    Dataset,
}

impl RepositoryKind {
    /// Name of the kind in paths of the hub's API and in the cache.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }
}

/// An entry in the hub's list of a commit's files.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum TreeEntry {
    /// A file, with its size in bytes.
    File { path: String, size: u64 },
    /// A folder, or an entry of an unknown kind.
    #[serde(other)]
    Other,
}

/// A repository of the hub, or of a mirror with the same protocol.
#[derive(Debug)]
pub(super) struct HubRepository {
    endpoint: Url,
    kind: RepositoryKind,
    /// Repository as `owner/name`, or as a name without owner.
    name: String,
    /// Authorization header with the user's token; `None` without a token, and for untrusted mirrors.
    authorization: Option<HeaderValue>,
    http: Client,
}

impl HubRepository {
    /// Creates a client for the repository `name` of the hub at `endpoint`, which receives `token`.
    pub(super) fn new(
        endpoint: &str,
        kind: RepositoryKind,
        name: &str,
        token: Option<&str>,
    ) -> Result<Self, RequestError> {
        let invalid = |reason: &str| RequestError::Address { reason: reason.to_owned() };
        let endpoint = Url::parse(endpoint).map_err(|error| invalid(&error.to_string()))?;
        if !["http", "https"].contains(&endpoint.scheme()) {
            return Err(invalid("expected http:// or https://"));
        }
        // A token that is not a valid header value is ignored.
        let authorization = token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
        let authorization = authorization.map(|mut value| {
            value.set_sensitive(true);
            value
        });
        let http = http::client(CONNECT_TIMEOUT).timeout(READ_TIMEOUT).build();
        let http = http.map_err(RequestError::Client)?;
        Ok(Self { endpoint, kind, name: name.to_owned(), authorization, http })
    }

    /// Asks for the commit of a revision; returns an empty text if the hub reports none.
    pub(super) fn commit_of(&self, revision: &str) -> Result<String, RequestError> {
        let info: Value = json_of(self.get(self.api_url("revision", revision))?)?;
        Ok(info["sha"].as_str().unwrap_or_default().to_owned())
    }

    /// Lists files and folders of a commit. Stops after the page that brings their number above
    /// `max_entries`.
    pub(super) fn list(&self, commit: &str, max_entries: usize) -> Result<Vec<TreeEntry>, RequestError> {
        let mut url = self.api_url("tree", commit);
        url.set_query(Some("recursive=true"));
        let (mut entries, mut num_bytes) = (Vec::new(), 0);
        loop {
            let answer = self.get(url)?;
            let next = next_page(&answer);
            let text = text_of(answer, MAX_METADATA_BYTES.saturating_sub(num_bytes))?;
            num_bytes += text.len() as u64;
            let page: Vec<TreeEntry> = serde_json::from_str(&text).map_err(RequestError::Json)?;
            let is_last = page.is_empty() || entries.len() + page.len() > max_entries;
            entries.extend(page);
            match next {
                Some(next) if !is_last => url = next,
                _ => return Ok(entries),
            }
        }
    }

    /// Requests a file of a commit. The caller limits how many bytes it reads.
    pub(super) fn open_file(&self, commit: &str, path: &str) -> Result<Response, RequestError> {
        let prefix = match self.kind {
            RepositoryKind::Model => None,
            RepositoryKind::Dataset => Some(self.kind.plural()),
        };
        let folders = prefix.into_iter().chain(self.name.split('/')).chain(["resolve", commit]);
        self.get(self.url(folders.chain(path.split('/'))))
    }

    /// Returns the URL of an operation of the hub's API, such as `tree`, on a revision.
    fn api_url(&self, act: &str, revision: &str) -> Url {
        let repository = ["api", self.kind.plural()].into_iter().chain(self.name.split('/'));
        self.url(repository.chain([act, revision]))
    }

    /// Returns the URL below the endpoint with these path segments, each percent-encoded.
    fn url<'a>(&self, segments: impl Iterator<Item = &'a str>) -> Url {
        let mut url = self.endpoint.clone();
        // Every URL with http or https has path segments.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// Sends a GET request, follows redirects, and returns the answer if its status is 2xx.
    fn get(&self, mut url: Url) -> Result<Response, RequestError> {
        for _ in 0..=MAX_REDIRECTS {
            let answer = self.send(&url)?;
            let status = answer.status();
            if status.is_success() {
                return Ok(answer);
            }
            if !status.is_redirection() {
                return Err(self.refused(answer));
            }
            url = redirect_target(&url, &answer)?;
        }
        Err(RequestError::Redirect { reason: "too often" })
    }

    /// Sends a request, several times while the server is overloaded or does not answer.
    fn send(&self, url: &Url) -> Result<Response, RequestError> {
        let mut wait = FIRST_WAIT;
        for _ in 1..NUM_ATTEMPTS {
            match self.send_once(url) {
                Ok(answer) if !is_transient(answer.status()) => return Ok(answer),
                Err(error) if error.is_builder() => return Err(no_answer(error)),
                _ => std::thread::sleep(wait),
            }
            wait *= 2;
        }
        self.send_once(url).map_err(no_answer)
    }

    fn send_once(&self, url: &Url) -> reqwest::Result<Response> {
        // A compressed body would have another length than the file.
        let mut request = self.http.get(url.clone()).header(ACCEPT_ENCODING, "identity");
        if let Some(authorization) = &self.authorization
            && url.origin() == self.endpoint.origin()
        {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        request.send()
    }

    /// Creates the error of a rejected request, with the beginning of the answer.
    fn refused(&self, answer: Response) -> RequestError {
        let status = answer.status();
        let text = http::text_of(answer, METADATA_TIMEOUT).unwrap_or_default();
        let token = self.authorization.as_ref().and_then(|value| value.to_str().ok());
        let text = Secrets::new(token).redact(&text);
        let end = text.floor_char_boundary(MAX_SHOWN_BYTES);
        RequestError::Refused { status, text: text[..end].to_owned() }
    }
}

fn no_answer(error: reqwest::Error) -> RequestError {
    RequestError::NoAnswer(error.without_url())
}

/// Whether the same request may succeed a moment later.
fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
}

/// Reads a JSON document of bounded size.
fn json_of<T: serde::de::DeserializeOwned>(answer: Response) -> Result<T, RequestError> {
    serde_json::from_str(&text_of(answer, MAX_METADATA_BYTES)?).map_err(RequestError::Json)
}

fn text_of(answer: Response, max_bytes: u64) -> Result<String, RequestError> {
    http::text_within(answer, max_bytes, METADATA_TIMEOUT).map_err(RequestError::Body)
}

/// Returns the address to which an answer to a request of `url` redirects.
fn redirect_target(url: &Url, answer: &Response) -> Result<Url, RequestError> {
    let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let target = location.and_then(|location| url.join(location).ok());
    let target = target.ok_or(RequestError::Redirect { reason: "without an address" })?;
    match (url.scheme(), target.scheme()) {
        ("https", "https") | ("http", "http" | "https") => Ok(target),
        _ => Err(RequestError::Redirect { reason: "to a protocol without protection" }),
    }
}

/// Returns the address of the list's next page: `Link: <https://...>; rel="next"`.
fn next_page(answer: &Response) -> Option<Url> {
    let links = answer.headers().get(LINK)?.to_str().ok()?;
    let next = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    let address = next.trim().strip_prefix('<')?.split('>').next()?;
    answer.url().join(address).ok()
}

#[cfg(test)]
mod tests;
