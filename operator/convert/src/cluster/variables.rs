//! Environment variables: those of a container and those of Ray's runtime environment.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::fields::Target;
use super::references::expanded;
use crate::settings::text_of;

/// Prefixes of variables that only programs read which workers do not run.
const UNREAD: [&str; 8] = ["RAY_", "PET_", "VLLM_", "SGLANG_", "PYTHON", "PIP_", "UV_", "CONDA_"];
/// Variables that give a rank its identity, which only the operator sets.
const OF_RANKS: [&str; 6] =
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];
/// Field of the variables of all workers.
const FIELD: &str = "workers.env";

/// Returns the variables of a container that have a value. A value may refer to variables before it.
pub(super) fn values(env: &Value) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    for variable in env.as_array().into_iter().flatten() {
        if let (Some(name), Some(value)) = (variable["name"].as_str(), variable.get("value")) {
            let value = expanded(&text_of(value), &values);
            values.insert(name.to_owned(), value);
        }
    }
    values
}

/// Returns a list of variables, as a container has it, from a map of names and values.
pub(super) fn list(map: &Map<String, Value>) -> Value {
    map.iter().map(|(name, value)| json!({"name": name, "value": text_of(value)})).collect()
}

/// Converts a list of variables, whose path is `path`. A later list replaces variables of an earlier one.
pub(super) fn convert(env: &Value, path: &str, target: &mut Target<'_>) {
    for variable in env.as_array().into_iter().flatten() {
        let name = variable["name"].as_str().unwrap_or_default();
        let key = format!("{path}.{name}");
        let value = variable.get("value").unwrap_or(&Value::Null);
        if OF_RANKS.contains(&name) || name.starts_with("RLT_") {
            target.inherent(&key, value, "the operator sets it");
        } else if UNREAD.iter().any(|beginning| name.starts_with(beginning)) {
            target.inherent(&key, value, "no program of a worker reads it");
        } else if let Some(converted) = converted(variable) {
            replace(&key, value, converted, target);
        } else {
            let source = variable.get("valueFrom").unwrap_or(value);
            let reason = "say a value or a secret in workers.env, or the variable in workers.podTemplate";
            target.absent(&key, source, reason);
        }
    }
}

/// Converts a variable to the form of `workers.env`; `None` if it has neither a value nor a key of a Secret.
fn converted(variable: &Value) -> Option<Value> {
    let name = variable["name"].as_str()?;
    if let Some(value) = variable.get("value").filter(|value| !value.is_null()) {
        return Some(json!({"name": name, "value": text_of(value)}));
    }
    let Some(source) = variable.get("valueFrom") else { return Some(json!({"name": name, "value": ""})) };
    let secret = &source["secretKeyRef"];
    let (secret, key) = (secret["name"].as_str()?, secret["key"].as_str()?);
    Some(json!({"name": name, "secret": {"name": secret, "key": key}}))
}

fn replace(key: &str, given: &Value, variable: Value, target: &mut Target<'_>) {
    let mut list = target.draft.value(FIELD).and_then(|list| list.as_array().cloned()).unwrap_or_default();
    list.retain(|other| other["name"] != variable["name"]);
    list.push(variable);
    target.set(key, given, FIELD, list);
}
