//! Fields of the JSON files of a Hugging Face model folder: every field that transformers 5.17 reads, and how
//! the trainer treats it. A script lists the names from the sources of transformers
//! (`crds/models/tests/fixtures/transformers_fields.py`), and a test holds that a table has each of them.
//!
//! A file is one table of groups. A field that would change values or tokens is obeyed or refused by name; a
//! field that is in no table is reported, because a later release may read it. Never here: parsing, files.

mod config;
mod generation;
mod tokenizer;
mod treatment;

use serde_json::{Map, Value};

use treatment::{Group, Supported, Treatment, is_off, lists_alone};

/// A JSON file of a model folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFile {
    /// `config.json`: shape and formulas of the model.
    Config,
    /// `generation_config.json`: settings of transformers' `generate`, and ending tokens.
    GenerationConfig,
    /// `tokenizer_config.json`.
    TokenizerConfig,
    /// `special_tokens_map.json`, which transformers 4 writes.
    SpecialTokensMap,
}

/// A field whose value is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedField {
    /// Name of the field.
    pub field: String,
    /// The JSON value found.
    pub got: String,
    /// Values that are supported.
    pub supported: &'static str,
}

impl ModelFile {
    /// All files that have a table of fields.
    pub const ALL: [Self; 4] =
        [Self::Config, Self::GenerationConfig, Self::TokenizerConfig, Self::SpecialTokensMap];

    /// Name of the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Config => "config.json",
            Self::GenerationConfig => "generation_config.json",
            Self::TokenizerConfig => "tokenizer_config.json",
            Self::SpecialTokensMap => "special_tokens_map.json",
        }
    }

    /// Returns the treatment of a field; `None` if transformers 5.17 does not read it.
    fn treatment(self, field: &str) -> Option<Treatment> {
        let table = match self {
            Self::Config => config::FIELDS,
            Self::GenerationConfig => generation::FIELDS,
            Self::TokenizerConfig => tokenizer::CONFIG,
            Self::SpecialTokensMap => tokenizer::MAP,
        };
        treatment_in(table, field).or_else(|| self.treatment_by_suffix(field))
    }

    /// Returns the treatment of a special token with a name of the model's own, such as `image_token`.
    fn treatment_by_suffix(self, field: &str) -> Option<Treatment> {
        let has_tokens = matches!(self, Self::TokenizerConfig | Self::SpecialTokensMap);
        (has_tokens && field.ends_with(tokenizer::SUFFIX)).then_some(Treatment::Obeyed)
    }

    /// Returns the fields of a file's content that transformers 5.17 does not read, in the order of the file.
    /// Fields of objects in `config.json` have the object's name in front: `rope_parameters.factor`.
    pub fn unknown_fields(self, content: &Map<String, Value>) -> Vec<String> {
        let mut unknown = Vec::new();
        for (field, value) in content {
            if self.treatment(field).is_none() {
                unknown.push(field.clone());
            } else if self == Self::Config {
                unknown.extend(unknown_within(field, value));
            }
        }
        unknown
    }

    /// Returns the first field of a file's content whose value is refused.
    pub fn refused_field(self, content: &Map<String, Value>) -> Option<RefusedField> {
        content.iter().find_map(|(field, value)| match self.treatment(field)? {
            Treatment::Refused(supported) if !value.is_null() && !(supported.includes)(value) => {
                Some(RefusedField { field: field.clone(), got: value.to_string(), supported: supported.text })
            }
            _ => None,
        })
    }

    /// Returns the fields of a file's content that exports hold unchanged, unknown ones included.
    pub(crate) fn exported_fields(self, content: &Map<String, Value>) -> Map<String, Value> {
        let is_exported = |field: &str| matches!(self.treatment(field), None | Some(Treatment::Exported));
        let fields = content.iter().filter(|(field, value)| is_exported(field) && !value.is_null());
        fields.map(|(field, value)| (field.clone(), value.clone())).collect()
    }
}

fn treatment_in(table: &[Group], field: &str) -> Option<Treatment> {
    table.iter().find(|(_, names)| names.contains(&field)).map(|(treatment, _)| *treatment)
}

/// Returns the unknown fields of an object in `config.json`, with the object's name.
fn unknown_within(object: &str, value: &Value) -> Vec<String> {
    let (Some(tables), Value::Object(content)) = (config::tables_of(object), value) else {
        return Vec::new();
    };
    let mut unknown = Vec::new();
    for (field, value) in content {
        if tables.iter().all(|table| treatment_in(table, field).is_none()) {
            unknown.push(format!("{object}.{field}"));
        }
        let within = unknown_within(field, value).into_iter();
        unknown.extend(within.map(|name| format!("{object}.{name}")));
    }
    unknown
}

#[cfg(test)]
mod tests;
