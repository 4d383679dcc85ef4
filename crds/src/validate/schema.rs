//! Validation of single fields: a value against the schema that the API server enforces.
//!
//! The schema is the one of `manifests/rltrainingjobs.yaml`, so that the type, bounds and choices of a field
//! are declared once, at its type. `spec_schema.json` has the subset that is checked here. Besides problems,
//! checking returns a repaired value without wrong fields, or with placeholders for them, so that rules about
//! the other fields can still be checked.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::problem::Problem;

/// The schema of `spec`; null if the embedded file cannot be read, which a test rules out.
static SPEC_SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("spec_schema.json")).unwrap_or_default());

/// Minimum similarity of a name that is proposed instead of an unknown one (Jaro-Winkler, 1 for equal).
const MIN_SIMILARITY: f64 = 0.8;

/// Maximum number of problems listed for one manifest.
pub(super) const MAX_PROBLEMS: usize = 100;
/// Maximum length in bytes of an unknown field's name. A longer name is truncated in its problem, and no
/// similar field is searched for.
const MAX_FIELD_BYTES: usize = 128;
/// Maximum length in bytes of a value that a problem shows.
const MAX_VALUE_BYTES: usize = 4096;

/// Collects the problems of single fields.
#[derive(Default)]
pub(super) struct Checker {
    pub(super) problems: Vec<Problem>,
    /// Fields that an unknown field was probably meant to be.
    meant: Vec<String>,
    /// Whether there are more problems than are listed.
    has_more: bool,
}

