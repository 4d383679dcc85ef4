//! The rules that the API server evaluates and the rules that we evaluate are the same: on each bad specification
//! both give the same messages, and every rule has one that breaks it.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

use std::collections::BTreeSet;

use kube_cel::{CompiledSchema, compile_schema};
use serde_json::{Value, json};

const ARITHMETIC: &str = include_str!("fixtures/arithmetic.yaml");
const MANIFEST: &str = include_str!("../manifests/rltrainingjobs.yaml");

/// Changes to a good manifest (JSON merge patches of `spec`), each of which breaks at least one rule.
fn bad_specs() -> Vec<Value> {
    let file = json!({"task": null, "train": ["a.jsonl"]});
    let function = |more: Value| json!({"rewards": {"functions": [merged(json!({"name": "a", "kind": "Exact"}), &more)]}});
    let loss = |loss: Value| json!({"algorithm": {"loss": loss}});
    vec![
        json!({"model": {"path": "/models/a"}}),
        json!({"model": {"architecture": null}}),
        json!({"model": {"tokenizer": null}}),
        json!({"model": {"architecture": null, "path": "/models/a"}}),
        json!({"model": {"tokenizer": {"path": "/tokenizer"}}}),
        json!({"model": {"tokenizer": {"characters": null}}}),
        json!({"model": {"architecture": {"numKvHeads": 3}}}),
        json!({"model": {"architecture": {"numHeads": 6, "hiddenSize": 128}}}),
        json!({"model": {"architecture": {"headDim": 31}}}),
        json!({"model": {"architecture": {"hiddenSize": 36}}}),
        json!({"model": {"architecture": {"maxPositionEmbeddings": 23}}}),
        json!({"model": {"lora": {"targetModules": ["all-linear", "q_proj"]}}}),
        json!({"model": {"lora": {"targetModules": ["q_proj"], "targetPattern": ".*"}}}),
        json!({"model": {"lora": {"excludeModules": ["q_proj"], "excludePattern": ".*"}}}),
        json!({"model": {"lora": {"init": "Orthogonal", "rank": 3}}}),
        json!({"data": {"task": null}}),
        json!({"data": {"train": ["a.jsonl"]}}),
        json!({"data": {"heldOut": ["a.jsonl"]}}),
        json!({"data": merged(file.clone(), &json!({"train": ["a.jsonl", "b.csv"]}))}),
        json!({"data": merged(file, &json!({"heldOut": ["b.txt"]}))}),
        json!({"data": {"task": {"operators": ["+", "+"]}}}),
        json!({"data": {"task": {"maxOperand": 9}}}),
        json!({"model": {"tokenizer": {"characters": "0123456789+="}}}),
        json!({"data": {"task": {"operators": ["*"]}}}),
        json!({"rewards": {"functions": []}}),
        json!({"rewards": {"functions": [{"name": "a", "kind": "Exact"}, {"name": "a", "kind": "Math"}]}}),
        function(json!({"pattern": "x"})),
        function(json!({"kind": "Regex"})),
        function(json!({"kind": "Format"})),
        function(json!({"schema": {"type": "object"}})),
        function(json!({"kind": "JsonSchema"})),
        function(json!({"targetTokens": 1})),
        function(json!({"kind": "Length"})),
        function(json!({"kind": "Length", "targetTokens": 8})),
        json!({"rewards": {"clip": {"min": 1, "max": 1}}}),
        json!({"rewards": {"overlong": {"bufferTokens": 9}}}),
        json!({"algorithm": {"kind": "SFT"}}),
        json!({"algorithm": {"kind": "SFT", "coldStart": null, "kl": {"placement": "None"}}}),
        json!({"algorithm": {"kind": "SFT", "coldStart": null}, "training": {"promptsPerUpdate": 16}}),
        json!({"algorithm": {"kind": "SFT", "coldStart": null}, "training": {"epochsPerBatch": 2}}),
        json!({"algorithm": {"kind": "RLOO", "advantage": {"normalizeByStd": true}}}),
        json!({"algorithm": {"advantage": {"estimator": "Opo", "normalizeByStd": false}}}),
        json!({"algorithm": {"advantage": {"gamma": 0.9}}}),
        json!({"rollout": {"samplesPerPrompt": 1}}),
        json!({"rollout": {"samplesPerPrompt": 1}, "algorithm": {"kind": "DAPO"}}),
        json!({"rollout": {"samplesPerPrompt": 1}, "algorithm": {"kind": "ReMax", "dynamicSampling": {}}}),
        loss(json!({"policy": "Gpg", "clipLow": 0.1, "clipHigh": 0.1, "dualClip": 3})),
        loss(json!({"sapoTauPositive": 1, "sapoTauNegative": 1, "penalty": 1})),
        loss(json!({"covarianceRatio": 0.1, "penalty": 1})),
        loss(json!({"policy": "KlCov", "clipLow": 0.1, "clipHigh": 0.1})),
        loss(json!({"policy": "Gspo", "aggregation": "TokenMean"})),
        json!({"algorithm": {"kind": "GSPO", "loss": {"aggregation": "TokenSum", "dualClip": 2.0}}}),
        loss(json!({"normalizationTokens": 8})),
        json!({"algorithm": {"kl": {"placement": "None", "coefficient": 0.1}}}),
        json!({"algorithm": {"kind": "DAPO", "kl": {"adaptive": {"target": 0.1}}}}),
        json!({"algorithm": {"importanceCorrection": {"threshold": 1.5, "lowerThreshold": 1.5}}}),
        json!({"algorithm": {"importanceCorrection": {"rejection": {"statistic": "TokenK3", "upper": 1, "lower": 0.5}}}}),
        json!({"algorithm": {"importanceCorrection": {"rejection": {"statistic": "TokenK1", "upper": 1, "lower": 2}}}}),
        json!({"rollout": {"heldOut": {"samplesPerPrompt": 4}}}),
        json!({"training": {"epochs": 1}}),
        json!({"training": {"promptsPerUpdate": 12}}),
        json!({"training": {"maxTokensPerMicroBatch": 23}}),
        json!({"training": {"maxLogprobTokens": 23}}),
        json!({"training": {"schedule": {"warmupSteps": 1000000}}}),
        json!({"training": {"schedule": {"kind": "Constant", "minRatio": 0.5}}}),
        json!({"training": {"promptsPerUpdate": 12}, "model": {"tokenizer": null}, "data": {"task": null}}),
    ]
}

