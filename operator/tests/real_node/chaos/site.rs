//! The cluster of a chaos run with the chart and the job, and what is observed of them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{ListParams, PostParams};
use rlt_api::status::{ConditionType, RLTrainingJobStatus};
use rlt_cluster::{Options, Shared};
use rlt_objects::labels;
use serde_json::{Value, json};

use super::disk::{self, Disk};
use super::effects::{Object, RECORD_TIME, read_roles};
use super::manifests::{NAME, OUTPUT, job, values};
use super::outcome::reasons_of_causes;
use super::plan::NUM_WORKERS;
use super::quiet_run::QuietRun;
use crate::TIMEOUT;
use crate::chart::{kubectl, upgrade};
use crate::examples::supervised;
use crate::test_namespace::TestNamespace;

/// Steps after the last fault.
const LAST_STEPS: u64 = 3;
/// Reason of the Event at the end of the job.
const LAST_EVENT: &str = "StepsFinished";
/// Reason of the Event of a job that finds its result.
const FOUND_EVENT: &str = "ResultFound";
/// Longest time between two checkpoints of a job that is disturbed; on a quiet machine it is seconds.
const MAX_CHECKPOINT_AGE: Duration = Duration::from_secs(900);
/// Time between two looks at a condition.
const POLL: Duration = Duration::from_millis(100);

/// The run has a cluster of its own: restarts of the API server would fail other tests.
static CLUSTER: Shared = Shared::new(|| {
    let options = Options::control_plane().with_real_node();
    ["buildah", "debootstrap", "mount", "df"].into_iter().fold(options, Options::with_tool)
});

/// The installed chart with a job that trains.
pub(super) struct Site {
    pub(super) test: TestNamespace,
    pub(super) disk: Disk,
    /// Objects that were deleted, each with the UID that it had.
    pub(super) deleted: Vec<(Object, String)>,
    /// Number of killed ranks and pods, each of which ended an attempt.
    pub(super) num_kills: u32,
    /// Reasons of all Events so far; the API server keeps them for an hour.
    pub(super) event_reasons: BTreeSet<String>,
    /// Reasons of Events that follow from what conditions told of the faults.
    pub(super) expected_events: BTreeSet<String>,
    /// Manifests of the operator's role in the namespace of the job, and of its binding.
    pub(super) roles: Vec<Value>,
    /// UID of the pod that was killed last.
    pub(super) killed_pod: String,
    /// Step of the newest checkpoint when the gang was disturbed last.
    pub(super) step_at_fault: u64,
    /// Step of the newest checkpoint, and the time at which it was seen first.
    newest: (u64, Instant),
    /// The undisturbed run; `None` when it has ended.
    pub(super) quiet_run: Option<QuietRun>,
}

