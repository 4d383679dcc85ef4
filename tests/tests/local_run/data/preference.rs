//! Training on preferences: of a data set, of labels, of rollout groups. Tests of the trainer compare loss
//! and gradients with TRL's; these are whole runs.

use std::fs;

use serde_json::{Value, json};

use crate::job::{Place, merge, tiny_with};
use crate::ranks;
use crate::resume::{assert_same_run, prolonged};

/// The log-probs of actor and reference are the same before the first update, up to the order of sums.
const ROUNDING: f64 = 1e-5;

fn preference(kind: &str, more: Value) -> Value {
    let mut changes = json!({
        "algorithm": { "kind": kind }, "data": { "task": { "maxOperand": 99 } },
        "training": { "promptsPerStep": 3, "evaluateBefore": true, "evaluateEvery": 3 }
    });
    merge(&mut changes, more);
    changes
}

/// MPO whose second loss subtracts the mean reward of the run.
fn with_running_mean() -> Value {
    let losses = json!([{ "loss": "Sigmoid", "weight": 0.8 }, { "loss": "BcoPair", "weight": 0.2, "runningMean": true }]);
    json!({ "algorithm": { "preference": { "losses": losses, "sftWeight": 1.0 } } })
}

/// Names and contents of the cached reference log-probs.
pub(crate) fn cached_logprobs(place: &Place) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(place.run("reference-logprobs")) else { return Vec::new() };
    let entries = entries.map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

#[test]
fn a_resumed_run_on_pairs_is_the_whole_one_and_reads_the_reference_of_the_first_attempt() {
    for more in [json!({}), json!({ "model": { "lora": { "rank": 4, "alpha": 8 } } })] {
        let (whole, resumed) = prolonged(&preference("DPO", more));
        assert_same_run(&whole, &resumed);
        assert_eq!(cached_logprobs(&whole).len(), 1);
        let first = &whole.steps()[0];
        assert!((first["preference/loss"].as_f64().unwrap() - std::f64::consts::LN_2).abs() < ROUNDING);
        // Five steps of three pairs use fifteen of the sixteen rows, so the sixth step begins the second
        // epoch.
        let computes = |step: &&Value| step["timing_s/ref"].is_number();
        assert_eq!(whole.steps().iter().filter(computes).count(), 5);
    }
}

/// The mean is that of all steps, so a run that starts it again or loses it would differ.
#[test]
fn a_resumed_run_continues_the_running_mean_of_rewards() {
    for kind in ["DPO", "OnlineDPO"] {
        let (whole, resumed) = prolonged(&preference(kind, with_running_mean()));
        assert_same_run(&whole, &resumed);
        let deltas: Vec<f64> = whole.steps().iter().map(|step| step["delta"].as_f64().unwrap()).collect();
        assert!(deltas[0].abs() < ROUNDING, "actor and reference are the same: {deltas:?}");
        assert!(deltas.windows(2).all(|pair| pair[0] != pair[1]), "{deltas:?}");
        let mut sums = (0.0, 0.0);
        for (idx, step) in whole.steps().iter().enumerate() {
            let reward = |side: &str| step[format!("rewards/{side}")].as_f64().unwrap();
            sums = (sums.0 + 1.0, sums.1 + (reward("chosen") + reward("rejected")) / 2.0);
            if kind == "DPO" {
                assert!((deltas[idx] - sums.1 / sums.0).abs() < 1e-9, "steps of as many pairs: {deltas:?}");
            }
        }
    }
}

#[test]
fn a_second_epoch_computes_no_log_probs_of_the_reference() {
    let place = Place::new();
    let more = json!({ "data": { "task": { "numTrain": 3 } }, "training": { "steps": 3 } });
    place.train(&tiny_with(preference("DPO", more))).expect(0, &[]);
    let computed: Vec<bool> = place.steps().iter().map(|step| step["timing_s/ref"].is_number()).collect();
    assert_eq!(computed, [true, false, false]);
    let losses: Vec<f64> =
        place.steps().iter().map(|step| step["preference/loss"].as_f64().unwrap()).collect();
    assert!(losses[2] < losses[1] && losses[1] < losses[0], "{losses:?}");
}

