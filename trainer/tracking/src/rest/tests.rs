//! Servers that answer without end, or send the request elsewhere.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use serde_json::json;

use super::*;

/// Serves on a free port, each request by `serve`. Returns the address, and the heads of all requests.
fn serve(answer: impl Fn(&mut TcpStream) + Send + 'static) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, heads) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut num_bytes) = (String::new(), 0);
            while reader.read_line(&mut head).unwrap() > 2 {
                let line = head.lines().last().unwrap_or_default().to_ascii_lowercase();
                let length = line.strip_prefix("content-length: ").and_then(|text| text.parse().ok());
                num_bytes = length.unwrap_or(num_bytes);
            }
            reader.read_exact(&mut vec![0; num_bytes]).unwrap();
            if sender.send(head).is_err() {
                return;
            }
            answer(&mut stream);
        }
    });
    (url, heads)
}

#[test]
fn an_answer_without_end_is_given_up_and_named() {
    let (url, _heads) = serve(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        while stream.write_all(&[b' '; 1 << 16]).is_ok() {}
    });
    let rest = Rest::new(&url).unwrap();
    let error = rest.send("log", rest.post("log", &json!({}))).unwrap_err();
    let said = crate::error_chain(&error);
    assert!(said.contains(&url) && said.contains("the answer is longer than 8192 KiB"), "{said}");
}

#[test]
fn a_token_that_a_server_repeats_is_in_no_error() {
    let (url, heads) = serve(|stream| {
        // The limit of what an error quotes cuts the token off.
        let body = format!("{{\"x\": \"{}Bearer token-of-the-user\"}}", " ".repeat(MAX_QUOTED - 20));
        let head = format!("HTTP/1.1 401 x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = stream.write_all((head + &body).as_bytes());
    });
    let rest = Rest::new(&url).unwrap();
    let request = rest.post("log", &json!({})).bearer_auth("token-of-the-user");
    let error = rest.send("log", request).unwrap_err();
    assert!(heads.recv().unwrap().contains("token-of-the-user"), "it was sent");
    let said = crate::error_chain(&error);
    assert!(said.contains("401") && !said.contains("token-"), "{said}");
}

#[test]
fn a_redirect_is_an_answer_and_takes_neither_token_nor_record_elsewhere() {
    let (elsewhere, heads_elsewhere) = serve(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}");
    });
    for status in ["307 Temporary Redirect", "302 Found", "308 Permanent Redirect"] {
        let target = elsewhere.clone();
        let (url, heads) = serve(move |stream| {
            let head = format!("HTTP/1.1 {status}\r\nLocation: {target}/log\r\nContent-Length: 0\r\n\r\n");
            let _ = stream.write_all(head.as_bytes());
        });
        let rest = Rest::new(&url).unwrap();
        let request = rest.post("log", &json!({})).header("x-trackio-write-token", "secret");
        let error = rest.send("log", request).unwrap_err();
        assert!(crate::error_chain(&error).contains(&status[..3]), "{error}");
        assert!(heads.recv().unwrap().contains("secret"), "the named server gets it");
        assert!(heads_elsewhere.try_recv().is_err(), "{status}");
    }
}
