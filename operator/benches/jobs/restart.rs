//! Many running jobs: their cost while nothing happens, and the cost of a restart of the controller.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::api::PostParams;
use rlt_cluster::Call;

use crate::bench_cluster::BenchCluster;
use crate::contestant::EIGHT_PODS;
use crate::observed::{Observed, PATIENCE};

/// Time without a call after which the calls that the end of a controller causes are complete.
const QUIET: Duration = Duration::from_secs(4);

/// How a controller is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// SIGTERM, without a standby that takes over.
    WithoutStandby,
    /// SIGTERM, with a standby that takes over.
    AskedToStop,
    /// SIGKILL, with a standby that takes over.
    Killed,
}

impl End {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WithoutStandby => "SIGTERM, no standby",
            Self::AskedToStop => "SIGTERM",
            Self::Killed => "SIGKILL",
        }
    }

    fn has_standby(self) -> bool {
        self != Self::WithoutStandby
    }

    fn signal(self) -> &'static str {
        match self {
            Self::WithoutStandby | Self::AskedToStop => "TERM",
            Self::Killed => "KILL",
        }
    }
}

/// Calls of the controller per minute while nothing happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    pub(crate) calls: f64,
    pub(crate) renewals: f64,
    pub(crate) watches: f64,
}

/// Cost of the end of a controller.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    /// Seconds from the signal to the first pod of a job that was posted right after it.
    pub(crate) works_after: f64,
    /// Writes of the controller, except for that job and the lease, as text.
    pub(crate) writes: String,
    /// Number of calls, except for that job and the lease.
    pub(crate) num_calls: usize,
}

/// Counts calls while nothing happens.
pub(crate) async fn idle(bench: &mut BenchCluster, duration: Duration) -> Idle {
    let mut log = bench.cluster.call_log();
    log.skip().unwrap();
    tokio::time::sleep(duration).await;
    let own: Vec<Call> =
        log.new_calls().unwrap().into_iter().filter(|call| call.user == bench.contestant.user()).collect();
    let per_minute = |is_it: fn(&Call) -> bool| {
        own.iter().filter(|call| is_it(call)).count() as f64 * 60.0 / duration.as_secs_f64()
    };
    Idle {
        calls: per_minute(|call| call.resource != "leases" && call.verb != "watch"),
        renewals: per_minute(|call| call.resource == "leases" && call.verb != "watch"),
        watches: per_minute(|call| call.verb == "watch"),
    }
}

/// Ends the leading controller. Without a standby it is restarted at once.
pub(crate) async fn measure(bench: &mut BenchCluster, end: End) -> Again {
    if end.has_standby() && bench.controllers.len() < 2 {
        bench.start_controller().await;
    }
    let namespace = bench.cluster.namespace("probe").await.unwrap();
    let jobs = bench.jobs_in(&namespace);
    let probe = bench.contestant.manifest("probe", EIGHT_PODS);
    let mut log = bench.cluster.call_log();
    log.skip().unwrap();
    let mut observed = Observed::begin(bench.cluster.call_log(), [namespace.clone()]);
    let leader = bench.controllers.remove(0);
    let ended = Timestamp::now();
    leader.signal(end.signal());
    let posted = tokio::spawn(async move {
        // Its webhook, if it has one, may be unavailable.
        while jobs.create(&PostParams::default(), &probe).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    tokio::task::block_in_place(|| leader.wait());
    if bench.controllers.is_empty() {
        bench.start_controller().await;
    }
    posted.await.unwrap();
    let first = first_pod(&mut observed).await;
    let between = observed.since.duration_since(ended).as_secs_f64();
    let calls = until_quiet(&mut log, bench.contestant.user()).await;
    let others: Vec<_> =
        calls.iter().filter(|call| call.namespace != namespace && call.resource != "leases").collect();
    Again { works_after: first / 1e3 + between, writes: writes(&others), num_calls: others.len() }
}

async fn first_pod(observed: &mut Observed) -> f64 {
    let begun = Instant::now();
    loop {
        observed.read();
        if let Some(first) = observed.created_times().first() {
            return *first;
        }
        assert!(begun.elapsed() < PATIENCE, "no controller works");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_quiet(log: &mut rlt_cluster::CallLog, user: &str) -> Vec<Call> {
    let (mut calls, mut last) = (Vec::new(), Instant::now());
    while last.elapsed() < QUIET {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let calls_now: Vec<_> =
            log.new_calls().unwrap().into_iter().filter(|call| call.user == user).collect();
        if calls_now.iter().any(|call| call.resource != "leases") {
            last = Instant::now();
        }
        calls.extend(calls_now);
    }
    calls
}

fn writes(calls: &[&Call]) -> String {
    let mut counts = BTreeMap::new();
    for call in calls.iter().filter(|call| !matches!(call.verb.as_str(), "get" | "list" | "watch")) {
        *counts.entry(format!("{} {}", call.verb, call.resource)).or_insert(0) += 1;
    }
    let words: Vec<_> = counts.into_iter().map(|(what, count)| format!("{count} {what}")).collect();
    if words.is_empty() { "0".to_owned() } else { words.join(", ") }
}
