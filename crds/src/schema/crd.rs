//! CustomResourceDefinition: kube's derivation from the types, made strict and small, with the rules as CEL.

use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use super::documentation::{documented_fields, one_line};
use crate::rules;
use crate::spec::RLTrainingJob;

/// Path of the schema in the definition.
const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema";

/// Formats that Kubernetes knows; it warns about others.
const KNOWN_FORMATS: [&str; 4] = ["int32", "int64", "double", "date-time"];

/// Fields whose built-in default the API server must not write. A cluster or namespace can set another
/// default ([`crate::Defaults`]), and a written built-in value would look like the job's own.
const OF_CLUSTERS: [&str; 2] = ["spec.workers.network", "spec.workers.resources.gpu"];

/// Keys of a schema that the check of a manifest reads. The others, such as descriptions and rules, are three
/// quarters of the definition.
const CHECKED_KEYS: [&str; 16] = [
    "additionalProperties",
    "enum",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
];

/// Columns of `kubectl get rltj`: name, type, path, and priority 1 for those that only `-o wide` shows.
const COLUMNS: [(&str, &str, &str, u32); 7] = [
    ("State", "string", ".status.conditions[?(@.status==\"True\")].type", 0),
    ("Ready", "string", ".status.ready", 0),
    ("Step", "integer", ".status.progress.step", 0),
    ("Reward", "number", ".status.progress.reward", 0),
    ("Attempt", "integer", ".status.attempt", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Queue", "string", ".status.queue", 1),
];

/// Returns the CustomResourceDefinition as it is applied to a cluster.
///
/// # Errors
/// When the derived definition has no JSON form, which would be a bug of this crate.
pub fn custom_resource_definition() -> Result<Value, serde_json::Error> {
    let mut definition = serde_json::to_value(RLTrainingJob::crd())?;
    if let Some(version) = definition.pointer_mut("/spec/versions/0").and_then(Value::as_object_mut) {
        version.insert("additionalPrinterColumns".into(), printer_columns());
    }
    if let Some(root) = definition.pointer_mut(SCHEMA) {
        make_strict(root);
        forget_defaults_in_lists(root);
        OF_CLUSTERS.iter().for_each(|path| forget_default_at(root, path));
        begin_unobserved(root);
        describe(root);
        insert_name_rule(root);
        rules::all().for_each(|rule| insert_rule(root, rule.scope, rule.at, rule.message, rule.cel()));
        let about_changes = rules::change_rule(root);
        push_rule(root, "", about_changes);
    }
    Ok(definition)
}

fn printer_columns() -> Value {
    let column = |(name, type_, path, priority)| match priority {
        0 => json!({"name": name, "type": type_, "jsonPath": path}),
        _ => json!({"name": name, "type": type_, "jsonPath": path, "priority": priority}),
    };
    COLUMNS.into_iter().map(column).collect()
}

/// Removes what has no effect on an API server: null as a value of optional fields, null defaults, unknown
/// formats, line breaks in descriptions.
fn make_strict(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    fields.remove("nullable");
    if fields.get("default").is_some_and(Value::is_null) {
        fields.remove("default");
    }
    let has_unknown_format =
        fields.get("format").and_then(Value::as_str).is_some_and(|format| !KNOWN_FORMATS.contains(&format));
    if has_unknown_format {
        fields.remove("format");
    }
    if let Some(Value::String(description)) = fields.get_mut("description") {
        *description = one_line(description);
    }
    make_bounds_whole(fields);
    if let Some(Value::Object(default)) = fields.get_mut("default") {
        default.retain(|_, value| !value.is_null());
    }
    for (key, value) in fields.iter_mut() {
        match key.as_str() {
            "properties" => value.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(make_strict),
            "items" | "additionalProperties" | "openAPIV3Schema" => make_strict(value),
            _ => {}
        }
    }
}

/// Removes defaults within items of lists. Client-side apply replaces lists with those of the file, so every
/// `kubectl apply` would remove a default that the API server then writes again. The types still apply these
/// defaults.
fn forget_defaults_in_lists(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    for (key, value) in fields.iter_mut() {
        match key.as_str() {
            "properties" => {
                value
                    .as_object_mut()
                    .into_iter()
                    .flat_map(Map::values_mut)
                    .for_each(forget_defaults_in_lists);
            }
            "additionalProperties" => forget_defaults_in_lists(value),
            "items" => forget_defaults(value),
            _ => {}
        }
    }
}

/// Removes the default of one field, and its value in the defaults of enclosing fields.
fn forget_default_at(root: &mut Value, path: &str) {
    let mut around = path.to_owned();
    while let Some((outer, _)) = around.rsplit_once('.') {
        let outer = outer.to_owned();
        let inner = path[outer.len()..].replace('.', "/");
        if let Some(default) = schema_at_mut(root, &outer).and_then(|schema| schema.get_mut("default"))
            && let Some((holder, name)) = inner.rsplit_once('/')
            && let Some(Value::Object(fields)) = default.pointer_mut(holder)
        {
            fields.retain(|field, _| field != name);
        }
        around = outer;
    }
    if let Some(Value::Object(schema)) = schema_at_mut(root, path) {
        schema.retain(|field, _| field != "default");
    }
}

fn forget_defaults(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    fields.remove("default");
    for (key, value) in fields.iter_mut() {
        match key.as_str() {
            "properties" => {
                value.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(forget_defaults)
            }
            "items" | "additionalProperties" => forget_defaults(value),
            _ => {}
        }
    }
}

/// Converts bounds of integers, which schemars writes as floating-point numbers, to integers.
fn make_bounds_whole(fields: &mut Map<String, Value>) {
    for bound in ["minimum", "maximum"].iter().filter(|_| fields["type"] == "integer").collect::<Vec<_>>() {
        let whole = fields.get(*bound).and_then(Value::as_f64);
        fields.extend(whole.map(|whole| ((*bound).to_owned(), (whole as i64).into())));
    }
}

/// Sets the default of the status to "not observed": kstatus regards an object without a status as done, so a
/// new job would count as settled before any operator has reconciled it.
fn begin_unobserved(root: &mut Value) {
    if let Some(Value::Object(status)) = schema_at_mut(root, "status") {
        status.insert("default".into(), json!({"observedGeneration": -1}));
    }
}

/// Adds the rules of the job's name, because the names of pods, folders and labels derive from it.
fn insert_name_rule(root: &mut Value) {
    let rule = json!([
        {
            "rule": format!("self.metadata.name.size() <= {}", crate::manifest::MAX_NAME_LEN),
            "message": crate::manifest::NAME_TOO_LONG,
        },
        {
            "rule": format!("self.metadata.name.matches('{}')", crate::manifest::NAME_PATTERN),
            "message": crate::manifest::NAME_NOT_A_LABEL,
        },
    ]);
    if let Some(fields) = root.as_object_mut() {
        fields.insert("x-kubernetes-validations".into(), rule);
    }
}

/// Replaces the descriptions of fields. For a field with an enum type, the derived schema has the description
/// of the type, which says less than that of the field.
fn describe(root: &mut Value) {
    for field in documented_fields() {
        if let Some(Value::Object(schema)) = schema_at_mut(root, &field.path) {
            schema.insert("description".into(), field.description.into());
        }
    }
    root["description"] = "A reinforcement learning or supervised training job.".into();
}

fn insert_rule(root: &mut Value, scope: &str, at: &str, message: &str, cel: String) {
    let mut entry = Map::new();
    entry.insert("rule".into(), cel.into());
    entry.insert("message".into(), message.into());
    if !at.is_empty() {
        entry.insert("fieldPath".into(), format!(".{at}").into());
    }
    push_rule(root, scope, entry.into());
}

fn push_rule(root: &mut Value, scope: &str, rule: Value) {
    let Some(fields) = schema_at_mut(root, scope).and_then(Value::as_object_mut) else { return };
    let list = fields.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut() {
        list.push(rule);
    }
}

/// Returns the schema of a field by its path, with `[]` for the items of a list; an empty path is the whole
/// resource.
pub(crate) fn schema_at<'a>(root: &'a Value, path: &str) -> Option<&'a Value> {
    root.pointer(&pointer_to(path))
}

