//! Every field of a specification with invalid values, against the API server and against `rlctl validate`.

use http::Request;
use kube::Resource as _;
use rlt_api::RLTrainingJob;
use serde_json::{Value, json};

use crate::specifications::{bad_specs, good_specs, manifest};
use crate::test_namespace::TestNamespace;

const MANIFEST: &str = include_str!("../../../crds/manifests/rltrainingjobs.yaml");

/// Path of a field: names, and `0` for the first item of a list.
type Place = Vec<String>;

/// Formats a path as the API server and we write it: `spec.rewards.functions[0].name`.
fn path(place: &Place) -> String {
    let steps = place.iter().map(|step| if step == "0" { "[0]".to_owned() } else { format!(".{step}") });
    steps.collect::<String>().trim_start_matches('.').to_owned()
}

/// Values that `schema` rules out: another type, beyond either bound, too long, no choice.
fn wrong_values(schema: &Value) -> Vec<Value> {
    let mut wrong = match schema["type"].as_str() {
        Some("object") => vec![json!("text")],
        Some("string" | "array") => vec![json!(7)],
        Some("integer" | "number" | "boolean") => vec![json!("text")],
        _ => Vec::new(),
    };
    let number = |bound: &str| schema[bound].as_f64();
    wrong.extend(number("minimum").map(|least| json!(least as i64 - 1)));
    wrong.extend(number("maximum").filter(|most| *most < 1e15).map(|most| json!(most as i64 + 1)));
    let len = |bound: &str| schema[bound].as_u64().map(|len| len as usize);
    wrong.extend(len("maxLength").map(|most| json!("a".repeat(most + 1))));
    wrong.extend(len("minLength").filter(|least| *least > 0).map(|_| json!("")));
    wrong.extend(len("minItems").filter(|least| *least > 0).map(|_| json!([])));
    wrong.extend(schema.get("enum").map(|_| json!("Nonsense")));
    wrong
}

/// Every field below `place` with each of its wrong values, and a field that is not there in every object.
fn violations(schema: &Value, place: &mut Place, found: &mut Vec<(Place, Value)>) {
    found.extend(wrong_values(schema).into_iter().map(|value| (place.clone(), value)));
    let mut below = |name: &str, schema: &Value| {
        place.push(name.to_owned());
        violations(schema, place, found);
        place.pop();
    };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        below(name, field);
    }
    if let Some(items) = schema.get("items") {
        below("0", items);
    }
    if schema.get("properties").is_some() {
        let mut surprise = place.clone();
        surprise.push("surprise".to_owned());
        found.push((surprise, json!(1)));
    }
}

/// Sets `value` at `place`, creating missing parents.
fn put(document: &mut Value, place: &[String], value: Value) {
    let Some((step, rest)) = place.split_first() else { return *document = value };
    if step == "0" {
        if !document.is_array() {
            *document = json!([{}]);
        }
        put(&mut document[0], rest, value);
    } else {
        if !document.is_object() {
            *document = json!({});
        }
        put(&mut document[step], rest, value);
    }
}

/// The API server's error for `manifest` in a dry run, as `kubectl` sends it; `None` if it is accepted.
async fn refusal(test: &TestNamespace, manifest: &Value) -> Option<String> {
    let jobs = RLTrainingJob::url_path(&(), Some(&test.namespace));
    let request = Request::post(format!("{jobs}?dryRun=All&fieldValidation=Strict"))
        .header("Content-Type", "application/json")
        .body(manifest.to_string().into_bytes())
        .unwrap();
    test.client.request::<Value>(request).await.err().map(|error| error.to_string())
}

#[tokio::test]
async fn every_field_refuses_what_it_can_not_hold_and_is_named() {
    let Some(test) = crate::set("fields").await else { return };
    let definition: Value = serde_saphyr::from_str(MANIFEST).unwrap();
    let schema = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
    let mut all = Vec::new();
    violations(schema, &mut vec!["spec".to_owned()], &mut all);
    assert!(all.len() > 300, "only {} were found", all.len());
    let good = serde_json::to_value(test.manifest("fields", &json!({}))).unwrap();
    assert_eq!(refusal(&test, &good).await, None);
    for (place, value) in all {
        let mut bad = good.clone();
        put(&mut bad, &place, value.clone());
        let path = path(&place);
        let theirs = refusal(&test, &bad).await.unwrap_or_else(|| panic!("{path} takes {value}"));
        assert!(theirs.contains(&path), "{path}: {value}: {theirs}");
        let ours = rlt_api::validate(&bad.to_string()).unwrap_err();
        assert!(ours.iter().any(|problem| problem.path == path), "{path}: {value}: {ours:?}");
    }
}

#[tokio::test]
async fn every_rule_is_the_api_servers_too() {
    let Some(test) = crate::set("rules").await else { return };
    for patch in bad_specs() {
        let manifest = manifest(&patch);
        let theirs =
            refusal(&test, &manifest).await.unwrap_or_else(|| panic!("nothing is wrong with {patch}"));
        for problem in rlt_api::validate(&manifest.to_string()).unwrap_err() {
            assert!(theirs.contains(&problem.message), "{patch}: {} is not in {theirs}", problem.message);
        }
    }
    for patch in good_specs() {
        assert_eq!(refusal(&test, &manifest(&patch)).await, None, "{patch}");
    }
}
