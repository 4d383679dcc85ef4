//! Field reference in Markdown, from the same schema that the API server enforces.

use std::fmt::Write as _;

use serde_json::Value;

use super::crd::schema_at;
use super::documentation::{Documented, documented_fields};
use crate::rules;
use crate::validate::allowed_range;

const HEAD: &str = "\
# Field reference of RLTrainingJob

<!-- Written by `cargo run -p rlt-api --features kube --bin crdgen`; a test fails when it is stale. -->

`apiVersion: rltraining.dev/v1alpha1`, `kind: RLTrainingJob`. Fields that are not listed here are refused. Where the
default is \"-\", the description says what happens without the field.
";

/// Formats all fields of the specification: path, type, default, range, description.
pub fn reference_markdown(definition: &Value) -> String {
    let mut text = String::from(HEAD);
    let root = definition.pointer("/spec/versions/0/schema/openAPIV3Schema").cloned().unwrap_or_default();
    let fields = documented_fields();
    for section in fields.iter().filter(|field| field.path.matches('.').count() == 1) {
        let path = &section.path;
        let _ = write!(text, "\n## {path}\n\n{}\n\n", section.description);
        text.push_str("| field | type | default | range | description |\n|---|---|---|---|---|\n");
        let below = format!("{path}.");
        let (leaves, own): (Vec<_>, Vec<_>) = fields
            .iter()
            .filter(|field| format!("{}.", field.path).starts_with(&below))
            .partition(|field| field.path != *path);
        // A field directly below `spec` without subfields is its own section.
        for field in if leaves.is_empty() { own } else { leaves } {
            text.push_str(&row(field, &root));
        }
        write_rules(&mut text, &below);
    }
    text
}

fn row(field: &Documented, root: &Value) -> String {
    let null = Value::Null;
    let schema = schema_at(root, &field.path).unwrap_or(&null);
    let (parent, name) = field.path.rsplit_once('.').unwrap_or_default();
    let is_required = schema_at(root, parent)
        .and_then(|parent| parent["required"].as_array())
        .is_some_and(|required| required.iter().any(|required| required == name));
    let of_schema = schema.get("default").filter(|default| !default.is_null());
    let default = match of_schema.unwrap_or(&field.default) {
        _ if is_required => "required".to_owned(),
        Value::Null | Value::Object(_) => "-".to_owned(),
        default => format!("`{default}`"),
    };
    let choices: String =
        field.choices.iter().map(|(name, meaning)| format!("<br>`{name}`: {meaning}")).collect();
    let range = match field.choices.is_empty() {
        true => allowed_range(schema).unwrap_or_else(|| "-".into()),
        false => "-".into(),
    };
    let described = format!("{}{choices}", field.description).replace('|', "\\|");
    format!("| `{}` | {} | {default} | {range} | {described} |\n", field.path, type_name(schema))
}

fn write_rules(text: &mut String, below: &str) {
    let is_here = |rule: &&rules::Rule| format!("{}.", rule.reported_at()).starts_with(below);
    let rules: Vec<_> = rules::all().filter(is_here).collect();
    if !rules.is_empty() {
        text.push_str("\nRules:\n\n");
    }
    for rule in rules {
        let _ = writeln!(text, "- `{}`: {}", rule.reported_at(), rule.message);
    }
}

fn type_name(schema: &Value) -> String {
    match (schema["type"].as_str().unwrap_or("any"), schema.get("items")) {
        ("array", Some(items)) => format!("list of {}", type_name(items)),
        (_, _) if schema.get("enum").is_some() => "choice".into(),
        (name, _) => name.to_owned(),
    }
}
