//! Documentation of each field, in the order of declaration. The structural schema of the custom resource
//! keeps neither that order nor the documentation of enum values.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::spec::RLTrainingJobSpec;

/// Documentation of a field, taken from its type.
pub(crate) struct Documented {
    /// Path of the field from `spec`, with `[]` where it is within the items of a list.
    pub(crate) path: String,
    /// Description on one line.
    pub(crate) description: String,
    /// Default of the type; null without one.
    pub(crate) default: Value,
    /// Names and documentation of enum values; empty for other types.
    pub(crate) choices: Vec<(String, String)>,
}

/// Returns all fields below `spec`, each after its parent.
pub(crate) fn documented_fields() -> Vec<Documented> {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<RLTrainingJobSpec>();
    let mut fields = Vec::new();
    collect("spec", schema.as_value(), &mut fields);
    fields
}

fn collect(path: &str, schema: &Value, fields: &mut Vec<Documented>) {
    let schema = without_option(schema);
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        fields.push(Documented {
            description: one_line(field["description"].as_str().unwrap_or_default()),
            default: field["default"].clone(),
            choices: choices(field),
            path: path.clone(),
        });
        collect(&path, field, fields);
        if let Some(items) = without_option(field).get("items") {
            collect(&format!("{path}[]"), items, fields);
        }
    }
}

/// Returns the schema of the inner type of an `Option`, which is described as "this or null".
fn without_option(schema: &Value) -> &Value {
    let some = schema["anyOf"].as_array().and_then(|cases| cases.iter().find(|case| case["type"] != "null"));
    some.unwrap_or(schema)
}

fn choices(field: &Value) -> Vec<(String, String)> {
    let field = without_option(field);
    let field = field.get("items").unwrap_or(field);
    let variants = field["oneOf"].as_array().into_iter().flatten();
    let choice = |variant: &Value| {
        let meaning = variant["description"].as_str().unwrap_or_default();
        Some((variant["const"].as_str()?.to_owned(), one_line(meaning)))
    };
    variants.filter_map(choice).collect()
}

/// Returns the first paragraph of a documentation comment on one line.
pub(crate) fn one_line(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}
