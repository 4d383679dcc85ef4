//! An S3 server in memory with the operations that a run needs, which misbehaves on request: it fails, is
//! slow, closes connections early, or stops answering.
//!
//! It does not prove the behaviour of a real server.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Behaviour of the server for the next requests that write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// The server answers normally.
    #[default]
    Willing,
    /// The server answers writes with 503.
    Failing,
    /// The server closes the connection after half of the body.
    HangingUp,
    /// The server reads requests and never answers.
    Silent,
    /// The server answers 403 to all requests, reads included.
    Refusing,
    /// Every other request fails, alternately by 500 and by a closed connection.
    Moody,
    /// The server accepts this number of further objects, then fails.
    WillingFor(u32),
}

/// An S3 server; it runs until the process ends.
#[derive(Clone, Debug)]
pub struct ObjectServer {
    port: u16,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    mood: Mood,
    num_requests: u64,
    /// Contents of objects by bucket and key.
    objects: BTreeMap<String, Vec<u8>>,
}

struct Request {
    method: String,
    path: String,
    query: String,
    range: Option<(usize, usize)>,
    body: Vec<u8>,
}

/// The one bucket that exists.
pub const BUCKET: &str = "checkpoints";

impl ObjectServer {
    /// Serves on a free port.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let server = Self { port: listener.local_addr()?.port(), shared: Arc::default() };
        let shared = server.shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // The server ignores closed connections.
                std::thread::spawn(move || drop(serve(stream, &shared)));
            }
        });
        Ok(server)
    }

    /// The environment of a client of this server.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_ACCESS_KEY_ID", "test-user".into()),
            ("AWS_SECRET_ACCESS_KEY", "knows".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("NO_PROXY", "127.0.0.1".into()),
        ]
    }

    /// Changes the behaviour from the next request on.
    pub fn become_(&self, mood: Mood) {
        self.lock().mood = mood;
    }

    /// The number of requests so far.
    pub fn num_requests(&self) -> u64 {
        self.lock().num_requests
    }

    /// The keys of all objects.
    pub fn keys(&self) -> Vec<String> {
        let prefix = format!("/{BUCKET}/");
        self.lock().objects.keys().map(|key| key.trim_start_matches(&prefix).to_owned()).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(stream: TcpStream, shared: &Mutex<Shared>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let Some((request, is_whole)) = read_request(&mut reader, shared)? else { return Ok(()) };
        if !is_whole {
            return Ok(());
        }
        let Some((status, headers, body)) = answer(&request, shared) else {
            // The wait is longer than any test.
            std::thread::sleep(Duration::from_secs(3600));
            return Ok(());
        };
        let len = if request.method == "HEAD" { 0 } else { body.len() };
        let length = if headers.contains("Content-Length") {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        write!(stream, "HTTP/1.1 {status}\r\n{length}{headers}\r\n")?;
        stream.write_all(&body[..len])?;
        stream.flush()?;
    }
}

/// Reads the next request, and says whether the server has read it to its end. `None` if the client has
/// closed the connection.
fn read_request(
    reader: &mut BufReader<TcpStream>,
    shared: &Mutex<Shared>,
) -> io::Result<Option<(Request, bool)>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut parts = line.split_whitespace();
    let (method, target) = (parts.next().unwrap_or_default().to_owned(), parts.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (decoded(path), decoded(query));
    let (mut length, mut range) = (0, None);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "range" => range = parse_range(value),
            _ => {}
        }
    }
    let hangs_up = {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.num_requests += 1;
        method == "PUT"
            && (shared.mood == Mood::HangingUp
                || shared.mood == Mood::Moody && shared.num_requests.is_multiple_of(4))
    };
    let mut body = vec![0; if hangs_up { length / 2 } else { length }];
    reader.read_exact(&mut body)?;
    Ok(Some((Request { method, path, query, range, body }, !hangs_up)))
}

