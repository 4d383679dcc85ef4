//! OLMo 3: OLMo 2 with a sliding window in all layers but every fourth, and a scaled rotary embedding in
//! layers with full attention.

use super::super::super::rope::{by_window, write_by_window};
use super::super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::{Defaults, Definition, read_attention_bias, write_attention_bias};
use super::olmo2;

const THETA: f64 = 500_000.0;

pub(in crate::families) const OLMO3: Definition = Definition {
    architecture: "Olmo3ForCausalLM",
    classifier: "Olmo3ForSequenceClassification",
    model_type: "olmo3",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults { rope_theta: THETA, ..olmo2::DEFAULTS },
    shape: olmo2::shape,
    read: |fields, config| {
        read_attention_bias(fields, config)?;
        let window = window(fields, Some(4096))?;
        let slides = |layer_idx: usize| !(layer_idx + 1).is_multiple_of(4);
        config.layer_windows = by_layer_types(fields, config.num_layers, window, slides)?;
        // transformers 5.17 gives `rope_theta` of an old file to layers with full attention alone.
        by_window(fields, config, None, THETA)
    },
    write: |config, document| {
        write_attention_bias(config, document);
        write_layer_types(config, document);
        write_by_window(config, document);
    },
};
