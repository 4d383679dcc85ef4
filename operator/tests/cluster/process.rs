//! Operators start and stop without an effect on jobs.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::events::v1::Event;
use kube::Client;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams};
use rlt_api::status::ConditionType;
use rlt_cluster::{Call, Fault, FaultProxy, Faults};
use rlt_objects::job::Job;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::sync::mpsc;

use crate::TIMEOUT;
use crate::test_namespace::{Operator, TestNamespace, is_true, pause, until};

impl TestNamespace {
    /// An operator with an account of its own, which identifies its calls.
    async fn counted_operator(&self, account: &str) -> (Operator, String) {
        let client = self.administrator(account).await;
        let user = format!("system:serviceaccount:{}:{account}", self.namespace);
        (Operator::start(client, &self.namespace), user)
    }

    /// Starts the operator's program, which speaks to the API server by way of `proxy`. It has no Lease: a
    /// machine that is too busy to renew it in time would end the program.
    async fn program(&self, proxy: &FaultProxy) -> Program {
        let (namespace, account) = (&self.namespace, "program");
        self.administrator(account).await;
        let kubeconfig = self.cluster.kubeconfig_of_service_account(namespace, account).await.unwrap();
        let mut kubeconfig: Value =
            serde_json::from_str(&std::fs::read_to_string(kubeconfig).unwrap()).unwrap();
        kubeconfig["clusters"][0]["cluster"]["server"] = proxy.url().into();
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), kubeconfig.to_string()).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_rlt-operator"))
            .args(["--listen=127.0.0.1:0", "--trainer-image=rlt.local/none"])
            .arg(format!("--namespaces={namespace}"))
            .env("KUBECONFIG", file.path())
            .env("POD_NAMESPACE", namespace)
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .spawn();
        let mut process = process.unwrap();
        let log = lines_of(process.stderr.take().unwrap());
        Program { process, log, _kubeconfig: file }
    }

    /// A client with an account of its own, which may do everything in the namespace.
    async fn administrator(&self, account: &str) -> Client {
        let client: Client = self.cluster.client_of_service_account(&self.namespace, account).await.unwrap();
        let subject = format!("--serviceaccount={}:{account}", self.namespace);
        let bind = ["create", "rolebinding", account, "--clusterrole=cluster-admin", &subject];
        let bound = self.cluster.kubectl().args(bind).args(["-n", &self.namespace]).output().unwrap();
        assert!(bound.status.success());
        let jobs: Api<Job> = Api::namespaced(client.clone(), &self.namespace);
        until("the role counts", async || jobs.list(&ListParams::default()).await.is_ok()).await;
        client
    }

    /// All calls in the namespace.
    fn calls(&self) -> Vec<Call> {
        let calls = self.cluster.calls().unwrap().into_iter();
        calls.filter(|call| call.namespace == self.namespace && !is_stream(call)).collect()
    }

    /// The calls of a user besides lists and watches.
    fn calls_of(&self, user: &str) -> Vec<Call> {
        let calls = self.cluster.calls().unwrap().into_iter();
        // API discovery is requested once, for any number of jobs.
        let is_about_jobs = |call: &Call| !call.resource.is_empty() && !is_stream(call);
        calls.filter(|call| call.user == user && is_about_jobs(call)).collect()
    }
}

/// A process of the operator, which ends with the test.
struct Program {
    process: Child,
    log: mpsc::UnboundedReceiver<String>,
    _kubeconfig: NamedTempFile,
}

/// Returns the lines of a log as they are written. They are in the test's own output too.
#[expect(clippy::print_stderr, reason = "the log is part of the output of a test")]
fn lines_of(log: ChildStderr) -> mpsc::UnboundedReceiver<String> {
    let (lines, read) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            eprintln!("{line}");
            let _ = lines.send(line);
        }
    });
    read
}

