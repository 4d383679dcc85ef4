//! A server that answers as the Hugging Face hub does for a model and a data set of one name.
//!
//! It does not prove the behaviour of the real hub.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// The name of both repositories.
pub const REPO: &str = "owner/tiny";

/// Commit of the branch `main`. For the branch `odd` the server reports a text that is no commit.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Contents of files by their names.
pub type Files = BTreeMap<String, Vec<u8>>;

/// A repository: the prefixes of its API and of its contents, and its files.
type Served<'a> = (&'static str, &'static str, &'a Files);

/// Edit of an answer's body, by its path.
type Edits = dyn Fn(&str, Vec<u8>) -> Vec<u8>;

/// A server of the hub's protocol; it runs until the process ends.
#[derive(Clone, Debug)]
pub struct HubServer {
    endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

/// A request that the server has received.
#[derive(Clone, Debug)]
struct Request {
    /// Method and path.
    line: String,
    /// Value of the header `Authorization`.
    authorization: Option<String>,
}

impl HubServer {
    /// Serves a model of `files`, by their names, on a free port.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start(files: Files) -> io::Result<Self> {
        Self::start_both(files, Files::new())
    }

    /// Serves a data set.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_dataset(files: Files) -> io::Result<Self> {
        Self::start_both(Files::new(), files)
    }

    /// Serves a model and a data set.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_both(model: Files, dataset: Files) -> io::Result<Self> {
        Self::start_with(model, dataset, |_, body| body)
    }

    /// Serves a model and a data set. `edits` changes the body of each answer, whose path it gets.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(
        model: Files,
        dataset: Files,
        edits: impl Fn(&str, Vec<u8>) -> Vec<u8> + Send + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let server = Self { endpoint, requests: Arc::default() };
        let requests = server.requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // The server ignores closed connections.
                drop(answer(
                    &stream,
                    [("models", "", &model), ("datasets", "/datasets", &dataset)],
                    (&requests, &edits),
                ));
            }
        });
        Ok(server)
    }

    /// URL of the server.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The requests for contents of files so far, as `METHOD PATH`.
    pub fn downloads(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = requests.iter().map(|request| &request.line);
        lines.filter(|line| line.starts_with("GET") && line.contains("/resolve/")).cloned().collect()
    }

    /// Returns the header `Authorization` of each request so far.
    pub fn authorizations(&self) -> Vec<Option<String>> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.iter().map(|request| request.authorization.clone()).collect()
    }
}

fn answer(
    mut stream: &TcpStream,
    served: [Served<'_>; 2],
    (requests, edits): (&Mutex<Vec<Request>>, &Edits),
) -> io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let mut authorization = None;
    while let Some(header) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
        if let Some((_, value)) =
            header.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("authorization"))
        {
            authorization = Some(value.trim().to_owned());
        }
    }
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let received = Request { line: format!("{method} {path}"), authorization };
    requests.lock().unwrap_or_else(PoisonError::into_inner).push(received);
    let path = path.split('?').next().unwrap_or_default();
    let found = served.into_iter().find_map(|served| respond(path, served));
    let (status, etag, body) = found.unwrap_or_else(|| ("404 Not Found", "none".to_owned(), Vec::new()));
    let body = edits(path, body);
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"{etag}\"\r\nX-Repo-Commit: {COMMIT}\r\n\
         Content-Type: application/json\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if method != "HEAD" {
        stream.write_all(&body)?;
    }
    Ok(())
}

/// Status, etag and body of the file at `path`.
fn respond(path: &str, (kind, prefix, files): Served<'_>) -> Option<(&'static str, String, Vec<u8>)> {
    let found = |body: String| Some(("200 OK", "none".to_owned(), body.into_bytes()));
    let info = |sha: &str| found(format!("{{\"id\": \"{REPO}\", \"_id\": \"1\", \"sha\": \"{sha}\"}}"));
    let revision = path.strip_prefix(&format!("/api/{kind}/{REPO}/revision/"));
    match revision.filter(|_| !files.is_empty()) {
        Some("main" | COMMIT) => return info(COMMIT),
        Some("odd") => return info("main"),
        _ => {}
    }
    if path == format!("/api/{kind}/{REPO}/tree/{COMMIT}") {
        return found(format!("[{}]", files.iter().map(tree_entry).collect::<Vec<_>>().join(",")));
    }
    let name = path.strip_prefix(&format!("{prefix}/{REPO}/resolve/{COMMIT}/"))?;
    let (name, content) = files.get_key_value(name)?;
    Some(("200 OK", format!("etag-{name}"), content.clone()))
}

fn tree_entry((name, content): (&String, &Vec<u8>)) -> String {
    let size = content.len();
    format!("{{\"type\": \"file\", \"oid\": \"{name}\", \"size\": {size}, \"path\": \"{name}\"}}")
}
