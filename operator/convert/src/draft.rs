//! A manifest under construction: fields by path, remarks by section, and the YAML text.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::launch::Launch;
use crate::outcome::{Fate, Outcome};
use crate::settings::is_true;

/// Sections of a specification, in their usual order.
const SECTIONS: [&str; 11] = [
    "model",
    "data",
    "rewards",
    "algorithm",
    "rollout",
    "training",
    "checkpoint",
    "tracking",
    "workers",
    "runPolicy",
    "managedBy",
];
/// Prefixes of fields of other operators' manifests with the section to which they belong.
const CLUSTER_HOMES: [(&str, &str); 6] = [
    ("RayJob.deletionStrategy", "runPolicy"),
    ("RayJob.managedBy", "runPolicy"),
    ("RayJob.", "workers"),
    ("TrainJob.initializer.model", "model"),
    ("TrainJob.initializer.dataset", "data"),
    ("TrainJob.", "workers"),
];
/// Largest width of a comment line, in characters.
const COMMENT_COLUMNS: usize = 110;

/// A manifest under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    name: String,
    /// Further metadata of the job: namespace, labels and annotations.
    metadata: Map<String, Value>,
    /// Paths below `spec`, such as `training.optimizer.learningRate`.
    fields: Vec<(String, Value)>,
    /// Remarks, each with the section at whose head it is written.
    remarks: Vec<(&'static str, String)>,
    /// Prefixes of the other trainer's settings, with the section to which such settings belong.
    homes: &'static [(&'static str, &'static str)],
    /// Python file or module of a reward function, and the function's name.
    pub(crate) python_reward: Option<(String, String)>,
}

impl Draft {
    pub(crate) fn new(name: &str, homes: &'static [(&'static str, &'static str)]) -> Self {
        Self { name: name.to_owned(), homes, ..Self::default() }
    }

