//! Many jobs at once.

use futures::stream::{self, StreamExt as _};

use crate::bench_cluster::BenchCluster;
use crate::contestant::EIGHT_PODS;
use crate::observed::{Calls, Observed, in_words};
use crate::process::{cpu_seconds, peak_kib};
use crate::raw::IN_FLIGHT;
use crate::statuses::Statuses;

/// Other processes whose CPU time is reported.
const OTHERS: [&str; 5] = ["kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "kwok"];

/// Results of a burst of jobs.
#[derive(Clone, Debug)]
pub(crate) struct Burst {
    /// Number of pods of all jobs.
    pub(crate) num_pods: f64,
    /// Pods created per second, from just before the first POST to the last pod.
    pub(crate) pods_per_second: f64,
    /// Seconds until the last pod ran.
    pub(crate) all_running: f64,
    /// Seconds until the last status reported that its job runs.
    pub(crate) all_reported: f64,
    /// Memory of the contestant's own process before its first job, in KiB.
    pub(crate) kib_before: f64,
    /// Peak memory of the contestant's own process so far, in KiB.
    pub(crate) kib_at_peak: f64,
    /// CPU time of the contestant's own process, in milliseconds per pod.
    pub(crate) own_cpu_ms_per_pod: f64,
    /// CPU time of the other processes, in milliseconds per pod, as text.
    pub(crate) cpu_of_others: String,
    /// Calls per job by user, as text.
    pub(crate) calls_per_job: String,
}

/// Namespaces of the jobs.
#[derive(Clone, Debug)]
pub(crate) enum Spread {
    /// All jobs are in the namespace of the benchmark.
    OneNamespace,
    /// Jobs are in these namespaces, round-robin.
    Namespaces(Vec<String>),
}

/// Posts the jobs and waits until all statuses report that they run. The jobs are not deleted.
pub(crate) async fn measure(bench: &mut BenchCluster, num_jobs: usize, spread: &Spread) -> Burst {
    let (api, namespaces) = match spread {
        Spread::OneNamespace => (bench.jobs(), vec![bench.namespace.clone()]),
        Spread::Namespaces(names) => (bench.jobs_everywhere(), names.clone()),
    };
    let statuses = Statuses::follow(api, bench.contestant, EIGHT_PODS);
    let own = bench.own_process();
    let others = OTHERS.map(|name| (name, bench.cluster.process_id(name).unwrap()));
    let names: Vec<_> = (0..num_jobs).map(|_| bench.new_name()).collect();
    let num_pods = num_jobs * EIGHT_PODS.num_pods;
    let (own_before, before) = (cpu_seconds(own), others.map(|(_, id)| cpu_seconds(id)));
    let mut observed = Observed::begin(bench.cluster.call_log(), namespaces.clone());
    let in_turn = names.iter().zip(namespaces.iter().cycle());
    let posts = in_turn.map(|(name, namespace)| bench.post_in(namespace, name, EIGHT_PODS));
    stream::iter(posts).buffer_unordered(IN_FLIGHT).for_each(|()| async {}).await;
    let reported = statuses.all_reported(num_jobs).await.duration_since(observed.since).as_secs_f64();
    observed.read();
    observed.running(num_pods).await;
    let per_pod = |seconds: f64| seconds * 1e3 / num_pods as f64;
    let own_cpu_ms_per_pod = per_pod(cpu_seconds(own) - own_before);
    let cost =
        |((name, id), before): ((&str, u32), f64)| format!("{name} {:.2}", per_pod(cpu_seconds(id) - before));
    let cpu_of_others = others.into_iter().zip(before).map(cost).collect::<Vec<_>>().join(", ");
    observed.quiet().await;
    Burst {
        num_pods: num_pods as f64,
        pods_per_second: num_pods as f64 / (observed.created_times()[num_pods - 1] / 1e3),
        all_running: observed.running_times()[num_pods - 1] / 1e3,
        all_reported: reported,
        kib_before: bench.kib_at_start,
        kib_at_peak: peak_kib(own),
        own_cpu_ms_per_pod,
        cpu_of_others,
        calls_per_job: in_words(&shared(observed.calls(), num_jobs)),
    }
}

fn shared(mut calls: Calls, num_jobs: usize) -> Calls {
    calls.values_mut().flatten().for_each(|count| *count /= num_jobs as f64);
    calls
}
