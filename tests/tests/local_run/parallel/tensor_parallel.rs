//! Tensor parallelism of training: ranks with shards of every weight equal one rank with full weights, in
//! every role, and each resumes from the other's checkpoints.

use serde_json::{Value, json};

use crate::job::{Place, merge};
use crate::ranks::{TOLERANCE, assert_resume_each_other, difference, on, train};

/// A dense model with a critic and a frozen reference.
fn dense(changes: &Value) -> Value {
    let architecture = json!({
        "family": "Qwen3", "hiddenSize": 22, "intermediateSize": 28, "numLayers": 2, "numHeads": 4, "numKvHeads": 2,
        "headDim": 10
    });
    let mut all = json!({
        "model": { "architecture": architecture },
        "algorithm": {
            "kind": "PPO", "critic": { "learningRate": 0.01 }, "kl": { "placement": "Loss", "coefficient": 0.1 }
        },
        "training": { "promptsPerUpdate": 1, "steps": 2 }
    });
    merge(&mut all, changes.clone());
    all
}

fn on_mesh(mesh: &Value, changes: &Value) -> Value {
    let mut shared = dense(changes);
    merge(&mut shared, json!({ "workers": { "mesh": mesh.clone() } }));
    shared
}

#[test]
fn tensor_parallel_ranks_equal_one_rank_in_every_role() {
    let one = train(1, &dense(&json!({})));
    for (count, mesh) in [
        (2, json!({ "tp": 2, "rolloutTp": 2 })),
        (4, json!({ "tp": 2, "dpShard": 2 })),
        (4, json!({ "tp": 2, "sp": 2 })),
    ] {
        let difference = difference(&one, &train(count, &on_mesh(&mesh, &json!({}))));
        assert!(difference < TOLERANCE, "{mesh} differs by {difference}");
    }
}

/// Dropout masks depend on how sequences are packed, and so on the number of sequence-parallel groups. Tensor
/// parallelism does not change that number.
#[test]
fn adapters_with_dropout_and_recomputed_and_offloaded_layers_equal_those_of_unsharded_weights() {
    let adapter = json!({
        "model": { "lora": { "rank": 4, "alpha": 8, "dropout": 0.2 } },
        "training": { "activationCheckpointing": true, "offload": { "activations": true } }
    });
    let mut sharded = dense(&adapter);
    let unsharded_layers = json!({ "training": { "reshardAfterForward": false } });
    merge(&mut sharded, json!({ "workers": { "mesh": { "dpShard": 2 } } }));
    merge(&mut sharded, unsharded_layers);
    let mut cut = sharded.clone();
    merge(&mut cut, json!({ "workers": { "mesh": { "tp": 2 } } }));
    let of_inputs = difference(&train(2, &sharded), &train(4, &cut));
    assert!(of_inputs < TOLERANCE, "dropout of inputs: {of_inputs}");
    let mut after = adapter;
    merge(&mut after, json!({ "model": { "lora": { "dropoutPosition": "After" } } }));
    let of_outputs = difference(&train(1, &dense(&after)), &train(2, &on_mesh(&json!({ "tp": 2 }), &after)));
    assert!(of_outputs < TOLERANCE, "dropout of outputs: {of_outputs}");
}

/// A weight sync gathers only the shards of the adapter.
#[test]
fn an_unmerged_adapter_is_sampled_with_as_on_one_rank() {
    let adapter = json!({ "model": { "lora": { "rank": 4, "alpha": 8, "merge": false } } });
    let cut = on_mesh(&json!({ "tp": 2, "dpShard": 2, "rolloutTp": 2 }), &adapter);
    let difference = difference(&train(1, &dense(&adapter)), &train(4, &cut));
    assert!(difference < TOLERANCE, "{difference}");
}

#[test]
fn any_mesh_resumes_from_a_checkpoint_of_any_other() {
    assert_resume_each_other([
        (1, dense(&json!({}))),
        (4, on_mesh(&json!({ "tp": 2, "dpShard": 2 }), &json!({}))),
    ]);
}

#[test]
fn combinations_that_tp_does_not_serve_are_refused_by_name() {
    let refused = |mesh: &Value, changes: &Value, words: &[&str]| {
        Place::new().train(&on(4, &on_mesh(mesh, changes))).expect(2, words);
    };
    let tp = json!({ "tp": 2 });
    refused(&json!({ "tp": 4 }), &json!({}), &["spec.workers.mesh.tp", "numKvHeads", "one of 1, 2"]);
    refused(&json!({ "tp": 2, "dpShard": 4 }), &json!({}), &["dpShard * sp * tp must divide", "one of 1"]);
    let adapter = |lora: Value| json!({ "model": { "lora": lora } });
    refused(&tp, &adapter(json!({ "dora": true })), &["tp does not support DoRA"]);
    let mut quantized = adapter(json!({}));
    merge(&mut quantized, json!({ "model": { "quantization": { "format": "Nf4" } } }));
    refused(&tp, &quantized, &["tp does not split quantized weights"]);
}
