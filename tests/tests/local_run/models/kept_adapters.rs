//! Adapters that a job starts from and merges into its base weights.

use std::path::Path;

use serde_json::{Value, json};

use crate::exports::export;
use crate::job::{Place, merge, on_files, small_model};
use crate::ranks::{TOLERANCE, difference};

/// A run that trains an adapter on `model`.
fn train(model: &Path, changes: Value) -> Place {
    let mut all = json!({
        "model": { "lora": { "rank": 4 } },
        "algorithm": { "kl": { "coefficient": 0.1 } },
        "training": { "steps": 2, "optimizer": { "learningRate": 0.01 } },
    });
    merge(&mut all, changes);
    let place = Place::new();
    place.train(&on_files(model, all)).expect(0, &[]);
    place
}

fn keeping(adapter: &Path) -> Value {
    json!({ "model": { "adapters": [adapter] } })
}

#[test]
fn training_on_a_kept_adapter_is_training_on_the_merged_model_on_any_ranks() {
    let first = train(small_model(), json!({}));
    let adapter = first.run("export/adapter");
    let merged = train(&first.run("export"), json!({}));
    let kept = train(small_model(), keeping(&adapter));
    let of_kept = difference(&merged, &kept);
    assert!(of_kept < TOLERANCE, "{of_kept}");
    // The first update is on policy: it differs from the reference by nothing but rounding.
    let kl = |step: usize| kept.steps()[step]["actor/kl_loss"].as_f64().unwrap();
    assert!(
        kl(0).abs() < 1e-6 && kl(1) > 100.0 * kl(0).abs(),
        "the reference is the sum: {} {}",
        kl(0),
        kl(1)
    );
    let of_none = difference(&merged, &train(small_model(), json!({})));
    assert!(of_none > 10.0 * TOLERANCE, "{of_none}");

    let mut ranks = keeping(&adapter);
    merge(&mut ranks, json!({ "workers": { "count": 2, "mesh": { "dpShard": 2 } } }));
    let of_ranks = difference(&kept, &train(small_model(), ranks));
    assert!(of_ranks < TOLERANCE, "{of_ranks}");
}

#[test]
fn an_adapter_trained_on_kept_ones_is_exported_with_the_sum_as_its_base() {
    let first = train(small_model(), json!({}));
    let mut changes = keeping(&first.run("export/adapter"));
    merge(&mut changes, json!({ "checkpoint": { "export": { "mergeLora": false } } }));
    let kept = train(small_model(), changes);
    let read = |path: &str| std::fs::read(kept.run(path)).unwrap();
    let config: Value = serde_json::from_slice(&read("export/adapter/adapter_config.json")).unwrap();
    assert_eq!(config["base_model_name_or_path"], kept.run("export").to_string_lossy().as_ref());
    let merged = std::fs::read(first.run("export/model.safetensors")).unwrap();
    let of = |bytes: &[u8], name: &str| -> Vec<f32> {
        let tensors = safetensors::SafeTensors::deserialize(bytes).unwrap();
        let numbers = tensors.tensor(name).unwrap().data().to_vec();
        numbers.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    let name = "model.layers.0.self_attn.q_proj.weight";
    let (sum, merged) = (of(&read("export/model.safetensors"), name), of(&merged, name));
    assert!(sum.len() == merged.len() && sum.iter().zip(&merged).all(|(a, b)| (a - b).abs() < 1e-6));
    export(&kept, &["--layout", "peft"]).expect(2, &["a model that the run itself made"]);
}

#[test]
fn a_kept_adapter_that_is_missing_is_named() {
    let place = Place::new();
    let missing = place.file("none");
    let ended = place.train(&on_files(small_model(), keeping(&missing)));
    ended.expect(78, &["none/adapter_config.json"]);
}
