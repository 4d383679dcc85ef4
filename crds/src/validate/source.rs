//! YAML text as a value that keeps the line and column of each part.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::{Location, Spanned, UserMessageFormatter};

use super::problem::Problem;
use crate::yaml::read_yaml;

/// A parsed YAML document.
pub(super) struct Source {
    /// Content of the document.
    pub(super) value: Value,
    root: Spanned<Node>,
}

impl Source {
    /// Parses one YAML document. Duplicate keys are refused.
    pub(super) fn parse(yaml: &str) -> Result<Self, Box<Problem>> {
        match read_yaml::<Spanned<Node>>(yaml) {
            Ok(root) => Ok(Self { value: root.value.to_value(), root }),
            Err(error) => {
                let (line, column) = error.location().map(place).unzip();
                let message = error.without_snippet().render_with_formatter(&UserMessageFormatter);
                let message = message.split(" at line ").next().unwrap_or_default();
                let says = match error.without_snippet() {
                    serde_saphyr::Error::MultipleDocuments { .. } => {
                        "another document begins here; a manifest is one: give each a file of its own"
                            .to_owned()
                    }
                    _ => format!("is not YAML that can be read: {message}"),
                };
                Err(Box::new(Problem { line, column, ..Problem::new("", says) }))
            }
        }
    }

    /// Sets the position of a problem's field, or else of the innermost existing parent.
    pub(super) fn locate(&self, problem: &mut Problem) {
        let mut found = &self.root;
        let mut at = (&self.root, place(self.root.referenced));
        for step in steps(&problem.path) {
            match found.value.step(&step) {
                Some((node, location)) => {
                    at = (node, place(location));
                    found = node;
                }
                None => break,
            }
        }
        (problem.line, problem.column) = (Some(at.1.0), Some(at.1.1));
    }
}

/// Returns the value of a field below `spec` by its full path.
pub(super) fn value_at<'a>(spec: &'a Value, path: &str) -> Option<&'a Value> {
    steps(path).skip(1).try_fold(spec, |value, step| match step {
        Step::Field(name) => value.get(name),
        Step::Item(idx) => value.get(idx),
    })
}

/// Returns the line and column of a location, both 1 for an empty text, which has no location.
fn place(location: Location) -> (u64, u64) {
    (location.line().max(1), location.column().max(1))
}

enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    path.split(['.', '[']).filter(|step| !step.is_empty()).map(|step| {
        step.strip_suffix(']').and_then(|idx| idx.parse().ok()).map_or(Step::Field(step), Step::Item)
    })
}

enum Node {
    Scalar(Value),
    List(Vec<Spanned<Node>>),
    Fields(Vec<(Spanned<String>, Spanned<Node>)>),
}

impl Node {
    fn to_value(&self) -> Value {
        match self {
            Self::Scalar(value) => value.clone(),
            Self::List(items) => items.iter().map(|item| item.value.to_value()).collect(),
            Self::Fields(fields) => {
                let entry = |(name, node): &(Spanned<String>, Spanned<Self>)| {
                    (name.value.clone(), node.value.to_value())
                };
                Value::Object(fields.iter().map(entry).collect::<Map<_, _>>())
            }
        }
    }

    /// Returns a part and its position, which for a field is the position of its name.
    fn step(&self, step: &Step<'_>) -> Option<(&Spanned<Self>, Location)> {
        match (self, step) {
            (Self::List(items), Step::Item(idx)) => items.get(*idx).map(|item| (item, item.referenced)),
            (Self::Fields(fields), Step::Field(wanted)) => {
                let field = fields.iter().find(|(name, _)| name.value == *wanted);
                field.map(|(name, node)| (node, name.referenced))
            }
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    /// Converts a number that JSON does not have, such as NaN, to its name, which no field accepts.
    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        let number = serde_json::Number::from_f64(value);
        Ok(Node::Scalar(number.map_or_else(|| value.to_string().into(), Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(entry) = map.next_entry()? {
            fields.push(entry);
        }
        Ok(Node::Fields(fields))
    }
}
