//! An HTTP server with JSON requests and responses, limits of time, size and concurrency, and retries.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use rlt_api::spec::{HeaderSpec, RewardServerSpec};
use rlt_core::reward::Verdict;
use rlt_tracking::Secrets;
use serde_json::Value;
use tokio::sync::Semaphore;

/// Pause before the first retry; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// Longest pause before a retry, even if the server asks for more.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Maximum size of a file of certificates, in bytes.
const MAX_CERTIFICATES_BYTES: u64 = 16 << 20;

/// Number of characters of an answer that an error quotes.
const QUOTED: usize = 200;

/// A server with the limits of its requests.
pub(super) struct Endpoint {
    client: Client,
    url: Url,
    headers: HeaderMap,
    /// Values of the environment in `headers`, which an answer may repeat and no message may show.
    secrets: Secrets,
    timeout: Duration,
    retries: u32,
    max_response_bytes: usize,
    permits: Semaphore,
}

/// A server cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address is not a valid HTTP URL.
    #[error("failed to read url {url:?}: expected http:// or https:// with a host")]
    Url {
        /// The address as it is written in the manifest.
        url: String,
    },
    /// The environment variable with a header's value is not set.
    #[error("failed to read the header {header:?}: the environment has no variable {variable:?}")]
    Variable {
        /// Name of the header.
        header: String,
        /// Name of the environment variable.
        variable: String,
    },
    /// A header cannot be sent. Its value may be secret and is not shown.
    #[error(
        "failed to read the header {header:?}: expected a name of letters, digits and '-', and a value of \
         visible ASCII"
    )]
    Header {
        /// Name of the header.
        header: String,
    },
    /// The file with certificate authorities cannot be read.
    #[error("failed to read caFile {}", path.display())]
    CaFile {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The file with certificate authorities holds no certificates.
    #[error("failed to read caFile {}: expected certificates in PEM", path.display())]
    Certificates {
        /// Path of the file.
        path: PathBuf,
        /// The parser's error; `None` if the file has no certificate.
        #[source]
        source: Option<reqwest::Error>,
    },
    /// The HTTP client could not be made.
    #[error("failed to make a client for HTTP")]
    Client(#[source] reqwest::Error),
}

/// The server gave no usable answer, after all attempts.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RequestError {
    /// The last attempt exceeded its time limit.
    Timeout(String),
    /// The last attempt failed for another reason.
    Infra(String),
}

impl RequestError {
    pub(super) fn verdict(&self) -> Verdict {
        match self {
            Self::Timeout(message) => Verdict::timeout(message.clone()),
            Self::Infra(message) => Verdict::infra(message.clone()),
        }
    }
}

/// A failed attempt.
struct Failure {
    message: String,
    is_timeout: bool,
    /// Whether retries would not help.
    is_final: bool,
    /// Pause that the server asks for (`Retry-After`).
    pause: Option<Duration>,
}

impl Failure {
    fn passing(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_timeout: false, is_final: false, pause: None }
    }
}

impl Endpoint {
    pub(super) fn new(spec: &RewardServerSpec) -> Result<Self, EndpointError> {
        let url = || EndpointError::Url { url: spec.url.clone() };
        let url = Url::parse(&spec.url).ok().filter(Url::has_host).ok_or_else(url)?;
        let timeout = Duration::from_secs_f64(spec.timeout_seconds);
        let mut client = Client::builder().redirect(Policy::none()).connect_timeout(timeout);
        if let Some(path) = &spec.ca_file {
            client = client.tls_certs_merge(certificates(path.into())?);
        }
        let headers = headers(&spec.headers)?;
        Ok(Self {
            client: client.build().map_err(EndpointError::Client)?,
            url,
            secrets: Secrets::of_headers(&headers),
            headers,
            timeout,
            retries: spec.retries,
            max_response_bytes: spec.max_response_bytes as usize,
            permits: Semaphore::new(spec.max_concurrent as usize),
        })
    }