impl Program {
    /// Asks it to stop, as the kubelet does.
    fn ask_to_stop(&self) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// Waits until its log has this text.
    async fn logs(&mut self, text: &str) {
        let found = async {
            loop {
                let line = self.log.recv().await.unwrap_or_else(|| panic!("it ended without: {text}"));
                if line.contains(text) {
                    return;
                }
            }
        };
        tokio::time::timeout(TIMEOUT, found).await.unwrap();
    }

    /// Waits until it has ended well.
    async fn end(&mut self) {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                break status;
            }
            assert!(begin.elapsed() < TIMEOUT, "it does not end");
            pause(begin).await;
        };
        assert!(status.success(), "{status}");
    }

    /// Whether the rest of the log of a program that has ended has this text.
    async fn has_logged(&mut self, text: &str) -> bool {
        let mut has_logged = false;
        while let Some(line) = self.log.recv().await {
            has_logged |= line.contains(text);
        }
        has_logged
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is_stream(call: &Call) -> bool {
    matches!(call.verb.as_str(), "list" | "watch")
}

#[tokio::test]
async fn an_operator_that_takes_over_a_settled_job_makes_no_call_about_it() {
    let Some(test) = crate::set("takeover").await else { return };
    let (first, _) = test.counted_operator("first").await;
    test.post("steady", json!({})).await;
    test.run(&test.worker("steady", 1).await).await;
    let before = test.when_true("steady", ConditionType::PodsReady).await;
    first.kill().await;
    let (second, user) = test.counted_operator("second").await;
    until("the job is reconciled", async || second.num_reconciles("done") >= 1).await;
    second.reconciles_all(&test).await;
    assert_eq!(test.calls_of(&user), []);
    assert_eq!(test.status("steady").await, before);
    second.stop().await;
}

/// Number of status writes that a start of this duration may cost: one when all workers run, one before if
/// that takes longer than half a second, and one of pod counts every five seconds.
fn statuses_of_a_start(took: Duration) -> std::ops::RangeInclusive<usize> {
    1..=2 + usize::try_from(took.as_secs() / 5).unwrap()
}

/// `checkpoint.uri` of a job whose result lasts: without it the operator would publish a warning, one call
/// more.
const LASTING: &str = "file:///copies";

#[tokio::test]
async fn a_job_that_goes_well_costs_few_calls() {
    let Some(test) = crate::set("calls").await else { return };
    let (operator, user) = test.counted_operator("frugal").await;
    let posted = Instant::now();
    test.post("cheap", json!({"checkpoint": {"uri": LASTING}})).await;
    let pod = test.worker("cheap", 1).await;
    test.run(&pod).await;
    test.when_true("cheap", ConditionType::PodsReady).await;
    let statuses_of_a_start = statuses_of_a_start(posted.elapsed());
    operator.settles(&test, || test.calls_of(&user).len()).await;
    let calls = test.calls_of(&user);
    let count = |resource: &str, verb: &str| {
        calls.iter().filter(|call| call.resource == resource && call.verb == verb).count()
    };
    assert_eq!(count("pods", "create"), 1);
    let num_statuses = count("rltrainingjobs", "patch");
    assert!(statuses_of_a_start.contains(&num_statuses), "{calls:#?}");
    assert_eq!((count("serviceaccounts", "create"), count("configmaps", "create")), (1, 1));
    assert_eq!((count("networkpolicies", "create"), count("events", "create")), (1, 1));
    assert_eq!(calls.len(), 5 + num_statuses, "{calls:#?}");
}

#[tokio::test]
async fn a_gang_costs_a_call_for_each_worker_and_seven_more() {
    let Some(test) = crate::set("gang").await else { return };
    let (operator, user) = test.counted_operator("thrifty").await;
    let posted = Instant::now();
    let workers = json!({"count": 4, "device": "Cpu"});
    test.post("gang", json!({"workers": workers, "checkpoint": {"uri": LASTING}})).await;
    for pod in test.when_pods("gang", |pods| pods.len() == 4).await {
        test.run(&pod).await;
    }
    test.when_true("gang", ConditionType::PodsReady).await;
    let statuses_of_a_start = statuses_of_a_start(posted.elapsed());
    operator.settles(&test, || test.calls_of(&user).len()).await;
    let calls = test.calls_of(&user);
    let count = |resource: &str| calls.iter().filter(|call| call.resource == resource).count();
    assert_eq!((count("pods"), count("events")), (4, 1), "{calls:#?}");
    let num_statuses = count("rltrainingjobs");
    assert!(statuses_of_a_start.contains(&num_statuses), "{calls:#?}");
    // There is no selector: one write sets the address of the first worker.
    let slices: Vec<_> =
        test.calls().into_iter().filter(|call| call.resource.starts_with("endpoint")).collect();
    assert_eq!(slices.len(), 1, "{slices:#?}");
    assert_eq!(calls.len(), 4 + 6 + num_statuses, "{calls:#?}");
}

#[tokio::test]
async fn changes_during_an_operators_absence_are_reconciled_later() {
    let Some(test) = crate::set("absence").await else { return };
    let first = test.operator().await;
    test.post("orphan", json!({})).await;
    let pod = test.worker("orphan", 1).await;
    test.run(&pod).await;
    test.when_true("orphan", ConditionType::PodsReady).await;
    first.kill().await;
    test.pods().delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    let _second = test.operator().await;
    test.run(&test.worker("orphan", 2).await).await;
    test.when("orphan", |status| is_true(status, ConditionType::PodsReady)).await;
}

#[tokio::test]
async fn an_operator_that_is_asked_to_stop_while_it_starts_ends() {
    let Some(test) = crate::set("hasty").await else { return };
    for wait in [0, 1, 3, 10, 30, 100].map(Duration::from_millis) {
        let operator = test.operator().await;
        tokio::time::sleep(wait).await;
        tokio::time::timeout(TIMEOUT, operator.stop()).await.unwrap();
    }
}

#[tokio::test]
async fn an_operator_that_is_asked_to_stop_sends_the_events_of_its_statuses_before_it_ends() {
    let Some(test) = crate::set("farewell").await else { return };
    let faults = Faults::default();
    let proxy = test.cluster.fault_proxy(&faults).await.unwrap();
    let mut program = test.program(&proxy).await;
    let events: Api<Event> = Api::namespaced(test.client.clone(), &test.namespace);
    let is_sent = async |reason: &str| {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        events.iter().any(|event| event.reason.as_deref() == Some(reason))
    };
    test.post("ending", json!({})).await;
    let pod = test.worker("ending", 1).await;
    until("the Event of the begin is sent", async || is_sent("NoStorage").await).await;
    faults.inject("POST", "/events", 100, Fault::Hold);
    test.run(&pod).await;
    test.when_true("ending", ConditionType::PodsReady).await;
    assert!(!is_sent("WorkersRunning").await);
    program.ask_to_stop();
    // An operator that does not wait for its Events ends without this line.
    program.logs("waiting until the last Events are sent").await;
    faults.release();
    program.end().await;
    // The operator waits for 3 s, which a machine that stalls may need for the lines above.
    assert!(is_sent("WorkersRunning").await || program.has_logged("Events are lost").await);
}

#[tokio::test]
async fn two_operators_at_once_make_every_pod_once() {
    let Some(test) = crate::set("rivals").await else { return };
    let _operators = (test.operator().await, test.operator().await);
    for name in ["a", "b", "c"] {
        test.post(name, json!({})).await;
    }
    for name in ["a", "b", "c"] {
        let pod = test.worker(name, 1).await;
        test.run(&pod).await;
        test.end(&pod, 75, "").await;
        let second = test.worker(name, 2).await;
        test.run(&second).await;
        test.end(&second, 0, "").await;
        let status = test.when_true(name, ConditionType::Complete).await;
        assert_eq!((status.attempt, status.failures_by_cause.values().sum::<u32>()), (Some(2), 1));
    }
}