/// Changes that break nothing.
fn good_specs() -> Vec<Value> {
    vec![
        json!({}),
        json!({"model": {"architecture": null, "tokenizer": null, "hub": {"repo": "a/b"}, "lora": {}}}),
        json!({"algorithm": {"kind": "SFT", "coldStart": null}, "rewards": null, "rollout": {"samplesPerPrompt": 1}}),
        json!({"algorithm": {"kind": "DrGRPO", "loss": {"normalizationTokens": 8}}}),
        json!({"algorithm": {"kind": "ReinforcePlusPlus", "advantage": {"gamma": 0.9}}}),
        json!({"algorithm": {"loss": {"policy": "Gspo"}}}),
        json!({"algorithm": {"kind": "ReMax"}, "rollout": {"samplesPerPrompt": 1}}),
        json!({"algorithm": {"importanceCorrection": {"lowerThreshold": 0.5}}}),
        json!({"training": {"steps": null, "epochs": 2, "promptsPerUpdate": 8}}),
    ]
}

fn merged(mut base: Value, patch: &Value) -> Value {
    match (base.as_object_mut(), patch) {
        (Some(fields), Value::Object(patch)) => {
            for (name, value) in patch {
                match value {
                    Value::Null => drop(fields.remove(name)),
                    _ => {
                        let before = fields.get(name).cloned().unwrap_or_else(|| json!({}));
                        fields.insert(name.clone(), merged(before, value));
                    }
                }
            }
            base
        }
        _ => patch.clone(),
    }
}

fn manifest(patch: &Value) -> Value {
    let arithmetic: Value = serde_saphyr::from_str(ARITHMETIC).unwrap();
    merged(arithmetic, &json!({"spec": patch}))
}

