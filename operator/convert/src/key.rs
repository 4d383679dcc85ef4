//! Mapping of another trainer's settings: the projects' tables, and the outcome for each setting.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use crate::ConvertError;
use crate::draft::Draft;
use crate::launch::Project;
use crate::outcome::{Fate, Outcome};
use crate::settings::{Settings, is_computed, text_of};

/// Rows of a project's table by the name of their part, or the reason that the table cannot be read.
type Parts = Result<BTreeMap<String, Vec<Row>>, String>;

// Each is parsed once: a page may have hundreds of scripts.
static VERL: LazyLock<Parts> = LazyLock::new(|| parse(include_str!("../tables/verl.yaml")));
static TRL: LazyLock<Parts> = LazyLock::new(|| parse(include_str!("../tables/trl.yaml")));
static OPEN_INSTRUCT: LazyLock<Parts> = LazyLock::new(|| parse(include_str!("../tables/open-instruct.yaml")));
static CLUSTERS: LazyLock<Parts> = LazyLock::new(|| parse(include_str!("../tables/clusters.yaml")));

fn parse(table: &str) -> Parts {
    serde_saphyr::from_str(table).map_err(|error| error.to_string())
}

/// Rows of a mapping table that apply to one trainer.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<&'static Row>,
}

/// Settings that are mapped in the same way.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// Names, separated by spaces. A `*` at the end of a name matches every name with that beginning, one at
    /// the beginning every name with that end, and both match every name that contains the text.
    keys: String,
    /// Path of a field with the same meaning and unit.
    field: Option<String>,
    /// Field value for each value of the setting, if they differ; values not listed are harmless, or have no
    /// equivalent for the reason of `absent`, or are unknown.
    #[serde(default)]
    words: BTreeMap<String, Value>,
    /// Paths of fields that depend on several settings; the project's own code sets them.
    read: Option<String>,
    /// Reason that a setting of `read` has no effect in the other trainer either, if no code looked it up.
    /// Without it, such a setting has no equivalent.
    idle: Option<String>,
    /// Reason that nothing has to be set.
    inherent: Option<String>,
    /// Reason that there is no equivalent.
    absent: Option<String>,
    /// Values with which nothing is lost although there is no equivalent.
    #[serde(default)]
    harmless: Vec<String>,
}

impl Row {
    /// Whether nothing is lost with a value that no field expresses.
    fn is_harmless(&self, value: &str) -> bool {
        self.harmless.iter().any(|harmless| harmless.eq_ignore_ascii_case(value))
    }
}

impl Table {
    /// Returns the table of a trainer.
    ///
    /// # Errors
    /// When a row is malformed, which would be a bug of this crate.
    pub(crate) fn of(project: Project, trainer: &str) -> Result<Self, ConvertError> {
        let (table, parts): (&'static LazyLock<Parts>, &[&str]) = match project {
            Project::Verl if trainer.contains("sft") => (&VERL, &["sft_trainer", "common"]),
            Project::Verl => (&VERL, &["main_ppo", "common"]),
            Project::Trl => (&TRL, &["all"]),
            Project::OpenInstruct => (&OPEN_INSTRUCT, &["all"]),
        };
        Self::of_parts(table, parts)
    }

    /// Returns a part of the table of other operators' manifests.
    ///
    /// # Errors
    /// When a row is malformed, which would be a bug of this crate.
    pub(crate) fn of_cluster(part: &str) -> Result<Self, ConvertError> {
        Self::of_parts(&CLUSTERS, &[part])
    }

    fn of_parts(table: &'static LazyLock<Parts>, parts: &[&str]) -> Result<Self, ConvertError> {
        let table = match &**table {
            Ok(table) => table,
            Err(error) => return Err(ConvertError::Table(error.clone())),
        };
        let rows = parts.iter().filter_map(|part| table.get(*part)).flatten();
        Ok(Self { rows: rows.collect() })
    }

    /// Looks up every setting, and sets the fields that depend on a single setting.
    pub(crate) fn apply(&self, settings: &Settings, draft: &mut Draft) -> Vec<Outcome> {
        let outcome = |(key, value): (&str, &Value)| Outcome {
            key: key.to_owned(),
            value: text_of(value),
            fate: self.fate(key, value, draft),
        };
        settings.iter().map(outcome).collect()
    }

    /// Corrects outcomes after the project's code has set all fields. A setting that the code could not read
    /// is unknown. A setting that the code never read has no equivalent, unless the other trainer does not
    /// use it either.
    pub(crate) fn settle(&self, settings: &Settings, outcomes: &mut [Outcome]) {
        for outcome in outcomes.iter_mut().filter(|outcome| matches!(outcome.fate, Fate::Converted(_))) {
            if let Some(expected) = settings.expectation(&outcome.key) {
                outcome.fate = Fate::Unknown(expected.to_owned());
            }
            let row = self.row(&outcome.key).filter(|row| row.read.is_some());
            let Some(row) = row.filter(|_| !settings.is_used(&outcome.key)) else { continue };
            outcome.fate = match &row.idle {
                Some(reason) => Fate::Inherent(reason.clone()),
                None => Fate::Absent("no field follows from it with this trainer".to_owned()),
            };
        }
        self.name_replaced(outcomes);
    }

