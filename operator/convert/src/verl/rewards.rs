//! verl's rewards: by data source, by a user function, by a model, by a sandbox.

use serde_json::{Value, json};

use crate::draft::Draft;
use crate::rewards::{model, python, server};
use crate::settings::Settings;

/// verl's reward of a data source, with the functions that replace it.
struct Judged {
    /// Parts of the names of the data source's files, in lower case.
    files: &'static [&'static str],
    /// Names of folders and files that identify the data source, in lower case. Without them each of `files`
    /// does; otherwise a match of `files` alone is a guess.
    names: &'static [&'static str],
    /// Values of `data_source` with this reward.
    sources: &'static [&'static str],
    /// Name, kind and weight of each function.
    functions: &'static [(&'static str, &'static str, f64)],
    /// Difference between the functions and verl's reward; empty for none.
    difference: &'static str,
}

/// verl's table of data sources. The first row that matches a file's name applies.
static JUDGED: [Judged; 7] = [
    Judged {
        files: &["gsm8k"],
        names: &[],
        sources: &["openai/gsm8k"],
        functions: &[("gsm8k", "Gsm8k", 1.0)],
        difference: "",
    },
    Judged {
        files: &["geo3k", "geometry3k"],
        names: &[],
        sources: &["hiyouga/geometry3k"],
        functions: &[("geometry3k", "Math", 0.9), ("format", "Format", 0.1)],
        difference: "verl grades geometry3k by mathruler, Math by its own rules of equality (docs/rewards.md)",
    },
    Judged {
        files: &["numina"],
        names: &[],
        sources: &[
            "numina_aops_forum",
            "numina_synthetic_math",
            "numina_amc_aime",
            "numina_synthetic_amc",
            "numina_cn_k12",
            "numina_olympiads",
        ],
        functions: &[("numina", "Math", 1.0)],
        difference: "verl's prime_math compares boxed answers by sympy, Math by its own rules of equality (docs/rewards.md)",
    },
    Judged {
        files: &["dapo", "aime"],
        names: &[],
        sources: &["math_dapo", "math_dapo_reasoning", "math"],
        functions: &[("math_dapo", "MathDapo", 1.0)],
        difference: "",
    },
    Judged {
        files: &["codecontests", "codeforces", "taco"],
        names: &[],
        sources: &["codecontests", "apps", "codeforces", "taco"],
        functions: &[("code", "Code", 1.0)],
        difference: "verl runs programs in its own processes unless it has a sandbox; Code sends them to a server (docs/rewards.md)",
    },
    Judged {
        files: &["searchr1", "search_r1", "search-r1"],
        names: &[],
        sources: &[
            "searchR1_nq",
            "searchR1_triviaqa",
            "searchR1_popqa",
            "searchR1_hotpotqa",
            "searchR1_2wikimultihopqa",
            "searchR1_musique",
            "searchR1_bamboogle",
        ],
        functions: &[("search", "Server", 1.0)],
        difference: "verl's search_r1_like_qa_em compares the text of <answer> with several answers: a server of one's own stands for \
             it (docs/rewards.md)",
    },
    Judged {
        files: &["math"],
        names: &["math", "math500", "math-500", "math_500", "math-lighteval", "math_lighteval"],
        sources: &["lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"],
        functions: &[("math", "MathStrict", 1.0)],
        difference: "",
    },
];
/// Format of completions on geometry3k.
const BOXED_THOUGHT: &str = r"(?s)<think>.*</think>.*\\boxed\{.*\}.*";

