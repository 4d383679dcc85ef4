//! Settings by key, read from Hydra overrides, from flags and from YAML.

use serde_json::{Map, Value};

/// A setting that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The argument is neither `key=value` nor a flag.
    #[error("`{0}` is neither `key=value` nor `--key value`")]
    Form(String),
    /// A settings file is not YAML, or not a map.
    #[error("the settings file is not a map in YAML: {0}")]
    Yaml(String),
}

/// Settings in the order in which they were given; a later one of the same key replaces the earlier one.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    entries: Vec<(String, Value)>,
}

impl Settings {
    /// Iterates over all settings.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the value of a key; `None` if it is not given or null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let entry = self.entries.iter().find(|(name, _)| name == key);
        entry.map(|(_, value)| value).filter(|value| !value.is_null())
    }

    /// Sets the value of a key.
    pub fn set(&mut self, key: &str, value: Value) {
        match self.entries.iter_mut().find(|(name, _)| name == key) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((key.to_owned(), value)),
        }
    }

    /// Returns the value of a key as text.
    pub fn text(&self, key: &str) -> Option<String> {
        self.get(key).map(text_of)
    }

    /// Returns the value of a key that is a number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.get(key).and_then(Value::as_f64)
    }

    /// Returns the value of a key that is a non-negative integer.
    pub fn count(&self, key: &str) -> Option<u64> {
        let number = self.number(key)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be a count")]
        (number >= 0.0 && number.fract() == 0.0 && number < 1e15).then_some(number as u64)
    }

    /// Whether the value of a key is true.
    pub fn is_true(&self, key: &str) -> bool {
        self.get(key).is_some_and(is_true)
    }

    /// Returns the items of a list, or a single value as a list of one.
    pub fn list(&self, key: &str) -> Vec<String> {
        match self.get(key) {
            None => Vec::new(),
            Some(Value::Array(items)) => items.iter().map(text_of).collect(),
            Some(value) => vec![text_of(value)],
        }
    }

    /// Reads Hydra overrides: `key=value`, optionally prefixed with `+` or `++`, or `~key`, which removes a
    /// key.
    ///
    /// # Errors
    /// When an argument is not an override.
    pub fn add_overrides(&mut self, arguments: &[String]) -> Result<(), SettingsError> {
        for argument in arguments.iter().filter(|argument| !argument.trim().is_empty()) {
            if let Some(removed) = argument.strip_prefix('~') {
                self.entries.retain(|(key, _)| key != removed);
                continue;
            }
            let (key, value) =
                argument.split_once('=').ok_or_else(|| SettingsError::Form(argument.clone()))?;
            self.add_tree(key.trim_start_matches('+'), parsed(value));
        }
        Ok(())
    }

    /// Reads `--key value`, `--key=value` and `--key`; dashes within a key count as underscores.
    ///
    /// # Errors
    /// When a value has no key.
    pub fn add_flags(&mut self, arguments: &[String]) -> Result<(), SettingsError> {
        let mut rest = arguments.iter().filter(|argument| !argument.trim().is_empty()).peekable();
        while let Some(argument) = rest.next() {
            let name = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-'));
            let name = name.ok_or_else(|| SettingsError::Form(argument.clone()))?;
            if let Some((key, value)) = name.split_once('=') {
                self.set(&key.replace('-', "_"), parsed(value));
                continue;
            }
            let mut values = Vec::new();
            while let Some(value) = rest.next_if(|value| !value.starts_with("--")) {
                values.push(parsed(value));
            }
            let value = match values.len() {
                0 => Value::Bool(true),
                1 => values.remove(0),
                _ => Value::Array(values),
            };
            self.set(&name.replace('-', "_"), value);
        }
        Ok(())
    }

    /// Reads a YAML settings file.
    ///
    /// # Errors
    /// When the text is not a YAML map.
    pub fn add_yaml(&mut self, text: &str) -> Result<(), SettingsError> {
        let tree: Value = read_yaml(text).map_err(|error| SettingsError::Yaml(error.to_string()))?;
        match tree {
            Value::Object(tree) => self.add_map("", tree),
            other => return Err(SettingsError::Yaml(format!("it is {other}"))),
        }
        Ok(())
    }

    fn add_map(&mut self, prefix: &str, map: Map<String, Value>) {
        for (key, value) in map {
            let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
            self.add_tree(&key, value);
        }
    }

    fn add_tree(&mut self, key: &str, value: Value) {
        match value {
            // References that Hydra composes or computes at start are not settings.
            Value::Object(map) if !map.is_empty() => self.add_map(key, map),
            Value::String(text) if text.starts_with("${") && text.ends_with('}') => {}
            _ if matches!(key.rsplit('.').next(), Some("_target_" | "defaults")) => {}
            value => self.set(key, value),
        }
    }
}

