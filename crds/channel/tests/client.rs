//! Tests of the client against operators that are absent, slow, hanging, refusing, restarting or impostors.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test panics where it fails")]

mod messages;
#[path = "client/operator.rs"]
mod operator;

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use operator::{Authority, Behaviour, EAGER_ATTEMPT, KEY, Operator, PATIENCE, Pod, listener};
use rlt_channel::client::{Client, Follower, Settings, Urgency};
use rlt_channel::{Checkpoint, Ending, Outcome, ReportRequest, Source};
use tonic::Code;

fn make_step(client: &Client, step: u64) {
    client.update(Urgency::Routine, |report| {
        report.progress.get_or_insert_default().step = step;
    });
}

fn commit_checkpoint(client: &Client, step: u64) {
    client.update(Urgency::AtOnce, |report| {
        report.checkpoints.push(Checkpoint { step, ..Checkpoint::default() });
    });
}

fn ending(message: &str) -> Ending {
    Ending { outcome: Outcome::Failed.into(), message: message.into(), ..Ending::default() }
}

fn step_of(report: &ReportRequest) -> u64 {
    report.progress.as_ref().map_or(0, |progress| progress.step)
}

/// Waits until a condition holds.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the result of `action`. Fails the test if `action` blocks.
fn returned<T: Send + 'static>(what: &str, action: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(action()));
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{what} does not return: {error}"))
}

/// Accepts `count` connections, one after the other, and closes each before its handshake.
fn break_connections(listener: &TcpListener, count: usize) {
    let listener = listener.try_clone().unwrap();
    // An operator that served on this socket left it non-blocking.
    listener.set_nonblocking(false).unwrap();
    returned("a client that tries again", move || (0..count).for_each(|_| drop(listener.accept().unwrap())));
}

/// Returns `settings` without a timeout, so that a client that waits for an answer blocks for good.
fn without_timeout(settings: Settings) -> Settings {
    let mut settings = settings;
    settings.pace.timeout = Duration::from_secs(24 * 3600);
    settings
}

#[test]
fn many_steps_become_few_reports_and_the_newest_arrives() {
    let authority = Authority::new();
    let operator = Operator::start(&authority);
    let pod = Pod::new(&authority);
    operator.behave(Behaviour::Hang);
    let client = Client::start(pod.settings(operator.address)).unwrap();
    eventually("the first report is sent", || operator.num_calls() == 1);
    for step in 1..=1000 {
        make_step(&client, step);
    }
    operator.behave(Behaviour::Take);
    let newest = operator.wait_for("step 1000", |taken| step_of(&taken.report) == 1000);
    assert_eq!(newest.token, "Bearer first-token");
    let reports = operator.taken();
    let steps: Vec<u64> = reports.iter().map(|taken| step_of(&taken.report)).collect();
    assert_eq!(steps[..2], [0, 1000], "one report for all steps during the call before");
    let sequences: Vec<u64> = reports.iter().map(|taken| taken.report.sequence).collect();
    assert!(sequences.is_sorted_by(|a, b| a < b), "{sequences:?}");
}

#[test]
fn a_process_without_a_token_trains_on_and_reports_once_it_has_one() {
    let authority = Authority::new();
    let operator = Operator::start(&authority);
    let pod = Pod::new(&authority);
    pod.remove_token();
    let client = Client::start(pod.settings(operator.address)).unwrap();
    make_step(&client, 1);
    pod.rotate("late-token");
    let taken = operator.wait_for("the step", |taken| step_of(&taken.report) == 1);
    assert_eq!(taken.token, "Bearer late-token");
}

#[test]
fn reports_made_without_an_operator_are_delivered_once_it_listens() {
    let (authority, listener) = (Authority::new(), listener());
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(listener.local_addr().unwrap())).unwrap();
    for step in 1..=150 {
        make_step(&client, step);
        commit_checkpoint(&client, step);
    }
    break_connections(&listener, 3);
    let operator = Operator::on(&listener, &authority);
    let taken = operator.wait_for("step 150", |taken| step_of(&taken.report) == 150);
    let steps: Vec<u64> = taken.report.checkpoints.iter().map(|checkpoint| checkpoint.step).collect();
    assert_eq!(steps, (51..=150).collect::<Vec<_>>(), "the newest hundred");
}

