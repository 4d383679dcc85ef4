//! Settings by key, read from Hydra overrides, from flags and from YAML.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use rlt_api::read_yaml;
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
    /// Keys whose values were read. A setting that the conversion never reads has no effect.
    used: RefCell<BTreeSet<String>>,
    /// Keys whose values were read as the wrong type, with the expected type.
    misread: RefCell<BTreeMap<String, &'static str>>,
}

impl Settings {
    /// Iterates over all settings.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the value of a key; `None` if it is not given, null, or computed at start.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let (name, value) = self.entries.iter().find(|(name, _)| name == key)?;
        self.used.borrow_mut().insert(name.clone());
        Some(value).filter(|value| !value.is_null() && !is_computed(value))
    }

    /// Returns all settings whose keys begin with `prefix`, by the rest of their keys.
    pub(crate) fn below(&self, prefix: &str) -> Vec<(&str, &Value)> {
        let mut found = Vec::new();
        for (key, value) in &self.entries {
            if let Some(rest) = key.strip_prefix(prefix) {
                self.used.borrow_mut().insert(key.clone());
                found.push((rest, value));
            }
        }
        found
    }

    /// Whether the value of a key was read.
    pub(crate) fn is_used(&self, key: &str) -> bool {
        self.used.borrow().contains(key)
    }

    /// Returns the expected type of a key's value, if the value was read as the wrong type.
    pub(crate) fn expectation(&self, key: &str) -> Option<&'static str> {
        self.misread.borrow().get(key).copied()
    }

    /// Marks the keys that were read in a copy of these settings as read.
    pub(crate) fn add_uses(&self, copy: &Self) {
        self.used.borrow_mut().extend(copy.used.borrow().iter().cloned());
        let misread = copy.misread.borrow();
        self.misread.borrow_mut().extend(misread.iter().map(|(key, expected)| (key.clone(), *expected)));
    }

    /// Whether a key is given with the value null.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.entries.iter().any(|(name, value)| name == key && value.is_null())
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

    /// Returns the value of a key that is a number, or the text of one, as in a quoted YAML value.
    pub fn number(&self, key: &str) -> Option<f64> {
        let parsed = match self.get(key)? {
            Value::String(text) => number(text.trim()).and_then(|number| number.as_f64()),
            value => value.as_f64(),
        };
        if parsed.is_none() {
            self.misread.borrow_mut().insert(key.to_owned(), "a number is expected");
        }
        parsed
    }

    /// Returns the value of a key that is a non-negative integer.
    pub fn count(&self, key: &str) -> Option<u64> {
        let number = self.number(key)?;
        if number.fract() != 0.0 {
            self.misread.borrow_mut().insert(key.to_owned(), "a whole number is expected");
        }
        // -1 stands for "not set" in all three projects.
        if !(-1.0..1e15).contains(&number) {
            self.misread.borrow_mut().insert(key.to_owned(), "a number from 0 to 1e15 is expected");
        }
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
            let name = name.replace('-', "_");
            let is_alone = rest.peek().is_none_or(|next| next.starts_with("--"));
            if let Some(switch) = name.strip_prefix("no_").filter(|_| is_alone && !PLAIN.contains(&&*name)) {
                self.set(switch, Value::Bool(false));
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
            self.set(&name, value);
        }
        Ok(())
    }

    /// Reads a YAML settings file.
    ///
    /// # Errors
    /// When the text is not a YAML map.
    pub fn add_yaml(&mut self, text: &str) -> Result<(), SettingsError> {
        let tree: Value = read_yaml(text).map_err(|error| SettingsError::Yaml(yaml_message(error)))?;
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
            Value::Object(map) if !map.is_empty() => self.add_map(key, map),
            _ if matches!(key.rsplit('.').next(), Some("_target_" | "defaults")) => {}
            value => self.set(key, value),
        }
    }

    /// Returns the keys whose values are computed at start.
    pub(crate) fn computed(&self) -> Vec<String> {
        let computed = self.entries.iter().filter(|(_, value)| is_computed(value));
        computed.map(|(key, _)| key.clone()).collect()
    }

    /// Removes the settings with these keys whose values are still computed at start.
    pub(crate) fn remove_computed(&mut self, keys: &[String]) {
        self.entries.retain(|(key, value)| !(is_computed(value) && keys.contains(key)));
    }

    /// Replaces references to other settings, `${key}` and `${oc.select:key,default}`, by their values, and
    /// `${oc.env:NAME,default}` by the default.
    pub(crate) fn resolve(&mut self) {
        for _ in 0..MAX_REFERENCES {
            let referenced = self.entries.iter().map(|(_, value)| self.referenced(value));
            let values: Vec<Option<Value>> = referenced.collect();
            if values.iter().all(Option::is_none) {
                return;
            }
            for (entry, value) in self.entries.iter_mut().zip(values) {
                if let Some(value) = value {
                    entry.1 = value;
                }
            }
        }
    }

    /// Returns the value to which a reference refers, if it is known.
    fn referenced(&self, value: &Value) -> Option<Value> {
        let reference = value.as_str()?.strip_prefix("${")?.strip_suffix('}')?;
        let (key, default) = match reference.split_once(':') {
            None => (reference, None),
            Some(("oc.select", select)) => {
                select.split_once(',').map_or((select, None), |(key, default)| (key, Some(default)))
            }
            Some(("oc.env", variable)) => ("", variable.split_once(',').map(|(_, default)| default)),
            Some(_) => return None,
        };
        let known = self.entries.iter().find(|(name, value)| name == key && !is_computed(value));
        known.map(|(_, value)| value.clone()).or_else(|| default.map(parsed))
    }
}