    fn section_of(&self, key: &str) -> &'static str {
        let mut homes = CLUSTER_HOMES.iter().chain(self.homes);
        let home = homes.find(|(beginning, _)| key.starts_with(beginning));
        home.map_or("training", |(_, section)| section)
    }

    /// Sets a field of the job's metadata other than its name.
    pub(crate) fn set_metadata(&mut self, field: &str, value: impl Into<Value>) {
        self.metadata.insert(field.to_owned(), value.into());
    }

    /// Sets a field, such as `spec.training.steps`.
    pub(crate) fn set(&mut self, field: &str, value: impl Into<Value>) {
        let path = field.strip_prefix("spec.").unwrap_or(field);
        let value = value.into();
        match self.fields.iter_mut().find(|(name, _)| name == path) {
            Some(entry) => entry.1 = value,
            None => self.fields.push((path.to_owned(), value)),
        }
    }

    /// Sets a field, unless the value is `None`.
    pub(crate) fn set_some(&mut self, field: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(field, value);
        }
    }

    /// Removes a field.
    pub(crate) fn remove(&mut self, field: &str) {
        let path = field.strip_prefix("spec.").unwrap_or(field);
        self.fields.retain(|(name, _)| name != path);
    }

    /// Removes a field and all fields below it.
    pub(crate) fn remove_below(&mut self, path: &str) {
        self.fields.retain(|(name, _)| !is_below(name, path));
    }

    /// Returns the value of a field, whose path has no `spec.` prefix.
    pub(crate) fn value(&self, path: &str) -> Option<&Value> {
        self.fields.iter().find(|(name, _)| name == path).map(|(_, value)| value)
    }

    /// Returns the value of a numeric field.
    pub(crate) fn number(&self, path: &str) -> Option<f64> {
        self.value(path)?.as_f64()
    }

    /// Returns the value of a field that is a non-negative integer.
    pub(crate) fn count(&self, path: &str) -> Option<u64> {
        self.value(path)?.as_u64()
    }

    /// Returns the value of a text field.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.value(path)?.as_str().map(str::to_owned)
    }

    /// Whether a field is set to true.
    pub(crate) fn is_true(&self, path: &str) -> bool {
        self.value(path).is_some_and(is_true)
    }

    /// Whether a field, or one below it, is set.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.fields.iter().any(|(name, _)| is_below(name, path))
    }

    /// Iterates over all remarks, with their sections.
    #[cfg(test)]
    pub(crate) fn remarks(&self) -> impl Iterator<Item = &(&'static str, String)> {
        self.remarks.iter()
    }

    /// Adds a remark at the head of a section, unless it is there already.
    pub(crate) fn remark(&mut self, section: &'static str, text: impl Into<String>) {
        let remark = (section, text.into());
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }

    /// Adds a remark at the head of the section of a field.
    pub(crate) fn remark_on(&mut self, path: &str, text: impl Into<String>) {
        let section = SECTIONS.iter().find(|section| is_below(path, section));
        self.remark(section.copied().unwrap_or("training"), text);
    }

    /// Writes the manifest as YAML; settings without an equivalent become comments in the section to which
    /// they belong.
    pub(crate) fn to_yaml(&self, launch: &Launch, outcomes: &[Outcome]) -> String {
        let mut text = String::new();
        let source = launch.cluster.as_ref().map(|job| format!(" in a {}", job.kind_name()));
        let (project, source) = (launch.project.name(), source.unwrap_or_default());
        comment(&mut text, 0, &format!("Converted from {project} ({}){source}.", launch.trainer));
        text.push_str("apiVersion: rltraining.dev/v1alpha1\nkind: RLTrainingJob\nmetadata:\n");
        let _ = writeln!(text, "  name: {}", flow(&Value::from(self.name.as_str())));
        self.metadata.iter().for_each(|(name, value)| write_value(&mut text, 2, name, value));
        text.push_str("spec:\n");
        for section in SECTIONS {
            self.write_section(&mut text, section, outcomes);
        }
        text
    }

    fn write_section(&self, text: &mut String, section: &'static str, outcomes: &[Outcome]) {
        if let Some(value) = self.value(section) {
            return write_value(text, 2, section, value);
        }
        let lost = self.lost(section, outcomes);
        let remarks = self.remarks.iter().filter(|(of, _)| *of == section);
        let remarks: Vec<_> = remarks.map(|(_, remark)| remark).chain(&lost).collect();
        let prefix = format!("{section}.");
        let below = self.fields.iter().filter_map(|(path, value)| Some((path.strip_prefix(&prefix)?, value)));
        let mut tree = Node::default();
        below.for_each(|(path, value)| tree.insert(path, value.clone()));
        if tree.children.is_empty() && remarks.is_empty() {
            return;
        }
        let indent = if tree.children.is_empty() { 2 } else { 4 };
        if !tree.children.is_empty() {
            let _ = writeln!(text, "  {section}:");
        }
        remarks.iter().for_each(|remark| comment(text, indent, remark));
        tree.write(text, 4);
    }

    /// Returns remarks on the settings of a section that have no equivalent, one per reason.
    fn lost(&self, section: &str, outcomes: &[Outcome]) -> Vec<String> {
        let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
        for outcome in outcomes {
            let (Fate::Absent(reason) | Fate::Unknown(reason)) = &outcome.fate else { continue };
            if self.section_of(&outcome.key) != section {
                continue;
            }
            let setting = format!("{}={}", outcome.key, outcome.value);
            match reasons.iter_mut().find(|(known, _)| known == reason) {
                Some((_, settings)) => settings.push(setting),
                None => reasons.push((reason, vec![setting])),
            }
        }
        let remark = |(reason, settings): (&str, Vec<String>)| {
            let verb = if settings.len() == 1 { "has" } else { "have" };
            format!("{} {verb} no equal: {reason}.", settings.join(", "))
        };
        reasons.into_iter().map(remark).collect()
    }
}

