//! Chat templates: render conversations as text, identical to the output of transformers.
//!
//! The settings are those of `transformers/utils/chat_template_utils.py`: `trim_blocks`, `lstrip_blocks`,
//! loop controls, `raise_exception`, `strftime_now`, `tojson` without HTML escapes, Python's string and
//! dictionary methods, and the `{% generation %}` tag, which marks text and prints it unchanged.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use regex::{Captures, Regex};
use serde_json::Map;

use super::SpecialTokens;
use super::python::{JsonStyle, json_dumps, str_text};

/// Maximum number of instructions per conversation. Templates come with models, and one that loops must end.
/// A conversation of a thousand turns takes well below a million.
const FUEL: u64 = 50_000_000;

/// Name of the template used when no other is requested.
const DEFAULT: &str = "default";
/// Name of the template used with tools, if the folder has it.
const TOOL_USE: &str = "tool_use";

#[expect(clippy::unwrap_used, reason = "a constant pattern that the tests of this module compile")]
static GENERATION_TAG: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").unwrap());

/// A conversation to render.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatRequest<'a> {
    /// Messages of the conversation: objects with `role` and `content`, passed to the template unchanged.
    pub messages: &'a [serde_json::Value],
    /// JSON schemas of the available tools; `None` and an empty list differ, as in transformers.
    pub tools: Option<&'a [serde_json::Value]>,
    /// Whether to open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// Further variables by name, such as Qwen3's `enable_thinking`.
    pub variables: Option<&'a Map<String, serde_json::Value>>,
}

/// Compiled templates of one folder.
pub struct ChatTemplate {
    environment: Environment<'static>,
    sources: BTreeMap<String, String>,
}

/// A conversation could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The template cannot be compiled.
    #[error("compile chat template {name:?}")]
    Syntax {
        /// Name of the template; `default` if there is only one.
        name: String,
        /// Error of the parser, with the line.
        #[source]
        source: Box<Error>,
    },
    /// The folder names its templates, and none is called `default`.
    #[error("choose a chat template: expected one called \"default\", found {found:?}")]
    NoDefault {
        /// Names of the templates.
        found: Vec<String>,
    },
    /// The template failed, ran out of instructions, or refused the conversation by raising an exception.
    #[error("apply the chat template to {num_messages} messages")]
    Render {
        /// Number of messages of the conversation.
        num_messages: usize,
        /// Error of the template engine.
        #[source]
        source: Box<Error>,
    },
}

impl ChatTemplate {
    /// Compiles the only template of a model.
    ///
    /// # Errors
    /// [`ChatError::Syntax`].
    pub fn new(source: &str) -> Result<Self, ChatError> {
        Self::named([(DEFAULT.to_owned(), source.to_owned())])
    }

    /// Compiles templates by name; a later one replaces an earlier one of the same name.
    ///
    /// # Errors
    /// [`ChatError::Syntax`].
    pub fn named(sources: impl IntoIterator<Item = (String, String)>) -> Result<Self, ChatError> {
        let mut environment = environment();
        let sources: BTreeMap<String, String> = sources.into_iter().collect();
        for (name, source) in &sources {
            let tolerated = GENERATION_TAG.replace_all(source, as_plain_block).into_owned();
            let added = environment.add_template_owned(name.clone(), tolerated);
            added.map_err(|source| ChatError::Syntax { name: name.clone(), source: Box::new(source) })?;
        }
        Ok(Self { environment, sources })
    }

    /// Source text of the default template.
    pub fn default_source(&self) -> Option<&str> {
        self.sources.get(DEFAULT).map(String::as_str)
    }

    /// Renders the conversation. Special tokens are template variables named after their roles.
    ///
    /// # Errors
    /// [`ChatError::NoDefault`], [`ChatError::Render`].
    pub fn render(&self, request: &ChatRequest<'_>, special: &SpecialTokens) -> Result<String, ChatError> {
        let with_tools = request.tools.and_then(|_| self.environment.get_template(TOOL_USE).ok());
        let template = match with_tools {
            Some(template) => template,
            None => self
                .environment
                .get_template(DEFAULT)
                .map_err(|_| ChatError::NoDefault { found: self.sources.keys().cloned().collect() })?,
        };
        template.render(context(request, special)).map_err(|source| ChatError::Render {
            num_messages: request.messages.len(),
            source: Box::new(source),
        })
    }
}

