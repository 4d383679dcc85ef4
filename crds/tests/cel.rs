//! Tests that the rules in CEL, which the API server evaluates, agree with those in Rust: both give the same
//! messages for each invalid specification, and every rule has a specification that breaks it.

#![expect(clippy::unwrap_used, reason = "a broken fixture should end the test")]

use std::collections::BTreeSet;

use crate::specifications::{bad_specs, good_specs, manifest, merged};
use kube_cel::{CompiledSchema, compile_schema};
use serde_json::{Value, json};

const MANIFEST: &str = include_str!("../manifests/rltrainingjobs.yaml");

fn schema() -> Value {
    let definition: Value = serde_saphyr::from_str(MANIFEST).unwrap();
    definition.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap().clone()
}

/// Returns the API server's messages for a manifest. Like the API server it fills in defaults before it
/// checks rules.
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
fn the_api_server_and_rust_rules_give_the_same_messages() {
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
    for patch in bad_specs() {
        for message in our_messages(&manifest(&patch)) {
            untried.remove(&message);
        }
    }
    assert_eq!(untried, BTreeSet::new());
}

fn is_about_changes(rule: &Value) -> bool {
    rule["rule"].as_str().is_some_and(|rule| rule.contains("oldSelf"))
}

/// Returns the API server's messages for a change of a valid specification from one patch to another.
fn change_messages(before: &Value, after: &Value) -> BTreeSet<String> {
    let with_status = |spec| {
        let mut object = manifest(spec);
        object["status"] = json!({"writes": 3});
        object
    };
    messages_between(&with_status(before), &with_status(after))
}

fn messages_between(before: &Value, after: &Value) -> BTreeSet<String> {
    let schema = compile_schema(&schema());
    let verdict = kube_cel::Validator::new().validate_compiled(&schema, after, Some(before));
    verdict.map_or_else(
        |errors| errors.into_vec().into_iter().map(|error| error.message).collect(),
        |()| BTreeSet::new(),
    )
}

#[test]
fn initial_fields_can_never_be_changed() {
    let suspended = json!({"runPolicy": {"suspend": true}});
    for (field, section) in [
        ("spec.model", json!({"model": {"architecture": {"numLayers": 3}}})),
        ("spec.data", json!({"data": {"maxPromptTokens": 12}})),
        ("spec.rewards", json!({"rewards": {"timeoutSeconds": 3.0}})),
        ("spec.algorithm", json!({"algorithm": {"kind": "DAPO"}})),
        ("spec.rollout", json!({"rollout": {"temperature": 0.5}})),
        ("spec.training", json!({"training": {"promptsPerStep": 64}})),
        ("spec.training", json!({"training": {"maxLogprobTokens": 4096}})),
        ("spec.managedBy", json!({"managedBy": "example.com/other"})),
    ] {
        let messages = change_messages(&suspended, &merged(suspended.clone(), &section));
        assert_eq!(messages.len(), 1, "{section}: {messages:?}");
        let names_it = |message: &String| message.contains(field) && message.contains("changed");
        assert!(messages.iter().all(names_it), "{section}: {messages:?}");
    }
}

#[test]
fn a_write_of_the_status_compares_no_specifications() {
    let (mut before, mut after) = (manifest(&json!({})), manifest(&json!({"rollout": {"temperature": 0.5}})));
    before["status"] = json!({"writes": 3});
    after["status"] = json!({"writes": 4});
    assert_eq!(messages_between(&before, &after), BTreeSet::new());
}

#[test]
fn fields_read_at_a_restart_can_be_changed_while_suspended() {
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

/// The API server's CEL refuses reserved words as names (CEL's grammar, RESERVED); the evaluator of these
/// tests does not.
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
            // Every second piece is a quoted text, which may contain any words.
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
