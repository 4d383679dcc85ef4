//! Servers that fail in every possible way.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use rlt_core::types::RewardStatus::{Infra, Ok as Fine, Timeout};
use serde_json::json;

use super::server::{Request, Server, lengths, reply};
use super::*;

/// Maximum time that judging may take; a second on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(200);

/// Blocks for longer than any test waits.
fn hang() {
    thread::sleep(Duration::from_secs(3600));
}

/// Judges four samples of lengths 1 to 4, two per request; fails if that exceeds [`PATIENCE`].
fn judge_four(server: &Server, retries: u32) -> Vec<Verdict> {
    // No other load on the machine delays a server of this process for as long.
    judge_four_within(server, retries, 50.0)
}

/// Judges four samples, each attempt within `seconds`.
fn judge_four_within(server: &Server, retries: u32, seconds: f64) -> Vec<Verdict> {
    let spec = json!({
        "url": server.url, "timeoutSeconds": seconds, "retries": retries, "maxBatch": 2,
        "maxResponseBytes": 65536,
    });
    let started = Instant::now();
    let verdicts =
        judge(&functions("Server", spec, json!({})).unwrap(), json!(null), &["a", "bb", "ccc", "dddd"]);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    assert_eq!(verdicts.len(), 4, "nothing is lost");
    verdicts
}

#[test]
fn servers_that_never_give_a_whole_answer_cost_their_samples_and_the_step_ends_in_time() {
    type Behaviour = fn(Request, &mut TcpStream);
    let cases: [(&str, Behaviour, RewardStatus); 9] = [
        ("hangs", |_, _| hang(), Timeout),
        ("closes at once", |_, _| {}, Infra),
        (
            "breaks off",
            |_, stream| {
                drop(stream.write_all(b"HTTP/1.1 200 x\r\ncontent-length: 999\r\n\r\n{\"verdicts\": ["))
            },
            Infra,
        ),
        (
            "drips",
            |_, stream| {
                let _ = stream.write_all(b"HTTP/1.1 200 x\r\ncontent-length: 99999\r\n\r\n");
                while stream.write_all(b" ").is_ok() {
                    thread::sleep(Duration::from_millis(20));
                }
            },
            Timeout,
        ),
        (
            "drips its head",
            |_, stream| {
                while stream.write_all(b"H").is_ok() {
                    thread::sleep(Duration::from_millis(20));
                }
            },
            Timeout,
        ),
        (
            "floods",
            |_, stream| {
                let _ = stream.write_all(b"HTTP/1.1 200 x\r\nconnection: close\r\n\r\n\"");
                while stream.write_all(&[b'x'; 65536]).is_ok() {}
            },
            Infra,
        ),
        ("nests", |_, stream| reply(stream, 200, &"[".repeat(60_000)), Infra),
        ("speaks something else", |_, stream| drop(stream.write_all(b"SSH-2.0-x\r\n")), Infra),
        (
            "sends elsewhere",
            |_, stream| {
                let _ = stream.write_all(
                    b"HTTP/1.1 307 x\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
                );
            },
            Infra,
        ),
    ];
    for (name, behaviour, status) in cases {
        let seconds = if status == Timeout { 0.3 } else { 50.0 };
        let verdicts = judge_four_within(&Server::start(behaviour), 1, seconds);
        assert_eq!(statuses(&verdicts), [status; 4], "{name}: {verdicts:?}");
        assert!(verdicts.iter().all(|verdict| verdict.value == 0.0 && verdict.message.is_some()), "{name}");
    }
    let mut closed = Server::answering(lengths);
    closed.url = "http://127.0.0.1:9/".into();
    assert_eq!(statuses(&judge_four(&closed, 1)), [Infra; 4]);
}

