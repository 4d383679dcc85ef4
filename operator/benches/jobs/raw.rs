//! Pods created by a plain client, without a controller: the limit of the machine.

use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use crate::bench_cluster::BenchCluster;

/// Number of calls in flight at the same time, here and where jobs are posted.
pub(crate) const IN_FLIGHT: usize = 16;

/// Limit of the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw {
    /// Pods created per second, while the scheduler binds them and they start.
    pub(crate) pods_per_second: f64,
}

/// Creates pods of a specification, waits until they run, and deletes them.
pub(crate) async fn measure(bench: &mut BenchCluster, num_pods: usize, spec: &Value) -> Raw {
    let pods = bench.pods();
    let mut observed = bench.observe();
    let posts = (0..num_pods).map(|index| {
        let pod = json!({ "metadata": { "name": format!("raw-{index}") }, "spec": spec });
        let (pods, pod) = (pods.clone(), serde_json::from_value::<Pod>(pod).unwrap());
        async move { pods.create(&PostParams::default(), &pod).await.unwrap() }
    });
    stream::iter(posts).buffer_unordered(IN_FLIGHT).for_each(|_| async {}).await;
    observed.running(num_pods).await;
    let seconds = observed.created_times()[num_pods - 1] / 1e3;
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete_collection(&at_once, &ListParams::default()).await.unwrap();
    bench.gone().await;
    bench.observe().quiet().await;
    Raw { pods_per_second: num_pods as f64 / seconds }
}
