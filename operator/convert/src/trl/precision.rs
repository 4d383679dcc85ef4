//! TRL's precision, if it follows from several settings together.

use crate::draft::Draft;
use crate::settings::{Settings, is_true};

/// Sets fp32 for a script that turns off `bf16`, TRL's default, and loads the model in fp32.
pub(super) fn finish(settings: &Settings, draft: &mut Draft) {
    let is_off = settings.get("bf16").is_some_and(|bf16| !is_true(bf16));
    let dtype = settings.text("dtype").or_else(|| settings.text("torch_dtype"));
    let is_loaded_in_fp32 = dtype.is_none_or(|dtype| matches!(dtype.as_str(), "float32" | "fp32"));
    if is_off && is_loaded_in_fp32 && !draft.has("training.precision") {
        draft.set("spec.training.precision", "Fp32");
    }
}
