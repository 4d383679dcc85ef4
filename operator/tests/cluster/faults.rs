//! Faults during the life of a job. Each job below has two workers, a transient failure, a suspension and a
//! successful end; its history is checked.

mod answers;
mod crashes;
mod nodes;
mod pods;
mod strange;

use rlt_api::status::ConditionType;
use serde_json::json;

use crate::history::History;
use crate::kubelet::Kubelet;
use crate::test_namespace::{TestNamespace, is_true};

struct Life;

impl Life {
    /// The first attempt fails in a way that passes, the second one is paused, and the third one ends well.
    fn kubelet(test: &TestNamespace) -> Kubelet {
        Kubelet::start(test, |idx, attempt| match (idx, attempt) {
            (1, 1) => Some(75),
            (_, 1 | 2) => None,
            _ => Some(0),
        })
    }
}

/// Follows a job from its creation to its successful end, under any number of operators.
async fn life(test: &TestNamespace, history: &History, name: &str) {
    test.post(name, json!({"workers": {"count": 2, "device": "Cpu"}})).await;
    history.when(name, |status| status.attempt == Some(2) && is_true(status, ConditionType::PodsReady)).await;
    test.patch_job(name, json!({"runPolicy": {"suspend": true}})).await;
    history.when(name, |status| is_true(status, ConditionType::Suspended)).await;
    test.patch_job(name, json!({"runPolicy": {"suspend": false}})).await;
    history.when(name, |status| is_true(status, ConditionType::Complete)).await;
}
