//! Phi-3, Phi-3.5 and Phi-4: fused query, key and value projections, fused gate and up; rotary embeddings may
//! cover a part of each head, and be scaled by LongRoPE.

use super::super::FusedProjections;
use super::super::windows::window;
use super::{Defaults, Definition};

/// Dropout fields of the residual stream and of embeddings. They must be 0: with dropout an update would
/// compute other log-probs than the policy that sampled.
const DROPOUTS: [&str; 2] = ["resid_pdrop", "embd_pdrop"];

pub(super) const PHI3: Definition = Definition {
    architecture: "Phi3ForCausalLM",
    classifier: "Phi3ForSequenceClassification",
    model_type: "phi3",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults {
        max_positions: 4096,
        rms_norm_eps: 1e-5,
        partial_rotary_factor: Some(1.0),
        longrope_context: Some(4096),
        eos: &[32_000],
        pad: Some(32_000),
        ..Defaults::LLAMA
    },
    shape: |config| config.fused_projections = FusedProjections { qkv: true, gate_up: true },
    read: |fields, config| {
        for dropout in DROPOUTS {
            if fields.number(dropout)?.is_some_and(|probability| probability != 0.0) {
                return Err(fields.unsupported(dropout, "0.0"));
            }
        }
        config.layer_windows = vec![window(fields, None)?; config.num_layers];
        Ok(())
    },
    write: |config, document| {
        for dropout in DROPOUTS {
            document[dropout] = 0.0.into();
        }
        document["sliding_window"] = config.layer_windows.first().copied().flatten().into();
    },
};
