//! Layers that stay unsharded between forward and backward pass: their memory, and refused settings.

use rlt_api::validate;
use serde_json::{Value, json};

use super::{check_model, manifest, qwen, spec, term};
use crate::Phase;

#[test]
fn layers_that_stay_gathered_for_their_backward_pass_take_the_memory_of_an_update() {
    let keeping = |training: Value| {
        move |spec: &mut Value| {
            spec["training"].as_object_mut().unwrap().extend(training.as_object().unwrap().clone());
            spec["workers"] = json!({"count": 4, "mesh": {"dpShard": 4}, "device": "Cpu"});
        }
    };
    let (outer, num_layers) = (151_936 * 896 + 896, 24);
    let layer = (494_032_768 - outer) / num_layers;
    let all = json!({"reshardAfterForward": false});
    for (training, layers) in [
        (json!({}), 2),
        (json!({"unshardedLayers": 1}), 2),
        (json!({"unshardedLayers": 7}), 7),
        (all.clone(), num_layers),
    ] {
        let gathered = |phase| term(keeping(training.clone()), phase, "gathered weights");
        assert_eq!(gathered(Phase::Update), 4 * (outer + layers * layer), "{training}");
        assert_eq!(gathered(Phase::Logprob), 4 * (outer + 2 * layer), "without gradients nothing waits");
    }
    let refused = |training: Value, dp_shard: u32| {
        let mut spec = spec();
        keeping(training)(&mut spec);
        spec["workers"]["mesh"]["dpShard"] = dp_shard.into();
        match validate(&manifest(&spec)) {
            Err(problems) => Some(problems.iter().map(ToString::to_string).collect()),
            Ok(job) => check_model(job.spec(), &qwen()).err().map(|refusal| refusal.to_string()),
        }
    };
    assert_eq!(refused(all.clone(), 2), None);
    let nothing_gathered = refused(all, 1).unwrap();
    assert!(nothing_gathered.contains("spec.training.reshardAfterForward"), "{nothing_gathered}");
    let both = refused(json!({"reshardAfterForward": false, "unshardedLayers": 2}), 2).unwrap();
    assert!(both.contains("spec.training.unshardedLayers"), "{both}");
    let too_many = refused(json!({"unshardedLayers": 25}), 2).unwrap();
    assert!(too_many.contains("spec.training.unshardedLayers: the model has 24 layers"), "{too_many}");
}