/// Whether a value counts as true, by the words of Python, YAML and shells.
pub(crate) fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => matches!(text.to_ascii_lowercase().as_str(), "true" | "yes" | "on" | "1"),
        _ => false,
    }
}

/// Reads YAML with any number of comments: by default serde_saphyr rejects more than 32 lines in one place.
fn read_yaml(text: &str) -> Result<Value, serde_saphyr::Error> {
    serde_saphyr::from_str_with_options(text, serde_saphyr::options! { emit_comments: false })
}

/// Formats a value as on a command line.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Parses the value of a text: YAML's flow style is close to Hydra's grammar and to Python's literals.
fn parsed(text: &str) -> Value {
    let trimmed = text.trim();
    match trimmed {
        "True" => return Value::Bool(true),
        "False" => return Value::Bool(false),
        "None" | "null" | "" => return Value::Null,
        _ => {}
    }
    if let Some(number) = number(trimmed) {
        return number;
    }
    let is_structured = trimmed.starts_with(['[', '{', '\'', '"']);
    let value = if is_structured { read_yaml(&spaced(trimmed)).ok() } else { None };
    // A list that is quoted twice, by the shell and by the script's own quotes.
    let value = match value {
        Some(Value::String(inner)) if inner.starts_with('[') && inner.ends_with(']') => {
            read_yaml(&spaced(&inner)).ok().filter(Value::is_array).or(Some(Value::String(inner)))
        }
        value => value,
    };
    value.unwrap_or_else(|| match trimmed {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => Value::String(trimmed.to_owned()),
    })
}

/// Adds a space after each colon between a key and a value, which YAML requires and Hydra does not.
fn spaced(text: &str) -> String {
    let mut quote = None;
    let mut spaced = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(letter) = rest.next() {
        spaced.push(letter);
        match quote {
            Some(open) if open == letter => quote = None,
            None if matches!(letter, '\'' | '"') => quote = Some(letter),
            None if letter == ':' && rest.peek().is_some_and(|next| !matches!(next, '/' | ' ')) => {
                spaced.push(' ')
            }
            _ => {}
        }
    }
    spaced
}

fn number(text: &str) -> Option<Value> {
    let is_number =
        text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '-' | '+' | '.'));
    if !is_number {
        return None;
    }
    let plain = text.replace('_', "");
    let whole = plain.parse::<i64>().ok().map(Value::from);
    whole.or_else(|| plain.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn overrides_are_read_as_hydra_reads_them() {
        let mut settings = Settings::default();
        let text = "a.b=1e-6 +a.c=True ++d=['x','y'] e='two' f=null g=-1 d=z h={i:1,j:[k]} ~g l='[0.9,0.95]'";
        settings.add_overrides(&words(text)).unwrap();
        let all: Vec<_> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let read = [
            "a.b=1e-6",
            "a.c=true",
            "d=\"z\"",
            "e=\"two\"",
            "f=null",
            "h.i=1",
            "h.j=[\"k\"]",
            "l=[0.9,0.95]",
        ];
        assert_eq!(all, read);
        assert_eq!(settings.get("f"), None);
    }

    #[test]
    fn flags_take_one_value_many_or_none() {
        let mut settings = Settings::default();
        settings.add_flags(&words("--lr 5e-7 --use-peft --files a b --beta=0.0 --offset -1")).unwrap();
        assert_eq!(settings.number("lr"), Some(5e-7));
        assert!(settings.is_true("use_peft"));
        assert_eq!(settings.list("files"), ["a", "b"]);
        assert_eq!(settings.get("beta"), Some(&json!(0.0)));
        assert_eq!(settings.number("offset"), Some(-1.0));
        assert!(settings.add_flags(&words("stray")).is_err());
    }

    #[test]
    fn a_settings_file_is_a_tree_of_keys_without_what_hydra_computes() {
        let mut settings = Settings::default();
        settings.add_yaml("a:\n  _target_: x.Y\n  b: ${oc.select:c,1}\n  n: [1, 2]\nd: {}\n").unwrap();
        let keys: Vec<_> = settings.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["a.n", "d"]);
        assert!(settings.add_yaml("[1]").is_err());
    }
}
