//! The store and its clients: values, waiting, lost connections, and unknown clients.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::Instant;

use super::*;

const WRONG_KEY: &str = "this rank has another key than the launcher of rank 0";

/// A wait that no test outlasts.
const ENDLESS: Duration = Duration::from_secs(24 * 3600);

/// A store of two ranks of this machine, without a key.
fn local() -> StoreSettings {
    StoreSettings { port: 0, is_local: true, attempt: 1, world_size: 2, key: None }
}

fn keyed() -> StoreSettings {
    StoreSettings { key: Some(RendezvousKey::random().unwrap()), ..local() }
}

fn address(store: &Store) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, store.port()).into()
}

/// A connection that has not greeted.
fn stranger(store: &Store) -> TcpStream {
    let stranger = TcpStream::connect(address(store)).unwrap();
    stranger.set_read_timeout(Some(TIMEOUT)).unwrap();
    stranger
}

/// Returns a request that takes the seat of rank 0.
fn take_seat() -> Vec<u8> {
    let mut bytes = Vec::new();
    let name = b"joined/0".to_vec();
    Question { operation: Operation::Add, wait_ms: 0, name, value: b"1".to_vec() }.write(&mut bytes).unwrap();
    bytes
}

fn wait_for(store: &Store, name: &str, wait: Duration) -> Option<Vec<u8>> {
    store.connection.ask(Operation::Get, name.as_bytes(), b"", wait).unwrap()
}

/// Waits until the server waits for the value that `waiter` has requested.
fn until_it_waits<T>(server: &Server, waiter: &thread::JoinHandle<T>) {
    let begin = Instant::now();
    while server.num_waiting() == 0 {
        assert!(!waiter.is_finished() && begin.elapsed() < TIMEOUT, "the server does not wait");
        thread::yield_now();
    }
}

#[test]
fn all_clients_see_one_content() {
    let server = Store::serve(&local()).unwrap();
    let client = Store::connect(address(&server), 1, None).unwrap();
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
fn concurrent_additions_to_a_number_lose_nothing() {
    let server = Store::serve(&local()).unwrap();
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
    let server = Server::start(&local()).unwrap();
    let [waiting, store] = [(); 2].map(|()| Store::connect(server.local_address(), 1, None).unwrap());
    let waiter = thread::spawn(move || wait_for(&waiting, "late", ENDLESS));
    until_it_waits(&server, &waiter);
    store.set("late", "here").unwrap();
    assert_eq!(waiter.join().unwrap().as_deref(), Some(b"here".as_slice()));
    let begin = Instant::now();
    assert_eq!(wait_for(&store, "never", Duration::from_millis(20)), None);
    assert!(begin.elapsed() >= Duration::from_millis(20));
}

/// Whether a request failed because its connection has ended, not because the answer was late.
fn is_lost<T>(answer: &Result<T, StoreError>) -> bool {
    let is_late =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock);
    matches!(answer, Err(StoreError::Lost(error)) if !is_late(error))
}

#[test]
fn clients_of_a_closed_store_fail_at_once() {
    let server = Server::start(&local()).unwrap();
    let [waiting, idle] = [(); 2].map(|()| Store::connect(server.local_address(), 1, None).unwrap());
    let waiter = thread::spawn(move || waiting.connection.ask(Operation::Get, b"never", b"", ENDLESS));
    until_it_waits(&server, &waiter);
    drop(server);
    let answer = waiter.join().unwrap();
    assert!(is_lost(&answer) || matches!(answer, Ok(None)), "{answer:?}");
    let answer = idle.set("name", "value").and_then(|()| idle.get("name"));
    assert!(is_lost(&answer), "{answer:?}");
    let answer = idle.get("name");
    assert!(is_lost(&answer), "it stays lost: {answer:?}");
}

#[test]
fn a_client_without_the_greeting_is_disconnected_and_others_are_not() {
    let server = Store::serve(&local()).unwrap();
    for opening in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[]] {
        let mut stranger = stranger(&server);
        stranger.write_all(opening).unwrap();
        stranger.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // The read fails if the server closes the connection with unread bytes, and else finds the end.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    server.set("name", "value").unwrap();
    assert_eq!(server.get("name").unwrap().as_deref(), Some("value"));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let server = Store::serve(&local()).unwrap();
    let error = Store::serve(&StoreSettings { port: server.port(), ..local() }).unwrap_err();
    assert_eq!(error.to_string(), format!("failed to serve a store at port {}", server.port()));
}

#[test]
fn a_store_of_one_machine_listens_on_loopback_alone() {
    let server = Server::start(&local()).unwrap();
    assert!(server.listening().ip().is_loopback());
    let server = Server::start(&StoreSettings { is_local: false, ..keyed() }).unwrap();
    assert!(server.listening().ip().is_unspecified());
    assert!(server.local_address().ip().is_loopback());
}

