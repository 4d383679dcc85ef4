//! Equality with the installed jinja2, on the chat templates of TRL's package, which are read where pip
//! installed them, and on generated templates.

#![expect(clippy::unwrap_used, reason = "a fixture that cannot be read is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use rlt_template::{Rendered, Template};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Number of templates in the pinned version of TRL.
const NUM_TEMPLATES: usize = 72;

/// Sources and outcomes of templates, by the names of their files.
type Templates = BTreeMap<String, (String, Vec<Outcome>)>;

/// The outcome of one rendering by jinja2.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Outcome {
    Text {
        text: String,
        /// Byte ranges of `text` that `{% generation %}` marks.
        generated: Vec<(usize, usize)>,
    },
    Refusal {
        /// The argument of `raise_exception`.
        refusal: String,
    },
    /// An exception of Python or jinja2.
    Error(()),
}

impl Outcome {
    fn is_that_of(&self, ours: &Result<Rendered, String>) -> bool {
        match (self, ours) {
            (Self::Text { text, generated }, Ok(ours)) => {
                let ranges = ours.generated.iter().map(|range| (range.start, range.end));
                *text == ours.text && ranges.eq(generated.iter().copied())
            }
            (Self::Refusal { refusal }, Err(ours)) => ours.contains(refusal),
            (Self::Error(()), Err(_)) => true,
            _ => false,
        }
    }
}

fn fixture(name: &str) -> PathBuf {
    rlt_tests::workspace_root().join("trainer/template/tests/fixtures").join(name)
}

/// Runs a Python program of the fixtures, and returns the JSON that it prints. `None` where jinja2 cannot be
/// installed.
fn printed<T: for<'de> Deserialize<'de>>(program: &str, argument: &str) -> Option<T> {
    let ended = rlt_tests::TRL.python()?.arg(fixture(program)).arg(argument).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    Some(serde_json::from_slice(&ended.stdout).unwrap())
}

/// Renders a template with a clock that prints its format.
fn rendered(template: &str, variables: &Map<String, Value>) -> Result<Rendered, String> {
    let template = Template::new(template).map_err(|error| error.to_string())?;
    template.render(variables, &|format| Ok(format.to_owned())).map_err(|error| error.to_string())
}

/// Text, marks of what is trained, and refusals of all templates. Most conversations are rendered, and each
/// template for training marks some of them.
#[test]
fn chat_templates_of_trl_render_and_mark_as_by_jinja2() {
    let file = fixture("conversations.json");
    let Some(templates) = printed::<Templates>("trl.py", file.to_str().unwrap()) else { return };
    let conversations: Vec<Map<String, Value>> = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(templates.len(), NUM_TEMPLATES);
    let mut differences = Vec::new();
    for (name, (source, outcomes)) in &templates {
        assert_eq!(outcomes.len(), conversations.len());
        for (idx, (variables, outcome)) in conversations.iter().zip(outcomes).enumerate() {
            let ours = rendered(source, variables);
            if !outcome.is_that_of(&ours) {
                differences
                    .push(format!("{name}, conversation {idx}\n  jinja2 {outcome:?}\n  ours   {ours:?}"));
            }
        }
        let texts = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Text { .. }));
        assert!(texts.count() >= 5, "{name} renders too few conversations");
        let is_marked =
            |outcome: &Outcome| matches!(outcome, Outcome::Text { generated, .. } if !generated.is_empty());
        assert!(!name.ends_with("_training.jinja") || outcomes.iter().any(is_marked), "{name} marks nothing");
    }
    let count = differences.len();
    assert!(count == 0, "{count} renderings differ:\n{}", differences.join("\n"));
}

/// Texts and errors of nested expressions and statements, which a grammar with a seed generates.
#[test]
fn generated_templates_render_as_by_jinja2() {
    let Some(templates) = printed::<Vec<(String, Option<String>)>>("generated.py", "1") else { return };
    let num_texts = templates.iter().filter(|(_, text)| text.is_some()).count();
    assert!(num_texts >= 100 && templates.len() - num_texts >= 100, "{num_texts} of {}", templates.len());
    let mut differences = Vec::new();
    for (template, text) in &templates {
        let ours = rendered(template, &Map::new()).map(|rendered| rendered.text);
        if ours.as_ref().ok() != text.as_ref() {
            differences.push(format!("{template:?}\n  jinja2 {text:?}\n  ours   {ours:?}"));
        }
    }
    let count = differences.len();
    assert!(count == 0, "{count} of {} differ:\n{}", templates.len(), differences.join("\n"));
}
