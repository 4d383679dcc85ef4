//! The fields of settings in manifests: how they are read, written and described, by the settings that the
//! registered reward functions declare.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::super::RewardKind;
use super::{Setting, Settings, Values};

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