/// Calls `act` until it returns something; `None` after `patience`.
pub(super) async fn within<T>(patience: Duration, mut act: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = act().await {
            return Some(found);
        }
        if begun.elapsed() > patience {
            return None;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Number of attempts that have failed.
pub(super) fn num_failures(status: &RLTrainingJobStatus) -> u32 {
    status.failures_by_cause.values().sum()
}

impl Site {
    /// Starts the cluster with the chart and the job; `None` where the machine cannot run it.
    pub(super) async fn start() -> Option<Self> {
        let cluster = CLUSTER.get()?;
        for image in ["rlt-operator", "rlt-trainer"] {
            cluster.load_image(&rlt_tests::test_image(image)).unwrap();
        }
        let test = TestNamespace::without_definition(cluster, NAME).await;
        let disk = Disk::mount(&test);
        disk.folder.run(&supervised(), "runs/sft");
        upgrade(cluster, &values(&test.namespace, true));
        let definition = "crd/rltrainingjobs.rltraining.dev";
        kubectl(cluster, &["wait", "--for=condition=Established", definition, "--timeout=300s"]);
        let roles = read_roles(cluster, &test.namespace);
        tokio::spawn(disk::give_back(test.client.clone()));
        let job = serde_json::from_value(job()).unwrap();
        test.jobs().create(&PostParams::default(), &job).await.unwrap();
        let quiet_run = QuietRun::new(&cluster.folder().join("quiet"), &disk.folder);
        let site = Self {
            test,
            disk,
            newest: (0, Instant::now()),
            quiet_run: Some(quiet_run),
            deleted: Vec::new(),
            num_kills: 0,
            event_reasons: BTreeSet::new(),
            expected_events: BTreeSet::new(),
            roles,
            killed_pod: String::new(),
            step_at_fault: 0,
        };
        site.assert_trains().await;
        Some(site)
    }

    /// Waits until the gang has saved a checkpoint since it was disturbed last; returns its pods by worker,
    /// or `None` after `patience`.
    pub(super) async fn gang_that_trains(&self, patience: Duration) -> Option<Vec<Pod>> {
        within(patience, async || {
            let pods = self.running_gang().await?;
            (self.last_checkpoint() > self.step_at_fault).then_some(pods)
        })
        .await
    }

    /// The pods of all workers by their index, where they run and belong to one attempt.
    pub(super) async fn running_gang(&self) -> Option<Vec<Pod>> {
        let of_job = ListParams::default().labels(&format!("{}={NAME}", labels::JOB_NAME));
        let mut pods = self.test.pods().list(&of_job).await.unwrap().items;
        pods.retain(|pod| self.is_running(pod));
        pods.sort_by_key(|pod| pod.name_any());
        let attempts = pods.iter().map(|pod| &pod.labels()[labels::ATTEMPT]);
        let num_attempts = attempts.collect::<BTreeSet<_>>().len();
        (pods.len() == NUM_WORKERS && num_attempts == 1).then_some(pods)
    }

    async fn assert_trains(&self) {
        let gang = self.gang_that_trains(TIMEOUT).await;
        let status = self.test.status(NAME).await;
        assert!(gang.is_some(), "the job does not train: {status:#?}\n{}", self.described());
    }

    /// Checks that the job goes on, and lets the undisturbed run follow it. A job that has ended, or is
    /// stuck, would defer every further fault.
    pub(super) async fn assert_advances(&mut self) {
        let (step, status) = (self.last_checkpoint(), self.test.status(NAME).await);
        assert!(status.completion_time.is_none(), "the job has ended: {status:#?}");
        if step > self.newest.0 {
            self.newest = (step, Instant::now());
            self.quiet_run.iter().for_each(|run| run.follow(step));
        }
        let age = self.newest.1.elapsed();
        assert!(age < MAX_CHECKPOINT_AGE, "no checkpoint for {age:?}: {status:#?}\n{}", self.described());
    }

    /// Pods and claims of the job in words.
    fn described(&self) -> String {
        kubectl(self.test.cluster, &["describe", "pods,pvc", "-n", &self.test.namespace])
    }

    fn is_running(&self, pod: &Pod) -> bool {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_killed = pod.metadata.uid.as_deref() == Some(self.killed_pod.as_str());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none() && !is_killed
    }

    pub(super) fn last_checkpoint(&self) -> u64 {
        self.disk.folder.last_checkpoint(OUTPUT)
    }

    /// Waits until the status of the job is as wished; `false` after `patience`.
    pub(super) async fn tells(
        &self,
        patience: Duration,
        wish: impl Fn(&RLTrainingJobStatus) -> bool,
    ) -> bool {
        within(patience, async || wish(&self.test.status(NAME).await).then_some(())).await.is_some()
    }

    /// Notes the reasons of the job's Events, before they expire.
    pub(super) fn note_events(&mut self) {
        let reasons = "jsonpath={range .items[*]}{.reason}{\"\\n\"}{end}";
        let of_jobs = "--field-selector=involvedObject.kind=RLTrainingJob";
        let namespace = &self.test.namespace;
        let text = kubectl(self.test.cluster, &["get", "events", of_jobs, "-n", namespace, "-o", reasons]);
        self.event_reasons.extend(text.lines().map(str::to_owned));
    }

    /// Waits until each cause in the status has an Event, at most [`RECORD_TIME`]: an Event is lost with an
    /// operator that the next fault ends between the status and the Event.
    pub(super) async fn await_events(&mut self) {
        let reasons = reasons_of_causes(&self.test.status(NAME).await);
        within(RECORD_TIME, async || {
            self.note_events();
            reasons.iter().all(|reason| self.event_reasons.contains(reason)).then_some(())
        })
        .await;
    }

    /// Suspends the job and lets it train the last steps; returns the number of all steps.
    pub(super) async fn finish(&mut self) -> u64 {
        self.assert_trains().await;
        self.test.patch_job(NAME, json!({ "runPolicy": { "suspend": true } })).await;
        self.test.when_true(NAME, ConditionType::Suspended).await;
        self.test.when_pods(NAME, <[_]>::is_empty).await;
        let num_steps = self.last_checkpoint() + LAST_STEPS;
        let last = json!({ "training": { "steps": num_steps }, "runPolicy": { "suspend": false } });
        self.test.patch_job(NAME, last).await;
        self.test.when_true(NAME, ConditionType::Complete).await;
        // The Event follows the status.
        let told = within(TIMEOUT, async || {
            self.note_events();
            self.event_reasons.contains(LAST_EVENT).then_some(())
        })
        .await;
        assert!(told.is_some(), "the end of the job has no Event: {:?}", self.event_reasons);
        num_steps
    }

    /// Makes the complete job again over its claim, which holds the result: status and an Event tell that it
    /// was there.
    pub(super) async fn make_again(&mut self, num_steps: u64) {
        let namespace = self.test.namespace.as_str();
        let delete = ["delete", "rltj", NAME, "-n", namespace, "--cascade=foreground", "--timeout=300s"];
        kubectl(self.test.cluster, &delete);
        let mut manifest = job();
        manifest["spec"]["training"]["steps"] = num_steps.into();
        let manifest = serde_json::from_value(manifest).unwrap();
        self.test.jobs().create(&PostParams::default(), &manifest).await.unwrap();
        self.test.when_true(NAME, ConditionType::Complete).await;
        let has_result = |status: &RLTrainingJobStatus| {
            let progress = status.progress.as_ref();
            let is_found = progress.is_some_and(|one| one.result_found && one.step == num_steps);
            is_found && status.checkpoints.last().is_some_and(|last| last.step == num_steps)
        };
        let is_told = self.tells(TIMEOUT, has_result).await;
        let status = self.test.status(NAME).await;
        assert!(is_told, "the result is not in the status: {status:#?}");
        let told = within(TIMEOUT, async || {
            self.note_events();
            self.event_reasons.contains(FOUND_EVENT).then_some(())
        })
        .await;
        assert!(told.is_some(), "the result has no Event: {:?}", self.event_reasons);
    }
}
