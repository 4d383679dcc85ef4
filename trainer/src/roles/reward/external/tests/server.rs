//! A small HTTP server whose behaviour a test writes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// A request as the server receives it.
pub(super) struct Request {
    /// The number of earlier requests.
    pub(super) number: usize,
    pub(super) head: String,
    pub(super) body: Value,
}

/// A server that runs until the tests end.
pub(super) struct Server {
    pub(super) url: String,
    /// First line and body of every request so far.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Answers every request by `behaviour`, each on a thread of its own.
    pub(super) fn start(behaviour: impl Fn(Request, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/judge", listener.local_addr().unwrap());
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (seen, behaviour) = (requests.clone(), Arc::new(behaviour));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, behaviour) = (seen.clone(), behaviour.clone());
                thread::spawn(move || serve(stream, &seen, &*behaviour));
            }
        });
        Self { url, requests }
    }

    /// Starts a server that answers every request with the JSON that `answer` returns.
    pub(super) fn answering(answer: impl Fn(&Request) -> Value + Send + Sync + 'static) -> Self {
        Self::start(move |request, stream| reply(stream, 200, &answer(&request).to_string()))
    }

    /// Starts a server that answers every request with the same file.
    pub(super) fn serving(bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        Self::start(move |_, stream| {
            let head =
                format!("HTTP/1.1 200 x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", bytes.len());
            let _ = stream.write_all(&[head.as_bytes(), &bytes].concat());
        })
    }

    pub(super) fn num_requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// Returns first line and body of every request so far, in the order of arrival.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<String>>,
    behaviour: &(dyn Fn(Request, &mut TcpStream) + Send + Sync),
) {
    stream.set_read_timeout(Some(Duration::from_secs(200))).unwrap();
    let Some((head, body)) = read(&mut stream) else { return };
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.push(format!("{} {body}", head.lines().next().unwrap_or_default()));
        seen.len() - 1
    };
    behaviour(Request { number, head, body }, &mut stream);
}

pub(super) fn read(stream: &mut impl Read) -> Option<(String, Value)> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 65536]);
    loop {
        let num = stream.read(&mut chunk).ok().filter(|num| *num > 0)?;
        bytes.extend_from_slice(&chunk[..num]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let Some(length) = head.lines().find_map(|line| line.strip_prefix("content-length: ")) else {
            return Some((head, Value::Null));
        };
        if bytes.len() >= end + 4 + length.parse::<usize>().ok()? {
            return Some((head, serde_json::from_slice(&bytes[end + 4..]).ok()?));
        }
    }
}

pub(super) fn reply(stream: &mut impl Write, status: u16, body: &str) {
    let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    // A client that has given up does not listen.
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

/// Returns the verdicts of a correct server: the length of each completion.
pub(super) fn lengths(request: &Request) -> Value {
    let verdict =
        |sample: &Value| json!({ "id": sample["id"], "value": sample["completion"].as_str().unwrap().len() });
    let samples = request.body["samples"].as_array().unwrap();
    json!({ "verdicts": samples.iter().rev().map(verdict).collect::<Vec<_>>() })
}
