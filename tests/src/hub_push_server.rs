//! A server for pushes to the Hugging Face hub: repositories, large files by Git LFS whole or in parts, and
//! commits. It checks each request against the protocol: tokens, digests, sizes, committed files.
//!
//! It does not prove the behaviour of the real hub.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::hub_server::Files;

/// Token that the server accepts.
pub const TOKEN: &str = "hf_right";

/// Bytes of a part of a large file.
const PART_BYTES: usize = 30_000;

/// Treatment of large files by the hub's storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// Large files are uploaded as a whole.
    #[default]
    Whole,
    /// Large files are uploaded in parts.
    Parts,
    /// The storage answers 500.
    Broken,
}

/// A server for pushes; it runs until the process ends.
#[derive(Clone, Debug)]
pub struct HubPushServer {
    endpoint: String,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    storage: Storage,
    /// URLs of the hub and of its storage, which have different ports.
    places: [String; 2],
    is_made: bool,
    /// Requests as `METHOD PATH`.
    requests: Vec<String>,
    /// Parts of each object in the storage, by the digest that the client announced and by part number.
    stored: BTreeMap<String, BTreeMap<usize, Vec<u8>>>,
    /// Digests of objects that were verified or assembled from parts.
    complete: Vec<String>,
    commits: Vec<(String, Files)>,
}

struct Request {
    method: String,
    path: String,
    token: Option<String>,
    body: Vec<u8>,
}

type Answer = (u16, Value);

impl HubPushServer {
    /// Serves hub and storage on a free port each.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start(storage: Storage) -> io::Result<Self> {
        let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
        let mut places = [String::new(), String::new()];
        for (place, listener) in places.iter_mut().zip(&listeners) {
            *place = format!("http://{}", listener.local_addr()?);
        }
        let endpoint = places[0].clone();
        let state = Arc::new(Mutex::new(State { storage, places, ..State::default() }));
        for (listener, is_hub) in listeners.into_iter().zip([true, false]) {
            let state = state.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    // The server ignores closed connections.
                    drop(serve(&stream, &state, is_hub));
                }
            });
        }
        Ok(Self { endpoint, state })
    }

    /// URL of the hub.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The commits so far: message and files.
    pub fn commits(&self) -> Vec<(String, Files)> {
        self.lock().commits.clone()
    }

    /// The requests so far, as `METHOD PATH`.
    pub fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(mut stream: &TcpStream, state: &Mutex<State>, is_hub: bool) -> io::Result<()> {
    let request = read(stream)?;
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.requests.push(format!("{} {}", request.method, request.path));
    let (status, body) = if is_hub { state.hub(&request) } else { state.storage(&request) };
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nETag: \"part\"\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn read(stream: &TcpStream) -> io::Result<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (mut num_bytes, mut token) = (0, None);
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => num_bytes = value.parse().unwrap_or(0),
            "authorization" => token = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; num_bytes];
    reader.read_exact(&mut body)?;
    Ok(Request { method, path, token, body })
}

fn refusal(status: u16, why: &str) -> Answer {
    (status, json!({"error": why}))
}

impl State {
    fn hub(&mut self, request: &Request) -> Answer {
        if request.token.as_deref() != Some(&format!("Bearer {TOKEN}")) {
            // Some servers repeat what they were sent, so this one does, too.
            let token = request.token.as_deref().unwrap_or_default();
            return refusal(401, &format!("Invalid credentials: {token}"));
        }
        let json = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        match (&*request.method, &*request.path) {
            ("POST", "/api/repos/create") if self.is_made => refusal(409, "You already created this repo"),
            ("POST", "/api/repos/create") => {
                let is_right = json == json!({"name": "tiny", "organization": "owner", "private": true});
                self.is_made = is_right;
                if is_right { (200, json!({})) } else { refusal(400, "not as expected") }
            }
            _ if !self.is_made => refusal(404, "Repository not found"),
            ("POST", "/api/models/owner/tiny/preupload/main") => (200, modes(&json)),
            ("POST", "/owner/tiny.git/info/lfs/objects/batch") => (200, self.batch(&json)),
            ("POST", "/api/models/owner/tiny/commit/main") => self.commit(&request.body),
            ("POST", "/complete") => {
                self.complete.push(json["oid"].as_str().unwrap_or_default().to_owned());
                (200, json!({}))
            }
            _ => refusal(404, "Not found"),
        }
    }