/// Largest number of references from one setting to the next.
const MAX_REFERENCES: usize = 4;
/// Flags whose names begin with `no_` although they switch nothing off.
const PLAIN: [&str; 2] = ["no_cuda", "no_auto_dataset_cache"];

/// Whether a value is computed when the trainer starts, by Hydra or by a program.
pub(crate) fn is_computed(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("${"),
        Value::Array(items) => items.iter().any(is_computed),
        _ => false,
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

/// Returns what is wrong with a YAML text, in words for people, with the line.
pub(crate) fn yaml_message(error: serde_saphyr::Error) -> String {
    error.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter)
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
    if let Some(value) = number(trimmed).or_else(|| tuple(trimmed)) {
        return value;
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

/// Parses a tuple of numbers as Python writes it, such as `(0.9, 0.95)`.
fn tuple(text: &str) -> Option<Value> {
    let items = text.strip_prefix('(')?.strip_suffix(')')?.split(',').map(str::trim);
    items.filter(|item| !item.is_empty()).map(number).collect::<Option<Vec<_>>>().map(Value::Array)
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

/// Parses an integer or a finite number in Python's syntax. An integer beyond 64 bits, such as the name of a
/// run, is not parsed, because a float would change its digits.
pub(crate) fn number(text: &str) -> Option<Value> {
    let is_number =
        text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '-' | '+' | '.'));
    if !is_number {
        return None;
    }
    let plain = text.replace('_', "");
    let whole = plain.parse::<i64>().ok().map(Value::from);
    let whole = whole.or_else(|| plain.parse::<u64>().ok().map(Value::from));
    let is_whole = plain.trim_start_matches(['-', '+']).bytes().all(|letter| letter.is_ascii_digit());
    let number = || plain.parse::<f64>().ok().filter(|number| number.is_finite() && !is_whole);
    whole.or_else(|| number().map(Value::from))
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
    fn a_settings_file_may_have_documents_without_content() {
        for text in ["beta: 0.3\n---\n", "---\n# none\n---\nbeta: 0.3\n"] {
            let mut settings = Settings::default();
            settings.add_yaml(text).unwrap();
            assert_eq!(settings.number("beta"), Some(0.3), "{text:?}");
        }
        assert!(Settings::default().add_yaml("beta: 0.3\n---\nbeta: 0.4\n").is_err());
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
    fn integers_beyond_64_bits_stay_texts() {
        assert_eq!(number("18446744073709551615"), Some(json!(u64::MAX)));
        assert_eq!(number("-9223372036854775808"), Some(json!(i64::MIN)));
        assert_eq!((number("1_000"), number("1e30")), (Some(json!(1000)), Some(json!(1e30))));
        let digits = "123456789012345678901234567890";
        let mut settings = Settings::default();
        settings.add_flags(&words(&format!("--run_name {digits} --offset -{digits}"))).unwrap();
        assert_eq!(settings.text("run_name").as_deref(), Some(digits));
        assert_eq!((settings.number("offset"), settings.count("run_name")), (None, None));
    }

    #[test]
    fn a_settings_file_is_a_tree_of_keys_without_what_hydra_computes() {
        let mut settings = Settings::default();
        settings.add_yaml("a:\n  _target_: x.Y\n  b: ${oc.select:c,1}\n  n: [1, 2]\nd: {}\n").unwrap();
        settings.resolve();
        let keys: Vec<_> = settings.iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["a.b", "a.n", "d"]);
        assert_eq!(settings.count("a.b"), Some(1));
        assert!(settings.add_yaml("[1]").is_err());
        for (text, line) in [("a: 1\na: 2\n", "line 2"), ("a: 1\n---\nb: 2\n", "line 3")] {
            let error = settings.add_yaml(text).unwrap_err().to_string();
            // The parser's own messages name its functions and options.
            assert!(
                error.contains(line) && !error.contains("from_str") && !error.contains("Policy"),
                "{error}"
            );
        }
    }
}
