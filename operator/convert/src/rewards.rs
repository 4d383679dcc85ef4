//! Reward functions that the projects have in common: reward models, and Python functions behind a server.

use serde_json::{Value, json};

use crate::draft::Draft;

/// Assumed address of a user's reward server.
const SERVER: &str = "http://127.0.0.1:8000/";

/// Whether a name is that of a repository, such as `Qwen/Qwen3-8B`, and not a path.
pub(crate) fn is_hub_name(name: &str) -> bool {
    name.split('/').count() == 2 && !name.starts_with(['/', '.', '~', '$'])
}

/// Makes a reward model of the hub, by owner and name, or of a folder.
pub(crate) fn model(path: &str) -> Value {
    let model = if is_hub_name(path) { json!({"hub": {"repo": path}}) } else { json!({"path": path}) };
    json!({"name": "reward_model", "kind": "Model", "model": model})
}

/// Makes a reward function behind a server.
pub(crate) fn server(name: &str) -> Value {
    json!({"name": name, "kind": "Server", "server": {"url": SERVER}})
}

/// Makes the function of a Python file or module, called `whole` in its project. It needs a reward server.
pub(crate) fn python(whole: &str, module: &str, function: &str, draft: &mut Draft) -> Value {
    draft.python_reward = Some((module.to_owned(), function.to_owned()));
    let protocol = "it runs behind a server that speaks the protocol of docs/rewards.md";
    draft.remark("rewards", format!("{whole} is Python: {protocol}."));
    server(function)
}