/// Sets the section `rewards`.
pub(super) fn finish(settings: &Settings, draft: &mut Draft) {
    let (own, judge, sandbox) = (own_function(settings), reward_model(settings), sandbox(settings));
    if own.is_some() && judge.is_some() {
        let text = "the script has a function of its own and a reward model: the function alone is set.";
        draft.remark("rewards", text);
    }
    if sandbox.is_some() && (own.is_some() || judge.is_some()) {
        let text = "the script names a sandbox for code besides another reward, which alone is set.";
        draft.remark("rewards", text);
    }
    let functions = match (own, judge, sandbox) {
        (Some((path, function)), ..) => {
            vec![python(&format!("{path}:{function}"), &path, &function, draft)]
        }
        (None, Some(path), _) => vec![model(&path)],
        (None, None, Some(url)) => vec![of_sandbox(&url, settings)],
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

/// Sections of verl's settings for a sandbox, in several versions.
const SANDBOXES: [&str; 3] = ["reward.sandbox_fusion", "reward_model.sandbox_fusion", "sandbox_fusion"];

/// Returns the address of a sandbox.
fn sandbox(settings: &Settings) -> Option<String> {
    SANDBOXES.iter().find_map(|section| settings.text(&format!("{section}.url")))
}

/// Makes the function of the sandbox at `url`.
fn of_sandbox(url: &str, settings: &Settings) -> Value {
    let mut function = json!({"name": "code", "kind": "Code", "server": {"url": url}});
    let memory = SANDBOXES.iter().find_map(|section| settings.count(&format!("{section}.memory_limit_mb")));
    if let Some(memory) = memory {
        function["code"] = json!({ "memoryMib": memory });
    }
    function
}

/// Chooses functions by verl's table of data sources, of which a script shows only the names of its files.
fn by_data_source(settings: &Settings, draft: &mut Draft) -> Vec<Value> {
    let files = settings.list("data.train_files");
    let matches: Vec<Option<&Judged>> = files.iter().map(|file| judged_as(file)).collect();
    let is_found = |judged: &&Judged| matches.iter().flatten().any(|found| std::ptr::eq(*found, *judged));
    let found: Vec<&Judged> = JUDGED.iter().filter(is_found).collect();
    if found.is_empty() {
        draft.remark(
            "rewards",
            "verl chooses a function by data_source; the names of these files do not say which. Math is a guess: see docs/rewards.md.",
        );
        return vec![json!({"name": "math", "kind": "Math"})];
    }
    for (file, judged) in files.iter().zip(&matches) {
        if judged.is_none_or(|judged| !is_named_for(file, judged)) {
            let rule = "verl chooses a function by data_source";
            let advice = "compare its column with these functions";
            draft.remark("rewards", format!("{rule}, which the name of {file} does not say: {advice}."));
        }
    }
    for file in settings.list("data.val_files") {
        if let Some(judged) = judged_as(&file)
            && !found.iter().any(|found| std::ptr::eq(*found, judged))
        {
            let kinds: Vec<&str> = judged.functions.iter().map(|(_, kind, _)| *kind).collect();
            let (kinds, ours) = (kinds.join(" and "), "here those of the training files judge them");
            draft.remark(
                "rewards",
                format!("verl judges the rows of {file} by {kinds}, {ours}: say dataSources."),
            );
        }
    }
    let is_one = found.len() == 1;
    found.into_iter().flat_map(|judged| functions(judged, is_one, draft)).collect()
}

/// Returns the row of the table that a file's name matches.
fn judged_as(file: &str) -> Option<&'static Judged> {
    let name = file.to_ascii_lowercase();
    JUDGED.iter().find(|judged| judged.files.iter().any(|part| name.contains(part)))
}

/// Returns whether the name of a file, or of a folder of its path, identifies the data source.
fn is_named_for(file: &str, judged: &Judged) -> bool {
    let name = file.to_ascii_lowercase();
    let mut names = name.split('/').map(|part| part.strip_suffix(".parquet").unwrap_or(part));
    judged.names.is_empty() || names.any(|name| judged.names.contains(&name))
}

fn functions(judged: &Judged, is_one: bool, draft: &mut Draft) -> Vec<Value> {
    if !judged.difference.is_empty() {
        draft.remark("rewards", format!("{}.", judged.difference));
    }
    let function = |(name, kind, weight): &(&str, &str, f64)| {
        let mut function = json!({"name": name, "kind": kind});
        if *weight != 1.0 {
            function["weight"] = json!(weight);
        }
        match *kind {
            "Format" => function["pattern"] = json!(BOXED_THOUGHT),
            "Code" | "Server" => function["server"] = server(name)["server"].clone(),
            _ => {}
        }
        if !is_one {
            function["dataSources"] = json!(judged.sources);
        }
        function
    };
    judged.functions.iter().map(function).collect()
}

/// Sets DAPO's length penalty, from the keys of several versions.
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
    let limits = ["reward.reward_kwargs.max_resp_len", "reward_model.reward_kwargs.max_resp_len"];
    let limit = limits.iter().find_map(|key| settings.count(key));
    let longest = settings.count("data.max_response_length");
    if let Some(limit) = limit.filter(|limit| Some(*limit) != longest) {
        let text = format!("max_resp_len={limit} has no equal: the penalty ends at maxCompletionTokens.");
        draft.remark("rewards", text);
    }
}
