//! Cache of a tower's image features by the image's digest.

use std::sync::Arc;

use rlt_core::images::PromptImage;
use rlt_models::ModelConfig;
use serde_json::json;
use tch::no_grad;

use super::VisionTower;
use crate::{Adapter, LoadOptions, Weights};

fn tower() -> VisionTower {
    let config = ModelConfig::from_json(&json!({
        "architectures": ["Qwen2VLForConditionalGeneration"], "vocab_size": 8, "hidden_size": 16,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "image_token_id": 4, "video_token_id": 5, "vision_start_token_id": 6, "vision_end_token_id": 7,
        "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
        "vision_config": {"embed_dim": 8, "hidden_size": 16, "depth": 1, "num_heads": 2, "patch_size": 2}
    }));
    let weights = Weights::random_init(&config.unwrap(), 1);
    VisionTower::read(&weights, &LoadOptions::default()).unwrap().unwrap()
}

/// An image of 2 x 4 patches, two tokens.
fn image(digest: u64) -> Arc<PromptImage> {
    let grid = rlt_core::images::ImageGrid { frames: 1, rows: 2, columns: 4 };
    let patches = (0..8 * 24).map(|place| (place % 7) as f32 / 7.0).collect();
    Arc::new(PromptImage { digest, grid, patches })
}

#[test]
fn an_image_goes_through_the_tower_once_however_often_prompts_name_it() {
    let tower = tower();
    let first = tower.features_of(&image(1), Adapter::On);
    assert_eq!(first.size(), [2, 16]);
    // The same image of another sample of the group, or of another epoch, in which the row was read again.
    assert_eq!(tower.features_of(&image(1), Adapter::On).data_ptr(), first.data_ptr());
    let other = tower.features_of(&image(2), Adapter::On);
    assert_ne!(other.data_ptr(), first.data_ptr());
    assert!(other.equal(&first));
}

/// Features of a trained tower are cached only by snapshots, such as the rollout's.
#[test]
fn features_of_trained_weights_are_computed_in_every_pass_and_kept_for_a_snapshot() {
    let tower = tower().trained();
    let pass = || tower.features_of(&image(1), Adapter::On);
    let first = pass();
    assert_ne!(pass().data_ptr(), first.data_ptr());
    let snapshot = || tower.snapshot(|_, own| own.detach());
    let kept = snapshot();
    let [one, again] = [(); 2].map(|()| kept.features_of(&image(1), Adapter::On));
    assert!(one.data_ptr() == again.data_ptr() && one.equal(&first));
    for (_, mut weight) in tower.parameters() {
        let _ = no_grad(|| weight.g_mul_scalar_(1.5));
    }
    assert!(!pass().equal(&first));
    assert!(snapshot().features_of(&image(1), Adapter::On).equal(&pass()), "another version keeps its own");
    assert!(tower.cast().unwrap().features_of(&image(1), Adapter::On).equal(&pass()));
}