#[test]
fn transient_errors_are_retried_and_answers_are_kept() {
    let failing = Server::start(|request, stream| match request.number {
        0 => reply(stream, 503, "busy"),
        1 => reply(stream, 429, "slower"),
        2 => reply(stream, 200, "{\"verdicts\": 7}"),
        _ => reply(stream, 200, &lengths(&request).to_string()),
    });
    assert_eq!(values(&judge_four(&failing, 3)), [1.0, 2.0, 3.0, 4.0]);

    let halves = Server::answering(|request| {
        let mut answer = lengths(request);
        answer["verdicts"].as_array_mut().unwrap().truncate(1);
        answer
    });
    assert_eq!(values(&judge_four(&halves, 1)), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(halves.num_requests(), 4, "each half once");

    let refusing = Server::start(|_, stream| reply(stream, 401, "who are you"));
    let verdicts = judge_four(&refusing, 3);
    assert_eq!(statuses(&verdicts), [Infra; 4]);
    assert!(verdicts[0].message.as_ref().unwrap().contains("status 401: \"who are you\""), "{verdicts:?}");
    assert_eq!(refusing.num_requests(), 2, "a refusal does not pass");
}

#[test]
fn a_sample_that_lacks_an_answer_leaves_the_others_theirs() {
    let partial = Server::answering(|request| {
        let mut answer = lengths(request);
        answer["verdicts"].as_array_mut().unwrap().retain(|verdict| verdict["id"] != "0.1");
        answer
    });
    let verdicts = judge_four(&partial, 1);
    assert_eq!(statuses(&verdicts), [Fine, Infra, Fine, Fine]);
    assert!(
        verdicts[1].message.as_ref().unwrap().contains("the answer lacks 1 of 2 samples"),
        "{verdicts:?}"
    );
}

#[test]
fn a_batch_ends_at_its_limit_whatever_waits_in_the_queue() {
    let server = Server::start(|_, _| hang());
    let functions = |batch_timeout| {
        let spec: RewardsSpec = serde_json::from_value(json!({
            "functions": [{"name": "f", "kind": "Server", "server": {
                "url": server.url, "timeoutSeconds": 600.0, "maxBatch": 1, "maxConcurrent": 2,
            }}],
            "batchTimeoutSeconds": batch_timeout,
        }))
        .unwrap();
        ExternalFunctions::new(&spec).unwrap()
    };
    let started = Instant::now();
    let verdicts = judge(&functions(0.5), json!(null), &["x"; 200]);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    assert_eq!(statuses(&verdicts), [Timeout; 200]);
    assert!(verdicts[0].message.as_ref().unwrap().contains("no verdict within 500ms"), "{verdicts:?}");
    // On a busy machine, the second request may not have been sent within the limit.
    let requests = server.requests();
    assert!(requests.len() <= 2, "more than maxConcurrent: {requests:?}");
    let started = Instant::now();
    let mut judging = functions(3600.0).begin().unwrap();
    judging.submit(sample_id(0, 0), &prompt(json!(null)), &completion("x"));
    assert_eq!(statuses(&of_f(judging.finish(&|| true))), [Timeout]);
    assert!(started.elapsed() < PATIENCE, "a run that stops does not wait");
}

/// Answers the request for sample `number` with one of ten failures, or with the length of the completion.
fn treat(number: usize, request: &Request, stream: &mut TcpStream) {
    let drip = |stream: &mut TcpStream, bytes: &[u8]| {
        while stream.write_all(bytes).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    };
    match number % 11 {
        0 => reply(stream, 200, &lengths(request).to_string()),
        1 => hang(),
        2 => {}
        3 => {
            let _ = stream.write_all(b"HTTP/1.1 200 x\r\ncontent-length: 999\r\n\r\n{\"verdicts\": [");
        }
        4 => {
            let _ = stream.write_all(b"HTTP/1.1 200 x\r\nlong: ");
            drip(stream, b"x");
        }
        5 => {
            let _ = stream.write_all(b"HTTP/1.1 200 x\r\nconnection: close\r\n\r\n\"");
            while stream.write_all(&[b'x'; 65536]).is_ok() {}
        }
        6 => reply(stream, 200, &"[".repeat(60_000)),
        7 => drop(stream.write_all(b"SSH-2.0-x\r\n")),
        8 => reply(stream, 500, "broken"),
        9 => reply(stream, 200, "{\"verdicts\": [{\"id\": \"unknown\", \"value\": 1}]}"),
        _ => reply(stream, 200, "{\"verdicts\": [{\"id\": 7, \"value\": 1e999}]}"),
    }
}

#[test]
fn a_thousand_hostile_answers_cost_their_own_samples_and_the_step_ends_in_time() {
    let server = Server::start(|request, stream| {
        let id = request.body["samples"][0]["id"].as_str().unwrap().to_owned();
        treat(id.split('.').next_back().unwrap().parse().unwrap(), &request, stream);
    });
    let spec = json!({
        "url": server.url, "timeoutSeconds": 20.0, "retries": 0, "maxBatch": 1, "maxConcurrent": 256,
        "maxResponseBytes": 65536,
    });
    let texts: Vec<String> = (0..1000).map(|number| "x".repeat(number % 7)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let started = Instant::now();
    let verdicts = judge(&functions("Server", spec, json!({})).unwrap(), json!(null), &texts);
    // A fifth of the samples wait for twenty seconds, all at the same time.
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    assert_eq!(verdicts.len(), 1000, "nothing is lost");
    for (number, (verdict, text)) in verdicts.iter().zip(&texts).enumerate() {
        let value = if number % 11 == 0 { text.len() as f64 } else { 0.0 };
        let expected = match number % 11 {
            0 => Fine,
            1 | 4 => Timeout,
            _ => Infra,
        };
        // On a busy machine any answer may be too late.
        let is_late = verdict.status == Timeout && verdict.value == 0.0;
        assert!((verdict.status, verdict.value) == (expected, value) || is_late, "{number}: {verdict:?}");
    }
    let num_right = verdicts.iter().filter(|verdict| verdict.status == Fine).count();
    assert!(num_right > 45, "{num_right} of 91 honest answers");
}
