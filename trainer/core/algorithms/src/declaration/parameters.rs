//! The parameters that a manifest gives to a family of formulas.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::{Family, Parameter, ParameterValue, Range};

/// The given parameters, out of those that any formula of the family has. Flattened into a section of the
/// manifest, it takes all fields that the section does not declare, and rejects unknown ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters<F> {
    values: BTreeMap<&'static str, ParameterValue>,
    family: PhantomData<F>,
}

impl<F> Default for Parameters<F> {
    fn default() -> Self {
        Self { values: BTreeMap::new(), family: PhantomData }
    }
}

impl<F: Family> Parameters<F> {
    /// Returns the parameters with one more value.
    #[must_use]
    pub fn with(mut self, parameter: &Parameter, value: impl Into<ParameterValue>) -> Self {
        self.values.insert(parameter.name, value.into());
        self
    }

    /// Returns the parameters, with the values of `preset` for those that are not given.
    #[must_use]
    pub fn or(&self, preset: &Self) -> Self {
        let values = preset.values.iter().chain(&self.values).map(|(name, value)| (*name, *value)).collect();
        Self { values, family: PhantomData }
    }

    /// Returns the value of a parameter; `None` if it is not given.
    pub fn get(&self, parameter: &Parameter) -> Option<ParameterValue> {
        self.values.get(parameter.name).copied()
    }
}

impl<F> Serialize for Parameters<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.values.serialize(serializer)
    }
}

impl<'de, F: Family> Deserialize<'de> for Parameters<F> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Given(PhantomData))
    }
}

struct Given<F>(PhantomData<F>);

impl<'de, F: Family> Visitor<'de> for Given<F> {
    type Value = Parameters<F>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = F::all_parameters().iter().map(|parameter| parameter.name).collect();
        write!(formatter, "values of {}", names.join(", "))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut given: M) -> Result<Self::Value, M::Error> {
        let known = F::all_parameters();
        let mut parameters = Parameters::default();
        while let Some(name) = given.next_key::<String>()? {
            let parameter = known
                .iter()
                .find(|parameter| parameter.name == name)
                .ok_or_else(|| M::Error::custom(format!("unknown field `{name}`")))?;
            let value = match parameter.range {
                Range::Flag => given.next_value::<Option<bool>>()?.map(ParameterValue::Flag),
                Range::Number { .. } => given.next_value::<Option<f64>>()?.map(ParameterValue::Number),
            };
            parameters.values.extend(value.map(|value| (parameter.name, value)));
        }
        Ok(parameters)
    }
}

impl<F: Family> JsonSchema for Parameters<F> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Parameters".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let properties: Map<String, Value> = F::all_parameters()
            .into_iter()
            .map(|parameter| (parameter.name.to_owned(), schema_of(parameter)))
            .collect();
        json_schema!({"type": "object", "properties": properties})
    }
}

fn schema_of(parameter: &Parameter) -> Value {
    let schema = match parameter.range {
        Range::Flag => json_schema!({"description": parameter.doc, "type": ["boolean", "null"]}),
        Range::Number { min, max } => json_schema!({
            "description": parameter.doc,
            "type": ["number", "null"],
            "format": "double",
            "minimum": min,
            "maximum": max,
        }),
    };
    schema.to_value()
}
