//! The sharded example as pods of a real node, with kills, evictions and resizes: the trained weights equal
//! those of undisturbed local ranks bit for bit.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{EvictParams, LogParams, PostParams};
use rlt_api::FailureCause;
use rlt_api::status::ConditionType;
use rlt_objects::labels;
use serde_json::{Value, json};

use crate::TIMEOUT;
use crate::container::kill_container;
use crate::examples::{example, supervised};
use crate::folder::Folder;
use crate::test_namespace::{TestNamespace, merge};

const NAME: &str = "sharded";
/// Between two checkpoints.
const EVERY_STEPS: u64 = 4;
/// Steps of the last attempt.
const LAST_STEPS: u64 = 3;

/// The sharded example with fewer prompts a step, and one thread for each rank wherever it is, so that sums
/// have one order. Its number of steps is larger than any test needs: the test decides when it ends.
fn sharded() -> Value {
    let changes = json!({
        "training": { "steps": 1_000_000 },
        "data": { "task": { "numHeldOut": 8 } },
        "checkpoint": { "everySteps": EVERY_STEPS },
        "workers": { "threads": 1, "storage": { "claimName": "shared" } }
    });
    example(include_str!("../../../examples/sharded/job.yaml"), &changes)
}

/// One pod with two ranks.
fn on_two_ranks(num_steps: u64) -> Value {
    let workers = json!({ "count": 1, "ranksPerWorker": 2, "mesh": { "dpShard": 2, "sp": 1 } });
    json!({ "workers": workers, "training": { "steps": num_steps } })
}

/// The job's pods, and their files in the folder.
struct Gang<'a> {
    test: &'a TestNamespace,
    folder: &'a Folder,
    output: String,
}

impl Gang<'_> {
    fn last_step(&self) -> u64 {
        let steps = self.folder.steps(&self.output);
        steps.last().and_then(|line| line["step"].as_u64()).unwrap_or(0)
    }

    /// Waits until a step is done; the last one that is.
    async fn trained(&self, step: u64) -> u64 {
        eventually(&format!("step {step} is done"), async || {
            Some(self.last_step()).filter(|last| *last >= step)
        })
        .await
    }

    /// The step from which the attempt resumed, from its first worker's log.
    async fn resumed(&self, attempt: u32) -> u64 {
        let (first, attempt) = (format!("{NAME}-trainer-0"), attempt.to_string());
        let is_it = |pod: &Pod| {
            pod.name_any() == first && pod.labels()[labels::ATTEMPT] == attempt && has_container(pod)
        };
        self.test.when_pods(NAME, |pods| pods.iter().any(is_it)).await;
        let pods = self.test.pods();
        eventually("it logs the step from which it resumes", async || {
            let log = pods.logs(&first, &LogParams::default()).await.ok()?;
            let (_, after) = log.split_once("resuming after step ")?;
            after.split_whitespace().next()?.parse().ok()
        })
        .await
    }

    /// The status's failure of the last attempt: its cause, its pod and the exit code.
    async fn failure(&self, attempt: u32) -> (FailureCause, Option<String>, Option<i32>, String) {
        let status = self.test.when(NAME, |status| status.attempt == Some(attempt + 1)).await;
        let failure = status.last_failure.unwrap();
        assert_eq!(failure.attempt, attempt);
        (failure.cause, failure.pod, failure.exit_code, failure.message)
    }
}

/// Whether the node's agent has started a container of this very pod. Logs are read by the pod's name: before
/// that, the agent may still answer with the log of the pod that had the name in the attempt before.
fn has_container(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let mut states = statuses.unwrap_or_default().iter().filter_map(|container| container.state.as_ref());
    states.any(|state| state.running.is_some() || state.terminated.is_some())
}

async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(started.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_are_killed_evicted_and_resized_train_what_undisturbed_ranks_of_one_machine_do() {
    let Some(test) = crate::test_namespace("sharded").await else { return };
    let folder = Folder::shared(&test).await;
    folder.run(&supervised(), "runs/sft");
    let gang = Gang { test: &test, folder: &folder, output: format!("runs/{NAME}") };
    let _operator = test.operator().await;
    let job = serde_json::from_value(sharded()).unwrap();
    test.jobs().create(&PostParams::default(), &job).await.unwrap();

    gang.trained(EVERY_STEPS + 1).await;
    kill_container(&test.pods().get("sharded-trainer-2").await.unwrap().uid().unwrap());
    let (killed_by, pod, code, _) = gang.failure(1).await;
    // The operator waits some seconds for the exit of the pod that the others lost: the node may be later.
    match killed_by {
        FailureCause::PeerLost => assert_ne!(pod.as_deref(), Some("sharded-trainer-2")),
        _ => assert_eq!(
            (killed_by, pod.as_deref(), code),
            (FailureCause::Signalled, Some("sharded-trainer-2"), Some(137))
        ),
    }
    let after_kill = gang.resumed(2).await;
    assert!(after_kill >= EVERY_STEPS && after_kill % EVERY_STEPS == 0, "{after_kill}");

    // Later than the last checkpoint.
    let seen = gang.trained(after_kill + EVERY_STEPS + 1).await;
    test.pods().evict("sharded-trainer-1", &EvictParams::default()).await.unwrap();
    let (cause, pod, code, message) = gang.failure(2).await;
    assert_eq!((cause, pod.as_deref(), code), (FailureCause::Disrupted, Some("sharded-trainer-1"), Some(80)));
    assert!(message.contains("EvictionByEvictionAPI"), "{message}");
    let after_eviction = gang.resumed(3).await;
    assert!(after_eviction >= seen, "all saved what they had done: {after_eviction}, {seen}");

    gang.trained(after_eviction + 1).await;
    test.patch_job(NAME, json!({ "runPolicy": { "suspend": true } })).await;
    test.when_true(NAME, ConditionType::Suspended).await;
    test.when_pods(NAME, <[_]>::is_empty).await;
    let num_steps = gang.last_step();
    let mut fewer = on_two_ranks(num_steps + LAST_STEPS);
    fewer["runPolicy"] = json!({ "suspend": false });
    test.patch_job(NAME, fewer).await;
    assert_eq!(gang.resumed(4).await, num_steps);
    let status = test.when_true(NAME, ConditionType::Complete).await;
    assert_eq!(status.failures_by_cause, [(killed_by, 1), (FailureCause::Disrupted, 1)].into());
    assert_eq!(status.worker_groups[0].succeeded, 1);
    assert_eq!(status.resolved.unwrap().world_size, 2);

    let mut whole = sharded();
    whole["spec"]["training"]["steps"] = num_steps.into();
    folder.run(&whole, "runs/here");
    merge(&mut whole["spec"], &on_two_ranks(num_steps + LAST_STEPS));
    folder.run(&whole, "runs/here");
    let (disturbed, undisturbed) = (folder.steps(&gang.output), folder.steps("runs/here"));
    let steps: Vec<u64> = disturbed.iter().filter_map(|line| line["step"].as_u64()).collect();
    assert_eq!(steps, (1..=num_steps + LAST_STEPS).collect::<Vec<_>>(), "every step once");
    assert_eq!(disturbed, undisturbed);
    assert!(disturbed.iter().any(|line| line["actor/grad_norm"].as_f64() > Some(0.0)));
    assert!(folder.adapter(&gang.output) == folder.adapter("runs/here"), "the adapters differ");
}