/// Whether a field has the given path, or is below it.
fn is_below(name: &str, path: &str) -> bool {
    name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A node of the tree of fields, whose children are in the order in which they were set.
#[derive(Debug, Default)]
struct Node {
    children: Vec<(String, Node)>,
    value: Option<Value>,
}

impl Node {
    fn insert(&mut self, path: &str, value: Value) {
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        let index = self.children.iter().position(|(child, _)| child == name).unwrap_or_else(|| {
            self.children.push((name.to_owned(), Self::default()));
            self.children.len() - 1
        });
        let child = &mut self.children[index].1;
        match rest {
            Some(rest) => child.insert(rest, value),
            None => child.value = Some(value),
        }
    }

    fn write(&self, text: &mut String, indent: usize) {
        for (name, child) in &self.children {
            match &child.value {
                Some(value) => write_value(text, indent, name, value),
                None => {
                    let _ = writeln!(text, "{:indent$}{}:", "", name_of(name));
                    child.write(text, indent + 2);
                }
            }
        }
    }
}

/// Quotes a name if necessary: names of a template's variables may be any text of a script.
fn name_of(name: &str) -> String {
    if is_plain(name) { name.to_owned() } else { printable(&Value::from(name).to_string()) }
}

fn write_value(text: &mut String, indent: usize, name: &str, value: &Value) {
    let name = name_of(name);
    match value {
        Value::Object(map) if !map.is_empty() => {
            let _ = writeln!(text, "{:indent$}{name}:", "");
            map.iter().for_each(|(name, value)| write_value(text, indent + 2, name, value));
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let _ = writeln!(text, "{:indent$}{name}:", "");
            items.iter().for_each(|item| write_item(text, indent, item));
        }
        value => {
            let _ = writeln!(text, "{:indent$}{name}: {}", "", flow(value));
        }
    }
}

/// Writes an item of a list, with its first field on the line of the dash.
fn write_item(text: &mut String, indent: usize, item: &Value) {
    let empty = Map::new();
    for (index, (name, value)) in item.as_object().unwrap_or(&empty).iter().enumerate() {
        let begin = text.len();
        write_value(text, indent + 4, name, value);
        if index == 0 {
            text.replace_range(begin + indent + 2..begin + indent + 3, "-");
        }
    }
}

/// Formats a value in one line.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        other => printable(&other.to_string()),
    }
}

/// Escapes each character that YAML does not allow, in the form that JSON and YAML share for quoted text.
fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for letter in text.chars() {
        // Bidirectional controls would make a terminal show another text than the one that is parsed.
        let is_turning = matches!(letter, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let is_unprintable = matches!(letter, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}');
        if letter.is_control() || is_turning || is_unprintable {
            let _ = write!(printable, "\\u{:04x}", u32::from(letter));
        } else {
            printable.push(letter);
        }
    }
    printable
}

/// Whether a text needs no quotes, including in a list.
fn is_plain(text: &str) -> bool {
    let is_word = |text: &str| {
        let mut letters = text.chars();
        letters.next().is_some_and(|first| first.is_ascii_alphabetic() || matches!(first, '/' | '_'))
            && letters.all(|letter| letter.is_ascii_alphanumeric() || "/_.-+".contains(letter))
    };
    let is_reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .iter()
        .any(|reserved| text.eq_ignore_ascii_case(reserved));
    is_word(text) && !is_reserved
}

/// Writes a comment, wrapped between words.
fn comment(text: &mut String, indent: usize, remark: &str) {
    let mut column = usize::MAX;
    for word in remark.split_whitespace() {
        let width = word.chars().count();
        if column.saturating_add(1 + width) > COMMENT_COLUMNS {
            if column != usize::MAX {
                text.push('\n');
            }
            let _ = write!(text, "{:indent$}#", "");
            column = indent + 1;
        }
        text.push(' ');
        text.push_str(&printable(word));
        column += 1 + width;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Project;
    use serde_json::json;

    #[test]
    fn fields_are_written_by_section_with_comments_on_lost_settings() {
        let mut draft = Draft::new("a", &[("", "data")]);
        draft.set("spec.training.optimizer.learningRate", 1e-6);
        draft.set("spec.data.train", json!(["/data/a b.parquet", "x.jsonl"]));
        draft.set(
            "spec.rewards.functions",
            json!([{"name": "gsm8k", "kind": "Gsm8k"}, {"name": "no", "server": {"url": "http://x:1/"}}]),
        );
        draft.set("spec.training.optimizer.betas", json!([0.9, 0.95]));
        draft.remark("rewards", "a reward function of one's own runs behind a server");
        let lost = Outcome {
            key: "data.image_key".into(),
            value: "images".into(),
            fate: Fate::Absent("no vision".into()),
        };
        let launch = Launch::new(Project::Verl, "main_ppo", &[]);
        insta::assert_snapshot!(draft.to_yaml(&launch, &[lost]));
    }
}
