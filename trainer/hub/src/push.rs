//! Pushes a folder as a commit to a model repository of the Hugging Face hub, or of a mirror with the same
//! protocol.
//!
//! ```text
//! POST api/repos/create               creates the repository, private, unless it exists
//! POST api/models/R/preupload/main    which files are large
//! POST R.git/info/lfs/objects/batch   upload URL of each large file; none if the hub has the file already
//! PUT  (to that URL, whole or in parts)
//! POST api/models/R/commit/main       all files as one commit: small ones by content, large ones by digest
//! ```
//! A failed commit leaves the repository unchanged. The token is sent only to the hub, never to the storage
//! to which files are uploaded.

mod large;

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::StatusCode;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use rlt_api::ExitCode;
use rlt_tracking::{Secrets, http};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// URL of the hub, unless `HF_ENDPOINT` is set.
const HUB: &str = "https://huggingface.co";
/// Branch to which the commit is pushed.
const BRANCH: &str = "main";
/// Number of a file's first bytes that are sent to the hub, which decides by them how the file is uploaded.
const SAMPLE_BYTES: usize = 512;
/// Maximum number of bytes of the hub's answer that an error quotes.
const MAX_SHOWN_BYTES: usize = 500;
/// Timeout for connecting to the hub, and for answers to requests without a file.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Owner and name of a model repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    owner: String,
    name: String,
}

