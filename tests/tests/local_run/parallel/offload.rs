//! A job with offloaded parameters, moments and layer inputs equals one without offload, bit for bit, in less
//! memory; and a full disk is named in the error.

use rlt_tests::SmallDisk;
use serde_json::{Value, json};

use crate::job::{Place, merge, tiny, tiny_with};
use crate::memory;
use crate::resume::assert_same_run;

/// Returns `changes` with activation checkpointing, and with everything offloaded or nothing.
fn job(changes: &Value, offloaded: bool) -> Value {
    let mut manifest = tiny_with(changes.clone());
    let offload = json!({ "parameters": offloaded, "optimizer": offloaded, "activations": offloaded });
    merge(
        &mut manifest["spec"],
        json!({ "training": { "activationCheckpointing": true, "offload": offload } }),
    );
    manifest
}

/// Changes for a job with all roles: a critic, and a reference that has its own weights or is the adapter's
/// base.
fn roles() -> Value {
    json!({
        "model": { "architecture": { "numLayers": 2 } },
        "algorithm": { "kind": "PPO", "critic": { "learningRate": 0.01 }, "kl": { "placement": "Loss", "coefficient": 0.1 } },
        "training": { "promptsPerUpdate": 1 }
    })
}

#[test]
fn a_run_with_everything_offloaded_equals_one_without_offload() {
    let mut adapters = roles();
    merge(&mut adapters, json!({ "model": { "lora": { "rank": 4 } } }));
    let supervised = json!({ "algorithm": { "coldStart": { "steps": 2, "batchSize": 5 } } });
    for changes in [roles(), adapters, supervised] {
        let (staying, offloading) = (Place::new(), Place::new());
        staying.train(&job(&changes, false)).expect(0, &[]);
        offloading.train(&job(&changes, true)).expect(0, &[]);
        assert_same_run(&staying, &offloading);
    }
}

#[test]
fn a_role_is_offloaded_by_itself_or_stays_by_itself_bit_for_bit() {
    let staying = Place::new();
    staying.train(&job(&roles(), false)).expect(0, &[]);
    for offloaded in [true, false] {
        let offload = json!({ "parameters": offloaded, "optimizer": offloaded, "activations": offloaded });
        let own =
            json!({ "critic": { "offload": offload }, "reference": { "offloadParameters": offloaded } });
        let mut manifest = job(&roles(), !offloaded);
        merge(&mut manifest["spec"], json!({ "training": { "roles": own } }));
        let place = Place::new();
        place.train(&manifest).expect(0, &[]);
        assert_same_run(&staying, &place);
    }
}

/// The run has a cold start, after which the reference is in checkpoints too.
#[test]
fn a_run_resumes_with_offload_switched_on_or_off() {
    let mut changes = roles();
    merge(&mut changes, json!({ "algorithm": { "coldStart": { "steps": 2, "batchSize": 5 } } }));
    let steps = |steps: u64, offloaded: bool| {
        let mut manifest = job(&changes, offloaded);
        merge(&mut manifest["spec"], json!({ "training": { "steps": steps } }));
        manifest
    };
    let (whole, resumed) = (Place::new(), Place::new());
    whole.train(&steps(6, false)).expect(0, &[]);
    for (num_steps, offloaded, says) in
        [(2, true, None), (4, false, Some("after step 2")), (6, true, Some("after step 4"))]
    {
        resumed.train(&steps(num_steps, offloaded)).expect(0, says.as_slice());
    }
    assert_same_run(&whole, &resumed);
}

/// The job is SFT, because sampling holds a packed copy of the full model.
#[test]
fn offloaded_tensors_take_the_estimated_memory_and_release_it() {
    let measured = [false, true].map(|offloaded| {
        let mut manifest = memory::large();
        let all = json!({ "parameters": offloaded, "optimizer": offloaded, "activations": offloaded });
        let changes = json!({
            "model": { "architecture": { "numLayers": 12 } },
            "algorithm": { "kind": "SFT" },
            "rewards": { "functions": [] },
            "data": { "task": { "numTrain": 64 } },
            "rollout": { "maxCompletionTokens": 8 },
            "training": {
                "steps": 2, "promptsPerStep": 22, "maxTokensPerMicroBatch": 256, "activationCheckpointing": true, "offload": all,
                "evaluateBefore": false
            }
        });
        merge(&mut manifest["spec"], changes);
        let place = Place::on_disk();
        memory::train_as_estimated(if offloaded { "offloaded" } else { "on the device" }, &place, &manifest);
        memory::measured(&place.run(""))
    });
    // Offload saves 12 bytes for each of 21 million parameters, except for two layers and the tensors that an
    // update fetches.
    let fallen = (measured[0] - measured[1]) * 1024.0;
    assert!(fallen > 200.0, "{measured:?} GiB differ by {fallen:.0} MiB");
}

#[test]
fn a_full_disk_ends_a_run_as_retryable_and_names_the_file() {
    let place = Place::new();
    let folder = place.run("");
    let Some(_disk) = SmallDisk::mount(&folder, "1m") else {
        rlt_skipped::skip("a full disk needs a process that may mount");
        return;
    };
    let wide = json!({ "model": { "architecture": { "hiddenSize": 128, "intermediateSize": 512 } } });
    let mut manifest = tiny();
    merge(&mut manifest["spec"], wide);
    merge(&mut manifest["spec"], json!({ "training": { "offload": { "optimizer": true } } }));
    let folder = folder.display().to_string();
    let words =
        ["moments of parameter", "unlinked file of", folder.trim_end_matches('/'), "No space left on device"];
    place.train(&manifest).expect(75, &words);
}
