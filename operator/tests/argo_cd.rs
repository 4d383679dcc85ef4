//! Argo CD with jobs: the chart and jobs in a git repository, synced by a real Argo CD to a cluster whose
//! nodes exist in the API alone, with our health script. Pods end as the test says.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test panics where it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rlt_cluster::{Cluster, FakeNodes, Options, Reader, own_cluster};
use serde_json::{Value, json};

/// Limit of each wait; Argo CD usually answers in a second or two.
const PATIENCE: Duration = Duration::from_secs(300);
/// Namespace of the operator.
const NAMESPACE: &str = "rl-operator";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// A git repository with an Application for each of its folders, and the cluster that they are synced to.
struct TestNamespace {
    objects: Reader,
    cluster: Cluster,
    repository: PathBuf,
}

impl TestNamespace {
    fn begin() -> Option<Self> {
        let health = fs::read_to_string(root().join("charts/rl-operator/argocd/health.lua")).unwrap();
        let key = "resource.customizations.health.rltraining.dev_RLTrainingJob".to_owned();
        let settings = BTreeMap::from([(key, health)]);
        let options = Options::control_plane().with_fake_nodes(FakeNodes::new(1)).with_kueue();
        let cluster = own_cluster(&options.with_argo_cd(settings))?;
        let repository = cluster.folder().join("repository");
        fs::create_dir(&repository).unwrap();
        let test = Self { objects: cluster.reader().unwrap(), cluster, repository };
        test.git(&["init", "--quiet", "--initial-branch=main"]);
        Some(test)
    }

    fn git(&self, arguments: &[&str]) {
        let author = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
        let mut git = Command::new("git");
        let ended = git.arg("-C").arg(&self.repository).args(author).args(arguments).status().unwrap();
        assert!(ended.success(), "{arguments:?}");
    }

    /// Puts a file into the repository, or where there is no text, takes it away.
    fn write(&self, path: &str, text: Option<&str>) {
        let path = self.repository.join(path);
        match text {
            Some(text) => {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            None => fs::remove_file(path).unwrap(),
        }
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message=change", "--allow-empty"]);
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        let answer = self.cluster.kubectl().args(arguments).output().unwrap();
        assert!(answer.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&answer.stderr));
        String::from_utf8(answer.stdout).unwrap()
    }

    /// An Application of a folder of the repository, kept as it is in git.
    fn apply(&self, name: &str, folder: &str, namespace: &str, option: &str) {
        let application = json!({
            "apiVersion": "argoproj.io/v1alpha1", "kind": "Application",
            "metadata": {"name": name, "finalizers": ["resources-finalizer.argocd.argoproj.io"]},
            "spec": {
                "project": "default",
                "source": {
                    "repoURL": format!("file://{}", self.repository.display()), "path": folder,
                    "targetRevision": "main",
                },
                "destination": {"server": "https://kubernetes.default.svc", "namespace": namespace},
                "syncPolicy": {
                    "automated": {"prune": true, "selfHeal": true, "allowEmpty": true},
                    "syncOptions": ["CreateNamespace=true", option],
                },
            },
        });
        let path = self.repository.with_extension(name);
        fs::write(&path, application.to_string()).unwrap();
        self.kubectl(&["apply", "-n", "argocd", "-f", path.to_str().unwrap()]);
    }

    fn application(&self, name: &str) -> Value {
        let applications = "/apis/argoproj.io/v1alpha1/namespaces/argocd/applications";
        self.objects.get(&format!("{applications}/{name}")).unwrap()
    }

    /// Refreshes Argo CD's comparison of git and cluster, and returns its result.
    fn refreshed(&self, name: &str) -> Value {
        let annotation = "argocd.argoproj.io/refresh";
        let change = format!("{annotation}=hard");
        self.kubectl(&["annotate", "application", name, "-n", "argocd", "--overwrite", &change]);
        let has_looked = |application: &Value| application["metadata"]["annotations"][annotation].is_null();
        self.eventually(name, has_looked)
    }