#[test]
fn an_operator_that_has_forgotten_everything_learns_it_all_again() {
    let (authority, listener) = (Authority::new(), listener());
    let operator = Operator::on(&listener, &authority);
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(operator.address)).unwrap();
    make_step(&client, 7);
    commit_checkpoint(&client, 5);
    operator.wait_for("the checkpoint", |taken| taken.report.checkpoints.len() == 1);
    drop(operator);
    let operator = Operator::on(&listener, &authority);
    // The training reports no change meanwhile.
    let taken = operator.wait_for("the same state", |taken| taken.report.checkpoints.len() == 1);
    assert_eq!(step_of(&taken.report), 7);
}

#[test]
fn an_operator_that_hangs_delays_neither_steps_nor_the_end() {
    let authority = Authority::new();
    let operator = Operator::start(&authority);
    operator.behave(Behaviour::Hang);
    let pod = Pod::new(&authority);
    let client = Client::start(without_timeout(pod.settings(operator.address))).unwrap();
    eventually("a report is sent", || operator.num_calls() == 1);
    let is_delivered = returned("a training whose operator hangs", move || {
        for step in 1..=20 {
            make_step(&client, step);
            commit_checkpoint(&client, step);
        }
        client.finish(ending("out of memory"), Duration::from_millis(300))
    });
    assert!(!is_delivered);
    assert_eq!(operator.num_calls(), 1, "the operator still hangs in the first report");
}

#[test]
fn a_connection_without_an_answer_times_out() {
    let listener = listener();
    let pod = Pod::new(&Authority::new());
    let mut settings = pod.settings(listener.local_addr().unwrap());
    settings.pace.timeout = Duration::from_millis(500);
    let client = Client::start(settings).unwrap();
    make_step(&client, 1);
    returned("a client that tries again", move || {
        let (mut first, _) = listener.accept().unwrap();
        let _second = listener.accept().unwrap();
        // The client ended the connection: it is either closed or reset.
        let _ = first.read_to_end(&mut Vec::new());
    });
    assert!(!client.finish(ending(""), Duration::from_millis(50)));
}

#[test]
fn every_refusal_is_outlived() {
    let authority = Authority::new();
    let operator = Operator::start(&authority);
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(operator.address)).unwrap();
    let codes = [Code::Unauthenticated, Code::PermissionDenied, Code::ResourceExhausted, Code::Internal];
    for (code, step) in codes.into_iter().zip(1..) {
        operator.behave(Behaviour::Refuse(code));
        make_step(&client, step);
        eventually("two tries are refused", || {
            operator.refused().iter().filter(|report| step_of(report) == step).count() >= 2
        });
        operator.behave(Behaviour::Take);
        operator.wait_for("the step", |taken| step_of(&taken.report) == step);
    }
}

#[test]
fn nothing_is_reported_to_an_operator_with_an_unknown_certificate() {
    let (authority, impostor) = (Authority::new(), Authority::new());
    let operator = Operator::start(&impostor);
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(operator.address)).unwrap();
    make_step(&client, 1);
    // A client that delivers its report keeps its connection and opens no second one.
    eventually("two tries end without a report", || operator.num_connections() >= 3);
    assert_eq!(operator.num_calls(), 0, "the token went to a stranger");
    pod.trust(&impostor);
    operator.wait_for("the step", |taken| step_of(&taken.report) == 1);
}

#[test]
fn a_renewed_token_is_used_by_the_next_report() {
    let authority = Authority::new();
    let operator = Operator::start(&authority);
    let pod = Pod::new(&authority);
    let _client = Client::start(pod.settings(operator.address)).unwrap();
    operator.wait_for("the first token", |taken| taken.token == "Bearer first-token");
    pod.rotate("second-token");
    operator.wait_for("the second token", |taken| taken.token == "Bearer second-token");
}

