//! Expert parallelism: ranks with different experts equal one rank that has all, in every role, and each
//! resumes from the other's checkpoints.

use serde_json::{Value, json};

use crate::job::{Place, merge};
use crate::ranks::{TOLERANCE, assert_resume_each_other, difference, on, train};

/// A mixture whose router has a loss, with a critic and a frozen reference.
fn mixture(changes: &Value) -> Value {
    let architecture = json!({
        "family": "Qwen3Moe", "experts": { "count": 4, "perToken": 2 }, "hiddenSize": 22, "intermediateSize": 14,
        "numLayers": 2, "numHeads": 2, "headDim": 10
    });
    let mut all = json!({
        "model": { "architecture": architecture },
        "algorithm": {
            "kind": "PPO", "critic": { "learningRate": 0.01 }, "kl": { "placement": "Loss", "coefficient": 0.1 }
        },
        "training": { "promptsPerUpdate": 1, "steps": 2, "routerAuxLossCoef": 0.01 }
    });
    merge(&mut all, changes.clone());
    all
}

fn on_mesh(mesh: &Value, changes: &Value) -> Value {
    let mut shared = mixture(changes);
    merge(&mut shared, json!({ "workers": { "mesh": mesh.clone() } }));
    shared
}

#[test]
fn ranks_with_different_experts_equal_one_rank_in_every_role() {
    let one = train(1, &mixture(&json!({})));
    for mesh in [
        json!({ "dpShard": 2, "sp": 2, "ep": 2, "rolloutTp": 2 }),
        json!({ "dpShard": 4, "ep": 4 }),
        json!({ "dpShard": 2, "tp": 2, "ep": 2 }),
    ] {
        let difference = difference(&one, &train(4, &on_mesh(&mesh, &json!({}))));
        assert!(difference < TOLERANCE, "{mesh} differs by {difference}");
    }
}

#[test]
fn any_distribution_of_experts_resumes_from_a_checkpoint_of_any_other() {
    assert_resume_each_other([
        (1, mixture(&json!({}))),
        (4, on_mesh(&json!({ "dpShard": 4, "ep": 2 }), &json!({}))),
    ]);
}

#[test]
fn meshes_that_cannot_distribute_experts_are_refused_with_the_values_that_can() {
    let refused = |changes: &Value, words: &[&str]| Place::new().train(&on(4, changes)).expect(2, words);
    let dense = json!({ "workers": { "mesh": { "dpShard": 2, "ep": 2 } } });
    refused(&dense, &["spec.workers.mesh.ep", "1 for a model without experts"]);
    let roles = on_mesh(&json!({ "dpShard": 4, "ep": 4, "referenceDpShard": 2 }), &json!({}));
    refused(&roles, &["spec.workers.mesh.ep", "ep must divide referenceDpShard * sp", "one of 1, 2"]);
}
