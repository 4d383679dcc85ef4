//! A choice between names in manifests.

use schemars::{Schema, json_schema};
use serde_json::{Value, json};

/// Makes the JSON schema of a choice between names, each with its documentation.
pub fn choice_schema<'a>(choices: impl Iterator<Item = (&'a str, &'a str)>) -> Schema {
    let choice =
        |(name, doc): (&str, &str)| json!({"description": doc.trim(), "type": "string", "const": name});
    let choices: Vec<Value> = choices.map(choice).collect();
    json_schema!({"oneOf": choices})
}

/// Makes an enum with the array `ALL` and the methods `name` and `doc` a choice between names in manifests:
/// serde by the listed names, and the schema with their documentation.
#[macro_export]
macro_rules! choice {
    ($kind:ident, [$($name:expr),*]) => {
        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $kind {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                const NAMES: &[&str] = &[$($name),*];
                let name = <String as serde::Deserialize>::deserialize(deserializer)?;
                let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
                kind.ok_or_else(|| serde::de::Error::unknown_variant(&name, NAMES))
            }
        }

        impl schemars::JsonSchema for $kind {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($kind).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let choices = Self::ALL.iter().map(|kind| (kind.name(), kind.doc()));
                $crate::declaration::choice_schema(choices)
            }
        }
    };
}
