//! Modules that an adapter of another trainer targets.

use crate::draft::Draft;

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
