//! Checks that patterns, schemas and templates of a manifest compile, with the engines that run them.

use std::error::Error;

use rlt_algorithms::reward::{Given, RewardKind, Settings, pattern};
use rlt_template::Template;
use serde_json::Value;

use super::Problem;
use crate::resolved::ResolvedSpec;
use crate::spec::{LoraSpec, ModulePattern, PatternError, RewardFunctionSpec};

/// Returns the problems of the patterns, schemas and templates that do not compile.
pub(super) fn problems(spec: &ResolvedSpec) -> Vec<Problem> {
    let functions = spec.rewards.functions.iter().enumerate();
    let rewards = functions.flat_map(|(idx, function)| {
        let path = format!("spec.rewards.functions[{idx}]");
        let judge = [judge_problem(&path, function), rubric_problem(&path, function)];
        setting_problem(&path, function).into_iter().chain(judge.into_iter().flatten())
    });
    let chat = spec.model.chat_template.as_ref();
    let chat = chat.and_then(|template| template_problem("spec.model.chatTemplate".to_owned(), template));
    rewards.chain(spec.model.lora.iter().flat_map(lora_problems)).chain(chat).collect()
}

/// Returns the problem of a reward function that cannot be built from its `pattern` or `schema`.
fn setting_problem(path: &str, function: &RewardFunctionSpec) -> Option<Problem> {
    let is_compiled = |name: &&str| matches!(*name, "pattern" | "schema");
    let name = RewardKind::settings(function.kind).iter().map(|setting| setting.name).find(is_compiled)?;
    let settings: &Settings = &function.settings;
    let given = Given { name: &function.name, settings, max_completion_tokens: usize::MAX };
    let error = function.kind.build(&given).err()?;
    Some(refused(format!("{path}.{name}"), settings.get(name).cloned(), &error))
}

fn judge_problem(path: &str, function: &RewardFunctionSpec) -> Option<Problem> {
    let judge = function.judge.as_ref()?;
    let path = format!("{path}.judge.pattern");
    let value = Some(Value::from(judge.pattern.as_str()));
    match pattern::linear(&judge.pattern) {
        Err(error) => Some(refused(path, value, &*error)),
        Ok(regex) if regex.captures_len() < 2 => {
            Some(Problem { value, ..Problem::new(path, "needs a group, which captures the score") })
        }
        Ok(_) => None,
    }
}

/// Names of the values that a judge's rubric may print.
const RUBRIC_VALUES: [&str; 5] = ["prompt", "completion", "ground_truth", "data_source", "extra_info"];

fn rubric_problem(path: &str, function: &RewardFunctionSpec) -> Option<Problem> {
    let rubric = &function.judge.as_ref()?.rubric;
    let path = format!("{path}.judge.rubric");
    let template = match Template::new(rubric) {
        Ok(template) => template,
        Err(error) => return Some(refused(path, Some(Value::from(rubric.as_str())), &error)),
    };
    let unknown = template.printed_names().into_iter().find(|name| !RUBRIC_VALUES.contains(name))?;
    let problem = Problem::new(path, format!("prints {unknown}, which no sample has"));
    Some(Problem { allowed: Some(RUBRIC_VALUES.join(", ")), ..problem })
}

/// Returns the problem of a Jinja template that cannot be parsed.
fn template_problem(path: String, template: &str) -> Option<Problem> {
    let error = Template::new(template).err()?;
    Some(refused(path, Some(Value::from(template)), &error))
}

fn lora_problems(lora: &LoraSpec) -> Vec<Problem> {
    let single = [("targetPattern", &lora.target_pattern), ("excludePattern", &lora.exclude_pattern)];
    let single = single.into_iter().filter_map(|(field, pattern)| {
        let pattern = pattern.as_ref()?;
        module_pattern_problem(field, pattern, ModulePattern::for_full_names(pattern))
    });
    let of_ends = |field, pattern: &String| {
        module_pattern_problem(field, pattern, ModulePattern::for_ends_of_names(pattern))
    };
    let ranks = lora.rank_pattern.keys().filter_map(|pattern| of_ends("rankPattern", pattern));
    let alphas = lora.alpha_pattern.keys().filter_map(|pattern| of_ends("alphaPattern", pattern));
    single.chain(ranks).chain(alphas).collect()
}

fn module_pattern_problem(
    field: &str,
    pattern: &str,
    compiled: Result<ModulePattern, PatternError>,
) -> Option<Problem> {
    let error = compiled.err()?;
    Some(refused(format!("spec.model.lora.{field}"), Some(Value::from(pattern)), &error))
}

