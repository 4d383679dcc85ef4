//! Command R7B and A: Command R with a sliding window in all layers but every fourth, which has no rotary
//! embedding.

use super::super::super::ModelConfig;
use super::super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::{Defaults, Definition};
use super::cohere;

pub(in crate::families) const COHERE2: Definition = Definition {
    architecture: "Cohere2ForCausalLM",
    classifier: "Cohere2ForSequenceClassification",
    model_type: "cohere2",
    has_classifier: false,
    has_windows: true,
    defaults: Defaults { rope_theta: 10_000.0, ..cohere::DEFAULTS },
    shape: |config| {
        cohere::shape(config);
        let window = |layer_idx: usize| slides(layer_idx, PATTERN).then_some(WINDOW);
        config.layer_windows = (0..config.num_layers).map(window).collect();
        turn_where_layers_slide(config);
    },
    read: |fields, config| {
        cohere::read(fields, config)?;
        let pattern = fields.size("sliding_window_pattern")?.unwrap_or(PATTERN);
        let (num_layers, window) = (config.num_layers, window(fields, Some(WINDOW))?);
        let slides = |layer_idx| slides(layer_idx, pattern);
        config.layer_windows = by_layer_types(fields, num_layers, window, slides)?;
        turn_where_layers_slide(config);
        Ok(())
    },
    write: |config, document| {
        cohere::write(config, document);
        write_layer_types(config, document);
    },
};

const WINDOW: usize = 4096;
const PATTERN: usize = 4;

fn slides(layer_idx: usize, pattern: usize) -> bool {
    !(layer_idx + 1).is_multiple_of(pattern)
}

/// Removes the rotary embedding of layers with full attention.
fn turn_where_layers_slide(config: &mut ModelConfig) {
    config.layer_ropes = config.layer_windows.iter().map(|window| window.map(|_| 0)).collect();
}
