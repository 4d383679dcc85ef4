//! An hour of chaos on a real node: a job trains while ranks, pods, the operator, objects, the API server,
//! the disk and the chart's settings fail it, and ends with the weights of an undisturbed run. The suite runs
//! two minutes of the same code. `CHAOS_MINUTES` and `CHAOS_SEED` choose another plan.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

#[path = "../tests/real_node/chaos.rs"]
mod chaos;
#[path = "../tests/real_node/chart.rs"]
mod chart;
#[path = "../tests/real_node/container.rs"]
#[expect(dead_code, reason = "no fault waits for a launcher here")]
mod container;
#[path = "../tests/real_node/examples.rs"]
mod examples;
#[path = "../tests/real_node/folder.rs"]
#[expect(dead_code, reason = "other tests share their folder by a claim")]
mod folder;
#[path = "../tests/real_node/processes.rs"]
mod processes;
#[path = "../tests/cluster/test_namespace.rs"]
#[expect(dead_code, reason = "the operator of the chart runs here, and a kubelet")]
mod test_namespace;

use std::time::Duration;

/// Longest time that the run waits for a training in pods, which takes seconds on a quiet machine.
const TIMEOUT: Duration = Duration::from_secs(600);

fn main() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let minutes = number("CHAOS_MINUTES").unwrap_or(60);
    let seed = number("CHAOS_SEED").unwrap_or(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let has_run = runtime.block_on(chaos::run(Duration::from_secs(60 * minutes), seed));
    assert!(has_run, "this machine cannot run a cluster with a real node");
}
