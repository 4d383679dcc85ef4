//! Chat templates: render conversations as text, identical to the output of transformers.
//!
//! `rlt-template` renders. This module adds the variables that transformers passes to a template, and chooses
//! among the templates of a folder.

use std::collections::BTreeMap;

pub use rlt_template::Rendered as RenderedChat;
use rlt_template::{MAX_SOURCE_BYTES, Template};
use serde_json::{Map, Value};

use super::SpecialTokens;
use super::clock::strftime_now;

/// Name of the template used when no other is requested.
const DEFAULT: &str = "default";
/// Name of the template used with tools, if the folder has it.
const TOOL_USE: &str = "tool_use";

/// A conversation to render.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatRequest<'a> {
    /// Messages of the conversation: objects with `role` and `content`, passed to the template unchanged.
    pub messages: &'a [Value],
    /// JSON schemas of the available tools; `None` and an empty list differ, as in transformers.
    pub tools: Option<&'a [Value]>,
    /// Whether to open the assistant's turn at the end.
    pub add_generation_prompt: bool,
    /// Further variables by name, such as Qwen3's `enable_thinking`.
    pub variables: Option<&'a Map<String, Value>>,
}

/// Compiled templates of one folder.
pub struct ChatTemplate {
    templates: BTreeMap<String, Template>,
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
        source: rlt_template::Error,
    },
    /// The templates of a folder are too long together.
    #[error("compile {num_templates} chat templates: they have more than {MAX_SOURCE_BYTES} bytes")]
    TooLong {
        /// Number of templates.
        num_templates: usize,
    },
    /// The folder names its templates, and none is called `default`.
    #[error("choose a chat template: expected one called \"default\", found {found:?}")]
    NoDefault {
        /// Names of the templates.
        found: Vec<String>,
    },
    /// The template failed, ran out of steps, or refused the conversation by raising an exception.
    #[error("apply the chat template to {num_messages} messages")]
    Render {
        /// Number of messages of the conversation.
        num_messages: usize,
        /// Error of the template engine.
        #[source]
        source: rlt_template::Error,
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
    /// [`ChatError::Syntax`], [`ChatError::TooLong`].
    pub fn named(sources: impl IntoIterator<Item = (String, String)>) -> Result<Self, ChatError> {
        let sources: BTreeMap<String, String> = sources.into_iter().collect();
        if sources.values().map(String::len).sum::<usize>() > MAX_SOURCE_BYTES {
            return Err(ChatError::TooLong { num_templates: sources.len() });
        }
        let mut templates = BTreeMap::new();
        for (name, source) in &sources {
            let template =
                Template::new(source).map_err(|source| ChatError::Syntax { name: name.clone(), source })?;
            templates.insert(name.clone(), template);
        }
        Ok(Self { templates, sources })
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
        self.render_marked(request, special).map(|rendered| rendered.text)
    }

    /// Renders the conversation. Returns the text with the byte ranges that `{% generation %}` tags mark.
    ///
    /// # Errors
    /// [`ChatError::NoDefault`], [`ChatError::Render`].
    pub fn render_marked(
        &self,
        request: &ChatRequest<'_>,
        special: &SpecialTokens,
    ) -> Result<RenderedChat, ChatError> {
        let with_tools = request.tools.and_then(|_| self.templates.get(TOOL_USE));
        let template = with_tools
            .or_else(|| self.templates.get(DEFAULT))
            .ok_or_else(|| ChatError::NoDefault { found: self.sources.keys().cloned().collect() })?;
        let rendered = template.render(&variables(request, special), &strftime_now);
        rendered.map_err(|source| ChatError::Render { num_messages: request.messages.len(), source })
    }
}

/// Returns the variables of a template by name, in transformers' order of precedence.
fn variables(request: &ChatRequest<'_>, special: &SpecialTokens) -> Map<String, Value> {
    let mut variables = Map::new();
    for (role, token) in special.by_role() {
        if let Some(token) = token {
            variables.insert(role.to_owned(), token.into());
        }
    }
    variables.extend(special.named.iter().map(|(name, token)| (name.clone(), token.as_str().into())));
    let further = request.variables.into_iter().flatten();
    variables.extend(further.map(|(name, value)| (name.clone(), value.clone())));
    variables.insert("messages".to_owned(), request.messages.into());
    variables.insert("tools".to_owned(), request.tools.map_or(Value::Null, Value::from));
    variables.insert("documents".to_owned(), Value::Null);
    variables.insert("add_generation_prompt".to_owned(), request.add_generation_prompt.into());
    variables
}

#[cfg(test)]
mod tests {
    use rlt_template::ErrorKind;
    use serde_json::json;

    use super::*;

    fn rendered(source: &str, messages: serde_json::Value) -> Result<String, ChatError> {
        let messages = messages.as_array().cloned().unwrap_or_default();
        let request = ChatRequest { messages: &messages, ..ChatRequest::default() };
        let special = SpecialTokens { bos: Some("<s>".into()), ..SpecialTokens::default() };
        ChatTemplate::new(source)?.render(&request, &special)
    }

    /// Templates of Qwen3-Coder and Nemotron 3 ask this of conversations without tools.
    #[test]
    fn missing_tools_are_not_iterable_and_values_print_as_in_python() {
        let source =
            "{% if tools is iterable and tools | length > 0 %}tools{% endif %}a\r\n{{ messages[0] ~ '' }}";
        let text = rendered(source, json!([{"a": null, "b": [1.0, true]}])).unwrap();
        assert_eq!(text, "a\n{'a': None, 'b': [1.0, True]}");
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
        assert_eq!(source.kind(), ErrorKind::Budget);
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
    fn templates_that_are_too_long_together_are_not_compiled() {
        let sources = [("default", MAX_SOURCE_BYTES), ("rag", 1)];
        let sources = sources.map(|(name, length)| (name.to_owned(), "x".repeat(length)));
        let compiled = ChatTemplate::named(sources);
        assert!(matches!(compiled, Err(ChatError::TooLong { num_templates: 2 })));
    }

    #[test]
    fn the_date_is_todays() {
        let today = jiff::Zoned::now().strftime("%Y").to_string();
        assert_eq!(rendered("{{ strftime_now('%Y') }}", json!([])).unwrap(), today);
    }
}
