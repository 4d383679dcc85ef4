//! Tests that the generated files are up to date and within the limits of the API server.

use serde_json::{Value, json};

const MANIFEST: &str = include_str!("../manifests/rltrainingjobs.yaml");
const SPEC_SCHEMA: &str = include_str!("../src/validate/spec_schema.json");
const REFERENCE: &str = include_str!("../../docs/reference.md");
const SUPPORT: &str = include_str!("../../docs/support.md");
const REMEDY: &str = "stale: run `cargo run -p rlt-api --features kube --bin crdgen`";

#[test]
fn the_committed_definition_is_the_generated_one() {
    let definition = rlt_api::custom_resource_definition().unwrap();
    assert!(
        rlt_api::definition_yaml(&definition).unwrap() == MANIFEST,
        "crds/manifests/rltrainingjobs.yaml is {REMEDY}"
    );
}

/// An outdated schema would accept manifests that the API server refuses, or the reverse.
#[test]
fn the_committed_schema_of_manifests_is_the_generated_one() {
    let definition = rlt_api::custom_resource_definition().unwrap();
    assert!(
        rlt_api::spec_schema_json(&definition).unwrap() == SPEC_SCHEMA,
        "crds/src/validate/spec_schema.json is {REMEDY}"
    );
}

/// The schema of manifests lacks no key that the check of a manifest reads.
#[test]
fn the_schema_of_manifests_finds_the_problems_that_the_definition_finds() {
    fn compare(path: &str, full: &Value, checked: &Value) -> usize {
        let long = "x".repeat(full["maxLength"].as_u64().unwrap_or(9) as usize + 1);
        let num_entries = full["maxProperties"].as_u64().unwrap_or(0) + 1;
        let entries: Value = (0..num_entries).map(|idx| (format!("unknown{idx}"), json!("x"))).collect();
        let values = [
            json!(null),
            json!(true),
            json!(-1),
            json!(i64::MAX),
            json!(-1e12),
            json!(1e-12),
            json!(1e13),
            json!(""),
            json!("x"),
            json!(long),
            json!([]),
            Value::from(vec!["x"; 1000]),
            json!({}),
            entries,
        ];
        let problems = |schema: &Value, value: &Value| -> Vec<_> {
            rlt_api::check_schema(path, schema, value).iter().map(ToString::to_string).collect()
        };
        for value in &values {
            assert_eq!(problems(checked, value), problems(full, value), "{path}");
        }
        let fields = full["properties"].as_object().into_iter().flatten();
        let below: usize = fields
            .map(|(name, field)| compare(&format!("{path}.{name}"), field, &checked["properties"][name]))
            .sum();
        let inner =
            ["items", "additionalProperties"].into_iter().filter_map(|key| Some((key, full.get(key)?)));
        let inner: usize =
            inner.map(|(key, schema)| compare(&format!("{path}[]"), schema, &checked[key])).sum();
        1 + below + inner
    }
    let definition: Value = serde_saphyr::from_str(MANIFEST).unwrap();
    let full = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
    let num_fields = compare("spec", full, &serde_json::from_str(SPEC_SCHEMA).unwrap());
    assert!(num_fields > 400, "{num_fields} fields were compared");
}

#[test]
fn the_committed_field_reference_is_the_generated_one() {
    let definition = rlt_api::custom_resource_definition().unwrap();
    assert!(rlt_api::reference_markdown(&definition) == REFERENCE, "docs/reference.md is {REMEDY}");
}

#[test]
fn the_committed_page_of_conflicts_is_the_generated_one() {
    assert!(rlt_api::support_markdown() == SUPPORT, "docs/support.md is {REMEDY}");
}

/// Client-side apply stores the object in an annotation, and annotations are limited to 256 KiB.
#[test]
fn the_definition_stays_below_200_kilobytes() {
    let definition: Value = serde_saphyr::from_str(MANIFEST).unwrap();
    let size = definition.to_string().len();
    assert!(size < 200_000, "{size} bytes");
}

/// A structural schema has a type everywhere, says nothing about null, and describes every field.
#[test]
fn every_field_of_the_definition_has_a_type_and_a_description() {
    fn check(path: &str, schema: &Value) {
        assert!(schema["type"].is_string(), "{path} has no type");
        assert!(schema["additionalProperties"] != false, "{path} is closed in a way that API servers refuse");
        assert!(
            schema.get("nullable").is_none()
                && schema.get("anyOf").is_none()
                && schema.get("oneOf").is_none()
        );
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            assert!(
                field["description"].as_str().is_some_and(|text| text.len() > 5),
                "{path} has no description"
            );
            check(&path, field);
        }
        if let Some(items) = schema.get("items") {
            check(&format!("{path}[]"), items);
        }
    }
    let definition: Value = serde_saphyr::from_str(MANIFEST).unwrap();
    check("", definition.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap());
}

/// `kubectl apply` removes fields of list items that are not in the file. The API server would fill in the
/// default again, so that every apply would be a change.
#[test]
fn no_item_of_a_list_of_the_specification_has_a_default() {
    fn check(path: &str, schema: &Value, is_in_list: bool) -> usize {
        assert!(!is_in_list || schema.get("default").is_none(), "{path} has a default");
        let fields = schema["properties"].as_object().into_iter().flatten();
        let below: usize =
            fields.map(|(name, field)| check(&format!("{path}.{name}"), field, is_in_list)).sum();
        let items = schema.get("items").map_or(0, |items| check(&format!("{path}[]"), items, true));
        usize::from(is_in_list) + below + items
    }
    let definition: Value = serde_saphyr::from_str(MANIFEST).unwrap();
    let schema = definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
    assert!(check("spec", schema, false) > 20, "some fields lie in lists");
    let weight = REFERENCE.lines().find(|line| line.contains("`spec.rewards.functions[].weight`")).unwrap();
    assert!(weight.contains("| `1.0` |"), "the type's default is documented all the same: {weight}");
}

/// The API server estimates the cost of a rule from the bounds of lists and texts, and refuses unbounded
/// ones.
#[test]
fn every_list_and_text_of_the_specification_is_bounded() {
    fn check(path: &str, schema: &Value) {
        match schema["type"].as_str() {
            Some("array") => assert!(schema["maxItems"].is_u64(), "{path} has no maxItems"),
            Some("string") => assert!(
                schema.get("enum").is_some() || schema["maxLength"].is_u64(),
                "{path} has no maxLength"
            ),
            _ => {}
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            check(&format!("{path}.{name}"), field);
        }
        if let Some(items) = schema.get("items") {
            check(&format!("{path}[]"), items);
        }
    }
    let definition: Value = serde_saphyr::from_str(MANIFEST).unwrap();
    check("spec", definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap());
}

/// A client that replaces the full list would remove the defaults that the API server has filled into its
/// items, and GitOps tools would report a difference for ever.
#[test]
fn defaults_are_only_filled_into_items_that_are_merged_by_their_name() {
    fn has_default(schema: &Value) -> bool {
        let fields = schema["properties"].as_object().into_iter().flatten().map(|(_, field)| field);
        schema.get("default").is_some() || fields.chain(schema.get("items")).any(has_default)
    }
    fn check(path: &str, schema: &Value) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            check(&format!("{path}.{name}"), field);
        }
        if let Some(items) = schema.get("items") {
            let is_merged = schema["x-kubernetes-list-type"] == "map";
            assert!(is_merged || !has_default(items), "{path} is replaced as a whole");
            check(&format!("{path}[]"), items);
        }
    }
    let definition: Value = serde_saphyr::from_str(MANIFEST).unwrap();
    check("spec", definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap());
}
