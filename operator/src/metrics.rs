//! The operator's metrics for Prometheus. No label names a job or a pod, as their number has no bound; a
//! namespace is named only if the operator's arguments name it.
//!
//! | metric | labels |
//! |---|---|
//! | `rlt_operator_reconciles_total`, `rlt_operator_reconcile_seconds` | `outcome` |
//! | `rlt_operator_api_calls_total`, `rlt_operator_api_call_seconds` | `verb`, `resource`, `code` |
//! | `rlt_operator_watch_started_seconds` | `resource` |
//! | `rlt_operator_queue_seconds` | |
//! | `rlt_operator_job_milestone_seconds` | `milestone`: pods, running, first_step |
//! | `rlt_operator_attempts_ended_total` | `cause` |
//! | `rlt_operator_jobs_ended_total` | `outcome` |
//! | `rlt_operator_reports_total` | `outcome` |
//! | `rlt_operator_namespace_refused` | `namespace` |
//! | `rlt_operator_leader`, `rlt_operator_jobs_reporting`, `rlt_operator_goodput_ratio` | |

mod milestones;
mod watches;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use rlt_channel::TimeSpent;

use crate::client::{Call, Verb};
use watches::Watches;

type Label<const N: usize> = [(&'static str, String); N];
type Counters<const N: usize> = Family<Label<N>, Counter>;
type Histograms<const N: usize> = Family<Label<N>, Histogram, fn() -> Histogram>;

/// A point in the life of a job's attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Milestone {
    /// All pods exist.
    Pods,
    /// All workers run.
    Running,
    /// The first step is finished.
    FirstStep,
}

impl Milestone {
    fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Running => "running",
            Self::FirstStep => "first_step",
        }
    }
}

/// Metrics of the operator: counters, histograms and gauges. Clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    reconciles: Counters<1>,
    reconcile_seconds: Histograms<1>,
    queue_seconds: Histogram,
    calls: Counters<3>,
    call_seconds: Histograms<2>,
    milestones: Histograms<1>,
    attempts_ended: Counters<1>,
    jobs_ended: Counters<1>,
    reports: Counters<1>,
    leader: Gauge,
    jobs_reporting: Gauge,
    goodput: Gauge<f64, AtomicU64>,
    namespace_refused: Family<Label<1>, Gauge>,
    watch_started: Family<Label<1>, Gauge<f64, AtomicU64>>,
    watches: Watches,
}

fn quick() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.0, 16))
}

fn slow() -> Histogram {
    Histogram::new(exponential_buckets(0.05, 2.0, 18))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Arc::default(),
            reconciles: Family::default(),
            reconcile_seconds: Family::new_with_constructor(quick),
            queue_seconds: quick(),
            calls: Family::default(),
            call_seconds: Family::new_with_constructor(quick),
            milestones: Family::new_with_constructor(slow),
            attempts_ended: Family::default(),
            jobs_ended: Family::default(),
            reports: Family::default(),
            leader: Gauge::default(),
            jobs_reporting: Gauge::default(),
            goodput: Gauge::default(),
            namespace_refused: Family::default(),
            watch_started: Family::default(),
            watches: Watches::default(),
        };
        metrics.registry = Arc::new(metrics.register());
        metrics
    }
}

impl Metrics {
    fn register(&self) -> Registry {
        let mut all = Registry::with_prefix("rlt_operator");
        all.register("reconciles", "Reconciles of jobs, by their outcome", self.reconciles.clone());
        all.register("reconcile_seconds", "Time of one reconcile of a job", self.reconcile_seconds.clone());
        all.register(
            "queue_seconds",
            "Time from a change to the reconcile of its job",
            self.queue_seconds.clone(),
        );
        all.register("api_calls", "Calls to the API server", self.calls.clone());
        all.register("api_call_seconds", "Time of one call, watches left out", self.call_seconds.clone());
        let help = "Time from the start of an attempt to one of its milestones";
        all.register("job_milestone_seconds", help, self.milestones.clone());
        all.register(
            "attempts_ended",
            "Failures of attempts by their cause, restarts in place among them",
            self.attempts_ended.clone(),
        );
        all.register("jobs_ended", "Jobs that have ended", self.jobs_ended.clone());
        all.register("reports", "Reports of ranks, by what became of them", self.reports.clone());
        all.register("leader", "Whether this replica leads", self.leader.clone());
        all.register("jobs_reporting", "Jobs whose ranks report", self.jobs_reporting.clone());
        let help = "Share of the time of all running jobs that went into steps";
        all.register("goodput_ratio", help, self.goodput.clone());
        let help = "Whether the API server refuses to list objects of a namespace, so that its jobs wait";
        all.register("namespace_refused", help, self.namespace_refused.clone());
        let help =
            "When the watch of a resource was last begun, in seconds since 1970; of several the oldest";
        all.register("watch_started_seconds", help, self.watch_started.clone());
        all
    }

    /// Formats all metrics as a page for Prometheus.
    pub fn page(&self) -> String {
        for (resource, begun_at) in self.watches.oldest() {
            let seconds = begun_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            self.watch_started.get_or_create(&[("resource", resource)]).set(seconds);
        }
        let mut page = String::new();
        // Writing to a string can not fail.
        let _ = prometheus_client::encoding::text::encode(&mut page, &self.registry);
        page
    }

    /// Counts a reconcile of a job, and the time that it took.
    pub fn reconciled(&self, outcome: &'static str, duration: Duration) {
        let label = [("outcome", outcome.to_owned())];
        self.reconciles.get_or_create(&label).inc();
        self.reconcile_seconds.get_or_create(&label).observe(duration.as_secs_f64());
    }

