//! The chart on a real node with the real images: installed, a job trained to its end, upgraded while another
//! one trains, and uninstalled without leaving anything but the jobs.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

#[path = "real_node/chart.rs"]
mod chart;
#[path = "real_node/processes.rs"]
mod processes;

use std::time::{Duration, Instant};

use chart::{RELEASE, kubectl, root, succeed, upgrade};
use processes::kill_rank;
use rlt_cluster::{Cluster, Options, Reader, own_cluster};
use serde_json::{Value, json};

/// Longest that a short training may take on two busy cores, as kubectl writes it.
const TRAINING: &str = "--timeout=600s";
/// Limit of each other wait; a quiet machine needs half a minute.
const PATIENCE: Duration = Duration::from_secs(300);
/// Steps of a job that is deleted while it trains.
const ENDLESS: u32 = 1_000_000;
/// The kinds that a chart, or an operator in its own namespace, may have created.
const KINDS: &str = "deployments,replicasets,pods,services,endpointslices,secrets,configmaps,serviceaccounts,leases,roles,\
                     rolebindings,clusterroles,clusterrolebindings,networkpolicies,poddisruptionbudgets";

/// The quickstart of another name with so many steps.
fn manifest(name: &str, cold_start: u32, steps: u32) -> Value {
    let text = std::fs::read_to_string(root().join("examples/quickstart/job.yaml")).unwrap();
    let mut manifest: Value = serde_saphyr::from_str(&text).unwrap();
    manifest["metadata"]["name"] = name.into();
    manifest["spec"]["algorithm"]["coldStart"]["steps"] = cold_start.into();
    manifest["spec"]["training"]["steps"] = steps.into();
    manifest
}

fn apply(cluster: &Cluster, manifest: &Value) {
    use std::io::Write as _;
    let mut command = cluster.kubectl();
    let piped = command.args(["apply", "-n", "team", "-f", "-"]).stdin(std::process::Stdio::piped());
    let mut child = piped.stdout(std::process::Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(manifest.to_string().as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

fn job(objects: &Reader, name: &str) -> Value {
    objects.job("team", name).unwrap()
}

fn wait_for(cluster: &Cluster, condition: &str, name: &str) {
    let (condition, job) = (format!("--for=condition={condition}"), format!("rltj/{name}"));
    kubectl(cluster, &["wait", &condition, &job, "-n", "team", TRAINING]);
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Everything of the release and of the operator, without the objects of every namespace.
fn left(cluster: &Cluster) -> Vec<String> {
    let of_namespace = kubectl(cluster, &["get", KINDS, "-n", RELEASE, "-o", "name", "--ignore-not-found"]);
    let of_cluster = kubectl(cluster, &["get", "clusterroles,clusterrolebindings", "-o", "name"]);
    let is_of_namespace = |name: &&str| !name.ends_with("/default") && !name.ends_with("/kube-root-ca.crt");
    let in_namespace =
        of_namespace.lines().filter(is_of_namespace).filter(|name| !name.contains("clusterrole"));
    let in_cluster = of_cluster.lines().filter(|name| name.contains(RELEASE));
    in_namespace.chain(in_cluster).map(str::to_owned).collect()
}

/// A rank of a pod is killed: its ranks are restarted in the same pod, and the operator counts it.
fn ranks_are_restarted_in_place(cluster: &Cluster) {
    let objects = cluster.reader().unwrap();
    let mut ranks = manifest("ranks", 4, ENDLESS);
    ranks["spec"]["checkpoint"]["everySteps"] = 1.into();
    ranks["spec"]["workers"] = json!({"count": 1, "ranksPerWorker": 2, "threads": 1, "device": "Cpu"});
    apply(cluster, &ranks);
    let status = || job(&objects, "ranks")["status"].clone();
    let step = || status()["progress"]["step"].as_u64().unwrap_or(0);
    eventually("a checkpoint is reported", || status()["checkpoints"][0]["step"].as_u64() >= Some(1));
    let pod = || -> Value {
        let of_job = "rltraining.dev/job-name%3Dranks";
        let pods = format!("/api/v1/namespaces/team/pods?labelSelector={of_job}");
        objects.get(&pods).unwrap()["items"].clone()
    };
    let before = pod();
    assert!(kill_rank(before[0]["metadata"]["uid"].as_str().unwrap(), 1));
    eventually("the restart is counted", || status()["restartsInPlace"]["Signalled"] == 1);
    let restarted = step();
    eventually("it trains on", || step() > restarted + 1);
    let (status, after) = (status(), pod());
    assert_eq!(after.as_array().map(Vec::len), Some(1));
    assert_eq!(after[0]["metadata"]["uid"], before[0]["metadata"]["uid"], "the same pod");
    assert_eq!(after[0]["status"]["containerStatuses"][0]["restartCount"], 0, "and the same container");
    assert_eq!((&status["attempt"], &status["failuresByCause"]["Signalled"]), (&json!(1), &json!(1)));
    kubectl(cluster, &["delete", "rltj", "ranks", "-n", "team"]);
}

#[test]
fn the_chart_is_installed_upgraded_and_uninstalled_without_leftovers() {
    let options = Options::control_plane().with_real_node().with_tool("buildah").with_tool("debootstrap");
    let Some(cluster) = own_cluster(&options) else { return };
    let objects = cluster.reader().unwrap();
    for image in ["rlt-operator", "rlt-trainer"] {
        cluster.load_image(&rlt_tests::test_image(image)).unwrap();
    }
    upgrade(&cluster, "");
    kubectl(&cluster, &["create", "namespace", "team"]);
    let restricted = "pod-security.kubernetes.io/enforce=restricted";
    kubectl(&cluster, &["label", "namespace", "team", restricted]);

    apply(&cluster, &manifest("short", 40, 8));
    wait_for(&cluster, "Complete", "short");
    let status = &job(&objects, "short")["status"];
    assert_eq!(
        status["progress"]["step"], 8,
        "by the status channel, over the cluster's own network: {status:#}"
    );
    assert_eq!(status["attempt"], 1);

    ranks_are_restarted_in_place(&cluster);

    // The operator creates both again, and they are upgraded and uninstalled with the release.
    let of_operator = ["secret/rl-operator-channel", "lease/rl-operator", "-n", RELEASE];
    kubectl(&cluster, &[&["delete"], &of_operator[..]].concat());
    let get = [&["get", "--ignore-not-found", "-o", "name"], &of_operator[..]].concat();
    eventually("both are there again", || kubectl(&cluster, &get).lines().count() == 2);

    apply(&cluster, &manifest("long", 40, ENDLESS));
    wait_for(&cluster, "Progressing", "long");
    upgrade(&cluster, ",replicas=1,logLevel=debug");
    let before = job(&objects, "long")["status"]["progress"]["step"].as_u64().unwrap();
    eventually("steps are reported to the new operator", || {
        job(&objects, "long")["status"]["progress"]["step"].as_u64().unwrap() > before
    });
    assert_eq!(job(&objects, "long")["status"]["attempt"], 1, "an upgrade restarts no job");
    kubectl(&cluster, &["delete", "rltj", "long", "-n", "team"]);

    let mut helm = cluster.helm().unwrap();
    succeed(helm.args(["uninstall", RELEASE, "--namespace", RELEASE, "--wait", "--timeout", "300s"]));
    assert_eq!(job(&objects, "short")["status"]["conditions"][0]["type"], "Complete", "jobs are not lost");
    eventually(&format!("nothing is left: {:?}", left(&cluster)), || left(&cluster).is_empty());
}