fn schema() -> Value {
    let definition: Value = serde_saphyr::from_str(MANIFEST).unwrap();
    definition.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone()
}

/// Defaults are filled in before rules are tried, as the API server does.
fn api_server_messages(schema: &CompiledSchema, manifest: &Value) -> BTreeSet<String> {
    let verdict = kube_cel::Validator::new().validate_compiled(schema, manifest, None);
    verdict.map_or_else(
        |errors| errors.into_vec().into_iter().map(|error| error.message).collect(),
        |()| BTreeSet::new(),
    )
}

fn our_messages(manifest: &Value) -> BTreeSet<String> {
    let yaml = serde_saphyr::to_string(manifest).unwrap();
    let problems = rlt_api::validate(&yaml).err().unwrap_or_default();
    problems.into_iter().map(|problem| problem.message).collect()
}

#[test]
fn the_api_server_and_we_say_the_same_about_every_bad_specification() {
    let schema = compile_schema(&schema());
    for patch in bad_specs() {
        let manifest = manifest(&patch);
        let theirs = api_server_messages(&schema, &manifest);
        assert!(!theirs.is_empty(), "nothing is wrong with {patch}");
        assert_eq!(theirs, our_messages(&manifest), "{patch}");
    }
}

#[test]
fn the_api_server_and_we_accept_every_good_specification() {
    let schema = compile_schema(&schema());
    for patch in good_specs() {
        let manifest = manifest(&patch);
        assert_eq!(api_server_messages(&schema, &manifest), BTreeSet::new(), "{patch}");
        assert_eq!(our_messages(&manifest), BTreeSet::new(), "{patch}");
    }
}

#[test]
fn a_name_too_long_for_pods_is_refused_by_both() {
    let mut manifest = manifest(&json!({}));
    manifest["metadata"]["name"] = "a".repeat(53).into();
    assert_eq!(api_server_messages(&compile_schema(&schema()), &manifest), our_messages(&manifest));
}

#[test]
fn every_rule_has_a_specification_that_breaks_it() {
    fn collect(schema: &Value, messages: &mut BTreeSet<String>) {
        let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
        messages.extend(rules.filter_map(|rule| rule["message"].as_str().map(str::to_owned)));
        for field in schema["properties"].as_object().into_iter().flatten().map(|(_, field)| field) {
            collect(field, messages);
        }
        if let Some(items) = schema.get("items") {
            collect(items, messages);
        }
    }
    let schema = schema();
    let mut untried = BTreeSet::new();
    collect(&schema["properties"]["spec"], &mut untried);
    assert!(untried.len() > 40, "only {} rules were found", untried.len());
    for patch in bad_specs() {
        for message in our_messages(&manifest(&patch)) {
            untried.remove(&message);
        }
    }
    assert_eq!(untried, BTreeSet::new());
}

/// The API server's CEL refuses them as names; the evaluator of these tests does not (CEL's grammar, RESERVED).
#[test]
fn no_rule_uses_a_reserved_name() {
    const RESERVED: [&str; 18] = [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
        "type",
    ];
    fn check(schema: &Value) {
        let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
        for rule in rules.filter_map(|rule| rule["rule"].as_str()) {
            // Every second piece is a text in quotes, where any word may stand.
            for code in rule.split('\'').step_by(2) {
                let mut words = code.split(|each: char| !each.is_alphanumeric() && each != '_');
                assert!(!words.any(|word| RESERVED.contains(&word)), "{rule}");
            }
        }
        schema["properties"].as_object().into_iter().flatten().for_each(|(_, field)| check(field));
        schema.get("items").into_iter().for_each(check);
    }
    check(&schema());
}

#[test]
fn every_rule_compiles_as_cel() {
    fn check(schema: &Value) {
        let compiled = compile_schema(schema);
        assert!(!compiled.has_errors(), "{:?}", compiled.compilation_errors());
        for field in schema["properties"].as_object().into_iter().flatten().map(|(_, field)| field) {
            check(field);
        }
    }
    check(&schema());
}
