//! An operator of some namespaces, one of which was deleted before it started.

use super::*;

#[tokio::test]
async fn a_deleted_namespace_stops_no_job_of_another_and_its_jobs_follow_when_it_is_back() {
    let Some(cluster) = own_cluster(&Options::control_plane().without_scheduler()) else { return };
    let namespaces = ["team-a", "gone"].map(str::to_owned);
    install_for(&cluster, &namespaces).await;
    kubectl(&cluster, &["delete", "namespace", "gone", "--timeout=300s"]);
    let held = held_port();
    let port = held.number();
    let _operator = start(&cluster, port, &["--namespaces=team-a,gone".to_owned()], None).await;
    let client = cluster.client().await.unwrap();
    let starts_a_job = async |namespace: &str| {
        kubectl(&cluster, &["apply", "-n", namespace, "-f", "examples/quickstart/job.yaml"]);
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        eventually("a pod is made", async || pods.list(&ListParams::default()).await.unwrap().items.pop())
            .await;
    };
    let is_refused = async |value: u8| {
        let metric = format!("rlt_operator_namespace_refused{{namespace=\"gone\"}} {value}");
        let is_shown = async || page(port, "/metrics").await.filter(|page| page.contains(&metric));
        eventually(&metric, is_shown).await;
    };
    starts_a_job("team-a").await;
    is_refused(1).await;
    install_for(&cluster, &namespaces).await;
    starts_a_job("gone").await;
    is_refused(0).await;
}