fn context(request: &ChatRequest<'_>, special: &SpecialTokens) -> Value {
    let mut variables: BTreeMap<&str, Value> = BTreeMap::new();
    for (role, token) in special.by_role() {
        if let Some(token) = token {
            variables.insert(role, Value::from(token));
        }
    }
    for (name, value) in request.variables.into_iter().flatten() {
        variables.insert(name, Value::from_serialize(value));
    }
    variables.insert("messages", Value::from_serialize(request.messages));
    variables.insert("tools", Value::from_serialize(request.tools));
    variables.insert("documents", Value::from(()));
    variables.insert("add_generation_prompt", Value::from(request.add_generation_prompt));
    Value::from_iter(variables)
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_formatter(print_like_python);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    // Jinja calls every value with a length and items a sequence, including strings and dictionaries.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    environment
}

/// Replaces `{% generation %}` by `{% if true %}`, a block that prints its body, with the same white space
/// control.
fn as_plain_block(found: &Captures<'_>) -> String {
    let tag = if found.get(2).is_some() { "endif" } else { "if true" };
    format!("{{%{} {tag} {}%}}", &found[1], &found[3])
}

fn print_like_python(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        // Undefined values and objects of the engine follow the engine's rules.
        ValueKind::Number | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
            Ok(out.write_str(&str_text(value))?)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: String) -> Result<String, Error> {
    let now = jiff::Zoned::now();
    jiff::fmt::strtime::format(format.as_bytes(), &now)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

fn to_json(value: &Value, arguments: Kwargs) -> Result<Value, Error> {
    let indent = indent(arguments.get("indent")?)?;
    let separators: Option<Vec<String>> = arguments.get("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson separators are a pair")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let style = JsonStyle {
        indent,
        item_separator,
        key_separator,
        ensure_ascii: arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    arguments.assert_all_used()?;
    let text = json_dumps(value, &style);
    let refused = || Error::new(ErrorKind::InvalidOperation, format!("tojson cannot write {}", value.kind()));
    text.map(Value::from).ok_or_else(refused)
}

/// Parses the `indent` argument: a number of spaces, or the text itself.
fn indent(value: Option<Value>) -> Result<Option<String>, Error> {
    let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(None) };
    if let Some(text) = value.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let num_spaces = usize::try_from(value)?;
    Ok(Some(" ".repeat(num_spaces)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered(source: &str, messages: serde_json::Value) -> Result<String, ChatError> {
        let messages = messages.as_array().cloned().unwrap_or_default();
        let request = ChatRequest { messages: &messages, ..ChatRequest::default() };
        let special = SpecialTokens { bos: Some("<s>".into()), ..SpecialTokens::default() };
        ChatTemplate::new(source)?.render(&request, &special)
    }

    #[test]
    fn the_generation_tag_prints_its_body() {
        let source = "a {%- generation -%}\n {{ bos_token }} {% endgeneration %}\nb";
        assert_eq!(rendered(source, json!([])).unwrap(), "a<s> b");
    }

    #[test]
    fn a_raised_exception_reaches_the_caller_with_its_message() {
        let error = rendered("{{ raise_exception('roles must alternate') }}", json!([{}])).unwrap_err();
        let ChatError::Render { num_messages: 1, source } = error else { panic!("{error}") };
        assert!(source.to_string().contains("roles must alternate"), "{source}");
    }

    #[test]
    fn a_template_that_does_not_end_is_stopped_and_a_long_conversation_is_not() {
        let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        let error = rendered(endless, json!([{}])).unwrap_err();
        let ChatError::Render { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.kind(), ErrorKind::OutOfFuel);
        let turns: Vec<_> =
            (0..20_000).map(|turn| json!({"role": "user", "content": turn.to_string()})).collect();
        let plain =
            "{% for message in messages %}{{ message.role }}: {{ message.content | trim }}\n{% endfor %}";
        assert!(rendered(plain, turns.into()).unwrap().ends_with("user: 19999\n"));
    }

    #[test]
    fn a_broken_template_is_refused_when_it_is_loaded() {
        assert!(matches!(ChatTemplate::new("{% if %}"), Err(ChatError::Syntax { .. })));
    }

    #[test]
    fn tools_choose_the_template_made_for_them() {
        let sources = [(DEFAULT, "plain"), (TOOL_USE, "tools")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let template = ChatTemplate::named(sources).unwrap();
        let render = |tools| {
            let request = ChatRequest { tools, ..ChatRequest::default() };
            template.render(&request, &SpecialTokens::default()).unwrap()
        };
        assert_eq!((render(None), render(Some(&[]))), ("plain".into(), "tools".into()));
        let nameless = ChatTemplate::named([("rag".to_owned(), String::new())]).unwrap();
        let error = nameless.render(&ChatRequest::default(), &SpecialTokens::default()).unwrap_err();
        assert!(matches!(error, ChatError::NoDefault { .. }));
    }

    #[test]
    fn the_date_is_todays() {
        let today = jiff::Zoned::now().strftime("%Y").to_string();
        assert_eq!(rendered("{{ strftime_now('%Y') }}", json!([])).unwrap(), today);
    }
}
