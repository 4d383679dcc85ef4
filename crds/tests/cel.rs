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
        json!({"algorithm": {"advantage": {"lambda": 0.9}}}),
        json!({"algorithm": {"critic": {"warmupSteps": 1}}}),
        json!({"algorithm": {"kind": "PPO"}, "workers": {"count": 2, "mesh": {"dpShard": 2}, "device": "Cpu"}}),
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
    ]
}

/// As [`bad_specs`], of how and where a job runs.
fn badly_placed_specs() -> Vec<Value> {
    let resources = |resources: Value| json!({"workers": {"resources": resources}});
    let storage = |storage: Value| json!({"workers": {"storage": storage}});
    let env = |env: Value| json!({"workers": {"env": env}});
    vec![
        resources(json!({"cpu": "many"})),
        resources(json!({"memory": "0Gi"})),
        resources(json!({"sharedMemory": "-1"})),
        json!({"workers": {"topology": {}}}),
        json!({"workers": {"topology": {"required": "zone", "preferred": "rack"}}}),
        storage(json!({"size": "16GB"})),
        storage(json!({})),
        storage(json!({"size": "1Gi", "claimName": "a"})),
        storage(json!({"storageClassName": "fast", "claimName": "a"})),
        env(json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}])),
        env(json!([{"name": "1A", "value": "1"}])),
        env(json!([{"name": "A=B", "value": "1"}])),
        env(json!([{"name": "RANK", "value": "1"}])),
        env(json!([{"name": "RLT_ATTEMPT", "value": "1"}])),
        env(json!([{"name": "A"}])),
        env(json!([{"name": "A", "value": "1", "secret": {"name": "a", "key": "b"}}])),
        json!({"workers": {"tolerations": [{}]}}),
        json!({"workers": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}),
        json!({"runPolicy": {"managedBy": "somebody"}}),
        json!({"runPolicy": {"managedBy": "Example.com/a"}}),
        json!({"checkpoint": {"uri": "bucket/prefix"}}),
        json!({"checkpoint": {"uri": "s3://"}}),
        json!({"checkpoint": {"uri": "gs:///prefix"}}),
        json!({"checkpoint": {"uri": "file://folder"}}),
        json!({"training": {"promptsPerUpdate": 12}, "model": {"tokenizer": null}, "data": {"task": null}}),
        json!({"workers": {"count": 2, "device": "Auto"}}),
        json!({"workers": {"count": 2, "device": "Cuda"}}),
        json!({"workers": {"count": 4, "mesh": {"dpShard": 3}, "device": "Cpu"}}),
        json!({"workers": {"mesh": {"dpShard": 2}}}),
        json!({"workers": {"mesh": {"sp": 2}}}),
        json!({"workers": {"count": 4, "mesh": {"dpShard": 4, "sp": 2}, "device": "Cpu"}}),
        json!({"workers": {"count": 3, "mesh": {"sp": 3}, "device": "Cpu"}}),
        json!({"workers": {"count": 4, "mesh": {"sp": 4}, "device": "Cpu"}, "model": {"architecture": {"numKvHeads": 1, "numHeads": 2}}}),
        json!({"workers": {"count": 2, "mesh": {"sp": 2}, "device": "Cpu"}, "training": {"maxTokensPerMicroBatch": 11}}),
        json!({"workers": {"count": 2, "mesh": {"sp": 2}, "device": "Cpu"}, "training": {"maxLogprobTokens": 11}}),
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
        json!({"algorithm": {"kind": "PPO", "advantage": {"lambda": 0.9}, "critic": {"warmupSteps": 1}}}),
        json!({"algorithm": {"loss": {"policy": "Gspo"}}}),
        json!({"algorithm": {"kind": "ReMax"}, "rollout": {"samplesPerPrompt": 1}}),
        json!({"algorithm": {"importanceCorrection": {"lowerThreshold": 0.5}}}),
        json!({"training": {"steps": null, "epochs": 2, "promptsPerUpdate": 8}}),
        json!({"workers": {
            "resources": {"cpu": "500m", "memory": "16Gi", "sharedMemory": "1e9"},
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "tolerations": [{"operator": "Exists"}, {"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
            "env": [{"name": "A", "value": ""}, {"name": "B", "secret": {"name": "a", "key": "b"}}],
            "storage": {"size": "10Gi", "storageClassName": "fast", "retain": false},
        }}),
        json!({"workers": {"storage": {"claimName": "models"}}, "runPolicy": {"managedBy": "a.example/b"}}),
        json!({"workers": {"count": 3, "device": "Cpu"}}),
        json!({"workers": {"count": 8, "mesh": {"dpShard": 2, "sp": 2}, "device": "Cpu"},
               "training": {"maxTokensPerMicroBatch": 12, "maxLogprobTokens": 12}}),
        json!({"checkpoint": {"uri": "s3://bucket"}}),
        json!({"checkpoint": {"uri": "file:///folder/of/copies"}}),
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
    for patch in bad_specs().into_iter().chain(badly_placed_specs()) {
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
fn a_name_that_does_not_fit_pods_is_refused_by_both() {
    let mut manifest = manifest(&json!({}));
    for name in ["a".repeat(53), "a.b".into(), "1a".into(), "a-".into(), "-".repeat(60)] {
        manifest["metadata"]["name"] = name.into();
        let messages = our_messages(&manifest);
        assert!(!messages.is_empty());
        assert_eq!(api_server_messages(&compile_schema(&schema()), &manifest), messages);
    }
}

#[test]
fn every_rule_has_a_specification_that_breaks_it() {
    fn collect(schema: &Value, messages: &mut BTreeSet<String>) {
        let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
        let rules = rules.filter(|rule| !is_about_changes(rule));
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
    for patch in bad_specs().into_iter().chain(badly_placed_specs()) {
        for message in our_messages(&manifest(&patch)) {
            untried.remove(&message);
        }
    }
    assert_eq!(untried, BTreeSet::new());
}

fn is_about_changes(rule: &Value) -> bool {
    rule["rule"].as_str().is_some_and(|rule| rule.contains("oldSelf"))
}

/// What the API server says to a change of a good specification, from one patch to another.
fn change_messages(before: &Value, after: &Value) -> BTreeSet<String> {
    let (before, after) = (manifest(before), manifest(after));
    let schema = compile_schema(&schema());
    let verdict = kube_cel::Validator::new().validate_compiled(&schema, &after, Some(&before));
    verdict.map_or_else(
        |errors| errors.into_vec().into_iter().map(|error| error.message).collect(),
        |()| BTreeSet::new(),
    )
}

#[test]
fn what_a_run_began_with_can_never_be_changed() {
    let suspended = json!({"runPolicy": {"suspend": true}});
    for section in [
        json!({"model": {"architecture": {"numLayers": 3}}}),
        json!({"data": {"maxPromptTokens": 12}}),
        json!({"rewards": {"timeoutSeconds": 3.0}}),
        json!({"algorithm": {"kind": "DAPO"}}),
        json!({"rollout": {"temperature": 0.5}}),
        json!({"training": {"promptsPerStep": 64}}),
        json!({"training": {"maxLogprobTokens": 4096}}),
        json!({"runPolicy": {"managedBy": "example.com/other"}}),
    ] {
        let messages = change_messages(&suspended, &merged(suspended.clone(), &section));
        assert_eq!(messages.len(), 1, "{section}: {messages:?}");
        assert!(messages.iter().all(|message| message.contains("changed")), "{section}: {messages:?}");
    }
}

#[test]
fn what_a_restart_takes_up_can_be_changed_while_nothing_runs() {
    let suspended = json!({"runPolicy": {"suspend": true}});
    for section in [
        json!({"training": {"steps": 999}}),
        json!({"checkpoint": {"keep": 9}}),
        json!({"tracking": {"console": false}}),
        json!({"workers": {"resources": {"memory": "8Gi"}}}),
    ] {
        assert_eq!(change_messages(&json!({}), &section).len(), 1, "{section}");
        assert_eq!(change_messages(&suspended, &section), BTreeSet::new(), "{section}");
        let with_pause = merged(suspended.clone(), &section);
        assert_eq!(change_messages(&json!({}), &with_pause), BTreeSet::new(), "{section}");
    }
    for policy in
        [json!({"suspend": true}), json!({"ttlSecondsAfterFinished": 1}), json!({"retries": {"io": 1}})]
    {
        assert_eq!(change_messages(&json!({}), &json!({"runPolicy": policy})), BTreeSet::new());
    }
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
