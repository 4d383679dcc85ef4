//! The client against operators that are absent, slow, hanging, refusing, restarting or false.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]
#[path = "client/operator.rs"]
mod operator;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use operator::{Authority, Behaviour, Operator, Pod};
use rlt_channel::client::{Client, Follower, Urgency};
use rlt_channel::{Checkpoint, Ending, Outcome, Progress};
use tonic::Code;

/// Far above the time of a call (microseconds), far below any wait for the operator.
const AT_ONCE: Duration = Duration::from_millis(500);

fn make_step(client: &Client, step: u64) {
    let started = Instant::now();
    client.update(Urgency::Routine, |report| {
        report.progress.get_or_insert_default().step = step;
    });
    assert!(started.elapsed() < AT_ONCE, "a step was held up for {:?}", started.elapsed());
}

fn commit_checkpoint(client: &Client, step: u64) {
    let started = Instant::now();
    client.update(Urgency::AtOnce, |report| {
        report.checkpoints.push(Checkpoint { step, ..Checkpoint::default() });
    });
    assert!(started.elapsed() < AT_ONCE, "a checkpoint was held up for {:?}", started.elapsed());
}

fn ending(message: &str) -> Ending {
    Ending { outcome: Outcome::Failed.into(), message: message.into(), ..Ending::default() }
}

fn step_of(progress: Option<&Progress>) -> u64 {
    progress.map_or(0, |progress| progress.step)
}

/// An address on which no server listens.
fn unused_address() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn many_steps_become_few_reports_and_the_newest_arrives() {
    let authority = Authority::new();
    let operator = Operator::start(&authority, None);
    let client = Client::start(Pod::new(&authority).settings(operator.address)).unwrap();
    // The pod's files are gone by now: a process whose token can not be read trains on.
    make_step(&client, 1);
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(operator.address)).unwrap();
    for step in 1..=1000 {
        make_step(&client, step);
    }
    let taken = operator.wait_for("step 1000", |taken| step_of(taken.report.progress.as_ref()) == 1000);
    assert_eq!(taken.token, "Bearer first-token");
    let reports = operator.taken();
    assert!(reports.len() < 100, "{} reports", reports.len());
    let sequences: Vec<u64> = reports.iter().map(|taken| taken.report.sequence).collect();
    assert!(sequences.is_sorted_by(|a, b| a < b), "{sequences:?}");
}

#[test]
fn reports_made_without_an_operator_are_delivered_once_it_listens() {
    let (authority, address) = (Authority::new(), unused_address());
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(address)).unwrap();
    for step in 1..=150 {
        make_step(&client, step);
        commit_checkpoint(&client, step);
    }
    std::thread::sleep(Duration::from_millis(300));
    let operator = Operator::start(&authority, Some(address));
    let taken = operator.wait_for("step 150", |taken| step_of(taken.report.progress.as_ref()) == 150);
    let steps: Vec<u64> = taken.report.checkpoints.iter().map(|checkpoint| checkpoint.step).collect();
    assert_eq!(steps, (51..=150).collect::<Vec<_>>(), "the newest hundred");
}

#[test]
fn an_operator_that_has_forgotten_everything_learns_it_all_again() {
    let authority = Authority::new();
    let operator = Operator::start(&authority, None);
    let (pod, address) = (Pod::new(&authority), operator.address);
    let client = Client::start(pod.settings(address)).unwrap();
    make_step(&client, 7);
    commit_checkpoint(&client, 5);
    operator.wait_for("the checkpoint", |taken| taken.report.checkpoints.len() == 1);
    drop(operator);
    let operator = Operator::start(&authority, Some(address));
    // Nothing happens in the training meanwhile.
    let taken = operator.wait_for("the same state", |taken| taken.report.checkpoints.len() == 1);
    assert_eq!(step_of(taken.report.progress.as_ref()), 7);
}

#[test]
fn an_operator_that_hangs_delays_neither_steps_nor_the_end() {
    let authority = Authority::new();
    let operator = Operator::start(&authority, None);
    operator.behave(Behaviour::Hang);
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(operator.address)).unwrap();
    for step in 1..=20 {
        make_step(&client, step);
        std::thread::sleep(Duration::from_millis(5));
    }
    let started = Instant::now();
    assert!(!client.finish(ending("out of memory"), Duration::from_millis(300)));
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

#[test]
fn a_connection_without_an_answer_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pod = Pod::new(&Authority::new());
    let client = Client::start(pod.settings(listener.local_addr().unwrap())).unwrap();
    make_step(&client, 1);
    let connections = (0..2).map(|_| listener.accept().unwrap());
    assert_eq!(connections.count(), 2, "the second comes once the first is given up");
    assert!(!client.finish(ending(""), Duration::from_millis(50)));
}

