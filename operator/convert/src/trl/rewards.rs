//! TRL's rewards: its own functions, functions of one's own, reward models.

use serde_json::{Value, json};

use crate::draft::Draft;
use crate::settings::Settings;
use crate::verl::is_hub_name;

/// Where a server of one's own is expected.
const SERVER: &str = "http://127.0.0.1:8000/";

/// Sets the section `rewards`.
pub(super) fn finish(settings: &Settings, draft: &mut Draft) {
    let mut functions = Vec::new();
    for key in ["reward_model_name_or_path", "reward_model_path"] {
        functions.extend(settings.text(key).map(|path| reward_model(&path)));
    }
    for name in settings.list("reward_funcs") {
        functions.extend(function(&name, draft));
    }
    if functions.is_empty() {
        draft.remark("rewards", "the script chooses its reward functions in Python: a server of one's own stands for them (docs/rewards.md).");
        functions.push(json!({"name": "reward", "kind": "Server", "server": {"url": SERVER}}));
    }
    let weights = settings.get("reward_weights").and_then(Value::as_array);
    for (function, weight) in functions.iter_mut().zip(weights.into_iter().flatten()) {
        function["weight"] = weight.clone();
    }
    draft.set("spec.rewards.functions", functions);
}

fn reward_model(path: &str) -> Value {
    let model = if is_hub_name(path) { json!({"hub": {"repo": path}}) } else { json!({"path": path}) };
    json!({"name": "reward_model", "kind": "Model", "model": model})
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
            draft.python_reward = Some((module.to_owned(), short.to_owned()));
            draft.remark(
                "rewards",
                format!(
                    "{path} is Python: it runs behind a server that speaks the protocol of docs/rewards.md."
                ),
            );
            Some(json!({"name": short, "kind": "Server", "server": {"url": SERVER}}))
        }
    }
}