    /// Records settings that a later setting replaces by another value of the same field.
    fn name_replaced(&self, outcomes: &mut [Outcome]) {
        let mut last = BTreeMap::new();
        for index in 0..outcomes.len() {
            let Fate::Converted(field) = &outcomes[index].fate else { continue };
            if self.row(&outcomes[index].key).is_none_or(|row| row.field.is_none()) {
                continue;
            }
            let replaced = last.insert(field.clone(), index);
            let differs = |earlier: &usize| self.ours(&outcomes[*earlier]) != self.ours(&outcomes[index]);
            if let Some(earlier) = replaced.filter(differs) {
                outcomes[earlier].fate = Fate::Absent(format!("{} sets the same field", outcomes[index].key));
            }
        }
    }

    /// Formats the value of the field that a setting sets.
    fn ours(&self, outcome: &Outcome) -> String {
        let word = self.row(&outcome.key).and_then(|row| row.words.get(&outcome.value));
        word.map_or_else(|| outcome.value.clone(), text_of)
    }

    fn fate(&self, key: &str, value: &Value, draft: &mut Draft) -> Fate {
        if is_empty(value) {
            return Fate::Inherent("it has no value".to_owned());
        }
        let Some(row) = self.row(key) else { return Fate::Unknown("this setting is not known".to_owned()) };
        if is_computed(value) && row.inherent.is_none() {
            return Fate::Unknown("its value is computed when the script runs".to_owned());
        }
        match row {
            Row { field: Some(field), words, .. } if words.is_empty() => {
                draft.set(field, value.clone());
                Fate::Converted(field.clone())
            }
            Row { field: Some(field), words, .. } if words.contains_key(&text_of(value)) => {
                draft.set_some(field, words.get(&text_of(value)).cloned());
                Fate::Converted(field.clone())
            }
            Row { read: Some(fields), .. } => Fate::Converted(fields.clone()),
            Row { inherent: Some(reason), .. } => Fate::Inherent(reason.clone()),
            row if row.is_harmless(&text_of(value)) => Fate::Inherent("so it is here".to_owned()),
            Row { absent: Some(reason), .. } => Fate::Absent(reason.clone()),
            Row { words, .. } => {
                let known: Vec<_> = words.keys().map(String::as_str).collect();
                Fate::Unknown(format!("known are {}", known.join(", ")))
            }
        }
    }

    /// Whether the table has a row for a setting.
    pub(crate) fn knows(&self, key: &str) -> bool {
        self.row(key).is_some()
    }

    /// Returns the row of a setting; a row with the full name takes precedence over one with a pattern.
    fn row(&self, key: &str) -> Option<&Row> {
        let names_part = |name: &str| match (name.strip_prefix('*'), name.strip_suffix('*')) {
            (Some(_), Some(_)) => key.contains(name.trim_matches('*')),
            (Some(end), None) => key.ends_with(end),
            (None, Some(beginning)) => key.starts_with(beginning),
            (None, None) => false,
        };
        let rows = || self.rows.iter().copied();
        let whole = rows().find(|row| row.keys.split_whitespace().any(|name| name == key));
        whole.or_else(|| rows().find(|row| row.keys.split_whitespace().any(names_part)))
    }
}

/// Whether a value is null, or a list or map without items.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_says_one_thing_and_no_name_stands_twice() {
        let tables = [
            (Project::Verl, "main_ppo"),
            (Project::Verl, "sft_trainer"),
            (Project::Trl, "grpo"),
            (Project::OpenInstruct, "grpo_fast"),
        ];
        for (project, trainer) in tables {
            let table = Table::of(project, trainer).unwrap();
            let mut names: Vec<_> = table.rows.iter().flat_map(|row| row.keys.split_whitespace()).collect();
            names.sort_unstable();
            let doubled: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
            assert!(doubled.is_empty(), "{doubled:?}");
            for row in &table.rows {
                let absent = row.absent.as_ref().filter(|_| row.words.is_empty());
                let said = [row.field.as_ref(), row.read.as_ref(), row.inherent.as_ref(), absent];
                assert_eq!(said.iter().filter(|said| said.is_some()).count(), 1, "{row:?}");
                assert!(row.words.is_empty() || row.field.is_some(), "{row:?}");
                let names_values = row.absent.is_some() || !row.words.is_empty();
                assert!(row.harmless.is_empty() || names_values, "{row:?}");
                assert!(row.idle.is_none() || row.read.is_some(), "{row:?}");
            }
        }
    }
}
