//! A hot spare through the whole operator: its binary in the chart's roles, and launchers that poll it as
//! pods do. No pod runs: the test plays the kubelet.

use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use rlt_api::status::RLTrainingJobStatus;
use rlt_channel::Ending;
use rlt_channel::client::Follower;
use serde_json::{Value, json};

use super::*;

/// The quickstart with two workers and a spare.
fn manifest() -> Value {
    let text = std::fs::read_to_string(root().join("examples/quickstart/job.yaml")).unwrap();
    let mut manifest: Value = serde_saphyr::from_str(&text).unwrap();
    manifest["spec"]["workers"] = json!({"count": 2, "spares": 1, "device": "Cpu"});
    manifest
}

struct Team {
    client: Client,
    pods: Api<Pod>,
}

impl Team {
    async fn pod(&self, name: &str) -> Pod {
        eventually(name, async || self.pods.get_opt(name).await.unwrap()).await
    }

    async fn status(&self) -> RLTrainingJobStatus {
        let jobs = Api::<Job>::namespaced(self.client.clone(), "team");
        jobs.get("quickstart").await.unwrap().status.unwrap()
    }

    /// Plays the kubelet.
    async fn set(&self, name: &str, address: &str, state: Value) {
        let phase = if state.get("running").is_some() { "Running" } else { "Failed" };
        let container = json!({
            "name": "trainer", "image": "i", "imageID": "", "ready": phase == "Running", "restartCount": 0,
            "state": state,
        });
        let status = json!({"phase": phase, "podIP": address, "containerStatuses": [container]});
        let patch = Patch::Strategic(json!({"status": status}));
        self.pods.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// The pod runs, and its launcher asks with the pod's own token and variables.
    async fn run(&self, name: &str, address: &str) -> (Follower, tempfile::TempDir) {
        let pod = self.pod(name).await;
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        self.set(name, address, running).await;
        let mut data = config_map(&self.client).await;
        if name.contains("spare") {
            data.insert("environment.json".into(), data["environment-spare.json"].clone());
        }
        let (files, variables) = (pod_files(&self.client, &pod, &data).await, variables(&pod, &data));
        let here = files.path().display().to_string();
        let variable = |name: &str| Some(variables.get(name)?.replace("/etc/rltraining", &here));
        let settings = Settings::from_environment(variable).unwrap().unwrap();
        (Follower::start(settings).unwrap(), files)
    }
}

fn ended(code: u32) -> Ending {
    let time_ms = jiff::Timestamp::now().as_millisecond();
    Ending { exit_code: code, message: "it lost a peer".into(), time_ms, ..Ending::default() }
}

#[tokio::test]
async fn a_spare_takes_the_ranks_of_a_pod_that_is_killed_and_the_other_pod_stays() {
    let Some(cluster) = installed(&Options::control_plane().without_scheduler().with_audit_log()) else {
        return;
    };
    let port = held_port();
    let listen = format!("--channel-listen=127.0.0.1:{}", port.number());
    let _operator = start(&cluster, 0, &[listen, "--channel-host=127.0.0.1".to_owned()], None).await;
    kubectl(&cluster, &["create", "namespace", "team"]);
    let client = cluster.client().await.unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), manifest().to_string()).unwrap();
    kubectl(&cluster, &["apply", "-n", "team", "-f", &file.path().display().to_string()]);
    let team = Team { pods: Api::namespaced(client.clone(), "team"), client };

    let (first, _files) = team.run("quickstart-trainer-0", "10.0.0.10").await;
    let (_second, _more) = team.run("quickstart-trainer-1", "10.0.0.11").await;
    let (spare, _yet_more) = team.run("quickstart-spare-0", "10.0.0.12").await;
    spare.is_loaded();
    eventually("the status counts the spare", async || {
        let groups = team.status().await.worker_groups;
        groups.iter().find(|group| group.name == "spare" && group.ready == 1).cloned()
    })
    .await;
    assert_eq!(team.status().await.ready.as_deref(), Some("2/2"));
    assert_eq!(spare.answer().assignment, None);

    let killed = json!({"terminated": {"exitCode": 137, "reason": "Error"}});
    team.set("quickstart-trainer-1", "10.0.0.11", killed).await;
    first.ended(ended(76));
    let assigned = |launcher: &Follower| {
        let launcher = launcher.clone();
        async move {
            let found = eventually("ranks are given", async || launcher.answer().assignment).await;
            (found.attempt, found.first_rank, found.master_address, found.master_port)
        }
    };
    assert_eq!(assigned(&spare).await, (2, 1, "10.0.0.10".to_owned(), 29500));
    assert_eq!(assigned(&first).await, (2, 0, "10.0.0.10".to_owned(), 29500));
    first.started(2, 0);
    spare.started(2, 1);
    eventually("another spare waits", async || team.pods.get_opt("quickstart-spare-1").await.unwrap()).await;

    let status = team.status().await;
    assert_eq!((status.attempt, status.attempt_in_place), (Some(2), true));
    let promoted = &status.promoted_spares[0];
    assert_eq!((promoted.worker, &*promoted.pod), (1, "quickstart-spare-0"));
    let failure = status.last_failure.unwrap();
    assert_eq!((failure.pod.as_deref(), failure.exit_code), (Some("quickstart-trainer-1"), Some(137)));
    let labels = team.pod("quickstart-spare-0").await.labels().clone();
    let of = |name: &str| labels[name].as_str();
    assert_eq!(
        (of(labels::WORKER_GROUP), of(labels::WORKER_IDX), of(labels::ATTEMPT)),
        ("trainer", "1", "2")
    );
    eventually("the killed pod is gone", async || {
        team.pods.get_opt("quickstart-trainer-1").await.unwrap().is_none().then_some(())
    })
    .await;

    // A second loss, of a pod that was a spare, before the new spare runs: all pods are made again.
    let killed = json!({"terminated": {"exitCode": 137, "reason": "Error"}});
    team.set("quickstart-spare-0", "10.0.0.12", killed).await;
    let again = team.pod("quickstart-trainer-1").await;
    assert_eq!(again.labels()[labels::ATTEMPT], "3");
    let status = team.status().await;
    assert_eq!((status.attempt_in_place, status.promoted_spares.len()), (false, 0));
    check_calls(&cluster);
}
