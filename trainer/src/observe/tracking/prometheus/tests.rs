//! The result of a scrape, also with other clients that never finish.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::*;

/// Maximum time that a test waits for an answer, which takes milliseconds on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(100);

fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn step(values: &[(&str, f64)]) -> StepMetrics {
    let values = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    StepMetrics { stage: Stage::Training, step: 7, timestamp: 1.7e9, values }
}

#[test]
fn the_last_step_is_served_in_base_units_and_labels() {
    let (mut exporter, endpoint) = serve(0).unwrap();
    exporter.log_step(&step(&[("critic/rewards/mean", 0.25)])).unwrap();
    let metrics = step(&[
        ("critic/rewards/mean", 0.5),
        ("timing_s/gen", 1.5),
        ("timing_s/step", 2.0),
        ("val-core/arithmetic/reward/mean@1", 0.75),
        ("val-core/openai/gsm8k/reward/mean@1", 0.5),
        ("val-core/reward/mean", 0.625),
    ]);
    exporter.log_step(&metrics).unwrap();
    let response = scrape(endpoint.address());
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    for line in [
        "rlt_trainer_step 7.0",
        "rlt_trainer_critic_rewards_mean 0.5",
        "rlt_trainer_timing_seconds{phase=\"gen\"} 1.5",
        "rlt_trainer_timing_seconds{phase=\"step\"} 2.0",
        "rlt_trainer_val_core_reward_mean_at_1{data_source=\"arithmetic\"} 0.75",
        "rlt_trainer_val_core_reward_mean_at_1{data_source=\"openai/gsm8k\"} 0.5",
        "rlt_trainer_val_core_reward_mean 0.625",
        "# EOF",
    ] {
        assert!(response.lines().any(|got| got == line), "{line:?} is not in\n{response}");
    }
    let num_types = response.matches("# TYPE rlt_trainer_timing_seconds gauge").count();
    assert_eq!(num_types, 1, "one family, however many phases");
}

#[test]
fn names_that_differ_only_in_punctuation_keep_the_page_valid() {
    let families = families(&step(&[("a/b", 1.0), ("a_b", 2.0)]));
    assert_eq!(families["rlt_trainer_a_b"].len(), 1);
}

#[test]
fn a_client_that_never_finishes_blocks_no_other() {
    let (mut exporter, endpoint) = serve(0).unwrap();
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, endpoint.address().port())).unwrap();
    let silent = connect();
    let mut half = connect();
    half.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
    exporter.log_step(&step(&[("critic/rewards/mean", 0.5)])).unwrap();
    assert!(scrape(endpoint.address()).contains("rlt_trainer_critic_rewards_mean 0.5"));
    drop((silent, half));
}

#[test]
fn silent_clients_replace_each_other_and_keep_no_scrape_out() {
    let (mut exporter, endpoint) = serve(0).unwrap();
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, endpoint.address().port())).unwrap();
    let mut silent: Vec<_> = (0..MAX_CONNECTIONS + 4).map(|_| connect()).collect();
    exporter.log_step(&step(&[("critic/rewards/mean", 0.5)])).unwrap();
    // Connections are accepted in order, so all of them were accepted before the answer.
    assert!(scrape(endpoint.address()).contains("rlt_trainer_critic_rewards_mean 0.5"));
    silent[0].set_read_timeout(Some(Duration::from_secs(100))).unwrap();
    let read = silent[0].read(&mut [0]);
    assert!(matches!(read, Ok(0)), "the oldest one is closed: {read:?}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = serve(port).map(drop).unwrap_err();
    assert!(error.to_string().contains(&format!("0.0.0.0:{port}")), "{error}");
}

#[test]
fn the_port_is_free_again_afterwards() {
    // The port is held, so that no other process gets it between two endpoints.
    let held = rlt_tests::HeldPort::new().unwrap();
    let (exporter, endpoint) = serve(held.number()).unwrap();
    let address = endpoint.address();
    let open = TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).unwrap();
    drop((exporter, endpoint));
    let deadline = std::time::Instant::now() + PATIENCE;
    while TcpListener::bind(address).is_err() {
        assert!(std::time::Instant::now() < deadline, "the port stays taken");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(open);
}
