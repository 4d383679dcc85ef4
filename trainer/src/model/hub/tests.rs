//! Fetching from a server on this machine that answers as the hub does.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use tch::Kind;

use super::*;
use crate::model::{Decoder, ExportOptions, LoadOptions, ModelConfig};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Serves one repository, `owner/tiny`, whose branch `main` is at [`COMMIT`]; remembers the paths that were asked for.
struct Hub {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    fn serve(files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = answer(stream.unwrap(), &files, &log);
            }
        });
        Self { endpoint, requests }
    }

    fn spec(&self, revision: &str) -> HubSpec {
        let endpoint = Some(self.endpoint.clone());
        HubSpec { repo: "owner/tiny".to_owned(), revision: revision.to_owned(), endpoint }
    }

    fn downloads(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests
            .iter()
            .filter(|line| line.starts_with("GET") && line.contains("/resolve/"))
            .cloned()
            .collect()
    }
}

fn answer(
    stream: TcpStream,
    files: &BTreeMap<String, Vec<u8>>,
    log: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(&stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let mut words = request.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    log.lock().unwrap().push(format!("{method} {path}"));
    let path = path.split('?').next().unwrap_or_default();
    let (status, etag, body) = respond(path, files);
    let mut stream = &stream;
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

fn respond(path: &str, files: &BTreeMap<String, Vec<u8>>) -> (&'static str, String, Vec<u8>) {
    let found = |body: String| ("200 OK", "none".to_owned(), body.into_bytes());
    let info = |sha: &str| found(format!("{{\"id\": \"owner/tiny\", \"_id\": \"1\", \"sha\": \"{sha}\"}}"));
    if let Some(revision) = path.strip_prefix("/api/models/owner/tiny/revision/") {
        match revision {
            "main" | COMMIT => return info(COMMIT),
            "odd" => return info("main"),
            _ => {}
        }
    }
    if path == format!("/api/models/owner/tiny/tree/{COMMIT}") {
        let entry = |(name, content): (&String, &Vec<u8>)| {
            format!(
                "{{\"type\": \"file\", \"oid\": \"{name}\", \"size\": {}, \"path\": \"{name}\"}}",
                content.len()
            )
        };
        return found(format!("[{}]", files.iter().map(entry).collect::<Vec<_>>().join(",")));
    }
    match path
        .strip_prefix(&format!("/owner/tiny/resolve/{COMMIT}/"))
        .and_then(|name| files.get_key_value(name))
    {
        Some((name, content)) => ("200 OK", format!("etag-{name}"), content.clone()),
        None => ("404 Not Found", "none".to_owned(), Vec::new()),
    }
}

fn tiny_model() -> (Decoder, BTreeMap<String, Vec<u8>>) {
    let config = ModelConfig::from_json(&serde_json::json!({
        "architectures": ["MistralForCausalLM"], "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1
    }))
    .unwrap();
    let decoder = Decoder::from_config(&config, 1, &LoadOptions::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    decoder.export(dir.path(), &ExportOptions { merge_lora: false, dtype: Kind::Float }).unwrap();
    let mut files: BTreeMap<String, Vec<u8>> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    files.insert("pytorch_model.bin".to_owned(), b"not wanted".to_vec());
    files.insert("modeling_tiny.py".to_owned(), b"not wanted".to_vec());
    (decoder, files)
}

#[test]
fn a_branch_becomes_a_commit_and_its_files_a_model() {
    let (original, files) = tiny_model();
    let hub = Hub::serve(files);
    let cache = tempfile::tempdir().unwrap();
    let fetched = fetch(&hub.spec("main"), Some(cache.path())).unwrap();
    assert_eq!(fetched.commit, COMMIT);
    let loaded = Decoder::load(&fetched.dir, &LoadOptions::default()).unwrap();
    assert_eq!(loaded.named_parameters(), original.named_parameters());
    assert!(
        hub.downloads()
            .iter()
            .all(|line| line.contains(COMMIT) && !line.contains(".bin") && !line.contains(".py"))
    );

    let num_downloads = hub.downloads().len();
    let again = fetch(&hub.spec(COMMIT), Some(cache.path())).unwrap();
    assert_eq!(again, fetched);
    assert_eq!(hub.downloads().len(), num_downloads, "files that are there are not fetched again");
}

#[test]
fn says_which_repository_and_revision_cannot_be_had() {
    let (_, files) = tiny_model();
    let hub = Hub::serve(files);
    let cache = tempfile::tempdir().unwrap();
    let refusal = |spec: &HubSpec| fetch(spec, Some(cache.path())).unwrap_err().to_string();
    assert_eq!(refusal(&hub.spec("gone")), "resolving revision \"gone\" of owner/tiny to a commit");
    assert_eq!(
        refusal(&hub.spec("odd")),
        "resolving revision \"odd\" of owner/tiny: expected a commit of 40 hexadecimal digits, got \"main\""
    );
    let elsewhere = HubSpec { repo: "owner/other".to_owned(), ..hub.spec("main") };
    assert!(refusal(&elsewhere).contains("owner/other"));
    let nobody = HubSpec { endpoint: Some("not an address".to_owned()), ..hub.spec("main") };
    assert!(refusal(&nobody).contains("connecting to the hub"));
}
