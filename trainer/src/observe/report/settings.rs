//! Section of the resolved settings, one row per leaf.

use serde_json::Value;

use super::html::escape;
use super::run::Run;

/// Renders the section; empty without a manifest.
pub(super) fn render(run: &Run) -> String {
    let Some(spec) = run.manifest.get("spec").and_then(Value::as_object) else {
        return String::new();
    };
    let tables: String = spec.iter().map(|(section, value)| table(section, value)).collect();
    format!("<section><h2>Settings</h2><div class=\"settings\">{tables}</div></section>\n")
}

fn table(section: &str, value: &Value) -> String {
    let mut leaves = Vec::new();
    collect(String::new(), value, &mut leaves);
    let rows: String = leaves
        .into_iter()
        .map(|(path, value)| {
            let path = if path.is_empty() { section } else { &path };
            // Long paths may break after a dot, not within a word.
            let path = escape(path).replace('.', ".<wbr>");
            format!("<tr><th scope=\"row\">{path}</th><td>{}</td></tr>", escape(&value))
        })
        .collect();
    format!("<table><caption>{}</caption><tbody>{rows}</tbody></table>", escape(section))
}

/// Collects the leaves by their dotted path. Lists of plain values are leaves; lists of objects are numbered.
fn collect(path: String, value: &Value, leaves: &mut Vec<(String, String)>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| collect(below(name), value, leaves)),
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            items.iter().enumerate().for_each(|(idx, item)| collect(format!("{path}[{idx}]"), item, leaves));
        }
        Value::Array(items) if items.is_empty() => leaves.push((path, "none".into())),
        Value::Array(items) => leaves.push((path, items.iter().map(plain).collect::<Vec<_>>().join(", "))),
        leaf => leaves.push((path, plain(leaf))),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "not set".into(),
        other => other.to_string(),
    }
}