fn parse_range(value: &str) -> Option<(usize, usize)> {
    let (start, end) = value.trim().strip_prefix("bytes=")?.split_once('-')?;
    Some((start.parse().ok()?, end.parse::<usize>().ok()? + 1))
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (byte, _) => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

type Answer = (&'static str, String, Vec<u8>);

/// Answers a request; `None` if the server sends no answer at all.
fn answer(request: &Request, shared: &Mutex<Shared>) -> Option<Answer> {
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let writes = request.method == "PUT";
    match shared.mood {
        Mood::Silent if writes => return None,
        Mood::Failing if writes => return Some(error("503 Service Unavailable", "ServiceUnavailable")),
        Mood::Moody if shared.num_requests.is_multiple_of(2) => {
            return Some(error("500 Internal Server Error", "InternalError"));
        }
        Mood::Refusing => return Some(error("403 Forbidden", "AccessDenied")),
        Mood::WillingFor(0) if writes => return Some(error("503 Service Unavailable", "SlowDown")),
        Mood::WillingFor(left) if writes => shared.mood = Mood::WillingFor(left - 1),
        _ => {}
    }
    let bucket = request.path.trim_start_matches('/').split('/').next().unwrap_or_default();
    if bucket != BUCKET {
        return Some(error("404 Not Found", "NoSuchBucket"));
    }
    let ok = |body: String| ("200 OK", "Content-Type: application/xml\r\n".to_owned(), body.into_bytes());
    Some(match (request.method.as_str(), request.query.as_str()) {
        ("GET", query) if query.contains("list-type=2") => ok(listing(&shared.objects, query)),
        ("POST", query) if query.starts_with("delete") => ok(delete_all(&mut shared.objects, &request.body)),
        ("PUT", _) => {
            shared.objects.insert(request.path.clone(), request.body.clone());
            ("200 OK", "ETag: \"1\"\r\n".into(), Vec::new())
        }
        ("DELETE", _) => {
            shared.objects.remove(&request.path);
            ("204 No Content", String::new(), Vec::new())
        }
        ("GET" | "HEAD", _) => match shared.objects.get(&request.path) {
            None => error("404 Not Found", "NoSuchKey"),
            Some(bytes) => object(bytes, request.range),
        },
        _ => error("501 Not Implemented", "NotImplemented"),
    })
}

fn object(bytes: &[u8], range: Option<(usize, usize)>) -> Answer {
    let headers = "ETag: \"1\"\r\nLast-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n".to_owned();
    match range {
        None => ("200 OK", headers, bytes.to_vec()),
        Some((start, end)) => {
            let end = end.min(bytes.len());
            let range = format!("Content-Range: bytes {start}-{}/{}\r\n", end.max(1) - 1, bytes.len());
            ("206 Partial Content", headers + &range, bytes[start..end].to_vec())
        }
    }
}

fn error(status: &'static str, code: &str) -> Answer {
    let body = format!("<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>");
    (status, "Content-Type: application/xml\r\n".into(), body.into_bytes())
}

/// Lists the objects and the common prefixes directly below the query's prefix.
fn listing(objects: &BTreeMap<String, Vec<u8>>, query: &str) -> String {
    let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix=")).unwrap_or_default();
    let full = format!("/{BUCKET}/{prefix}");
    let (mut contents, mut prefixes) = (String::new(), std::collections::BTreeSet::new());
    for (key, bytes) in objects.iter().filter(|(key, _)| key.starts_with(&full)) {
        let key = key.trim_start_matches(&format!("/{BUCKET}/"));
        match key[prefix.len()..].split_once('/') {
            Some((folder, _)) => drop(prefixes.insert(format!("{prefix}{folder}/"))),
            None => contents.push_str(&format!(
                "<Contents><Key>{key}</Key><Size>{}</Size><LastModified>2025-01-01T00:00:00.000Z</LastModified>\
                 <ETag>\"1\"</ETag></Contents>",
                bytes.len()
            )),
        }
    }
    let prefixes: String = prefixes
        .iter()
        .map(|prefix| format!("<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>"))
        .collect();
    format!("<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{prefixes}</ListBucketResult>")
}

fn delete_all(objects: &mut BTreeMap<String, Vec<u8>>, body: &[u8]) -> String {
    let body = String::from_utf8_lossy(body);
    let keys = body.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
    let mut deleted = String::new();
    for key in keys {
        objects.remove(&format!("/{BUCKET}/{key}"));
        deleted.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
    }
    format!("<DeleteResult>{deleted}</DeleteResult>")
}
