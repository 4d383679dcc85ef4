//! open-instruct's rewards: verifiers chosen by the column `dataset`, reward models and the format.

use serde_json::{Value, json};

use crate::draft::Draft;
use crate::rewards;
use crate::settings::{Settings, is_true};

/// Part of a data set's name, open-instruct's verifier, our kind, and the difference between them.
///
/// The first row that matches applies.
const VERIFIERS: [(&str, &str, &str, &str); 2] = [
    ("gsm8k", "gsm8k", "Gsm8kFlexible", "both compare the last number of a completion"),
    (
        "math",
        "math",
        "Math",
        "it accepts the boxed answer, the text behind `final answer is` or the last formula, as texts; Math compares values \
         (docs/rewards.md)",
    ),
];

/// Other names of data sets that contain GSM8K.
const GSM8K_NAMES: [&str; 2] = ["rlvr-gsm", "gsm_"];

/// Sets `rewards` by the names of the data sets, since a script shows nothing else.
pub(super) fn finish(settings: &Settings, draft: &mut Draft) {
    let weight = settings.number("verification_reward").unwrap_or(10.0);
    let names = names_of_data(settings);
    let found: Vec<_> = VERIFIERS.iter().filter(|(part, ..)| names.contains(part)).collect();
    let is_verified = settings.get("apply_verifiable_reward").is_none_or(is_true);
    let mut functions: Vec<Value> = match found.as_slice() {
        _ if !is_verified => Vec::new(),
        [] => {
            draft.remark(
                "rewards",
                "open-instruct chooses a verifier by the column dataset: Math is a guess, see docs/rewards.md.",
            );
            vec![json!({"name": "math", "kind": "Math", "weight": weight})]
        }
        [(_, verifier, kind, difference)] => {
            draft.remark("rewards", format!("{kind} stands for the verifier {verifier}: {difference}."));
            vec![json!({"name": verifier, "kind": kind, "weight": weight})]
        }
        several => {
            let function = |(_, verifier, kind, difference): &&(&str, &str, &str, &str)| {
                draft.remark("rewards", format!("{kind} stands for the verifier {verifier}: {difference}."));
                let sources = [(*verifier).to_owned(), verifier.to_ascii_uppercase()];
                json!({"name": verifier, "kind": kind, "weight": weight, "dataSources": sources})
            };
            let functions = several.iter().map(function).collect();
            draft.remark(
                "rewards",
                "rows of other verifiers have no function: add one for each name in the column dataset.",
            );
            functions
        }
    };
    let is_condition = settings.is_true("apply_r1_style_format_reward")
        && is_verified
        && !settings.is_true("additive_format_reward");
    if is_condition {
        draft.remark(
            "rewards",
            "without additive_format_reward, the format there earns nothing and is a condition of the verifier's reward, \
             which has no equal: here both are added.",
        );
    }
    if ["apply_r1_style_format_reward", "add_r1_style_format_reward"].iter().any(|key| settings.is_true(key))
    {
        functions.push(format(settings));
    }
    functions.extend(reward_model(settings));
    if functions.is_empty() {
        draft.remark("rewards", "the script applies no reward: say `functions` here.");
    } else {
        draft.set("spec.rewards.functions", functions);
    }
    draft.set("spec.data.dataSourceKey", "dataset");
}

/// Returns the names of all training data sets, in lower case, with `gsm8k` for GSM8K's other names.
fn names_of_data(settings: &Settings) -> String {
    let lists = ["dataset_mixer_list", "dataset_mixer"].map(|list| settings.list(list).join(" "));
    let keys = settings.below("dataset_mixer.").into_iter().map(|(name, _)| name);
    let names = lists.join(" ") + " " + &keys.collect::<Vec<_>>().join(" ");
    GSM8K_NAMES.iter().fold(names.to_ascii_lowercase(), |names, other| names.replace(other, "gsm8k"))
}

/// Makes the format function. Text may follow the format, because `re.match` only matches at the beginning.
fn format(settings: &Settings) -> Value {
    let pattern = r"(?s).*?</think>\s*<answer>.*?</answer>.*";
    let mut function = json!({"name": "format", "kind": "Format", "pattern": pattern});
    if let Some(weight) = settings.number("r1_style_format_reward") {
        function["weight"] = weight.into();
    }
    function
}

/// Makes the reward model of `ppo_vllm_thread_ray_gtrl`; `None` if its factor is 0.
fn reward_model(settings: &Settings) -> Option<Value> {
    let factor = settings.number("reward_model_multiplier").unwrap_or(1.0);
    let path = settings.text("reward_model_path").filter(|_| factor != 0.0)?;
    let mut function = rewards::model(&path);
    function["weight"] = factor.into();
    let revision = settings.text("reward_model_revision");
    if let (Some(hub), Some(revision)) = (function["model"].get_mut("hub"), revision) {
        hub["revision"] = revision.into();
    }
    Some(function)
}
