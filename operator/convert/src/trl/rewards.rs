//! TRL's rewards: its own functions, user functions, reward models.

use serde_json::{Value, json};

use crate::draft::Draft;
use crate::rewards::{model, python, server};
use crate::settings::Settings;

/// Sets the section `rewards`.
pub(super) fn finish(settings: &Settings, draft: &mut Draft) {
    let mut functions = Vec::new();
    for key in ["reward_model_name_or_path", "reward_model_path"] {
        functions.extend(settings.text(key).map(|path| model(&path)));
    }
    for name in settings.list("reward_funcs") {
        functions.extend(function(&name, draft));
    }
    if functions.is_empty() {
        draft.remark("rewards", "the script chooses its reward functions in Python: a server of one's own stands for them (docs/rewards.md).");
        functions.push(server("reward"));
    }
    let weights = settings.get("reward_weights").and_then(Value::as_array);
    for (function, weight) in functions.iter_mut().zip(weights.into_iter().flatten()) {
        function["weight"] = weight.clone();
    }
    draft.set("spec.rewards.functions", functions);
}

fn function(name: &str, draft: &mut Draft) -> Option<Value> {
    match name {
        "accuracy_reward" | "reasoning_accuracy_reward" => Some(json!({"name": "accuracy", "kind": "Math"})),
        "think_format_reward" => Some(
            json!({"name": "think_format", "kind": "Format", "pattern": r"(?s)^(?:<think>)?(?:(?!</?think>).)*</think>(?:(?!</?think>).)*$"}),
        ),
        "get_soft_overlong_punishment" => {
            draft.set("spec.rewards.overlong.bufferTokens", 256);
            None
        }
        path => {
            let (module, short) = path.rsplit_once('.').unwrap_or(("rewards", path));
            Some(python(path, module, short, draft))
        }
    }
}