/// Returns the problem of a value that its engine refuses, with the innermost cause, which states the reason.
fn refused(path: String, value: Option<Value>, error: &dyn Error) -> Problem {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let message = cause.to_string();
    let reason = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    Problem { value, ..Problem::new(path, format!("does not compile: {reason}")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::validate;

    /// The problems of a job with this reward function and these fields of the adapter.
    fn message(function: serde_json::Value, lora: serde_json::Value) -> Option<String> {
        message_with(function, json!({"path": "m", "lora": lora}))
    }

    /// The problems of a job with this reward function and this model.
    fn message_with(function: serde_json::Value, model: serde_json::Value) -> Option<String> {
        let mut function = function;
        function["name"] = json!("f");
        let manifest = json!({
            "apiVersion": "rltraining.dev/v1alpha1", "kind": "RLTrainingJob", "metadata": {"name": "j"},
            "spec": {
                "model": model, "data": {"train": ["a.jsonl"]},
                "rewards": {"functions": [function]}, "algorithm": {"kind": "GRPO"},
                "rollout": {"samplesPerPrompt": 2}, "training": {"steps": 1, "promptsPerStep": 2},
            },
        });
        let problems = validate(&manifest.to_string()).err()?;
        Some(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn every_pattern_is_compiled_by_the_engine_that_runs_it() {
        let server = json!({"url": "http://judge/v1"});
        let judge = |pattern: &str| {
            let judge = json!({"model": "m", "rubric": "r", "pattern": pattern});
            json!({"kind": "Judge", "server": server, "judge": judge})
        };
        let exact = json!({"kind": "Exact"});
        let refused = [
            (json!({"kind": "Regex", "pattern": "(a"}), json!({}), "functions[0].pattern"),
            (json!({"kind": "Format", "pattern": "[b-a]"}), json!({}), "functions[0].pattern"),
            (json!({"kind": "Format", "pattern": "a)|(?:b"}), json!({}), "functions[0].pattern"),
            (json!({"kind": "JsonSchema", "schema": {"type": 3}}), json!({}), "functions[0].schema"),
            (json!({"kind": "JsonSchema", "schema": {"pattern": "("}}), json!({}), "functions[0].schema"),
            (judge("(?=a)(b)"), json!({}), "functions[0].judge.pattern"),
            (judge("b"), json!({}), "functions[0].judge.pattern"),
            (exact.clone(), json!({"targetPattern": "(q"}), "lora.targetPattern"),
            (exact.clone(), json!({"excludePattern": "(q"}), "lora.excludePattern"),
            (exact.clone(), json!({"rankPattern": {"(q": 2}}), "lora.rankPattern"),
            (exact.clone(), json!({"alphaPattern": {"(q": 2.0}}), "lora.alphaPattern"),
        ];
        for (function, lora, place) in refused {
            let message = message(function.clone(), lora).unwrap_or_default();
            assert!(message.contains(place), "{function}: {message:?}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
        let think = "^<think>(?!.*<think>)(.*?)</think>.*$";
        assert_eq!(message(json!({"kind": "Format", "pattern": think}), json!({})), None);
        assert_eq!(message(judge("(b)"), json!({"targetPattern": "(?!x).*_proj"})), None);
    }

    #[test]
    fn a_refused_pattern_is_reported_with_the_reason_of_its_engine() {
        let reason = "invalid repetition count range, the start must be <= the end";
        let lora = |field: &str| json!({field: "a{2,1}"});
        let server = json!({"url": "http://judge/v1"});
        let judge = json!({"model": "m", "rubric": "r", "pattern": "(a{2,1})"});
        let exact = json!({"kind": "Exact"});
        for (function, lora) in [
            (json!({"kind": "Regex", "pattern": "a{2,1}"}), json!({})),
            (json!({"kind": "Format", "pattern": "a{2,1}"}), json!({})),
            (json!({"kind": "JsonSchema", "schema": {"pattern": "a{2,1}"}}), json!({})),
            (json!({"kind": "Judge", "server": server, "judge": judge}), json!({})),
            (exact.clone(), lora("targetPattern")),
            (exact.clone(), lora("excludePattern")),
            (exact.clone(), json!({"rankPattern": {"a{2,1}": 2}})),
            (exact.clone(), json!({"alphaPattern": {"a{2,1}": 2.0}})),
        ] {
            let message = message(function.clone(), lora.clone()).unwrap_or_default();
            assert!(message.contains(reason), "{function} {lora}: {message}");
        }
    }

    #[test]
    fn positions_in_patterns_of_modules_are_those_of_the_manifest() {
        let exact = || json!({"kind": "Exact"});
        for lora in [
            json!({"targetPattern": "q_proj("}),
            json!({"excludePattern": "q_proj("}),
            json!({"rankPattern": {"q_proj(": 2}}),
            json!({"alphaPattern": {"q_proj(": 2.0}}),
        ] {
            let message = message(exact(), lora.clone()).unwrap_or_default();
            assert!(message.contains("position 7: Opening parenthesis"), "{lora}: {message}");
            assert!(!message.contains("(?:"), "{message}");
        }
        let escaping = message(exact(), json!({"targetPattern": "a)|(?:b"})).unwrap_or_default();
        assert!(escaping.contains("position 1: "), "{escaping}");
    }

    #[test]
    fn templates_are_parsed_as_they_are_when_they_are_rendered() {
        let judge = |rubric: &str| {
            let judge = json!({"model": "m", "rubric": rubric});
            json!({"kind": "Judge", "server": {"url": "http://judge/v1"}, "judge": judge})
        };
        let job = |template: &str| {
            let chat = message_with(json!({"kind": "Exact"}), json!({"path": "m", "chatTemplate": template}));
            [chat, message(judge(template), json!({}))]
        };
        let places = ["spec.model.chatTemplate", "functions[0].judge.rubric"];
        for broken in
            ["{{ prompt", "{% if a %}b", "{{ a b }}", "{% endfor %}", "{% nosuch %}", "{{ prompt | nosuch }}"]
        {
            for (message, place) in job(broken).into_iter().zip(places) {
                let message = message.unwrap_or_default();
                assert!(
                    message.contains(place) && message.contains("does not compile: line 1"),
                    "{message:?}"
                );
                assert_eq!(message.lines().count(), 1, "{message}");
            }
        }
        let right = "{% for m in messages %}{{ m.content | trim }}{% endfor %}{{ prompt }}";
        assert_eq!(job(right), [None, None]);
        let unknown = message(judge("{{ prompt }}: {{ answer.text | trim }}"), json!({})).unwrap();
        assert!(
            unknown.contains("judge.rubric: prints answer, which no sample has; allowed: prompt"),
            "{unknown}"
        );
    }
}
