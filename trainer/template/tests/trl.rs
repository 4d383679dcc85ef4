//! Equality with jinja2 on the chat templates of TRL's package, which are read where pip installed them.

use std::collections::BTreeMap;
use std::fs;

use rlt_template::{Rendered, Template};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Number of templates in the pinned version of TRL.
const NUM_TEMPLATES: usize = 72;

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

/// Text, marks of what is trained, and refusals of all templates. Most conversations are rendered, and each
/// template for training marks some of them.
#[test]
fn chat_templates_of_trl_render_and_mark_as_by_jinja2() {
    let folder = rlt_tests::workspace_root().join("trainer/template/tests/fixtures");
    let conversations = folder.join("conversations.json");
    let Some(mut python) = rlt_tests::TRL.python() else { return };
    let ended = python.arg(folder.join("trl.py")).arg(&conversations).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let templates: BTreeMap<String, (String, Vec<Outcome>)> = serde_json::from_slice(&ended.stdout).unwrap();
    let conversations: Vec<Map<String, Value>> =
        serde_json::from_slice(&fs::read(conversations).unwrap()).unwrap();
    assert_eq!(templates.len(), NUM_TEMPLATES);
    let mut differences = Vec::new();
    for (name, (source, outcomes)) in &templates {
        assert_eq!(outcomes.len(), conversations.len());
        let template = Template::new(source).map_err(|error| error.to_string());
        for (idx, (variables, outcome)) in conversations.iter().zip(outcomes).enumerate() {
            let ours = template.as_ref().map_err(Clone::clone).and_then(|template| {
                let rendered = template.render(variables, &|format| Ok(format.to_owned()));
                rendered.map_err(|error| error.to_string())
            });
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
