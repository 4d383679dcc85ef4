//! A manifest's settings of a reward function: its own fields, and the sections of the manifest that it
//! reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{RewardError, RewardKind};

/// A setting of reward functions in manifests. Every kind that has it needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the field.
    pub name: &'static str,
    /// Meaning of the setting, and the kinds that have it.
    pub doc: &'static str,
    /// Type and range of allowed values.
    pub values: Values,
}

/// Type and range of a setting's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// A text of at least one character.
    Text {
        /// Largest number of characters.
        max_length: u32,
    },
    /// An integer, at least 0.
    Integer {
        /// Largest value, included.
        max: u32,
    },
    /// A JSON object with any content.
    Object,
}

/// A manifest section of a reward function, such as `server`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Name of the section's field.
    pub name: &'static str,
    /// Whether a manifest must give it.
    pub is_needed: bool,
}

impl Section {
    /// Declares a section that a manifest must give.
    pub const fn needed(name: &'static str) -> Self {
        Self { name, is_needed: true }
    }

    /// Declares a section with defaults.
    pub const fn optional(name: &'static str) -> Self {
        Self { name, is_needed: false }
    }
}

/// The given settings. Flattened into a reward function, they take all fields that it does not declare, and
/// reject unknown ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    values: BTreeMap<&'static str, Value>,
}

impl Settings {
    /// Returns the value of the setting `name`; `None` if it is not given.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Returns the value of a text setting.
    ///
    /// # Errors
    /// [`RewardError::MissingSetting`] if it is missing or not a text.
    pub fn text(&self, setting: &Setting) -> Result<&str, RewardError> {
        self.get(setting.name).and_then(Value::as_str).ok_or(missing(setting))
    }

    /// Returns the value of an integer setting.
    ///
    /// # Errors
    /// [`RewardError::MissingSetting`] if it is missing or not an integer.
    pub fn integer(&self, setting: &Setting) -> Result<u32, RewardError> {
        let number = self.get(setting.name).and_then(Value::as_u64);
        number.and_then(|number| number.try_into().ok()).ok_or(missing(setting))
    }

    /// Returns the value of an object setting.
    ///
    /// # Errors
    /// [`RewardError::MissingSetting`] if it is missing.
    pub fn object(&self, setting: &Setting) -> Result<&Value, RewardError> {
        self.get(setting.name).ok_or(missing(setting))
    }
}

fn missing(setting: &Setting) -> RewardError {
    RewardError::MissingSetting { field: setting.name }
}

/// Returns the settings of all kinds, each once.
fn all() -> Vec<&'static Setting> {
    let mut all: Vec<&'static Setting> = Vec::new();
    for setting in RewardKind::ALL.into_iter().flat_map(RewardKind::settings) {
        if !all.iter().any(|known| known.name == setting.name) {
            all.push(setting);
        }
    }
    all
}

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.values.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Given)
    }
}

struct Given;

impl<'de> Visitor<'de> for Given {
    type Value = Settings;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = all().iter().map(|setting| setting.name).collect();
        write!(formatter, "values of {}", names.join(", "))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut given: M) -> Result<Settings, M::Error> {
        let (known, mut settings) = (all(), Settings::default());
        while let Some(name) = given.next_key::<String>()? {
            let setting = known
                .iter()
                .find(|setting| setting.name == name)
                .ok_or_else(|| M::Error::custom(format!("unknown field `{name}`")))?;
            let value = match setting.values {
                Values::Text { .. } => given.next_value::<Option<String>>()?.map(Value::from),
                Values::Integer { .. } => given.next_value::<Option<u32>>()?.map(Value::from),
                Values::Object => given.next_value::<Option<Map<String, Value>>>()?.map(Value::from),
            };
            settings.values.extend(value.map(|value| (setting.name, value)));
        }
        Ok(settings)
    }
}

impl JsonSchema for Settings {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Settings".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let properties: Map<String, Value> =
            all().into_iter().map(|setting| (setting.name.to_owned(), schema_of(setting))).collect();
        json_schema!({"type": "object", "properties": properties})
    }
}

fn schema_of(setting: &Setting) -> Value {
    let doc = setting.doc;
    match setting.values {
        Values::Text { max_length } => {
            json!({"description": doc, "type": ["string", "null"], "minLength": 1, "maxLength": max_length})
        }
        Values::Integer { max } => json!({
            "description": doc,
            "type": ["integer", "null"],
            "format": "uint32",
            "minimum": 0,
            "maximum": max,
        }),
        Values::Object => {
            json!({"description": doc, "type": "object", "x-kubernetes-preserve-unknown-fields": true})
        }
    }
}