#[test]
fn the_end_arrives_before_the_process_ends_with_its_message_cut_to_size() {
    let authority = Authority::new();
    let operator = Operator::start(&authority);
    let pod = Pod::new(&authority);
    let client = Client::start(pod.settings(operator.address)).unwrap();
    assert!(client.finish(ending(&"ä".repeat(100_000)), PATIENCE));
    let taken = operator.taken().pop().unwrap();
    assert_eq!(taken.report.ending.unwrap().message, "ä".repeat(2048));
}

#[test]
fn the_end_is_reported_to_an_operator_that_returns_during_the_wait() {
    let (authority, listener) = (Authority::new(), listener());
    let pod = Pod::new(&authority);
    let operator = Operator::on(&listener, &authority);
    operator.behave(Behaviour::Refuse(Code::Unavailable));
    let client = Client::start(pod.settings(operator.address)).unwrap();
    let finishing = std::thread::spawn(move || client.finish(ending("diverged"), PATIENCE));
    eventually("the end is refused", || operator.refused().iter().any(|report| report.ending.is_some()));
    drop(operator);
    break_connections(&listener, 2);
    let operator = Operator::on(&listener, &authority);
    assert!(finishing.join().unwrap());
    operator.wait_for("the end", |taken| taken.report.ending.is_some());
}

#[test]
fn a_launcher_s_news_are_asked_about_at_once_however_long_the_operator_said_to_wait() {
    let authority = Authority::new();
    let operator = Operator::start(&authority);
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
fn a_launcher_without_news_asks_again_when_the_operator_said_and_not_before() {
    let authority = Authority::new();
    let operator = Operator::start(&authority);
    let pod = Pod::new(&authority);
    let launcher = |attempt| {
        let source = Source { attempt, ..Source::default() };
        Follower::start(Settings { source, ..pod.settings(operator.address) }).unwrap()
    };
    let patient = launcher(1);
    eventually("it is answered", || patient.answer().attempt == 1);
    let _eager = launcher(EAGER_ATTEMPT);
    let num_questions = |attempt| {
        let is_its = |source: &Option<Source>| source.as_ref().is_some_and(|own| own.attempt == attempt);
        operator.questions().iter().filter(|question| is_its(&question.source)).count()
    };
    eventually("the eager one asks again", || num_questions(EAGER_ATTEMPT) >= 3);
    assert_eq!(num_questions(1), 1, "a minute has not passed");
}

#[test]
fn a_launcher_that_needs_only_its_key_asks_until_it_is_answered() {
    let authority = Authority::new();
    let operator = Operator::start(&authority);
    operator.behave(Behaviour::Refuse(Code::Unavailable));
    let pod = Pod::new(&authority);
    let launcher = Follower::for_key(pod.settings(operator.address)).unwrap();
    eventually("two questions are refused", || operator.num_calls() >= 2);
    operator.behave(Behaviour::Take);
    eventually("it is answered", || launcher.answer().attempt == 1);
    let questions = operator.questions();
    assert!(questions.iter().all(|question| question.only_key), "{questions:?}");
    assert_eq!(launcher.answer().rendezvous_key, KEY);
}

#[test]
fn a_launcher_whose_operator_is_silent_keeps_the_last_answer_and_knows_how_old_it_is() {
    let authority = Authority::new();
    let operator = Operator::start(&authority);
    let pod = Pod::new(&authority);
    let launcher = Follower::start(pod.settings(operator.address)).unwrap();
    eventually("it is answered", || launcher.answer().attempt == 1);
    let (answered, num_calls) = (Instant::now(), operator.num_calls());
    operator.behave(Behaviour::Refuse(Code::Unavailable));
    launcher.is_loaded();
    eventually("two questions are refused", || operator.num_calls() >= num_calls + 2);
    assert_eq!(launcher.answer().attempt, 1);
    let age = answered.elapsed();
    assert!(launcher.silence() >= age, "the last answer is older than {age:?}");
    operator.behave(Behaviour::Take);
    eventually("it is answered again", || {
        let silence = launcher.silence();
        silence < answered.elapsed()
    });
    assert!(operator.questions().last().unwrap().is_loaded, "what was said meanwhile is said again");
}
