//! A folder as a commit of a model repository of the Hugging Face hub, or of a mirror with its protocol.
//!
//! ```text
//! POST api/repos/create               the repository, private, where it is missing
//! POST api/models/R/preupload/main    which files are large
//! POST R.git/info/lfs/objects/batch   where large files go: nowhere where the hub has them already
//! PUT  (there, whole or in parts)
//! POST api/models/R/commit/main       all files as one commit: small ones by content, large ones by digest
//! ```
//! A commit that fails leaves the repository as it was. The token is sent to the hub only, never to the
//! storage that it names.

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
use rlt_tracking::http;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The hub, where `HF_ENDPOINT` says no other place.
const HUB: &str = "https://huggingface.co";
/// The branch that is pushed to.
const BRANCH: &str = "main";
/// Bytes by which the hub judges a file.
const SAMPLE_BYTES: usize = 512;
/// Bytes of the hub's answer that an error shows.
const MAX_SHOWN_BYTES: usize = 500;
/// How long the hub may take to connect, and to answer where no file is sent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Owner and name of a model repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    owner: String,
    name: String,
}

impl Repository {
    /// Parses `OWNER/NAME`; `None` where that is no name of the hub.
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

/// An error while a folder is pushed to the hub.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// No token is given.
    #[error("HF_TOKEN: expected a token of the hub with write access, got none")]
    NoToken,
    /// The token cannot be sent.
    #[error("HF_TOKEN: expected printable ASCII without spaces")]
    BadToken,
    /// The client could not be set up.
    #[error("failed to set up a client")]
    Client(#[source] reqwest::Error),
    /// The hub cannot be reached, or gave no answer.
    #[error("{act}: no answer")]
    NoAnswer {
        /// The failed operation, such as `uploading model.safetensors`.
        act: String,
        /// The error; it contains no address, which may hold a signature.
        source: reqwest::Error,
    },
    /// An answer is too long or too slow, or breaks off.
    #[error("{act}: the answer was not read to its end")]
    CutOff {
        /// The operation whose answer was read.
        act: String,
        /// The error at which reading stopped.
        source: io::Error,
    },
    /// The hub refuses.
    #[error("{act}: the answer is {status}: {text}")]
    Refused {
        /// The operation that the hub refuses.
        act: String,
        /// HTTP status of the answer, none of 2xx.
        status: StatusCode,
        /// The answer's text.
        text: String,
    },
    /// An answer violates the protocol.
    #[error("{act}: expected {expected}, got {got}")]
    BadAnswer {
        /// The operation whose answer is wrong.
        act: String,
        /// The expected value.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// A file cannot be read.
    #[error("failed to read {path}", path = path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl PushError {
    /// The exit code of a process that ends with this.
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

/// The hub with the user's token.
#[derive(Debug)]
pub struct Hub {
    endpoint: String,
    /// Sends the token, to the hub alone.
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
    /// First bytes of the file, by which the hub tells whether it is to be uploaded as a large one.
    sample: Vec<u8>,
}

impl Hub {
    /// The hub of `HF_ENDPOINT`, with the token of `HF_TOKEN`.
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

    /// Commits the files of `folder` to the branch `main` of `repository`; the commit.
    ///
    /// # Errors
    /// [`PushError`]; the repository has all of the files then, or is as it was.
    pub fn push(&self, repository: &Repository, folder: &Path, message: &str) -> Result<String, PushError> {
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

    /// Makes the repository where it is missing.
    fn create(&self, repository: &Repository) -> Result<(), PushError> {
        let act = format!("creating the repository {repository}");
        let body = json!({"name": repository.name, "organization": repository.owner, "private": true});
        match answered(&act, json_body(self.post("api/repos/create"), &body)) {
            // It exists.
            Err(PushError::Refused { status: StatusCode::CONFLICT, .. }) => Ok(()),
            // A token of one repository may not make others, but write to this one.
            Err(PushError::Refused { status: StatusCode::FORBIDDEN, .. }) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// The files that the hub wants by their digest.
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
        // A file without content has no digest to be found by.
        Ok(files.iter().filter(|file| file.num_bytes > 0).filter(is_large).collect())
    }

    /// A request to the hub, with the token.
    fn post(&self, path: &str) -> RequestBuilder {
        self.post_to(&format!("{}/{path}", self.endpoint)).timeout(ANSWER_TIMEOUT)
    }

    /// A request to an address that the hub has named: with the token where that is the hub.
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

/// Sends a request; its answer where that is a good one.
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

/// The line of a file in a commit.
fn line_of(file: &Upload, is_large: bool) -> Result<Value, PushError> {
    if is_large {
        let value = json!({"path": file.name, "algo": "sha256", "oid": file.digest, "size": file.num_bytes});
        return Ok(json!({"key": "lfsFile", "value": value}));
    }
    let content = fs::read(&file.path).map_err(unread(&file.path))?;
    let value = json!({"path": file.name, "content": STANDARD.encode(content), "encoding": "base64"});
    Ok(json!({"key": "file", "value": value}))
}

/// The files at the top of an export, by name.
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

/// Reads a file once.
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

/// The headers that an answer of the hub requests.
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
    fn the_token_goes_to_the_hub_alone() {
        let hub = Hub::new("https://hub.example/", "secret").unwrap();
        let sends = |url: &str| hub.post_to(url).build().unwrap().headers().contains_key("authorization");
        assert!(sends("https://hub.example/api/x"));
        for url in ["https://storage.example/x", "https://hub.example.org/x", "http://hub.example/x"] {
            assert!(!sends(url), "{url}");
        }
    }
}
