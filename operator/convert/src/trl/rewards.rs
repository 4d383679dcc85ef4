//! TRL's rewards: its own functions, user functions, reward models.

use serde_json::{Value, json};

use crate::draft::Draft;
use crate::rewards::{is_hub_name, model, python, server};
use crate::settings::{Settings, number};

/// Sets the section `rewards`.
pub(super) fn finish(settings: &Settings, draft: &mut Draft) {
    let weights = match settings.get("reward_weights") {
        Some(Value::Array(weights)) => weights.as_slice(),
        Some(Value::Null) | None => &[],
        Some(weight) => std::slice::from_ref(weight),
    };
    let mut weights = weights.iter();
    let mut functions = Vec::new();
    for key in ["reward_model_name_or_path", "reward_model_path"] {
        functions.extend(settings.text(key).map(|path| weighted(model(&path), weights.next())));
    }
    for name in settings.list("reward_funcs") {
        // Every name has a weight, also the penalty, which is no function here.
        let weight = weights.next();
        if name == OVERLONG {
            overlong(weight.map(unquoted).and_then(|weight| weight.as_f64()).unwrap_or(1.0), draft);
        } else {
            functions.push(weighted(function(&name, draft), weight));
        }
    }
    if functions.is_empty() {
        draft.remark("rewards", "the script chooses its reward functions in Python: a server of one's own stands for them (docs/rewards.md).");
        functions.push(weighted(server("reward"), weights.next()));
    }
    draft.set("spec.rewards.functions", functions);
}

fn weighted(mut function: Value, weight: Option<&Value>) -> Value {
    if let Some(weight) = weight {
        function["weight"] = unquoted(weight);
    }
    function
}

/// Returns the number that a text contains, as in a quoted YAML value, and any other value as it is.
fn unquoted(value: &Value) -> Value {
    let parsed = value.as_str().and_then(|text| number(text.trim()));
    parsed.unwrap_or_else(|| value.clone())
}

/// TRL's penalty of long completions, which its scripts configure for 1280 tokens.
const OVERLONG: &str = "get_soft_overlong_punishment";
/// Length from which on that penalty is full.
const OVERLONG_END: u64 = 1280;
/// Number of tokens over which that penalty grows.
const OVERLONG_BUFFER: u64 = 256;

/// Sets the penalty, whose slope and start are TRL's for completions of up to 1280 tokens.
fn overlong(weight: f64, draft: &mut Draft) {
    let free = OVERLONG_END - OVERLONG_BUFFER;
    let limit = draft.count("rollout.maxCompletionTokens").unwrap_or(OVERLONG_END);
    if limit <= free {
        let reason = format!("begins after {free} tokens, which no completion of this script reaches");
        draft.remark("rewards", format!("{OVERLONG} {reason}: it is left out."));
        return;
    }
    let buffer = limit.min(OVERLONG_END) - free;
    draft.set("spec.rewards.overlong.bufferTokens", buffer);
    draft.set("spec.rewards.overlong.penaltyFactor", weight * buffer as f64 / OVERLONG_BUFFER as f64);
    if limit > OVERLONG_END {
        draft.remark(
            "rewards",
            format!("{OVERLONG} of TRL's scripts ends at {OVERLONG_END} tokens; here it ends at maxCompletionTokens."),
        );
    }
}

/// TRL's own reward functions, each with our name and kind and the difference between them.
const OWN: [(&str, &str, &str, &str); 3] = [
    (
        "accuracy_reward",
        "accuracy",
        "Math",
        "accuracy_reward is math-verify: it also reads an answer without a box, and leaves out rows whose solution it cannot parse; \
         Math reads the last \\boxed{} with those that are listed with it, compares values by its own rules and judges every row \
         (docs/rewards.md)",
    ),
    (
        "reasoning_accuracy_reward",
        "accuracy",
        "Math",
        "reasoning_accuracy_reward is math-verify on the text behind </think>, and 0 without it; Math reads the last \\boxed{} of the \
         whole completion, with those that are listed with it (docs/rewards.md)",
    ),
    ("think_format_reward", "think_format", "Format", ""),
];

fn function(name: &str, draft: &mut Draft) -> Value {
    if let Some((_, own, kind, difference)) = OWN.iter().find(|(theirs, ..)| *theirs == name) {
        if !difference.is_empty() {
            draft.remark("rewards", format!("{difference}."));
        }
        let mut function = json!({"name": own, "kind": kind});
        match *kind {
            "Format" => function["pattern"] = json!(thought_pattern()),
            // Rows may have a column `answer`, too, which is read first by default.
            _ => draft.set("spec.data.groundTruthKey", "solution"),
        }
        return function;
    }
    // A trainer in Python loads a reward model by the name of its repository.
    if is_hub_name(name) {
        return model(name);
    }
    let (module, short) = name.rsplit_once('.').unwrap_or(("rewards", name));
    python(name, module, short, draft)
}

/// Returns the pattern of `<think>` followed by `</think>`, without any other `<think>`. TRL's pattern uses
/// look-ahead; this one spells out text without `<think>`, letter by letter, so that it needs none.
fn thought_pattern() -> String {
    let tag = "<think>";
    let prefixes: Vec<&str> = (1..tag.len()).map(|end| &tag[..end]).collect();
    // A prefix is followed neither by the tag's next letter nor by its first, with which the tag would begin
    // again.
    let ended = |prefix: &&str| {
        let next = &tag[prefix.len()..=prefix.len()];
        let others = if next == "<" { "[^<]".to_owned() } else { format!("[^<{next}]") };
        format!("{}{others}", &prefix[1..])
    };
    let ends: Vec<String> = prefixes.iter().map(ended).collect();
    let again: Vec<String> = prefixes.iter().map(|prefix| format!("{}<", &prefix[1..])).collect();
    let rest: Vec<&str> = prefixes.iter().map(|prefix| &prefix[1..]).collect();
    let without = format!(
        "(?:[^<]|<(?:{})*(?:{}))*(?:<(?:{})*(?:{}))?",
        again.join("|"),
        ends.join("|"),
        again.join("|"),
        rest.join("|"),
    );
    format!("(?s)<think>{without}</think>{without}")
}

#[cfg(test)]
mod tests {
    use super::thought_pattern;

    /// TRL's own pattern, with its look-ahead.
    fn theirs(text: &str) -> bool {
        let pattern = fancy_regex::Regex::new(r"(?s)\A<think>(?!.*<think>)(.*?)</think>.*\z").unwrap();
        pattern.is_match(text).unwrap()
    }

    #[test]
    fn the_format_of_thoughts_is_that_of_trl_without_looking_ahead() {
        assert!(!thought_pattern().contains("(?!"));
        let ours = fancy_regex::Regex::new(&format!(r"(?s)\A(?:{})\z", thought_pattern())).unwrap();
        // All texts of up to 3 of these pieces.
        let pieces = ["<think>", "</think>", "<thin", "k>", "<", "a\n"];
        let mut texts = vec![String::new()];
        let mut longest = texts.clone();
        for _ in 0..3 {
            longest = longest.iter().flat_map(|text| pieces.map(|piece| format!("{text}{piece}"))).collect();
            texts.extend(longest.iter().cloned());
        }
        let num_matching = texts.iter().filter(|text| theirs(text)).count();
        assert!(num_matching > 8, "{num_matching}");
        for text in &texts {
            assert_eq!(ours.is_match(text).unwrap(), theirs(text), "{text}");
        }
    }
}
