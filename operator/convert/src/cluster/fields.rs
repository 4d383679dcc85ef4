//! Outcomes for the fields of another operator's manifest.

use serde_json::{Map, Value};

use crate::ConvertError;
use crate::draft::Draft;
use crate::key::Table;
use crate::outcome::{Fate, Outcome};
use crate::settings::{Settings, text_of};

/// Longest value of a field in a report, in characters.
const MAX_CHARS: usize = 60;

/// Draft to which the fields of a manifest are converted, with the outcomes for these fields.
pub(super) struct Target<'a> {
    pub(super) draft: &'a mut Draft,
    pub(super) outcomes: &'a mut Vec<Outcome>,
}

impl Target<'_> {
    /// Records the outcomes of the fields of a map at `path` by a part of the table, except for the fields
    /// `read_by_code`.
    pub(super) fn apply(
        &mut self,
        part: &str,
        path: &str,
        fields: &Map<String, Value>,
        read_by_code: &[&str],
    ) -> Result<(), ConvertError> {
        let mut settings = Settings::default();
        for (name, value) in fields.iter().filter(|(name, _)| !read_by_code.contains(&name.as_str())) {
            settings.set(name, value.clone());
        }
        for outcome in Table::of_cluster(part)?.apply(&settings, self.draft) {
            let value = fields.get(&outcome.key).map(short).unwrap_or_default();
            self.outcomes.push(Outcome { key: format!("{path}.{}", outcome.key), value, ..outcome });
        }
        Ok(())
    }

    /// Records a field that has no equivalent, with the reason.
    pub(super) fn absent(&mut self, key: &str, value: &Value, reason: &str) {
        self.add(key, value, Fate::Absent(reason.to_owned()));
    }

    /// Records a field for which nothing has to be set, with the reason.
    pub(super) fn inherent(&mut self, key: &str, value: &Value, reason: &str) {
        self.add(key, value, Fate::Inherent(reason.to_owned()));
    }

    /// Records a field that is converted to `field`, which is already set.
    pub(super) fn converted(&mut self, key: &str, value: &Value, field: &str) {
        self.add(key, value, Fate::Converted(field.to_owned()));
    }

    /// Sets a field of the draft from one of the manifest.
    pub(super) fn set(&mut self, key: &str, given: &Value, field: &str, value: impl Into<Value>) {
        self.draft.set(field, value);
        self.converted(key, given, field);
    }

    /// Appends items to a list of the draft.
    pub(super) fn extend(&mut self, key: &str, given: &Value, field: &str, items: Vec<Value>) {
        if items.is_empty() {
            return;
        }
        let mut list = self.draft.value(field).and_then(|list| list.as_array().cloned()).unwrap_or_default();
        list.extend(items);
        self.set(key, given, field, list);
    }

    /// Adds entries to a map of the draft.
    pub(super) fn merge(&mut self, key: &str, given: &Value, field: &str, entries: Map<String, Value>) {
        if entries.is_empty() {
            return;
        }
        let mut map = self.draft.value(field).and_then(|map| map.as_object().cloned()).unwrap_or_default();
        map.extend(entries);
        self.set(key, given, field, map);
    }

    fn add(&mut self, key: &str, value: &Value, fate: Fate) {
        self.outcomes.push(Outcome { key: key.to_owned(), value: short(value), fate });
    }
}

/// Formats a value for a report; a long one only by its kind.
fn short(value: &Value) -> String {
    let text = text_of(value);
    match value {
        _ if text.chars().count() <= MAX_CHARS && !text.contains('\n') => text,
        Value::Array(items) => format!("[{} items]", items.len()),
        Value::Object(_) => "{..}".to_owned(),
        _ => text.chars().take(MAX_CHARS).filter(|letter| *letter != '\n').collect::<String>() + "..",
    }
}
