//! EXAONE 4: norms after the blocks and of each head of queries and keys; where some layers have a window,
//! the others have no rotary embedding.

use super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::{BlockNorms, QkNorm};
use super::{Defaults, Definition};

pub(super) const EXAONE4: Definition = Definition {
    architecture: "Exaone4ForCausalLM",
    classifier: "Exaone4ForSequenceClassification",
    model_type: "exaone4",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults { num_kv_heads: Some(32), rms_norm_eps: 1e-5, bos: Some(0), ..Defaults::LLAMA },
    shape: |config| {
        config.block_norms = BlockNorms::AFTER;
        config.qk_norm = QkNorm::Head;
    },
    read: |fields, config| {
        let window = window(fields, Some(4096))?;
        // `layer_types` takes precedence over a pattern of letters, which says the same.
        let pattern = match fields.list("layer_types")? {
            None => fields.size("sliding_window_pattern")?.unwrap_or(4),
            Some(_) => 4,
        };
        let slides = |layer_idx: usize| !(layer_idx + 1).is_multiple_of(pattern);
        config.layer_windows = by_layer_types(fields, config.num_layers, window, slides)?;
        let turns = |layer_window: &Option<usize>| (window.is_none() || layer_window.is_some()).then_some(0);
        config.layer_ropes = config.layer_windows.iter().map(turns).collect();
        Ok(())
    },
    write: |config, document| {
        write_layer_types(config, document);
        if !config.layer_ropes.contains(&Some(0)) {
            // Without a layer with a window there is no window size to write, and no layer has a rotary
            // embedding.
            document["sliding_window"] = 4096.into();
        }
    },
};