    /// Records a reconcile of a job that began `duration` after the change that caused it.
    pub fn queued(&self, duration: Duration) {
        self.queue_seconds.observe(duration.as_secs_f64());
    }

    /// Counts a call to the API server; `code` is `None` without an answer.
    pub fn called(&self, call: &Call, code: Option<u16>, duration: Duration) {
        let (verb, resource) = (call.verb.name().to_owned(), call.resource.clone());
        let code_text = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        self.calls
            .get_or_create(&[("verb", verb.clone()), ("resource", resource.clone()), ("code", code_text)])
            .inc();
        if call.verb != Verb::Watch {
            let labels = [("verb", verb), ("resource", resource)];
            self.call_seconds.get_or_create(&labels).observe(duration.as_secs_f64());
        } else {
            self.watches.answered(call, code);
        }
    }

    /// Records the request of a watch before it is sent; other calls are ignored.
    pub fn asks(&self, call: &Call) {
        if call.verb == Verb::Watch {
            self.watches.asked(call);
        }
    }

    /// Returns the age of each watch since its last start, or since its first request if it never started.
    pub fn watch_ages(&self) -> Vec<(String, Duration)> {
        self.watches.ages()
    }

    /// Records that an attempt reached `milestone`, `after` its start.
    pub fn reached(&self, milestone: Milestone, after: Duration) {
        let label = [("milestone", milestone.name().to_owned())];
        self.milestones.get_or_create(&label).observe(after.as_secs_f64());
    }

    /// Counts an attempt that failed, or a restart in place, by its cause.
    pub fn attempt_ended(&self, cause: &str) {
        self.attempts_ended.get_or_create(&[("cause", cause.to_owned())]).inc();
    }

    /// Counts a job that has ended, by its outcome `complete` or `failed`.
    pub fn job_ended(&self, outcome: &'static str) {
        self.jobs_ended.get_or_create(&[("outcome", outcome.to_owned())]).inc();
    }

    /// Counts a report of a rank, by its outcome.
    pub fn reported(&self, outcome: &'static str) {
        self.reports.get_or_create(&[("outcome", outcome.to_owned())]).inc();
    }

    /// Sets whether this replica leads.
    pub fn set_leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Sets which of the namespaces that are watched by name are refused.
    pub fn set_refused(&self, namespaces: BTreeMap<String, bool>) {
        for (namespace, is_refused) in namespaces {
            self.namespace_refused.get_or_create(&[("namespace", namespace)]).set(i64::from(is_refused));
        }
    }

    /// Sets the number of reporting jobs, and the share of their time that went into steps.
    pub fn set_reporting(&self, num_jobs: usize, time_spent: &TimeSpent) {
        self.jobs_reporting.set(i64::try_from(num_jobs).unwrap_or(i64::MAX));
        let all = time_spent.process_seconds;
        self.goodput.set(if all > 0.0 { time_spent.step_seconds / all } else { 0.0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(verb: Verb) -> Call {
        Call { verb, resource: "pods".into(), namespace: None }
    }

    #[test]
    fn calls_are_counted_by_verb_resource_and_code_and_watches_by_their_begin() {
        let metrics = Metrics::default();
        let create = call(Verb::Create);
        metrics.called(&create, Some(201), Duration::from_millis(3));
        metrics.called(&create, None, Duration::from_millis(3));
        let watch = call(Verb::Watch);
        metrics.called(&watch, Some(410), Duration::ZERO);
        assert!(metrics.watch_ages().is_empty(), "a refused watch has not begun");
        metrics.called(&watch, Some(200), Duration::ZERO);
        let page = metrics.page();
        let expected = [
            "rlt_operator_api_calls_total{verb=\"create\",resource=\"pods\",code=\"201\"} 1",
            "rlt_operator_api_calls_total{verb=\"create\",resource=\"pods\",code=\"none\"} 1",
            "rlt_operator_api_call_seconds_count{verb=\"create\",resource=\"pods\"} 2",
            "rlt_operator_watch_started_seconds{resource=\"pods\"}",
        ];
        for line in expected {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
        assert!(metrics.watch_ages()[0].1 < Duration::from_secs(5));
    }

    #[test]
    fn every_metric_of_the_list_is_on_the_page_once_it_counts() {
        let metrics = Metrics::default();
        metrics.reconciled("unchanged", Duration::from_micros(10));
        metrics.queued(Duration::from_micros(10));
        metrics.reached(Milestone::FirstStep, Duration::from_secs(3));
        metrics.attempt_ended("OutOfMemory");
        metrics.job_ended("complete");
        metrics.reported("taken");
        metrics.set_leader(true);
        metrics.set_refused([("gone".to_owned(), true)].into());
        let spent = TimeSpent { process_seconds: 10.0, step_seconds: 9.0, ..TimeSpent::default() };
        metrics.set_reporting(2, &spent);
        metrics.called(&call(Verb::Watch), Some(200), Duration::ZERO);
        metrics.called(&call(Verb::Get), Some(200), Duration::ZERO);
        let page = metrics.page();
        let documented =
            include_str!("metrics.rs").lines().filter(|line| line.starts_with("//! | `rlt_operator"));
        for name in
            documented.flat_map(|line| line.split('`').filter(|word| word.starts_with("rlt_operator_")))
        {
            assert!(page.contains(name), "{name} is not in\n{page}");
        }
        assert!(page.contains("rlt_operator_goodput_ratio 0.9"), "{page}");
    }
}