    /// Waits until an Application is as wished.
    fn eventually(&self, name: &str, wish: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let application = self.application(name);
            if wish(&application) {
                return application;
            }
            if started.elapsed() > PATIENCE {
                let log = self.cluster.log("argocd-application-controller");
                let jobs = self.kubectl(&["get", "rltj", "--all-namespaces", "--output=yaml"]);
                panic!("{application:#}\n{log}\n{jobs}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until an Application is synced and of this health.
    fn becomes(&self, name: &str, health: &str) -> Value {
        self.eventually(name, |application| {
            application["status"]["health"]["status"] == health
                && application["status"]["sync"]["status"] == "Synced"
        })
    }

    /// Fails unless an Application is synced and stays so without being applied again, and its history has
    /// this number of commits.
    fn has_no_drift(&self, name: &str, num_commits: usize) {
        let is_synced = |application: &Value| application["status"]["sync"]["status"] == "Synced";
        let applied = |application: &Value| application["status"]["operationState"]["startedAt"].clone();
        let is_settled = || {
            self.refreshed(name);
            let settled = self.eventually(name, is_synced);
            let application = self.refreshed(name);
            is_synced(&application) && applied(&application) == applied(&settled)
        };
        // Just after a change Argo CD may compare before it has received its own change, and then applies the
        // same commit again. A real difference never settles.
        let started = Instant::now();
        while !is_settled() {
            assert!(started.elapsed() < PATIENCE, "{:#}", self.application(name));
        }
        let application = self.application(name);
        let history = application["status"]["history"].as_array().unwrap();
        let revisions: BTreeSet<_> = history.iter().map(|entry| entry["revision"].as_str()).collect();
        assert_eq!(revisions.len(), num_commits, "{application:#}");
    }

    fn job(&self, name: &str) -> Value {
        self.objects.job("team", name).unwrap()
    }

    /// Waits until a job is as wished.
    fn when_job(&self, name: &str, wish: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let job = self.job(name);
            if wish(&job) {
                return job;
            }
            assert!(started.elapsed() < PATIENCE, "{job:#}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Has the process of a job's only worker end.
    fn end_worker(&self, name: &str, code: u8) {
        let code = format!("fake.rltraining.dev/exit-code={code}");
        let pod = format!("{name}-trainer-0");
        self.kubectl(&["annotate", "pod", &pod, "-n", "team", &code]);
    }

    fn pods(&self, job: &str) -> Vec<Value> {
        let of_job = format!("{}%3D{job}", rlt_objects::labels::JOB_NAME);
        let pods = self.objects.get(&format!("/api/v1/namespaces/team/pods?labelSelector={of_job}")).unwrap();
        pods["items"].as_array().unwrap().clone()
    }
}

fn holds(job: &Value, type_: &str) -> bool {
    let mut conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == type_ && condition["status"] == "True")
}

/// The quickstart under another name, with a run policy.
fn manifest(name: &str, labels: &Value, run_policy: &Value) -> String {
    let example = fs::read_to_string(root().join("examples/quickstart/job.yaml")).unwrap();
    let mut manifest: Value = serde_saphyr::from_str(&example).unwrap();
    manifest["metadata"] = json!({"name": name});
    if labels != &json!({}) {
        manifest["metadata"]["labels"] = labels.clone();
    }
    manifest["spec"]["runPolicy"] = run_policy.clone();
    // The API server fills in the defaults of these lists.
    manifest["spec"]["workers"] = json!({"tolerations": [{"key": "gpu", "value": "present"}]});
    format!("{manifest:#}")
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The operator on this machine, with the rights that the synced chart gives it.
fn start_operator(test: &TestNamespace) -> Running {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let account = test.cluster.kubeconfig_of_service_account(NAMESPACE, "rl-operator");
    let started = Command::new(env!("CARGO_BIN_EXE_rlt-operator"))
        .args(["--listen=127.0.0.1:0", "--channel-listen=127.0.0.1:0"])
        .arg("--channel-service=rl-operator-channel")
        .env("KUBECONFIG", runtime.block_on(account).unwrap())
        .env("POD_NAMESPACE", NAMESPACE)
        .env("POD_IP", "10.0.0.7")
        .env("RLT_TRAINER_IMAGE", "rlt.local/rlt-trainer:dev")
        .spawn();
    Running(started.unwrap())
}

#[test]
fn argo_cd_syncs_the_chart_and_jobs_and_sees_no_difference_to_git() {
    let Some(test) = TestNamespace::begin() else { return };
    commit_everything(&test);
    test.apply("rl-operator", "chart", NAMESPACE, "ServerSideApply=false");
    test.becomes("rl-operator", "Healthy");
    test.has_no_drift("rl-operator", 1);
    let operator = start_operator(&test);
    for (job, is_by_server) in [("trains", false), ("fails", true), ("waits", true), ("ends", false)] {
        test.apply(job, job, "team", &format!("ServerSideApply={is_by_server}"));
    }
    a_job_that_trains_is_healthy_and_may_be_suspended_in_git(&test);
    a_job_that_fails_is_degraded(&test);
    a_job_in_a_queue_is_in_progress_until_it_is_let_in(&test);
    a_job_that_has_ended_is_not_trained_again(&test);
    what_leaves_git_leaves_the_cluster(&test);
    test.has_no_drift("rl-operator", 1);
    the_chart_goes_without_the_jobs(&test, operator);
}

fn commit_everything(test: &TestNamespace) {
    let copied = Command::new("cp")
        .arg("-r")
        .args([root().join("charts/rl-operator"), test.repository.join("chart")])
        .status();
    assert!(copied.unwrap().success());
    let queued = json!({"kueue.x-k8s.io/queue-name": "team"});
    for (name, labels, run_policy) in [
        ("trains", json!({}), json!({})),
        ("fails", json!({}), json!({})),
        ("waits", queued, json!({})),
        ("ends", json!({}), json!({"ttlSecondsAfterFinished": 1})),
    ] {
        test.write(&format!("{name}/job.yaml"), Some(&manifest(name, &labels, &run_policy)));
    }
    test.commit();
}

fn a_job_that_trains_is_healthy_and_may_be_suspended_in_git(test: &TestNamespace) {
    test.becomes("trains", "Healthy");
    test.has_no_drift("trains", 1);
    for (num_commits, suspend, health) in [(2, true, "Suspended"), (3, false, "Healthy")] {
        let changed = manifest("trains", &json!({}), &json!({"suspend": suspend}));
        test.write("trains/job.yaml", Some(&changed));
        test.commit();
        test.refreshed("trains");
        test.becomes("trains", health);
        test.has_no_drift("trains", num_commits);
    }
}

fn a_job_that_fails_is_degraded(test: &TestNamespace) {
    test.becomes("fails", "Healthy");
    // An error that a retry cannot fix.
    test.end_worker("fails", 78);
    test.becomes("fails", "Degraded");
    test.has_no_drift("fails", 1);
}

fn a_job_in_a_queue_is_in_progress_until_it_is_let_in(test: &TestNamespace) {
    // Once it is synced, the job is there.
    test.becomes("waits", "Progressing");
    test.when_job("waits", |job| holds(job, "Suspended"));
    test.becomes("waits", "Progressing");
    test.has_no_drift("waits", 1);
    let queues = test.repository.with_extension("queues");
    fs::write(&queues, json!({"apiVersion": "v1", "kind": "List", "items": queue()}).to_string()).unwrap();
    test.kubectl(&["apply", "-n", "team", "-f", queues.to_str().unwrap()]);
    test.becomes("waits", "Healthy");
    test.has_no_drift("waits", 1);
}

/// A queue `team` that admits every namespace.
fn queue() -> Value {
    let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let quota = |name: &str, quantity: &str| json!({"name": name, "nominalQuota": quantity});
    let flavor = json!({"name": "any", "resources": [quota("cpu", "32"), quota("memory", "64Gi")]});
    let group = json!({"coveredResources": ["cpu", "memory"], "flavors": [flavor]});
    json!([
        object("ResourceFlavor", "any", json!({})),
        object("ClusterQueue", "all", json!({"namespaceSelector": {}, "resourceGroups": [group]})),
        object("LocalQueue", "team", json!({"clusterQueue": "all"})),
    ])
}

fn a_job_that_has_ended_is_not_trained_again(test: &TestNamespace) {
    test.becomes("ends", "Healthy");
    let uid = test.job("ends")["metadata"]["uid"].clone();
    test.end_worker("ends", 0);
    test.when_job("ends", |job| holds(job, "Complete") && test.pods("ends").is_empty());
    test.becomes("ends", "Healthy");
    test.has_no_drift("ends", 1);
    let job = test.job("ends");
    assert_eq!((&job["metadata"]["uid"], &job["status"]["attempt"]), (&uid, &json!(1)), "{job:#}");
}

fn what_leaves_git_leaves_the_cluster(test: &TestNamespace) {
    test.write("trains/job.yaml", None);
    test.write("trains/README.md", Some("nothing is trained here"));
    test.commit();
    test.refreshed("trains");
    let started = Instant::now();
    let is_left = || {
        let jobs = test.objects.jobs("team").unwrap();
        jobs["items"].as_array().unwrap().iter().any(|job| job["metadata"]["name"] == "trains")
            || !test.pods("trains").is_empty()
    };
    while is_left() {
        assert!(started.elapsed() < PATIENCE, "{:#}", test.application("trains"));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(test.job("fails")["metadata"]["name"], "fails", "other jobs are not deleted");
}

/// The definition, and with it every job, stays when the chart's Application is deleted with all that it
/// made.
fn the_chart_goes_without_the_jobs(test: &TestNamespace, operator: Running) {
    drop(operator);
    let timeout = format!("--timeout={}s", PATIENCE.as_secs());
    test.kubectl(&["delete", "application", "rl-operator", "-n", "argocd", &timeout]);
    let left =
        test.kubectl(&["get", "deployments,serviceaccounts,configmaps", "-n", NAMESPACE, "-o", "name"]);
    let names =
        left.lines().filter(|name| !name.ends_with("/kube-root-ca.crt") && !name.ends_with("/default"));
    assert_eq!(names.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(holds(&test.job("ends"), "Complete"));
}