#[test]
fn every_refusal_is_outlived() {
    let authority = Authority::new();
    let operator = Operator::start(&authority, None);
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(operator.address)).unwrap();
    let codes = [Code::Unauthenticated, Code::PermissionDenied, Code::ResourceExhausted, Code::Internal];
    for (code, step) in codes.into_iter().zip(1..) {
        operator.behave(Behaviour::Refuse(code));
        make_step(&client, step);
        std::thread::sleep(Duration::from_millis(120));
        operator.behave(Behaviour::Take);
        operator.wait_for("the step", |taken| step_of(taken.report.progress.as_ref()) == step);
    }
}

#[test]
fn nothing_is_reported_to_an_operator_with_an_unknown_certificate() {
    let (authority, impostor) = (Authority::new(), Authority::new());
    let operator = Operator::start(&impostor, None);
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(operator.address)).unwrap();
    make_step(&client, 1);
    std::thread::sleep(Duration::from_millis(300));
    assert!(operator.taken().is_empty(), "the token went to a stranger");
    pod.trust(&impostor);
    operator.wait_for("the step", |taken| step_of(taken.report.progress.as_ref()) == 1);
}

#[test]
fn a_renewed_token_is_used_by_the_next_report() {
    let authority = Authority::new();
    let operator = Operator::start(&authority, None);
    let pod = Pod::new(&authority);
    let _client = Client::start(pod.settings(operator.address)).unwrap();
    operator.wait_for("the first token", |taken| taken.token == "Bearer first-token");
    pod.rotate("second-token");
    operator.wait_for("the second token", |taken| taken.token == "Bearer second-token");
}

#[test]
fn the_end_arrives_before_the_process_ends_with_its_message_cut_to_size() {
    let authority = Authority::new();
    let operator = Operator::start(&authority, None);
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(operator.address)).unwrap();
    assert!(client.finish(ending(&"ä".repeat(100_000)), Duration::from_secs(20)));
    let taken = operator.taken().pop().unwrap();
    assert_eq!(taken.report.ending.unwrap().message, "ä".repeat(2048));
}

#[test]
fn the_end_is_reported_to_an_operator_that_returns_during_the_wait() {
    let (authority, address) = (Authority::new(), unused_address());
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(address)).unwrap();
    let finishing = std::thread::spawn(move || client.finish(ending("diverged"), Duration::from_secs(20)));
    std::thread::sleep(Duration::from_millis(400));
    let operator = Operator::start(&authority, Some(address));
    assert!(finishing.join().unwrap());
    operator.wait_for("the end", |taken| taken.report.ending.is_some());
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_launcher_s_news_are_asked_about_at_once_however_long_the_operator_said_to_wait() {
    let authority = Authority::new();
    let operator = Operator::start(&authority, None);
    let pod = Pod::new(&authority);
    let launcher = Follower::start(pod.settings(operator.address)).unwrap();
    eventually("it asks by itself", || operator.questions().len() == 1 && launcher.answer().attempt == 1);
    launcher.ended(ending("rank 1 was killed"));
    eventually("it says that all are gone", || {
        operator.questions().last().is_some_and(|question| question.ending.is_some())
    });
    launcher.started(2, 4);
    eventually("an answer to the newest question", || launcher.answer().attempt == 2);
    let last = operator.questions().pop().unwrap();
    let source = last.source.unwrap();
    assert_eq!((source.attempt, source.rank, last.ending), (2, 4, None));
    assert_eq!(operator.questions().len(), 3, "nothing is asked without a change");
}

#[test]
fn a_launcher_whose_operator_is_silent_keeps_the_last_answer_and_knows_how_old_it_is() {
    let authority = Authority::new();
    let operator = Operator::start(&authority, None);
    let pod = Pod::new(&authority);
    let launcher = Follower::start(pod.settings(operator.address)).unwrap();
    eventually("it is answered", || launcher.answer().attempt == 1);
    operator.behave(Behaviour::Refuse(Code::Unavailable));
    let started = Instant::now();
    launcher.is_loaded();
    assert!(started.elapsed() < AT_ONCE);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(launcher.answer().attempt, 1);
    assert!(launcher.silence() >= Duration::from_millis(200), "{:?}", launcher.silence());
    operator.behave(Behaviour::Take);
    eventually("it is answered again", || launcher.silence() < Duration::from_millis(100));
    assert!(operator.questions().last().unwrap().is_loaded, "what was said meanwhile is said again");
}