fn schema_at_mut<'a>(root: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    root.pointer_mut(&pointer_to(path))
}

fn pointer_to(path: &str) -> String {
    if path.is_empty() {
        return String::new();
    }
    path.split('.').map(|name| format!("/properties/{}", name.replace("[]", "/items"))).collect()
}

/// Formats the definition as the file in `manifests/`.
///
/// # Errors
/// When the definition has no YAML form, which would be a bug of this crate.
pub fn definition_yaml(definition: &Value) -> Result<String, serde_saphyr::SerializeError> {
    let body = serde_saphyr::to_string(definition)?;
    Ok(format!("# Written by crdgen from the types in crds/src; a test fails when it is stale.\n{body}"))
}

/// Formats the schema of `spec` as the file from which manifests are checked. A process parses it when it
/// reads its first manifest, which takes a fraction of the time that the whole definition takes as YAML.
///
/// # Errors
/// When the schema has no JSON form, which would be a bug of this crate.
pub fn spec_schema_json(definition: &Value) -> Result<String, serde_json::Error> {
    let spec = definition.pointer(SCHEMA).and_then(|root| schema_at(root, "spec"));
    let mut text = serde_json::to_string_pretty(&checked_part(spec.unwrap_or(&Value::Null)))?;
    text.push('\n');
    Ok(text)
}

/// Returns a schema and all schemas of its fields, reduced to [`CHECKED_KEYS`].
fn checked_part(schema: &Value) -> Value {
    let Some(entries) = schema.as_object() else { return schema.clone() };
    let kept = entries.iter().filter(|(key, _)| CHECKED_KEYS.contains(&key.as_str()));
    let part = |key: &str, value: &Value| match (key, value) {
        ("properties", Value::Object(fields)) => {
            fields.iter().map(|(name, field)| (name.clone(), checked_part(field))).collect::<Value>()
        }
        ("items" | "additionalProperties", schema) => checked_part(schema),
        _ => value.clone(),
    };
    kept.map(|(key, value)| (key.clone(), part(key, value))).collect()
}
