//! The manifest's settings of a reward function: its own fields, and which sections of the manifest it reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{RewardError, RewardKind};

/// A value of a reward function in a manifest. Every kind that has it needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its field.
    pub name: &'static str,
    /// Its meaning, and the kinds that have it.
    pub doc: &'static str,
    /// The allowed values.
    pub values: Values,
}

/// The allowed values of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// A text of at least one and at most so many characters.
    Text {
        /// Characters.
        max_length: u32,
    },
    /// A whole number.
    Integer {
        /// Largest value; the smallest is 0.
        max: u32,
    },
    /// An object of any content.
    Object,
}

/// A section of a reward function in a manifest, such as `server`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its field.
    pub name: &'static str,
    /// Whether a manifest must give it.
    pub is_needed: bool,
}

impl Section {
    /// A section that a manifest must give.
    pub const fn needed(name: &'static str) -> Self {
        Self { name, is_needed: true }
    }

    /// A section with defaults.
    pub const fn optional(name: &'static str) -> Self {
        Self { name, is_needed: false }
    }
}

/// The settings that a manifest gives. Flattened into a reward function, they are all fields that it does not
/// name itself, and refuse others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    values: BTreeMap<&'static str, Value>,
}

impl Settings {
    /// The value of the setting `name`, where it is given.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// A text.
    ///
    /// # Errors
    /// [`RewardError::MissingSetting`].
    pub fn text(&self, setting: &Setting) -> Result<&str, RewardError> {
        self.get(setting.name).and_then(Value::as_str).ok_or(missing(setting))
    }

    /// A whole number.
    ///
    /// # Errors
    /// [`RewardError::MissingSetting`].
    pub fn integer(&self, setting: &Setting) -> Result<u32, RewardError> {
        let number = self.get(setting.name).and_then(Value::as_u64);
        number.and_then(|number| number.try_into().ok()).ok_or(missing(setting))
    }

    /// An object.
    ///
    /// # Errors
    /// [`RewardError::MissingSetting`].
    pub fn object(&self, setting: &Setting) -> Result<&Value, RewardError> {
        self.get(setting.name).ok_or(missing(setting))
    }
}

fn missing(setting: &Setting) -> RewardError {
    RewardError::MissingSetting { field: setting.name }
}

/// The settings of all kinds, each once.
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
