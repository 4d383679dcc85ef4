//! Ranks that share one model train as one that has the whole, and leave checkpoints that any number of ranks goes on
//! from.

use serde_json::{Value, json};

use crate::job::{Place, merge};
use crate::ranks::{TOLERANCE, difference, on, train};

/// `changes` with the model shared by `dp_shard` ranks, in sizes that these do not divide.
fn shared_by(dp_shard: u32, changes: &Value) -> Value {
    let mut shared = uneven(changes);
    merge(&mut shared, json!({ "workers": { "mesh": { "dpShard": dp_shard } } }));
    shared
}

fn uneven(changes: &Value) -> Value {
    let architecture = json!({
        "family": "Qwen3", "hiddenSize": 22, "intermediateSize": 27, "numLayers": 2, "numHeads": 2, "headDim": 10
    });
    let mut all = json!({ "model": { "architecture": architecture } });
    merge(&mut all, changes.clone());
    all
}

#[test]
fn ranks_that_share_a_model_train_as_one() {
    let changes = json!({
        "algorithm": { "coldStart": { "steps": 2, "batchSize": 5 } },
        "training": { "steps": 3, "evaluateEvery": 1, "evaluateBefore": true }
    });
    let one = train(1, &uneven(&changes));
    for (count, dp_shard) in [(2, 2), (4, 2)] {
        let shared = train(count, &shared_by(dp_shard, &changes));
        let difference = difference(&one, &shared);
        assert!(difference < TOLERANCE, "{count} ranks by {dp_shard} differ by {difference}");
    }
}

#[test]
fn every_pass_over_the_model_is_the_same_on_shards() {
    for changes in [
        json!({ "model": { "lora": { "rank": 4, "alpha": 8 } }, "algorithm": { "kl": { "coefficient": 0.1 } } }),
        json!({ "algorithm": { "kind": "GSPO" }, "training": { "promptsPerUpdate": 1, "epochsPerBatch": 2 } }),
        json!({ "algorithm": { "loss": { "policy": "ClipCov" }, "advantage": { "estimator": "OptimalTokenBaseline" } } }),
    ] {
        let (one, three) = (train(1, &uneven(&changes)), train(3, &shared_by(3, &changes)));
        let difference = difference(&one, &three);
        assert!(difference < TOLERANCE, "{changes} differs by {difference}");
    }
}

#[test]
fn a_checkpoint_of_shards_is_gone_on_from_by_any_number_of_ranks() {
    let steps =
        |steps: u32| json!({ "training": { "steps": steps }, "algorithm": { "coldStart": { "steps": 1 } } });
    let whole = train(1, &uneven(&steps(5)));
    let resumed = Place::new();
    for (count, dp_shard, num_steps) in [(4, 2, 1), (1, 1, 2), (3, 3, 3), (2, 2, 4), (1, 1, 5)] {
        let says = (num_steps > 1).then(|| format!("resuming after step {}", num_steps - 1));
        let says: Vec<&str> = says.iter().map(String::as_str).collect();
        resumed.train(&on(count, &shared_by(dp_shard, &steps(num_steps)))).expect(0, &says);
    }
    let difference = difference(&whole, &resumed);
    assert!(difference < TOLERANCE, "{difference}");
}

#[test]
fn a_degree_that_does_not_divide_the_workers_is_refused_by_its_name() {
    let place = Place::new();
    place
        .train(&on(4, &shared_by(3, &json!({}))))
        .expect(2, &["spec.workers.mesh.dpShard", "one of 1, 2, 4"]);
}
