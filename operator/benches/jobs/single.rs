//! One job after another, each on a quiet cluster.

use crate::bench_cluster::BenchCluster;
use crate::contestant::Gang;
use crate::observed::Calls;
use crate::statuses::Statuses;

/// Times of one job in milliseconds, from just before its POST.
#[derive(Clone, Debug)]
pub(crate) struct Single {
    /// Time until its first pod was created.
    pub(crate) first_created: f64,
    /// Time until its last pod was created.
    pub(crate) all_created: f64,
    /// Time until its last pod ran.
    pub(crate) all_running: f64,
    /// Time until its status reported that it runs.
    pub(crate) reported: f64,
    /// Calls for the job until the cluster was quiet.
    pub(crate) calls: Calls,
}

/// Posts one job after another; the first one is a warm-up.
pub(crate) async fn measure(bench: &mut BenchCluster, gang: Gang, rounds: usize) -> Vec<Single> {
    let num_pods = gang.num_pods;
    let statuses = Statuses::follow(bench.jobs(), bench.contestant, gang);
    let mut singles = Vec::new();
    for _ in 0..=rounds {
        let name = bench.new_name();
        let mut observed = bench.observe();
        bench.post(&name, gang).await;
        let reported = statuses.reported(&name).await.duration_since(observed.since).as_secs_f64() * 1e3;
        observed.running(num_pods).await;
        observed.quiet().await;
        let (created, running) = (observed.created_times(), observed.running_times());
        assert_eq!((created.len(), running.len()), (num_pods, num_pods), "pods of {name}");
        singles.push(Single {
            first_created: created[0],
            all_created: created[num_pods - 1],
            all_running: running[num_pods - 1],
            reported,
            calls: observed.calls(),
        });
        bench.delete(&name).await;
    }
    singles.split_off(1)
}