impl Checker {
    /// Records a problem, up to [`MAX_PROBLEMS`]: more are not worth reading, and a large manifest must not
    /// use much memory.
    pub(super) fn push(&mut self, problem: Problem) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        } else if !self.has_more {
            self.has_more = true;
            let more = format!("has more problems; the first {MAX_PROBLEMS} are listed");
            self.problems.push(Problem::new("", more));
        }
    }

    /// Returns whether the list of problems is full. If so, records that there are more.
    fn is_full(&mut self) -> bool {
        let is_full = self.problems.len() >= MAX_PROBLEMS;
        if is_full {
            self.push(Problem::default());
        }
        is_full
    }

    /// Checks `spec` and returns its valid part.
    pub(super) fn check_spec(&mut self, spec: &Value) -> Value {
        self.check("spec", &SPEC_SCHEMA, spec).unwrap_or_else(|| placeholder(&SPEC_SCHEMA))
    }

    /// Checks defaults of a cluster or a namespace: those fields of `spec.workers`.
    pub(super) fn check_defaults(&mut self, value: &Value, fields: &[&str]) {
        let mut workers = SPEC_SCHEMA["properties"]["workers"].clone();
        if let Some(Value::Object(known)) = workers.get_mut("properties") {
            known.retain(|name, _| fields.contains(&name.as_str()));
        }
        let schema = serde_json::json!({"type": "object", "properties": {"workers": workers}});
        self.check("", &schema, value);
    }

    /// Checks a value against the schema of another API.
    pub(super) fn check_at(&mut self, path: &str, schema: &Value, value: &Value) {
        self.check(path, schema, value);
    }

    /// Returns the paths of fields that already have a problem, about which rules cannot say anything new.
    pub(super) fn blocked_paths(&self) -> Vec<String> {
        let is_unknown = |problem: &&Problem| problem.message == UNKNOWN_FIELD;
        let wrong =
            self.problems.iter().filter(|problem| !is_unknown(problem)).map(|problem| problem.path.clone());
        wrong.chain(self.meant.iter().cloned()).collect()
    }

    /// Records a field that does not exist, with the field that was probably meant.
    pub(super) fn unknown_field(&mut self, parent: &str, schema: &Value, name: &str, value: &Value) {
        if self.is_full() {
            return;
        }
        if name.len() > MAX_FIELD_BYTES {
            let name = &name[..name.floor_char_boundary(MAX_FIELD_BYTES)];
            return self.push(Problem::new(join(parent, &format!("{name}...")), UNKNOWN_FIELD));
        }
        let known: Vec<_> = properties(schema).map(|(known, _)| known.as_str()).collect();
        let sibling = most_similar(name, &known).map(|sibling| join(parent, sibling));
        let meant =
            sibling.or_else(|| below(name, parent, schema)).or_else(|| below(name, "spec", &SPEC_SCHEMA));
        self.meant.extend(meant.clone());
        self.push(Problem {
            value: shown(value),
            allowed: meant.is_none().then(|| known.join(", ")),
            did_you_mean: meant,
            ..Problem::new(join(parent, name), UNKNOWN_FIELD)
        });
    }

    fn check(&mut self, path: &str, schema: &Value, value: &Value) -> Option<Value> {
        if schema["x-kubernetes-int-or-string"] == true && (value.is_string() || value.is_i64()) {
            return Some(value.clone());
        }
        let choices: Vec<_> = strings(&schema["enum"]).collect();
        let message = match (schema["type"].as_str().unwrap_or("object"), value) {
            (expected, Value::Null) => {
                format!("is empty; expected {} or no such line", type_in_words(expected))
            }
            ("object", Value::Object(fields)) => return Some(self.check_object(path, schema, fields)),
            ("array", Value::Array(items)) => return self.check_list(path, schema, items),
            ("string", Value::String(text)) if !choices.is_empty() => {
                if choices.contains(&text.as_str()) {
                    return Some(value.clone());
                }
                "is not one of the choices".into()
            }
            ("string", Value::String(text)) => {
                let len = text.chars().count() as f64;
                if within(len, &schema["minLength"], &schema["maxLength"]) {
                    return Some(value.clone());
                }
                "has a wrong length".into()
            }
            ("number", Value::Number(number)) => {
                return self.check_number(path, schema, value, number.as_f64());
            }
            ("integer", Value::Number(number)) if !number.is_f64() => {
                return self.check_number(path, schema, value, number.as_f64());
            }
            ("boolean", Value::Bool(_)) => return Some(value.clone()),
            (expected, found) => format!("is {}; expected {}", kind_in_words(found), type_in_words(expected)),
        };
        let did_you_mean = value.as_str().and_then(|text| most_similar(text, &choices)).map(str::to_owned);
        let value = if value.is_null() { None } else { shown(value) };
        self.push(Problem {
            value,
            allowed: allowed_range(schema),
            did_you_mean,
            ..Problem::new(path, message)
        });
        None
    }

    fn check_number(
        &mut self,
        path: &str,
        schema: &Value,
        value: &Value,
        number: Option<f64>,
    ) -> Option<Value> {
        if within(number?, &schema["minimum"], &schema["maximum"]) {
            return Some(value.clone());
        }
        self.push(Problem {
            value: shown(value),
            allowed: allowed_range(schema),
            ..Problem::new(path, "is out of range")
        });
        None
    }

    fn check_list(&mut self, path: &str, schema: &Value, items: &[Value]) -> Option<Value> {
        if !within(items.len() as f64, &schema["minItems"], &schema["maxItems"]) {
            self.push(Problem {
                value: items.get(..MAX_PROBLEMS.min(items.len())).map(|some| some.to_vec().into()),
                allowed: allowed_range(schema),
                ..Problem::new(path, "has a wrong number of items")
            });
            return None;
        }
        let check = |(idx, item)| {
            self.check(&format!("{path}[{idx}]"), &schema["items"], item)
                .unwrap_or_else(|| placeholder(&schema["items"]))
        };
        Some(items.iter().enumerate().map(check).collect())
    }

    fn check_object(&mut self, path: &str, schema: &Value, fields: &Map<String, Value>) -> Value {
        if schema["x-kubernetes-preserve-unknown-fields"] == true {
            return fields.clone().into();
        }
        if schema["additionalProperties"].is_object() {
            return self.check_map(path, schema, fields);
        }
        let mut repaired = Map::new();
        for (name, value) in fields {
            match schema["properties"].get(name) {
                Some(field) => {
                    let right = self.check(&join(path, name), field, value);
                    repaired.extend(right.map(|right| (name.clone(), right)));
                }
                None => self.unknown_field(path, schema, name, value),
            }
        }
        for name in strings(&schema["required"]) {
            let field = join(path, name);
            if !fields.contains_key(name) && !self.meant.contains(&field) {
                self.push(Problem {
                    allowed: allowed_range(&schema["properties"][name]),
                    ..Problem::new(field, "is missing")
                });
            }
            repaired.entry(name).or_insert_with(|| placeholder(&schema["properties"][name]));
        }
        repaired.into()
    }

    /// Checks a map with arbitrary keys: the number of entries, and each value.
    fn check_map(&mut self, path: &str, schema: &Value, entries: &Map<String, Value>) -> Value {
        if !within(entries.len() as f64, &Value::Null, &schema["maxProperties"]) {
            self.push(Problem {
                allowed: allowed_range(schema),
                ..Problem::new(path, "has a wrong number of entries")
            });
            return Map::new().into();
        }
        let mut repaired = Map::new();
        for (key, value) in entries {
            let right = self.check(&join(path, key), &schema["additionalProperties"], value);
            repaired.extend(right.map(|right| (key.clone(), right)));
        }
        repaired.into()
    }
}

/// Returns `spec` without the fields that this release does not know. Values of the others are not checked.
pub(super) fn known_fields(spec: &Value) -> Value {
    prune(&SPEC_SCHEMA, spec)
}

