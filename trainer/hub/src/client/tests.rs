//! Servers whose answers do not end, that redirect, and that list files on several pages.

use std::error::Error as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;

/// A server on this machine, and the request lines and headers that it has received.
struct Server {
    address: String,
    received: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts a server that passes the path of each request to `respond`.
    fn start(respond: impl Fn(&str, &mut TcpStream) -> io::Result<()> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let server = Self { address, received: Arc::clone(&received) };
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let path =
                    head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
                received.lock().unwrap().extend(head);
                // The client may close the connection.
                let _ = respond(&path, &mut stream);
            }
        });
        server
    }

    fn repository(&self) -> HubRepository {
        HubRepository::new(&self.address, RepositoryKind::Model, "owner/tiny", Some("secret-token")).unwrap()
    }

    fn authorizations(&self) -> Vec<String> {
        let received = self.received.lock().unwrap();
        received.iter().filter(|line| line.to_lowercase().starts_with("authorization:")).cloned().collect()
    }
}

fn answer(stream: &mut TcpStream, headers: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    write!(stream, "HTTP/1.1 {headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

#[test]
fn metadata_without_end_is_given_up() {
    let server = Server::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
        let spaces = vec![b' '; 1 << 20];
        (0..128).try_for_each(|_| stream.write_all(&spaces))
    });
    let repository = server.repository();
    let is_too_long = |error: RequestError| match &error {
        RequestError::Body(_) => error.source().unwrap().to_string() == "the answer is longer than 65536 KiB",
        _ => false,
    };
    assert!(is_too_long(repository.commit_of("main").unwrap_err()));
    assert!(is_too_long(repository.list("0123", 10).unwrap_err()));
}

#[test]
fn pages_of_a_list_are_bounded_together() {
    let hub = Server::start(|path, stream| {
        let name = "a".repeat(30 << 20);
        let page = format!(r#"[{{"type": "file", "path": "{name}", "size": 1}}]"#);
        answer(stream, &format!("200 OK\r\nLink: <{path}>; rel=\"next\"\r\n"), &page)
    });
    let error = hub.repository().list("0123", 1000).unwrap_err();
    assert!(matches!(error, RequestError::Body(_)), "{error}");
    let received = hub.received.lock().unwrap();
    assert_eq!(received.iter().filter(|line| line.starts_with("GET ")).count(), 3);
}

#[test]
fn a_redirect_is_followed_and_takes_the_token_to_no_other_server() {
    let storage = Server::start(|_, stream| answer(stream, "200 OK\r\n", "content"));
    let location = format!("{}/stored", storage.address);
    let hub = Server::start(move |path, stream| match path {
        "/owner/tiny/resolve/0123/a%20b.json" => {
            answer(stream, &format!("302 Found\r\nLocation: {location}\r\n"), "")
        }
        _ => answer(stream, "404 Not Found\r\n", "unknown, Bearer secret-token"),
    });
    let mut body = String::new();
    hub.repository().open_file("0123", "a b.json").unwrap().read_to_string(&mut body).unwrap();
    assert_eq!(body, "content");
    assert_eq!(hub.authorizations().len(), 1);
    assert!(storage.authorizations().is_empty());
    let error = hub.repository().open_file("0123", "other.json").unwrap_err();
    assert!(error.is_permanent() && !error.to_string().contains("secret-token"), "{error}");
}

#[test]
fn redirects_in_a_circle_and_to_less_security_are_not_followed() {
    let hub = Server::start(|path, stream| answer(stream, &format!("307 Moved\r\nLocation: {path}\r\n"), ""));
    let error = hub.repository().commit_of("main").unwrap_err();
    assert_eq!(error.to_string(), "the hub redirects too often");
    let nowhere =
        Server::start(|_, stream| answer(stream, "302 Found\r\nLocation: file:///etc/passwd\r\n", ""));
    let error = nowhere.repository().commit_of("main").unwrap_err();
    assert_eq!(error.to_string(), "the hub redirects to a protocol without protection");
}

#[test]
fn all_pages_of_a_list_are_read_but_no_more_than_needed() {
    let entry = r#"{"type": "file", "path": "a", "size": 1, "oid": "b"}"#;
    let folder = r#"{"type": "directory", "path": "c", "size": 0}"#;
    let hub = Server::start(move |path, stream| {
        let next = "Link: </api/models/owner/tiny/tree/0123?page=2>; rel=\"next\"\r\n";
        match path.split_once('?') {
            Some(("/api/models/owner/tiny/tree/0123", "recursive=true")) => {
                answer(stream, &format!("200 OK\r\n{next}"), &format!("[{entry}, {folder}]"))
            }
            _ => answer(stream, "200 OK\r\n", &format!("[{entry}]")),
        }
    });
    assert_eq!(hub.repository().list("0123", 10).unwrap().len(), 3);
    assert_eq!(hub.repository().list("0123", 1).unwrap().len(), 2);
    let endless = Server::start(move |path, stream| {
        answer(stream, &format!("200 OK\r\nLink: <{path}>; rel=\"next\"\r\n"), &format!("[{entry}]"))
    });
    assert_eq!(endless.repository().list("0123", 10).unwrap().len(), 11);
}
