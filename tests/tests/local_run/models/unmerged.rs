//! Runs whose adapter is unmerged in the rollout: compared with a merged one, on any ranks, resumed and
//! offloaded, and the bytes of the weight sync, which are the plan's.

use rlt_api::validate;
use rlt_plan::{Models, plan, planned_model};
use serde_json::{Value, json};

use crate::job::{Place, merge, tiny_with};
use crate::ranks::{TOLERANCE, difference, train};
use crate::resume::{assert_same_run, prolonged};

/// Changes for an adapter of every linear layer, in sizes that only the degree of the rollout divides.
fn adapted(merge_lora: Option<bool>, changes: &Value) -> Value {
    let architecture = json!({
        "family": "Qwen3", "hiddenSize": 22, "intermediateSize": 28, "numLayers": 2, "numHeads": 4,
        "numKvHeads": 2, "headDim": 10
    });
    let lora = json!({ "rank": 4, "alpha": 8, "rankPattern": { "o_proj": 3 }, "learningRateRatio": 4 });
    let mut all = json!({
        "model": { "architecture": architecture, "lora": lora },
        "algorithm": { "kind": "GRPO", "kl": { "coefficient": 0.1 } },
        "training": { "steps": 4, "promptsPerStep": 4, "evaluateEvery": 2, "evaluateBefore": true }
    });
    if let Some(merge_lora) = merge_lora {
        merge(&mut all, json!({ "model": { "lora": { "merge": merge_lora } } }));
    }
    merge(&mut all, changes.clone());
    all
}

fn texts(place: &Place) -> Vec<Value> {
    place.completions().iter().map(|one| one["completion"].clone()).collect()
}

/// The rollout's log-probs differ by rounding, and a completion differs if a draw is that close to a
/// boundary.
#[test]
fn a_run_with_an_unmerged_adapter_equals_the_run_with_it_merged() {
    let [merged, unmerged, open] =
        [Some(true), Some(false), None].map(|merge_lora| train(1, &adapted(merge_lora, &json!({}))));
    assert_eq!(texts(&unmerged), texts(&merged));
    let difference = difference(&merged, &unmerged);
    assert!(difference < TOLERANCE, "{difference}");
    assert_same_run(&merged, &open);
    let moves = merged.steps().iter().any(|step| step["actor/grad_norm"].as_f64() > Some(0.0));
    assert!(moves, "the adapter is trained");
}

#[test]
fn any_ranks_with_an_unmerged_adapter_train_as_one() {
    let one = train(1, &adapted(Some(false), &json!({})));
    for (count, dp_shard, rollout_tp) in [(2, 2, 1), (3, 3, 1), (4, 2, 2), (4, 4, 1)] {
        let mesh = json!({ "workers": { "mesh": { "dpShard": dp_shard, "rolloutTp": rollout_tp } } });
        let many = train(count, &adapted(Some(false), &mesh));
        let difference = difference(&one, &many);
        assert!(difference < TOLERANCE, "{count} ranks with {mesh} differ by {difference}");
        assert_eq!(texts(&many), texts(&one), "{count} ranks with {mesh}");
    }
}

#[test]
fn a_run_with_an_unmerged_adapter_resumes_bit_for_bit() {
    let (whole, resumed) = prolonged(&adapted(Some(false), &json!({})));
    assert_same_run(&whole, &resumed);
}

#[test]
fn offloaded_parameters_change_no_bit_of_a_run_with_an_unmerged_adapter() {
    let run = |offloads: bool| {
        let place = Place::new();
        let changes = json!({ "training": { "offload": { "parameters": offloads } } });
        place.train(&tiny_with(adapted(Some(false), &changes))).expect(0, &[]);
        place
    };
    assert_same_run(&run(false), &run(true));
}

#[test]
fn every_step_after_the_first_sync_brings_the_bytes_of_the_plan() {
    for merge_lora in [false, true] {
        let manifest = tiny_with(adapted(Some(merge_lora), &json!({})));
        let place = Place::new();
        place.train(&manifest).expect(0, &[]);
        let job = validate(&serde_json::to_string(&manifest).unwrap()).unwrap();
        let models = Models { policy: planned_model(&job).unwrap(), reward: Vec::new() };
        let planned = plan(&job, &models).weight_sync.unwrap();
        let brought: Vec<f64> = place
            .steps()
            .iter()
            .map(|step| step["perf/weight_sync_gb"].as_f64().unwrap() * f64::from(1 << 30))
            .collect();
        // Weights are packed in panels of fixed size, so packed weights take more bytes than the weights.
        let is_planned = |bytes: &f64| {
            if merge_lora { *bytes > planned.bytes as f64 } else { *bytes == planned.bytes as f64 }
        };
        assert!(brought[1..].iter().all(is_planned), "{brought:?}, planned {planned:?}");
    }
}