fn prune(schema: &Value, value: &Value) -> Value {
    let keeps_all = schema["x-kubernetes-preserve-unknown-fields"] == true;
    match value {
        Value::Object(fields) if schema["properties"].is_object() && !keeps_all => {
            let known = |(name, value): (&String, &Value)| {
                Some((name.clone(), prune(schema["properties"].get(name)?, value)))
            };
            fields.iter().filter_map(known).collect::<Map<_, _>>().into()
        }
        Value::Object(entries) if schema["additionalProperties"].is_object() => {
            let pruned = |(key, value): (&String, &Value)| {
                (key.clone(), prune(&schema["additionalProperties"], value))
            };
            entries.iter().map(pruned).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(|item| prune(&schema["items"], item)).collect(),
        other => other.clone(),
    }
}

/// Returns a value as a problem shows it: no maps, and only the beginning of long texts and lists.
fn shown(value: &Value) -> Option<Value> {
    match value {
        Value::Object(_) => None,
        Value::Array(items) => Some(items.get(..MAX_PROBLEMS.min(items.len()))?.to_vec().into()),
        Value::String(text) => Some(text[..text.floor_char_boundary(MAX_VALUE_BYTES)].into()),
        plain => Some(plain.clone()),
    }
}

const UNKNOWN_FIELD: &str = "is not a field";

/// Returns a minimal value that a schema accepts, to replace a wrong one.
fn placeholder(schema: &Value) -> Value {
    if let Some(choice) = strings(&schema["enum"]).next() {
        return choice.into();
    }
    match schema["type"].as_str() {
        Some("string") => "x".into(),
        Some("boolean") => false.into(),
        Some("array") => {
            let num_items = schema["minItems"].as_u64().unwrap_or(0) as usize;
            vec![placeholder(&schema["items"]); num_items].into()
        }
        // A bound may be written as 1.0 although the field is a whole number.
        Some("integer") => (schema["minimum"].as_f64().unwrap_or(0.0) as i64).into(),
        Some("number") => schema["minimum"].as_f64().unwrap_or(0.0).into(),
        _ => {
            let required = strings(&schema["required"]);
            required
                .map(|name| (name.to_owned(), placeholder(&schema["properties"][name])))
                .collect::<Map<_, _>>()
                .into()
        }
    }
}

/// Formats the bounds or choices of a field in words; `None` where there are none.
pub(crate) fn allowed_range(schema: &Value) -> Option<String> {
    let choices: Vec<_> = strings(&schema["enum"]).collect();
    if !choices.is_empty() {
        return Some(choices.join(", "));
    }
    let bounds = |least: &str, most: &str, unit: &str| {
        let (least, most) = (&schema[least], &schema[most]);
        match (number_in_words(least), number_in_words(most)) {
            (None, None) => None,
            (Some(least), Some(most)) if least == most => Some(format!("{least}{unit}")),
            (Some(least), Some(most)) => Some(format!("{least} to {most}{unit}")),
            (Some(least), None) => Some(format!("at least {least}{unit}")),
            (None, Some(most)) => Some(format!("at most {most}{unit}")),
        }
    };
    match schema["type"].as_str() {
        Some("string") => bounds("minLength", "maxLength", " characters"),
        Some("array") => bounds("minItems", "maxItems", " items"),
        Some("object") => bounds("minProperties", "maxProperties", " entries"),
        _ => bounds("minimum", "maximum", ""),
    }
}

fn number_in_words(bound: &Value) -> Option<String> {
    let number = bound.as_f64()?;
    let is_plain = number == 0.0 || (1e-3..1e9).contains(&number.abs());
    Some(if is_plain { format!("{number}") } else { format!("{number:e}") })
}

fn within(number: f64, least: &Value, most: &Value) -> bool {
    least.as_f64().is_none_or(|least| number >= least) && most.as_f64().is_none_or(|most| number <= most)
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

fn type_in_words(name: &str) -> &'static str {
    match name {
        "object" => "a map of fields",
        "array" => "a list",
        "string" => "a text",
        "integer" => "a whole number",
        "number" => "a number",
        _ => "true or false",
    }
}

fn kind_in_words(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map of fields",
    }
}

/// Returns the known name that is most similar to an unknown one, ignoring case and separators.
fn most_similar<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let plain = |name: &str| name.replace(['_', '-'], "").to_lowercase();
    let similarity = |known: &&str| strsim::jaro_winkler(&plain(name), &plain(known));
    let scored = known.iter().map(|known| (*known, similarity(known)));
    let best = scored.max_by(|(_, one), (_, other)| one.total_cmp(other));
    best.filter(|(_, similarity)| *similarity >= MIN_SIMILARITY).map(|(known, _)| known)
}

/// Returns the path of a field with exactly this name somewhere below `path`.
fn below(name: &str, path: &str, schema: &Value) -> Option<String> {
    let here = properties(schema).any(|(field, _)| field == name).then(|| join(path, name));
    here.or_else(|| properties(schema).find_map(|(field, schema)| below(name, &join(path, field), schema)))
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}
