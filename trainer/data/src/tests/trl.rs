//! Supervised training of conversations with the chat templates of TRL's package, which are read where pip
//! installed them. transformers computed the right texts from TRL's templates for training, whose
//! `{% generation %}` tags mark them: `tests/fixtures/chat/masks.py`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::turn_ends::{byte_tokenizer, chat_fixture, learned_runs};
use super::*;

/// Cases in which a model's own template and TRL's template for training differ, with the reason.
const DIFFERENT: [(&str, &str, &str); 2] = [
    ("diffusion_gemma", "call", "generation stops at `<|tool_response>`, which TRL leaves out"),
    ("diffusion_gemma", "result", "the same, and the template opens a turn that its prompt does not open"),
];

#[derive(Deserialize)]
struct Fixture {
    conversations: BTreeMap<String, Value>,
    templates: BTreeMap<String, Reference>,
}

/// The reference of a model's template; no cases where TRL has no template for training.
#[derive(Deserialize)]
struct Reference {
    eos: Vec<String>,
    cases: BTreeMap<String, Trained>,
}

impl Reference {
    fn eos(&self) -> Vec<&str> {
        self.eos.iter().map(String::as_str).collect()
    }
}

/// Texts that are trained of a conversation.
#[derive(Deserialize)]
struct Trained {
    /// Texts that the template for training marks.
    training: Vec<String>,
    /// Trained texts as the model's own template prints them; `None` if it refuses the conversation.
    original: Option<Vec<String>>,
}

fn fixture() -> Fixture {
    serde_json::from_slice(&fs::read(chat_fixture("masks.json")).unwrap()).unwrap()
}

/// Sources of TRL's templates by name; `None` where the package cannot be installed.
fn sources() -> Option<BTreeMap<String, String>> {
    rlt_tests::TRL.python()?;
    let folder = rlt_tests::TRL.installed().unwrap().join("trl/chat_templates");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let templates = paths.filter(|path| path.extension().is_some_and(|ending| ending == "jinja"));
    let name = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    Some(templates.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect())
}

fn without_white_space(runs: &[String]) -> Vec<&str> {
    runs.iter().map(|run| run.trim_end()).collect()
}

#[test]
fn marks_of_templates_for_training_are_learned_as_in_transformers() {
    let Some(sources) = sources() else { return };
    let Fixture { conversations, templates } = fixture();
    let mut num_cases = 0;
    for (name, reference) in templates.iter().filter(|(_, reference)| !reference.cases.is_empty()) {
        let tokenizer = byte_tokenizer(&reference.eos(), &sources[&format!("{name}_training")]);
        for (conversation, trained) in &reference.cases {
            let ours = learned_runs(&tokenizer, &conversations[conversation], TrainOn::Assistant).unwrap();
            assert_eq!(ours, trained.training, "{name}, {conversation}");
            num_cases += 1;
        }
    }
    assert!(num_cases >= 200, "{num_cases}");
}

#[test]
fn models_own_templates_learn_what_templates_for_training_mark() {
    let Some(sources) = sources() else { return };
    let Fixture { conversations, templates } = fixture();
    let mut num_cases = 0;
    for (name, reference) in &templates {
        let eos = reference.eos();
        let tokenizers = [&eos[..], &eos[..1]].map(|eos| byte_tokenizer(eos, &sources[name]));
        for (conversation, trained) in &reference.cases {
            let Some(original) = &trained.original else { continue };
            let [all, first] = tokenizers.each_ref().map(|tokenizer| {
                learned_runs(tokenizer, &conversations[conversation], TrainOn::Assistant).unwrap()
            });
            if DIFFERENT.iter().any(|(template, case, _)| template == name && case == conversation) {
                assert_ne!(&all, original, "{name}, {conversation}");
                continue;
            }
            assert_eq!(&all, original, "{name}, {conversation}");
            // White space after the end of a turn is learned if the tokenizer does not know the end.
            let first = without_white_space(&first);
            assert_eq!(first, without_white_space(original), "{name}, {conversation}, one end");
            num_cases += 1;
        }
    }
    assert!(num_cases >= 200, "{num_cases}");
}

#[test]
fn every_turn_of_a_template_without_marks_of_trl_ends_with_a_token_at_which_generation_stops() {
    let Some(sources) = sources() else { return };
    let Fixture { conversations, templates } = fixture();
    let mut num_turns = 0;
    for (name, reference) in templates.iter().filter(|(_, reference)| reference.cases.is_empty()) {
        let eos = reference.eos();
        let tokenizer = byte_tokenizer(&eos, &sources[name]);
        for (conversation, row) in &conversations {
            // A template may refuse a conversation.
            let Ok(runs) = learned_runs(&tokenizer, row, TrainOn::Assistant) else { continue };
            for run in &runs {
                let is_ended = eos.iter().any(|token| run.trim_end().ends_with(token));
                assert!(is_ended, "{name}, {conversation}: {run:?}");
                num_turns += 1;
            }
        }
    }
    assert!(num_turns >= 50, "{num_turns}");
}
