//! The chart's README has a row for every value, with the default of `values.yaml` and the type of
//! `values.schema.json`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::read;

/// Property of the schema that is Helm's own and has no default.
const GLOBAL: &str = "global";

/// A value of the chart.
#[derive(Debug, PartialEq)]
struct Setting {
    /// Path in `values.yaml`, such as `image.tag`.
    path: String,
    /// Name of the type, with its range or choices.
    type_name: String,
    default: Value,
}

fn parse(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap()
}

/// Properties of an object in the schema; `None` for a value that is set as a whole.
fn parts(schema: &Value) -> Option<&Map<String, Value>> {
    let properties = schema["properties"].as_object()?;
    let is_anything = |schema: &Value| schema.as_object().is_some_and(Map::is_empty);
    (!properties.values().all(is_anything)).then_some(properties)
}

/// Name of the type that a schema gives to a value.
fn type_name(schema: &Value) -> String {
    if let Some(names) = schema["enum"].as_array() {
        let names = names.iter().map(|name| format!("`{}`", name.as_str().unwrap()));
        return names.collect::<Vec<_>>().join(", ");
    }
    if let Some(forms) = schema["anyOf"].as_array() {
        return type_name(&forms[0]);
    }
    let word = schema["type"].as_str().unwrap();
    let items = &schema["items"];
    match word {
        "array" if items["enum"].is_array() => "list of names".to_owned(),
        "array" => format!("list of {}s", items["type"].as_str().unwrap()),
        "object" if schema["additionalProperties"].is_object() => "map of strings".to_owned(),
        _ => match (schema["minimum"].as_i64(), schema["maximum"].as_i64()) {
            (Some(least), Some(most)) => format!("{word}, {least} to {most}"),
            _ => word.to_owned(),
        },
    }
}

/// All values below `path`; fails where schema and values have different ones.
fn settings(root: &Value, schema: &Value, value: &Value, path: &str) -> Vec<Setting> {
    let definition = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/definitions/"));
    let schema = definition.map_or(schema, |name| &root["definitions"][name]);
    let Some(parts) = parts(schema) else {
        return vec![Setting { path: path.to_owned(), type_name: type_name(schema), default: value.clone() }];
    };
    let names: BTreeSet<&str> = parts.keys().map(String::as_str).filter(|name| *name != GLOBAL).collect();
    let defaults: BTreeSet<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(defaults, names, "values.yaml and values.schema.json at \"{path}\"");
    let below = |name: &&str| {
        let path = if path.is_empty() { (*name).to_owned() } else { format!("{path}.{name}") };
        settings(root, &parts[*name], &value[*name], &path)
    };
    names.iter().flat_map(below).collect()
}

/// The rows of the README's tables.
fn rows(page: &str) -> Vec<Setting> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(" | ").collect();
        assert_eq!(cells.len(), 4, "{line}");
        let description = cells[3];
        assert!(
            description.ends_with('.') && description.split(' ').count() > 2,
            "{line}: a description is a sentence"
        );
        Setting {
            path: cells[0].trim_end_matches('`').to_owned(),
            type_name: cells[1].to_owned(),
            default: parse(&format!("value: {}", cells[2].trim_matches('`')))["value"].clone(),
        }
    };
    lines.map(row).collect()
}

#[test]
fn the_readme_of_the_chart_has_every_value_with_its_type_and_default() {
    let schema: Value = serde_json::from_str(&read("charts/rl-operator/values.schema.json")).unwrap();
    let values = parse(&read("charts/rl-operator/values.yaml"));
    let mut expected = settings(&schema, &schema, &values, "");
    let mut present = rows(&read("charts/rl-operator/README.md"));
    assert!(expected.len() > 40, "values are found: {}", expected.len());
    expected.sort_by(|a, b| a.path.cmp(&b.path));
    present.sort_by(|a, b| a.path.cmp(&b.path));
    let paths = |settings: &[Setting]| settings.iter().map(|one| one.path.clone()).collect::<Vec<_>>();
    assert_eq!(paths(&present), paths(&expected), "values without a row, or rows without a value");
    for (row, setting) in present.iter().zip(&expected) {
        assert_eq!(row, setting);
    }
}

#[test]
fn a_type_is_named_with_its_range_or_its_choices() {
    let named = |schema: &str| type_name(&serde_json::from_str(schema).unwrap());
    assert_eq!(named(r#"{"type": "integer", "minimum": 1, "maximum": 10}"#), "integer, 1 to 10");
    assert_eq!(named(r#"{"enum": ["Always", "Never"]}"#), "`Always`, `Never`");
    assert_eq!(named(r#"{"type": "array", "items": {"enum": ["Root"]}}"#), "list of names");
    assert_eq!(named(r#"{"type": "array", "items": {"type": "string"}}"#), "list of strings");
    assert_eq!(named(r#"{"type": "object"}"#), "object");
}