    /// Returns the time limit of one attempt.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends requests that `question` makes until `take` accepts an answer. An error of `question` ends the
    /// attempts. The results of both functions may depend on the attempt.
    pub(super) async fn ask(
        &self,
        mut question: impl FnMut() -> Result<Value, String>,
        mut take: impl FnMut(Value) -> Result<(), String>,
    ) -> Result<(), RequestError> {
        let mut attempt = 0;
        loop {
            let failure = {
                let closed = |_| RequestError::Infra("the queue of requests is closed".to_owned());
                let _permit = self.permits.acquire().await.map_err(closed)?;
                let body = question().map_err(RequestError::Infra)?;
                match self.attempt(&body).await {
                    Ok(answer) => match take(answer) {
                        Ok(()) => return Ok(()),
                        Err(message) => Failure::passing(message),
                    },
                    Err(failure) => failure,
                }
            };
            if failure.is_final || attempt >= self.retries {
                return Err(self.gave_up(&failure, attempt + 1));
            }
            let pause = failure.pause.unwrap_or(FIRST_PAUSE * 2u32.saturating_pow(attempt));
            tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
            attempt += 1;
        }
    }

    fn gave_up(&self, failure: &Failure, num_attempts: u32) -> RequestError {
        let Failure { message, is_timeout, .. } = failure;
        let place = format!("{}{}", self.url.origin().ascii_serialization(), self.url.path());
        let message = format!("{place}, attempt {num_attempts}: {message}");
        if *is_timeout { RequestError::Timeout(message) } else { RequestError::Infra(message) }
    }

    async fn attempt(&self, body: &Value) -> Result<Value, Failure> {
        let late = |_| Failure {
            is_timeout: true,
            ..Failure::passing(format!("no whole answer within {:?}", self.timeout))
        };
        tokio::time::timeout(self.timeout, self.exchange(body)).await.map_err(late)?
    }

    async fn exchange(&self, body: &Value) -> Result<Value, Failure> {
        let request = self.client.post(self.url.clone()).headers(self.headers.clone());
        let sent = request.body(body.to_string()).send().await;
        let mut response = sent.map_err(|error| Failure::passing(in_words(error)))?;
        let (status, pause) = (response.status(), pause_asked_for(&response));
        let bytes = self.read(&mut response).await?;
        if !status.is_success() {
            let message = format!("status {}: {}", status.as_u16(), self.quoted(&bytes));
            let is_timeout = [StatusCode::REQUEST_TIMEOUT, StatusCode::GATEWAY_TIMEOUT].contains(&status);
            let is_final = !may_pass(status);
            return Err(Failure { message, is_timeout, is_final, pause });
        }
        let answer = serde_json::from_slice(&bytes);
        answer
            .map(|answer| self.secrets.redact_json(answer))
            .map_err(|error| Failure::passing(format!("expected JSON, got {}: {error}", self.quoted(&bytes))))
    }

    /// Quotes the beginning of an answer, with all secrets removed.
    fn quoted(&self, bytes: &[u8]) -> String {
        let text = self.secrets.redact(&String::from_utf8_lossy(bytes));
        format!("{:?}", text.chars().take(QUOTED).collect::<String>())
    }

    async fn read(&self, response: &mut Response) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| Failure::passing(in_words(error)))? {
            if bytes.len() + chunk.len() > self.max_response_bytes {
                let message = format!("the answer is longer than {} bytes", self.max_response_bytes);
                return Err(Failure { is_final: true, ..Failure::passing(message) });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

fn certificates(path: PathBuf) -> Result<Vec<Certificate>, EndpointError> {
    let pem = match rlt_files::read(&path, MAX_CERTIFICATES_BYTES) {
        Ok(pem) => pem,
        Err(source) => return Err(EndpointError::CaFile { path, source }),
    };
    match Certificate::from_pem_bundle(&pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(EndpointError::Certificates { path, source: None }),
        Err(source) => Err(EndpointError::Certificates { path, source: Some(source) }),
    }
}

fn headers(specs: &[HeaderSpec]) -> Result<HeaderMap, EndpointError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for HeaderSpec { name, value, env } in specs {
        let wrong = || EndpointError::Header { header: name.clone() };
        let value = match (value, env) {
            (Some(value), _) => value.clone(),
            (None, Some(variable)) => std::env::var(variable)
                .map_err(|_| EndpointError::Variable { header: name.clone(), variable: variable.clone() })?,
            (None, None) => return Err(wrong()),
        };
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
        // Other values in the manifest are not secret, and may be words that an answer contains.
        value.set_sensitive(env.is_some() || rlt_api::is_secret_name(name));
        headers.insert(HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?, value);
    }
    Ok(headers)
}

/// Whether a server with this response status may answer differently later.
fn may_pass(status: StatusCode) -> bool {
    let too_early = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || too_early.contains(&status)
}

fn pause_asked_for(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Formats the error with its causes, without the URL, whose query may hold a secret.
fn in_words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(source) = cause {
        words = format!("{words}: {source}");
        cause = source.source();
    }
    words
}