    fn storage(&mut self, request: &Request) -> Answer {
        if self.storage == Storage::Broken {
            return refusal(500, "the disk is full");
        }
        // Object stores know only signatures, so they refuse requests with a token.
        if request.token.is_some() {
            return refusal(400, "only one auth mechanism allowed");
        }
        let mut words = request.path.trim_start_matches('/').split('/');
        let (digest, part) = (words.next().unwrap_or_default(), words.next().unwrap_or("0"));
        let parts = self.stored.entry(digest.to_owned()).or_default();
        parts.insert(part.parse().unwrap_or(0), request.body.clone());
        (200, json!({}))
    }

    /// The upload URL of each large file; none for an existing one.
    fn batch(&self, json: &Value) -> Value {
        let [hub, storage] = &self.places;
        let objects = json["objects"].as_array().into_iter().flatten().map(|object| {
            let digest = object["oid"].as_str().unwrap_or_default();
            let size = object["size"].as_u64().unwrap_or(0) as usize;
            let mut answer = json!({"oid": digest, "size": size});
            if self.complete.iter().any(|one| one == digest) {
                return answer;
            }
            let finish = json!({"href": format!("{hub}/complete")});
            let mut header = json!({"chunk_size": PART_BYTES.to_string()});
            for part in 1..=size.div_ceil(PART_BYTES) {
                header[part.to_string()] = json!(format!("{storage}/{digest}/{part}"));
            }
            answer["actions"] = match self.storage {
                Storage::Parts => json!({"upload": {"href": finish["href"], "header": header}}),
                _ => json!({"upload": {"href": format!("{storage}/{digest}")}, "verify": finish}),
            };
            answer
        });
        json!({"transfer": "basic", "objects": objects.collect::<Vec<_>>()})
    }

    fn commit(&mut self, body: &[u8]) -> Answer {
        let text = String::from_utf8_lossy(body);
        let (mut message, mut files) = (String::new(), Files::new());
        for line in text.lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else { return refusal(400, "no JSON") };
            let value = &line["value"];
            let name = value["path"].as_str().unwrap_or_default().to_owned();
            let content = match line["key"].as_str() {
                Some("header") => {
                    message = value["summary"].as_str().unwrap_or_default().to_owned();
                    continue;
                }
                Some("file") => decoded(value["content"].as_str().unwrap_or_default()),
                Some("lfsFile") => match self.large(value) {
                    Some(content) => content,
                    None => return refusal(400, "an object was not uploaded, or not as announced"),
                },
                _ => return refusal(400, "unknown key"),
            };
            files.insert(name, content);
        }
        self.commits.push((message, files));
        (200, json!({"success": true, "commitOid": crate::hub_server::COMMIT}))
    }

    /// Returns the bytes of a large file that was uploaded completely.
    fn large(&self, value: &Value) -> Option<Vec<u8>> {
        let digest = value["oid"].as_str()?;
        let content = self.stored.get(digest)?.values().flatten().copied().collect::<Vec<u8>>();
        let is_whole = self.complete.iter().any(|one| one == digest);
        (is_whole && value["size"] == content.len()).then_some(content)
    }
}

/// Returns the upload mode of each file: weights are large, all other files are not.
fn modes(json: &Value) -> Value {
    let files = json["files"].as_array().into_iter().flatten().map(|file| {
        let name = file["path"].as_str().unwrap_or_default();
        let mode = if name.ends_with(".safetensors") { "lfs" } else { "regular" };
        json!({"path": name, "uploadMode": mode, "shouldIgnore": false})
    });
    json!({"files": files.collect::<Vec<_>>()})
}

/// Decodes a text in base64.
fn decoded(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(u32::from(byte - b'A')),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(byte - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.bytes().filter_map(value).collect();
    let groups = digits.chunks(4).flat_map(|group| {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - group.len()));
        bits.to_be_bytes().into_iter().skip(1).take(group.len() - 1)
    });
    groups.collect()
}
