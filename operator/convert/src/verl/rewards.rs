//! verl's rewards: by data source, by a user function, by a model, by a sandbox.

use serde_json::{Value, json};

use crate::draft::Draft;
use crate::rewards::{model, python};
use crate::settings::Settings;

/// What verl judges as GSM8K.
const GSM8K: [&str; 1] = ["openai/gsm8k"];
/// What verl judges by the boxed answer of a competition problem.
const MATH: [&str; 3] = ["lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"];

/// Sets the section `rewards`.
pub(super) fn finish(settings: &Settings, draft: &mut Draft) {
    let functions = match (own_function(settings), reward_model(settings), sandbox(settings)) {
        (Some((path, function)), ..) => {
            vec![python(&format!("{path}:{function}"), &path, &function, draft)]
        }
        (None, Some(path), _) => vec![model(&path)],
        (None, None, Some(url)) => vec![json!({"name": "code", "kind": "Code", "server": {"url": url}})],
        (None, None, None) => by_data_source(settings, draft),
    };
    draft.set("spec.rewards.functions", functions);
    overlong(settings, draft);
}

fn own_function(settings: &Settings) -> Option<(String, String)> {
    ["reward.custom_reward_function", "custom_reward_function"].iter().find_map(|prefix| {
        let path = settings.text(&format!("{prefix}.path"))?;
        let name = settings.text(&format!("{prefix}.name")).unwrap_or_else(|| "compute_score".to_owned());
        Some((path, name))
    })
}

fn reward_model(settings: &Settings) -> Option<String> {
    let is_enabled =
        settings.is_true("reward.reward_model.enable") || settings.is_true("reward_model.enable");
    let path =
        settings.text("reward.reward_model.model_path").or_else(|| settings.text("reward_model.model.path"));
    path.filter(|_| is_enabled)
}

fn sandbox(settings: &Settings) -> Option<String> {
    const KEYS: [&str; 3] =
        ["reward.sandbox_fusion.url", "reward_model.sandbox_fusion.url", "sandbox_fusion.url"];
    KEYS.iter().find_map(|key| settings.text(key))
}

/// As verl's own table has it, of which a script shows only the names of its files.
fn by_data_source(settings: &Settings, draft: &mut Draft) -> Vec<Value> {
    let files = settings.list("data.train_files").join(" ").to_ascii_lowercase();
    let (gsm8k, math) = (files.contains("gsm8k"), files.contains("math"));
    let function = |name: &str, kind: &str, sources: &[&str]| json!({"name": name, "kind": kind, "dataSources": sources});
    match (gsm8k, math) {
        (true, false) => vec![json!({"name": "gsm8k", "kind": "Gsm8k"})],
        (false, true) => vec![json!({"name": "math", "kind": "Math"})],
        (true, true) => vec![function("gsm8k", "Gsm8k", &GSM8K), function("math", "Math", &MATH)],
        (false, false) => {
            draft.remark(
                "rewards",
                "verl chooses a function by data_source; the names of these files do not say which. Math is a guess: see docs/rewards.md.",
            );
            vec![json!({"name": "math", "kind": "Math"})]
        }
    }
}

/// DAPO's penalty on length, under the names of several versions.
fn overlong(settings: &Settings, draft: &mut Draft) {
    const PREFIXES: [&str; 4] = [
        "reward.reward_kwargs.overlong_buffer_cfg",
        "reward_model.reward_kwargs.overlong_buffer_cfg",
        "reward.overlong_buffer",
        "reward_model.overlong_buffer",
    ];
    let Some(prefix) = PREFIXES.iter().find(|prefix| settings.is_true(&format!("{prefix}.enable"))) else {
        return;
    };
    draft.set_some("spec.rewards.overlong.bufferTokens", settings.count(&format!("{prefix}.len")));
    draft.set_some(
        "spec.rewards.overlong.penaltyFactor",
        settings.number(&format!("{prefix}.penalty_factor")),
    );
}