impl Repository {
    /// Parses `OWNER/NAME`; `None` if the hub allows no such name.
    pub fn new(text: &str) -> Option<Self> {
        let (owner, name) = text.split_once('/')?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_name = |part: &str| {
            (1..=96).contains(&part.len()) && part.chars().all(is_plain) && !part.starts_with(['.', '-'])
        };
        (is_name(owner) && is_name(name)).then(|| Self { owner: owner.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// An error of pushing a folder to the hub.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The environment has no token.
    #[error("HF_TOKEN: expected a token of the hub with write access, got none")]
    NoToken,
    /// The token is not a valid header value.
    #[error("HF_TOKEN: expected printable ASCII without spaces")]
    BadToken,
    /// The HTTP client could not be created.
    #[error("failed to set up a client")]
    Client(#[source] reqwest::Error),
    /// The hub cannot be reached, or did not answer.
    #[error("{act}: no answer")]
    NoAnswer {
        /// Failed operation, such as `uploading model.safetensors`.
        act: String,
        /// Error of the HTTP client, without the address, which may contain a signature.
        source: reqwest::Error,
    },
    /// An answer is too long or too slow, or ends early.
    #[error("{act}: the answer was not read to its end")]
    CutOff {
        /// Operation whose answer was read.
        act: String,
        /// Error at which reading stopped.
        source: io::Error,
    },
    /// The hub rejects a request.
    #[error("{act}: the answer is {status}: {text}")]
    Refused {
        /// Operation that the hub rejects.
        act: String,
        /// HTTP status of the answer, other than 2xx.
        status: StatusCode,
        /// Text of the answer.
        text: String,
    },
    /// An answer of the hub violates the protocol.
    #[error("{act}: expected {expected}, got {got}")]
    BadAnswer {
        /// Operation whose answer is invalid.
        act: String,
        /// Expected content of the answer.
        expected: &'static str,
        /// Content of the answer.
        got: String,
    },
    /// A file or folder cannot be read.
    #[error("failed to read {path}", path = path.display())]
    Read {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl PushError {
    /// Redacts the answers of the hub, which may repeat the token.
    fn without(self, secrets: &Secrets) -> Self {
        match self {
            Self::Refused { act, status, text } => Self::Refused { act, status, text: secrets.redact(&text) },
            Self::BadAnswer { act, expected, got } => {
                Self::BadAnswer { act, expected, got: secrets.redact(&got) }
            }
            other => other,
        }
    }

    /// Exit code of a process that ends with this error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoToken | Self::BadToken => ExitCode::Usage,
            Self::Refused { status, .. }
                if status.is_redirection()
                    || (status.is_client_error() && *status != StatusCode::TOO_MANY_REQUESTS) =>
            {
                ExitCode::BadConfig
            }
            _ => ExitCode::RetryableIo,
        }
    }
}

/// Client of the hub, with the user's token.
#[derive(Debug)]
pub struct Hub {
    endpoint: String,
    /// Authorization header with the token, which is sent only to the hub.
    authorization: HeaderValue,
    client: Client,
}

/// A file to push.
#[derive(Debug)]
struct Upload {
    /// Name of the file in the repository.
    name: String,
    path: PathBuf,
    num_bytes: u64,
    /// SHA-256 of the file, hexadecimal.
    digest: String,
    /// First bytes of the file, by which the hub decides how the file is uploaded.
    sample: Vec<u8>,
}

impl Hub {
    /// Creates a client for the hub of `HF_ENDPOINT`, with the token of `HF_TOKEN`.
    ///
    /// # Errors
    /// [`PushError::NoToken`], [`PushError::BadToken`].
    pub fn of_environment() -> Result<Self, PushError> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let token = set("HF_TOKEN").ok_or(PushError::NoToken)?;
        Self::new(&set("HF_ENDPOINT").unwrap_or_else(|| HUB.to_owned()), token.trim())
    }

    fn new(endpoint: &str, token: &str) -> Result<Self, PushError> {
        let mut authorization =
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| PushError::BadToken)?;
        authorization.set_sensitive(true);
        let client = http::client(CONNECT_TIMEOUT).timeout(None).build();
        let client = client.map_err(PushError::Client)?;
        Ok(Self { endpoint: endpoint.trim_end_matches('/').to_owned(), authorization, client })
    }

    /// Commits the files of `folder` to the branch `main` of `repository`, and returns the commit.
    ///
    /// # Errors
    /// [`PushError`]; the repository is then unchanged, or has all files if only the answer was lost.
    pub fn push(&self, repository: &Repository, folder: &Path, message: &str) -> Result<String, PushError> {
        let pushed = self.push_files(repository, folder, message);
        pushed.map_err(|error| error.without(&Secrets::new(self.authorization.to_str().ok())))
    }

    fn push_files(&self, repository: &Repository, folder: &Path, message: &str) -> Result<String, PushError> {
        let files = files_of(folder)?;
        self.create(repository)?;
        let large = self.large_files(repository, &files)?;
        self.upload_large(repository, &large)?;
        let lines = files.iter().map(|file| line_of(file, large.iter().any(|one| one.name == file.name)));
        let header = json!({"key": "header", "value": {"summary": message, "description": ""}});
        let mut body = format!("{header}\n");
        for line in lines {
            body.push_str(&format!("{}\n", line?));
        }
        let act = format!("committing {} files to {repository}", files.len());
        let request = self.post(&format!("api/models/{repository}/commit/{BRANCH}"));
        let request = request.header(CONTENT_TYPE, "application/x-ndjson").body(body);
        let answer = json_of(&act, answered(&act, request)?)?;
        let commit = answer["commitOid"].as_str().map(str::to_owned);
        commit.ok_or_else(|| bad_answer(&act, "commitOid", &answer.to_string()))
    }

    /// Creates the repository if it does not exist.
    fn create(&self, repository: &Repository) -> Result<(), PushError> {
        let act = format!("creating the repository {repository}");
        let body = json!({"name": repository.name, "organization": repository.owner, "private": true});
        match answered(&act, json_body(self.post("api/repos/create"), &body)) {
            // It exists.
            Err(PushError::Refused { status: StatusCode::CONFLICT, .. }) => Ok(()),
            // A token that is limited to this repository may write to it, but may not create repositories.
            Err(PushError::Refused { status: StatusCode::FORBIDDEN, .. }) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Asks the hub which files are uploaded by Git LFS.
    fn large_files<'a>(
        &self,
        repository: &Repository,
        files: &'a [Upload],
    ) -> Result<Vec<&'a Upload>, PushError> {
        let act = format!("asking which files of {repository} are large");
        let described = files.iter().map(|file| {
            json!({"path": file.name, "size": file.num_bytes, "sample": STANDARD.encode(&file.sample)})
        });
        let body = json!({"files": described.collect::<Vec<_>>()});
        let request = json_body(self.post(&format!("api/models/{repository}/preupload/{BRANCH}")), &body);
        let answer = json_of(&act, answered(&act, request)?)?;
        let listed = answer["files"].as_array();
        let listed = listed.ok_or_else(|| bad_answer(&act, "files", &answer.to_string()))?;
        let is_large =
            |file: &&Upload| listed.iter().any(|one| one["path"] == *file.name && one["uploadMode"] == "lfs");
        // The hub's storage refuses empty objects, so an empty file is committed by content.
        Ok(files.iter().filter(|file| file.num_bytes > 0).filter(is_large).collect())
    }

    /// Creates a request to the hub, with the token.
    fn post(&self, path: &str) -> RequestBuilder {
        self.post_to(&format!("{}/{path}", self.endpoint)).timeout(ANSWER_TIMEOUT)
    }

    /// Creates a request to a URL that the hub returned, with the token if the URL is on the hub.
    fn post_to(&self, url: &str) -> RequestBuilder {
        let request = self.client.post(url);
        if url.starts_with(&format!("{}/", self.endpoint)) {
            return request.header("authorization", self.authorization.clone());
        }
        request
    }
}

fn json_body(request: RequestBuilder, body: &Value) -> RequestBuilder {
    request.header(CONTENT_TYPE, "application/json").body(body.to_string())
}

/// Sends a request, and returns the answer if its status is 2xx.
fn answered(act: &str, request: RequestBuilder) -> Result<Response, PushError> {
    let no_answer =
        |source: reqwest::Error| PushError::NoAnswer { act: act.to_owned(), source: source.without_url() };
    let answer = request.send().map_err(no_answer)?;
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let text = http::text_of(answer, ANSWER_TIMEOUT).unwrap_or_default();
    let end = text.floor_char_boundary(MAX_SHOWN_BYTES);
    let text = match status {
        StatusCode::UNAUTHORIZED => format!("HF_TOKEN is not known there: {}", &text[..end]),
        StatusCode::FORBIDDEN => format!("HF_TOKEN has no right to write there: {}", &text[..end]),
        _ => text[..end].to_owned(),
    };
    Err(PushError::Refused { act: act.to_owned(), status, text })
}

fn json_of(act: &str, answer: Response) -> Result<Value, PushError> {
    let text = http::text_of(answer, ANSWER_TIMEOUT);
    let text = text.map_err(|source| PushError::CutOff { act: act.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|_| bad_answer(act, "JSON", &text))
}

fn bad_answer(act: &str, expected: &'static str, got: &str) -> PushError {
    let end = got.floor_char_boundary(MAX_SHOWN_BYTES);
    PushError::BadAnswer { act: act.to_owned(), expected, got: got[..end].to_owned() }
}

/// Returns the JSON line that describes a file in the request for a commit.
fn line_of(file: &Upload, is_large: bool) -> Result<Value, PushError> {
    if is_large {
        let value = json!({"path": file.name, "algo": "sha256", "oid": file.digest, "size": file.num_bytes});
        return Ok(json!({"key": "lfsFile", "value": value}));
    }
    let content = fs::read(&file.path).map_err(unread(&file.path))?;
    let value = json!({"path": file.name, "content": STANDARD.encode(content), "encoding": "base64"});
    Ok(json!({"key": "file", "value": value}))
}

/// Lists the files at the top level of an export, by name.
fn files_of(folder: &Path) -> Result<Vec<Upload>, PushError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unread(folder))? {
        let path = entry.map_err(unread(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() && !name.starts_with('.') {
            files.push(described(name, path)?);
        }
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(files)
}

/// Reads a file once, for its size, digest and first bytes.
fn described(name: String, path: PathBuf) -> Result<Upload, PushError> {
    let (mut sha256, mut num_bytes, mut sample) = (Sha256::new(), 0, Vec::new());
    let mut file = File::open(&path).map_err(unread(&path))?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let num_read = file.read(&mut buffer).map_err(unread(&path))?;
        if num_read == 0 {
            break;
        }
        sha256.update(&buffer[..num_read]);
        sample.extend_from_slice(&buffer[..num_read.min(SAMPLE_BYTES.saturating_sub(sample.len()))]);
        num_bytes += num_read as u64;
    }
    let digest = sha256.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Upload { name, path, num_bytes, digest, sample })
}

fn unread(path: &Path) -> impl FnOnce(io::Error) -> PushError {
    let path = path.to_owned();
    move |source| PushError::Read { path, source }
}

/// Returns the HTTP headers that an answer of the hub requests.
fn headers_of(action: &Value) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in action["header"].as_object().into_iter().flatten() {
        let name = reqwest::header::HeaderName::from_bytes(name.as_bytes());
        let value = value.as_str().and_then(|value| HeaderValue::from_str(value).ok());
        if let (Ok(name), Some(value)) = (name, value) {
            headers.insert(name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_an_owner_and_a_name() {
        assert_eq!(
            Repository::new("owner/a-b_c.1").map(|one| one.to_string()),
            Some("owner/a-b_c.1".to_owned())
        );
        for text in ["owner", "owner/", "/name", "a/b/c", "owner/na me", "../name", "owner/..", "owner/-x"] {
            assert_eq!(Repository::new(text), None, "{text}");
        }
    }

    #[test]
    fn the_token_is_sent_only_to_the_hub() {
        let hub = Hub::new("https://hub.example/", "secret").unwrap();
        let sends = |url: &str| hub.post_to(url).build().unwrap().headers().contains_key("authorization");
        assert!(sends("https://hub.example/api/x"));
        for url in ["https://storage.example/x", "https://hub.example.org/x", "http://hub.example/x"] {
            assert!(!sends(url), "{url}");
        }
    }
}
