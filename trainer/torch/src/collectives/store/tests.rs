//! The store between clients: values, waiting, and lost connections.

use std::io::{Read as _, Write as _};
use std::thread;
use std::time::Instant;

use super::*;

fn wait_for(store: &Store, name: &str, wait: Duration) -> Option<Vec<u8>> {
    store.connection.ask(Operation::Get, name.as_bytes(), b"", wait).unwrap()
}

#[test]
fn all_clients_see_one_content() {
    let server = Store::serve(0).unwrap();
    let client = Store::connect((Ipv4Addr::LOCALHOST, server.port()).into()).unwrap();
    assert_eq!(client.get("attempt").unwrap(), None);
    server.set("attempt", "3").unwrap();
    assert_eq!(client.get("attempt").unwrap().as_deref(), Some("3"));
    assert_eq!(client.set_first("failure", "rank 1: lost").unwrap(), "rank 1: lost");
    assert_eq!(server.set_first("failure", "rank 2: later").unwrap(), "rank 1: lost");
    assert_eq!((server.add("seat", 1).unwrap(), client.add("seat", 2).unwrap()), (1, 3));
    assert_eq!(client.get("seat").unwrap().as_deref(), Some("3"));
    let error = client.add("failure", 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the store refuses to add to failure: the sum of what is there and what is added is no number"
    );
    // A refusal is an answer: the connection continues.
    assert_eq!(client.try_clone().unwrap().get("attempt").unwrap(), client.get("attempt").unwrap());
}

#[test]
fn numbers_that_many_add_to_at_once_lose_nothing() {
    let server = Store::serve(0).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            let client = server.try_clone().unwrap();
            scope.spawn(move || (0..250).for_each(|_| assert!(client.add("sum", 1).unwrap() > 0)));
        }
    });
    assert_eq!(server.add("sum", 0).unwrap(), 1000);
}

#[test]
fn a_client_that_waits_for_a_name_is_answered_once_it_is_set() {
    let server = Store::serve(0).unwrap();
    let waiting = server.try_clone().unwrap();
    let waiter = thread::spawn(move || wait_for(&waiting, "late", TIMEOUT));
    thread::sleep(Duration::from_millis(30));
    server.set("late", "here").unwrap();
    assert_eq!(waiter.join().unwrap().as_deref(), Some(b"here".as_slice()));
    let begin = Instant::now();
    assert_eq!(wait_for(&server, "never", Duration::from_millis(20)), None);
    assert!(begin.elapsed() >= Duration::from_millis(20));
}

#[test]
fn clients_of_a_closed_store_fail_at_once() {
    let server = Store::serve(0).unwrap();
    let (waiting, idle) = (server.try_clone().unwrap(), server.try_clone().unwrap());
    let waiter = thread::spawn(move || waiting.connection.ask(Operation::Get, b"never", b"", TIMEOUT));
    thread::sleep(Duration::from_millis(30));
    let begin = Instant::now();
    drop(server);
    assert!(matches!(waiter.join().unwrap(), Err(StoreError::Lost(_)) | Ok(None)));
    assert!(matches!(
        idle.set("name", "value").and_then(|()| idle.get("name").map(drop)),
        Err(StoreError::Lost(_))
    ));
    assert!(matches!(idle.get("name"), Err(StoreError::Lost(_))), "and stays lost");
    assert!(begin.elapsed() < TIMEOUT / 2, "{:?}", begin.elapsed());
}

#[test]
fn a_client_without_the_greeting_is_disconnected_and_others_are_not() {
    let server = Store::serve(0).unwrap();
    for opening in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[]] {
        let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
        stranger.set_read_timeout(Some(TIMEOUT)).unwrap();
        stranger.write_all(opening).unwrap();
        stranger.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // Cut off with what it sent unread, or at its own end.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    server.set("name", "value").unwrap();
    assert_eq!(server.get("name").unwrap().as_deref(), Some("value"));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let server = Store::serve(0).unwrap();
    let error = Store::serve(server.port()).unwrap_err();
    assert_eq!(error.to_string(), format!("failed to serve a store at port {}", server.port()));
}
