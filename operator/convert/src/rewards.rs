//! Reward functions that the projects have in common: models, and Python behind a server.

use serde_json::{Value, json};

use crate::draft::Draft;

/// Where a server of one's own is expected.
const SERVER: &str = "http://127.0.0.1:8000/";

/// Whether a name is a repository's, such as `Qwen/Qwen3-8B`, and no path.
pub(crate) fn is_hub_name(name: &str) -> bool {
    name.split('/').count() == 2 && !name.starts_with(['/', '.', '~', '$'])
}

/// A reward model of the hub by owner and name, or in a folder.
pub(crate) fn model(path: &str) -> Value {
    let model = if is_hub_name(path) { json!({"hub": {"repo": path}}) } else { json!({"path": path}) };
    json!({"name": "reward_model", "kind": "Model", "model": model})
}

/// A function behind a server.
pub(crate) fn server(name: &str) -> Value {
    json!({"name": name, "kind": "Server", "server": {"url": SERVER}})
}

/// A function of a Python file or module, named `whole` in its project: it needs a server.
pub(crate) fn python(whole: &str, module: &str, function: &str, draft: &mut Draft) -> Value {
    draft.python_reward = Some((module.to_owned(), function.to_owned()));
    let protocol = "it runs behind a server that speaks the protocol of docs/rewards.md";
    draft.remark("rewards", format!("{whole} is Python: {protocol}."));
    server(function)
}
