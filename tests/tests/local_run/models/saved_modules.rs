//! Modules that are trained in full with an adapter: on any ranks, resumed, offloaded, and in a mixture whose
//! experts are distributed.

use serde_json::{Value, json};

use crate::job::{Place, merge, tiny_with};
use crate::ranks::{TOLERANCE, difference, train};
use crate::resume::{assert_same_run, prolonged};

/// An adapter, a head, an embedding and norms that are trained in full, and a frozen reference.
fn adapted(changes: &Value) -> Value {
    let mut all = json!({
        "model": {
            "architecture": {
                "family": "Qwen3", "hiddenSize": 22, "intermediateSize": 28, "numLayers": 2, "numHeads": 4,
                "numKvHeads": 2, "headDim": 10, "tieWordEmbeddings": false
            },
            "lora": { "rank": 4, "alpha": 8, "modulesToSave": ["embed_tokens", "lm_head", "norm"] }
        },
        "algorithm": { "kind": "GRPO", "kl": { "coefficient": 0.1 } },
        "training": { "steps": 4, "promptsPerStep": 4, "evaluateEvery": 2, "evaluateBefore": true }
    });
    merge(&mut all, changes.clone());
    all
}

#[test]
fn any_ranks_train_an_adapter_and_saved_modules_as_one() {
    let one = train(1, &adapted(&json!({})));
    for (count, dp_shard, sp, rollout_tp) in [(2, 2, 1, 1), (3, 3, 1, 1), (4, 2, 2, 2)] {
        let mesh =
            json!({ "workers": { "mesh": { "dpShard": dp_shard, "sp": sp, "rolloutTp": rollout_tp } } });
        let difference = difference(&one, &train(count, &adapted(&mesh)));
        assert!(difference < TOLERANCE, "{count} ranks with {mesh} differ by {difference}");
    }
}

#[test]
fn saved_modules_change_what_is_learnt_with_an_adapter() {
    let alone = json!({ "model": { "lora": { "modulesToSave": [] } } });
    let difference = difference(&train(1, &adapted(&json!({}))), &train(1, &adapted(&alone)));
    assert!(difference > 1e3 * TOLERANCE, "{difference}");
}

#[test]
fn a_run_with_an_adapter_and_saved_modules_resumes_bit_for_bit() {
    let (whole, resumed) = prolonged(&adapted(&json!({})));
    assert_same_run(&whole, &resumed);
}

#[test]
fn offload_changes_no_bit_of_a_run_with_an_adapter_and_saved_modules() {
    let run = |offloads: bool| {
        let place = Place::new();
        let offload = json!({ "parameters": offloads, "optimizer": offloads });
        place.train(&tiny_with(adapted(&json!({ "training": { "offload": offload } })))).expect(0, &[]);
        place
    };
    assert_same_run(&run(false), &run(true));
}

#[test]
fn a_mixture_with_distributed_experts_trains_saved_modules_as_one_rank() {
    let architecture = json!({
        "family": "Qwen3Moe", "experts": { "count": 4, "perToken": 2 }, "hiddenSize": 22, "intermediateSize": 14,
        "numLayers": 2, "numHeads": 2, "numKvHeads": 2, "headDim": 10, "tieWordEmbeddings": false
    });
    let mixture = |mesh: Value| {
        adapted(&json!({ "model": { "architecture": architecture }, "workers": { "mesh": mesh } }))
    };
    let one = train(1, &mixture(json!({})));
    for mesh in [json!({ "dpShard": 2, "ep": 2 }), json!({ "dpShard": 2, "sp": 2, "ep": 4 })] {
        let count = if mesh["sp"].is_null() { 2 } else { 4 };
        let difference = difference(&one, &train(count, &mixture(mesh.clone())));
        assert!(difference < TOLERANCE, "{mesh} differs by {difference}");
    }
}