#[test]
fn preference_training_is_equal_for_any_ranks_and_micro_batches() {
    for (kind, more) in [
        ("DPO", json!({ "algorithm": { "preference": { "weighByPolicy": true, "sftWeight": 0.5 } } })),
        ("KTO", json!({ "algorithm": { "preference": { "undesirableWeight": 1.3 } } })),
        ("KTO", json!({ "algorithm": { "preference": { "referencePoint": false } } })),
        ("OnlineDPO", json!({})),
        ("DPO", json!({ "model": { "lora": { "rank": 4, "alpha": 8 } } })),
        ("DPO", with_running_mean()),
        ("DPO", json!({ "algorithm": { "preference": { "loss": "AotUnpaired" } } })),
    ] {
        let changes = preference(kind, more);
        let one = ranks::train(1, &changes);
        assert!(one.steps().iter().all(|step| step["actor/grad_norm"].as_f64() > Some(0.0)), "{changes}");
        let mut torn = changes.clone();
        // The budget fits one sequence, so chosen and rejected completions are in separate micro-batches.
        merge(&mut torn, json!({ "training": { "maxTokensPerMicroBatch": 12, "maxLogprobTokens": 12 } }));
        let mut sharded = changes.clone();
        merge(&mut sharded, json!({ "workers": { "mesh": { "dpShard": 2 } } }));
        for (count, changes) in [(1, torn), (2, changes), (2, sharded)] {
            let difference = ranks::difference(&one, &ranks::train(count, &changes));
            assert!(difference < ranks::TOLERANCE, "{count} ranks, {changes}: {difference}");
        }
    }
}

#[test]
fn losses_without_a_reference_keep_none() {
    for kind in ["SimPO", "CPO", "ORPO"] {
        let place = ranks::train(1, &preference(kind, json!({})));
        assert!(cached_logprobs(&place).is_empty());
        assert!(place.steps().iter().all(|step| step["timing_s/ref"].is_null()), "{kind}");
        let evaluation = &place.metrics()[0];
        for name in ["preference/loss", "rewards/accuracies", "rewards/margins", "logps/chosen"] {
            assert!(evaluation[format!("val-core/{name}")].is_number(), "{kind}: {evaluation}");
        }
    }
}

#[test]
fn the_reference_point_of_labels_is_measured_on_every_step() {
    let place = ranks::train(1, &preference("KTO", json!({})));
    let steps = place.steps();
    assert_eq!(steps[0]["kl"], 0.0, "actor and reference are the same");
    assert!((steps[0]["preference/loss"].as_f64().unwrap() - 0.5).abs() < ROUNDING);
    for name in ["rewards/chosen", "rewards/rejected", "logps/chosen", "logps/rejected"] {
        assert!(steps[1][name].is_number(), "{}", steps[1]);
    }
}

#[test]
fn without_a_reference_point_kto_takes_one_prompt_a_step() {
    let more = json!({
        "algorithm": { "preference": { "referencePoint": false } }, "training": { "promptsPerStep": 1 }
    });
    let place = ranks::train(1, &preference("KTO", more));
    assert!(place.steps().iter().all(|step| step["kl"] == 0.0), "{:?}", place.steps());
}

#[test]
fn pairs_of_a_file_are_learned_and_a_bad_row_ends_the_job_with_its_column() {
    let place = Place::new();
    let (train, held_out) = (place.file("pairs.jsonl"), place.file("held-out.jsonl"));
    let rows = ["1+1=", "2+2=", "3+4="]
        .map(|prompt| json!({ "prompt": prompt, "chosen": "7", "rejected": "0+" }).to_string() + "\n");
    fs::write(&train, rows.concat()).unwrap();
    fs::write(&held_out, &rows[0]).unwrap();
    let changes = preference(
        "DPO",
        json!({ "data": { "task": null, "train": [train], "heldOut": [held_out] }, "rewards": null }),
    );
    let mut manifest = tiny_with(changes);
    manifest["spec"]["data"].as_object_mut().unwrap().remove("task");
    manifest["spec"].as_object_mut().unwrap().remove("rewards");
    place.train(&manifest).expect(0, &[]);
    let accuracy = |line: &Value| line["val-core/rewards/accuracies"].as_f64();
    let accuracies: Vec<f64> = place.metrics().iter().filter_map(accuracy).collect();
    assert_eq!(accuracies, [0.0, 1.0], "equal rewards before, the right order after three steps");

    let bad = Place::new();
    fs::write(&train, rows[0].clone() + "{\"prompt\": \"1+1=\", \"chosen\": \"2\", \"rejected\": 3}\n")
        .unwrap();
    let said = ["pairs.jsonl row 2", "column \"rejected\" is 3"];
    bad.train(&manifest).expect(78, &said);
}
