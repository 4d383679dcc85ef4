//! A synced reference: its effect in a run, resumed runs equal uninterrupted ones, and sharded runs equal one
//! rank. Its numbers are tested in the trainer.

use std::f64::consts::LN_2;

use serde_json::{Value, json};

use crate::job::{Place, merge, tiny_with};
use crate::preference::cached_logprobs;
use crate::ranks;
use crate::resume::{assert_same_run, prolonged};

/// Log-probs of the same weights differ by the order of sums, because batches differ.
const ROUNDING: f64 = 1e-5;

/// Changes for DPO on pairs, whose reference is synced as `sync` says.
fn dpo(sync: Value, more: Value) -> Value {
    let mut changes = json!({
        "algorithm": { "kind": "DPO", "referenceSync": sync }, "data": { "task": { "maxOperand": 99 } },
        "training": { "promptsPerStep": 3, "evaluateBefore": true, "evaluateEvery": 3 }
    });
    merge(&mut changes, more);
    changes
}

fn numbers(place: &Place, name: &str) -> Vec<f64> {
    place.steps().iter().map(|step| step[name].as_f64().unwrap()).collect()
}

/// A log-prob that is cached from an older reference would give another loss.
#[test]
fn a_reference_equal_to_the_actor_gives_zero_margins_in_every_epoch() {
    let one_batch = json!({ "data": { "task": { "numTrain": 3 } }, "training": { "steps": 4 } });
    let copied = Place::new();
    copied.train(&tiny_with(dpo(json!({ "everySteps": 1, "alpha": 1.0 }), one_batch.clone()))).expect(0, &[]);
    let losses = numbers(&copied, "preference/loss");
    assert!(losses.iter().all(|loss| (loss - LN_2).abs() < ROUNDING), "{losses:?}");
    let margins = numbers(&copied, "rewards/margins");
    assert!(margins.iter().all(|margin| margin.abs() < ROUNDING), "{margins:?}");
    // Each of the four references has scored the batch, the last one held-out pairs alone.
    assert_eq!(cached_logprobs(&copied).len(), 5);
    assert!(copied.steps().iter().all(|step| step["timing_s/update_ref"].is_number()));

    let second = Place::new();
    second.train(&tiny_with(dpo(json!({ "everySteps": 2, "alpha": 1.0 }), one_batch))).expect(0, &[]);
    let losses = numbers(&second, "preference/loss");
    assert!((losses[0] - LN_2).abs() < ROUNDING && (losses[2] - LN_2).abs() < ROUNDING, "{losses:?}");
    assert!(losses[1] < LN_2 - 1e-3 && losses[3] < LN_2 - 1e-3, "{losses:?}");
    let moved: Vec<bool> =
        second.steps().iter().map(|step| step["timing_s/update_ref"].is_number()).collect();
    assert_eq!(moved, [false, true, false, true]);
}

#[test]
fn a_resumed_run_continues_with_the_synced_reference() {
    let sync = json!({ "everySteps": 2, "alpha": 0.5 });
    let policy_gradient = json!({ "algorithm": {
        "referenceSync": sync, "kl": { "placement": "Loss", "coefficient": 0.1 },
        "coldStart": { "steps": 2, "batchSize": 4 }
    } });
    let sharded = json!({ "workers": { "count": 2, "mesh": { "dpShard": 2 } } });
    let half = json!({ "training": { "precision": "Bf16" } });
    for changes in [
        dpo(sync.clone(), json!({})),
        dpo(sync.clone(), sharded),
        dpo(sync.clone(), half),
        dpo(sync.clone(), json!({ "training": { "offload": { "parameters": true } } })),
        policy_gradient,
    ] {
        let (whole, resumed) = prolonged(&changes);
        assert_same_run(&whole, &resumed);
    }
}

#[test]
fn neither_ranks_nor_micro_batches_change_how_a_reference_follows() {
    for kind in ["DPO", "KTO", "OnlineDPO"] {
        let changes = dpo(json!({ "everySteps": 1, "alpha": 0.6 }), json!({ "algorithm": { "kind": kind } }));
        let one = ranks::train(1, &changes);
        let with = |more: Value| {
            let mut changes = changes.clone();
            merge(&mut changes, more);
            changes
        };
        let torn = with(json!({ "training": { "maxTokensPerMicroBatch": 12, "maxLogprobTokens": 12 } }));
        let sharded = with(json!({ "workers": { "mesh": { "dpShard": 2 } } }));
        let apart = with(json!({ "workers": { "mesh": { "dpShard": 2, "referenceDpShard": 1 } } }));
        for (count, changes) in [(1, torn), (2, changes.clone()), (2, sharded), (2, apart)] {
            let difference = ranks::difference(&one, &ranks::train(count, &changes));
            assert!(difference < ranks::TOLERANCE, "{count} ranks, {changes}: {difference}");
        }
    }
}
