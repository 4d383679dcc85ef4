//! Modules that an adapter of another trainer targets, and the quantization of the adapter's base weights.

use crate::draft::Draft;
use crate::settings::Settings;

/// Characters that occur in regular expressions and not in names of modules.
const OF_PATTERNS: [char; 11] = ['*', '+', '?', '[', ']', '(', ')', '|', '^', '$', '\\'];

/// Sets the modules by their names, or by a pattern: PEFT reads a single text as a regular expression.
pub(crate) fn target(names: Vec<String>, draft: &mut Draft) {
    match names.as_slice() {
        [] => {}
        [pattern] if pattern.contains(OF_PATTERNS) => {
            draft.set("spec.model.lora.targetPattern", pattern.as_str());
        }
        _ => draft.set("spec.model.lora.targetModules", names),
    }
}

/// Sets a base model in 4 or 8 bits, from the settings that TRL and open-instruct pass to bitsandbytes. The
/// 4-bit type is nf4 by default in both.
pub(crate) fn quantization(settings: &Settings, draft: &mut Draft) {
    let four = match settings.text("bnb_4bit_quant_type").as_deref() {
        Some("fp4") => "Fp4",
        _ => "Nf4",
    };
    match (settings.is_true("load_in_4bit"), settings.is_true("load_in_8bit")) {
        (true, _) => draft.set("spec.model.quantization.format", four),
        (false, true) => draft.set("spec.model.quantization.format", "Int8"),
        (false, false) => return,
    }
    if settings.is_true("load_in_4bit") && settings.is_true("use_bnb_nested_quant") {
        draft.set("spec.model.quantization.doubleQuantization", true);
    }
}
