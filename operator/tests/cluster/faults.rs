//! Everything that can go wrong between a job and its end. Each life below has two workers, a failure that
//! passes, a pause and a good end; a witness judges it.

mod answers;
mod crashes;
mod nodes;
mod pods;
mod strange;

use rlt_api::status::ConditionType;
use serde_json::json;

use crate::kubelet::Kubelet;
use crate::stage::{Stage, is_true};
use crate::witness::Witness;

struct Life;

impl Life {
    /// The first attempt fails in a way that passes, the second one is paused, and the third one ends well.
    fn kubelet(stage: &Stage) -> Kubelet {
        Kubelet::start(stage, |idx, attempt| match (idx, attempt) {
            (1, 1) => Some(75),
            (_, 1 | 2) => None,
            _ => Some(0),
        })
    }
}

/// From the posted job to its good end; whoever works on it.
async fn life(stage: &Stage, witness: &Witness, name: &str) {
    stage.post(name, json!({"workers": {"count": 2, "device": "Cpu"}})).await;
    witness.when(name, |status| status.attempt == Some(2) && is_true(status, ConditionType::PodsReady)).await;
    stage.patch_job(name, json!({"runPolicy": {"suspend": true}})).await;
    witness.when(name, |status| is_true(status, ConditionType::Suspended)).await;
    stage.patch_job(name, json!({"runPolicy": {"suspend": false}})).await;
    witness.when(name, |status| is_true(status, ConditionType::Complete)).await;
}