#[test]
fn only_clients_with_the_key_of_the_attempt_are_admitted() {
    let settings = keyed();
    let server = Store::serve(&settings).unwrap();
    server.set("name", "value").unwrap();
    let refusal = |server: &Store, attempt: u64, key: Option<&RendezvousKey>| {
        Store::connect(address(server), attempt, key).unwrap_err().to_string()
    };
    let (key, other) = (settings.key.as_ref(), RendezvousKey::random().unwrap());
    let client = Store::connect(address(&server), 1, key).unwrap();
    assert_eq!(client.get("name").unwrap().as_deref(), Some("value"));
    let wrong = refusal(&server, 1, Some(&other));
    assert_eq!(wrong, format!("the store refuses this connection: {WRONG_KEY}"));
    let none = refusal(&server, 1, None);
    assert!(none.ends_with(": it needs a key, and this rank was given none"), "{none}");
    let late = refusal(&server, 2, key);
    assert_eq!(late, "this rank is of attempt 2, but the store is of attempt 1");
    let open = refusal(&Store::serve(&local()).unwrap(), 1, key);
    assert!(open.ends_with(": it has no key, and this rank was given one"), "{open}");
}

#[test]
fn a_stranger_that_does_not_prove_its_key_takes_no_seat() {
    let server = Store::serve(&keyed()).unwrap();
    let mut stranger = stranger(&server);
    stranger.write_all(&wire::GREETING).unwrap();
    assert!(wire::Hello::read(&mut stranger).unwrap().has_key);
    // An invalid proof, followed by a request.
    stranger.write_all(&[vec![0; 64], take_seat()].concat()).unwrap();
    assert_eq!(Answer::read(&mut stranger).unwrap(), Answer::Refused(WRONG_KEY.into()));
    assert!(Answer::read(&mut stranger).is_err(), "the request is not answered");
    assert_eq!(server.get("joined/0").unwrap(), None);
}

#[test]
fn a_server_that_does_not_prove_its_key_is_left() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let impostor = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _: [u8; 8] = wire::array(&mut stream).unwrap();
        wire::Hello { has_key: true, attempt: 1, challenge: [0; 32] }.write(&mut stream).unwrap();
        let _: [u8; 64] = wire::array(&mut stream).unwrap();
        Answer::Value(vec![0; 32]).write(&mut stream).unwrap();
    });
    let error = Store::connect(address, 1, keyed().key.as_ref()).unwrap_err();
    impostor.join().unwrap();
    assert!(error.to_string().ends_with("it does not prove that it has the key of this attempt"), "{error}");
}

#[test]
fn ends_of_different_releases_say_so() {
    for settings in [local(), keyed()] {
        let server = Store::serve(&settings).unwrap();
        let mut older = stranger(&server);
        older.write_all(&[wire::GREETING_V1.to_vec(), take_seat()].concat()).unwrap();
        let Answer::Refused(why) = Answer::read(&mut older).unwrap() else { panic!("it was admitted") };
        assert!(why.starts_with("this rank is of an older release"), "{why}");
        assert_eq!(server.get("joined/0").unwrap(), None);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    // An older server closes a connection whose first bytes are unknown to it.
    let older = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _: [u8; 8] = wire::array(&mut stream).unwrap();
    });
    let error = Store::connect(address, 1, None).unwrap_err();
    older.join().unwrap();
    assert!(
        matches!(error, StoreError::Closed(_)) && error.to_string().contains("an older release"),
        "{error}"
    );
}

#[test]
fn a_crowd_that_does_not_greet_keeps_no_rank_out() {
    let settings = keyed();
    let server = Store::serve(&settings).unwrap();
    let _crowd: Vec<_> = (0..300).map(|_| stranger(&server)).collect();
    let ranks = [(); 2].map(|()| server.try_clone().unwrap());
    for rank in &ranks {
        rank.add("joined", 1).unwrap();
    }
    assert_eq!(server.get("joined").unwrap().as_deref(), Some("2"));
}

#[test]
fn a_client_that_has_not_greeted_by_the_deadline_is_given_up() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let admission = local().admission();
    let error = admission.receive(&accepted, Instant::now()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    slow.write_all(b"rlt").unwrap();
    let error = admission.receive(&accepted, Instant::now() + Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
}

#[test]
fn connections_and_lengths_beyond_the_limits_are_refused_with_the_limit() {
    let server = Store::serve(&StoreSettings { world_size: 1, ..keyed() }).unwrap();
    let mut clients = Vec::new();
    let error = loop {
        match server.try_clone() {
            Ok(client) => clients.push(client),
            Err(error) => break error,
        }
    };
    // One of the 128 connections belongs to the process that serves the store.
    assert_eq!(clients.len(), 127);
    let why = "it has 128 connections, its limit for this number of ranks";
    assert_eq!(error.to_string(), format!("the store refuses this connection: {why}"));
    let error = server.set(&"n".repeat(5000), "value").unwrap_err().to_string();
    assert!(error.ends_with(": the name has 5000 bytes, of at most 4096"), "{error}");
    server.set("name", "value").unwrap();
}
