//! Preferences as people hand them over: TRL's formats, good and bad.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{Dataset, PreferenceRows, Split, StepFormat};

const CHATML: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor %}\
                      {% if add_generation_prompt %}<|assistant|>{% endif %}";
const LIMITS: PreferenceLimits = PreferenceLimits { max_completion_tokens: 64, max_sequence_tokens: 128 };

fn tokenizer() -> Tokenizer {
    let printable: String = (' '..='~').chain(['\n']).collect();
    Tokenizer::characters(&printable).unwrap().with_chat_template(CHATML).unwrap()
}

fn read_with(
    rows: &[Value],
    format: PreferenceFormat,
    limits: PreferenceLimits,
    overlong: OverlongPrompts,
) -> Result<Dataset<PreferenceExample>, DataError> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("rows.jsonl");
    fs::write(&path, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
    let train = vec![path.display().to_string()];
    let spec = DataSpec { train, overlong_prompts: overlong, ..DataSpec::default() };
    Dataset::preferences(&spec, Split::Train, &tokenizer(), &PreferenceRows::Completions(format, limits))
}

fn read(rows: &[Value], format: PreferenceFormat) -> Result<Dataset<PreferenceExample>, DataError> {
    read_with(rows, format, LIMITS, OverlongPrompts::Filter)
}

/// Prompt and completions of each example as texts.
fn texts(examples: &Dataset<PreferenceExample>) -> Vec<Vec<String>> {
    let tokenizer = tokenizer();
    let text = |tokens: &[TokenId]| tokenizer.decode_verbatim(tokens).unwrap();
    let texts = |example: &Arc<PreferenceExample>| {
        let completions = example.completions.iter().map(|tokens| text(tokens));
        std::iter::once(text(&example.prompt.tokens)).chain(completions).collect()
    };
    examples.items().iter().map(texts).collect()
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

#[test]
fn pairs_are_read_plain_and_as_chat_with_explicit_and_implicit_prompts() {
    let (user, good, bad) = (message("user", "q"), message("assistant", "a"), message("assistant", "b"));
    let pairs = read(
        &[
            json!({"prompt": "1+1=", "chosen": "2", "rejected": "3"}),
            json!({"chosen": "The sky is blue.", "rejected": "The sky is green."}),
            json!({"prompt": [user], "chosen": [good], "rejected": [bad]}),
            json!({"chosen": [user, good], "rejected": [user, bad]}),
        ],
        PreferenceFormat::Pairs,
    )
    .unwrap();
    let chat = ["<|user|>q<eos>\n<|assistant|>", "a<eos>", "b<eos>"];
    assert_eq!(
        texts(&pairs),
        [
            ["<bos>1+1=", "2<eos>", "3<eos>"],
            // As TRL splits them: the space goes with the completions.
            ["<bos>The sky is", " blue.<eos>", " green.<eos>"],
            chat,
            chat,
        ]
    );
    assert_eq!(pairs.items()[0].labels, [true, false]);
    assert_eq!(pairs.to_prompts().items()[0], pairs.items()[0].prompt);
}

#[test]
fn plain_text_gets_an_end_token_unless_it_ends_with_one() {
    let rows = [json!({"prompt": "q", "chosen": "a<eos>b", "rejected": "c<eos>"})];
    let pairs = read(&rows, PreferenceFormat::Pairs).unwrap();
    assert_eq!(texts(&pairs), [["<bos>q", "a<eos>b<eos>", "c<eos>"]]);
}

#[test]
fn a_margin_is_read_for_reward_models() {
    let rows = [1.5, 0.0].map(|margin| {
        let margin = if margin == 0.0 { Value::Null } else { json!(margin) };
        json!({"prompt": "1+1=", "chosen": "2", "rejected": "3", "margin": margin})
    });
    let margins = |format| -> Vec<f64> {
        let pairs = read(&rows, format).unwrap();
        pairs.items().iter().map(|example| example.margin).collect()
    };
    assert_eq!(margins(PreferenceFormat::PairsWithMargin), [1.5, 0.0]);
    assert_eq!(margins(PreferenceFormat::Pairs), [0.0, 0.0]);
}

#[test]
fn labels_are_read_alone_and_from_pairs() {
    let rows = [
        json!({"prompt": "q", "completion": "a", "label": true}),
        json!({"prompt": [message("user", "q")], "completion": [message("assistant", "b")], "label": false}),
        json!({"prompt": "q", "chosen": "c", "rejected": "d"}),
    ];
    let examples = read(&rows, PreferenceFormat::Labels).unwrap();
    let labels: Vec<&[bool]> = examples.items().iter().map(|example| example.labels.as_slice()).collect();
    assert_eq!(labels, [&[true][..], &[false], &[true, false]]);
    assert_eq!(texts(&examples)[0], ["<bos>q", "a<eos>"]);
    assert_eq!(texts(&examples)[1], ["<|user|>q<eos>\n<|assistant|>", "b<eos>"]);
    assert_eq!(texts(&examples)[2], ["<bos>q", "c<eos>", "d<eos>"]);
}

#[test]
fn a_bad_row_is_named_with_its_column() {
    use PreferenceFormat::{Labels, Pairs};
    let chat = json!([message("assistant", "a")]);
    for (row, format, expected) in [
        (json!({"prompt": "q", "chosen": "a"}), Pairs, "expected a column \"rejected\""),
        (json!({"prompt": "q", "completion": "a"}), Labels, "expected a column \"label\""),
        (json!({"prompt": "q", "label": true}), Labels, "expected a column \"completion\""),
        (json!({"completion": "a", "label": true}), Labels, "expected a column \"prompt\""),
        (
            json!({"prompt": "q", "completion": "a", "label": 1}),
            Labels,
            "column \"label\" is 1, expected true",
        ),
        (json!({"prompt": "q", "chosen": "a", "rejected": chat}), Pairs, "column \"rejected\" is"),
        (json!({"prompt": "q", "chosen": chat, "rejected": chat}), Pairs, "column \"prompt\" is \"q\""),
        (
            json!({"prompt": [message("user", "q")], "chosen": "a", "rejected": "b"}),
            Pairs,
            "column \"prompt\"",
        ),
        (json!({"prompt": "q", "chosen": 7, "rejected": "b"}), Pairs, "column \"chosen\" is 7"),
        (json!({"prompt": "q", "chosen": "", "rejected": "b"}), Pairs, "column \"chosen\" is empty"),
        (json!({"chosen": "same", "rejected": "same"}), Pairs, "column \"chosen\" is empty"),
        (json!({"chosen": "x", "rejected": "y"}), Pairs, "the prompt is empty"),
        (json!({"chosen": chat, "rejected": [message("assistant", "b")]}), Pairs, "the prompt is empty"),
        (json!({"prompt": "q", "chosen": [{"content": "a"}], "rejected": chat}), Pairs, "column \"chosen\""),
    ] {
        let good = json!({"prompt": "q", "chosen": "a", "rejected": "b"});
        let error = read(&[good, row.clone()], format).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("rows.jsonl row 2"), "{row}: {error}");
    }
}

#[test]
fn a_prompt_is_cut_and_a_completion_never_is() {
    let limits = PreferenceLimits { max_completion_tokens: 4, max_sequence_tokens: 9 };
    let rows = [
        json!({"prompt": "0123456789", "chosen": "abc", "rejected": "d"}),
        json!({"prompt": "q", "chosen": "a", "rejected": "too long"}),
        json!({"prompt": "q", "chosen": "a", "rejected": "b"}),
    ];
    let read = |overlong| read_with(&rows, PreferenceFormat::Pairs, limits, overlong);
    let filtered = read(OverlongPrompts::Filter).unwrap();
    assert_eq!((filtered.len(), filtered.counts().num_filtered), (1, 2));
    let cut = read(OverlongPrompts::TruncateLeft).unwrap();
    // With its longest completion and the ending token the prompt fills nine tokens.
    assert_eq!(texts(&cut), [["56789", "abc<eos>", "d<eos>"], ["<bos>q", "a<eos>", "b<eos>"]]);
    assert_eq!((cut.counts().num_truncated, cut.counts().num_filtered), (1, 1));
    let error = read(OverlongPrompts::Error).unwrap_err().to_string();
    assert!(error.contains("column \"prompt\" has 11 tokens, expected at most 5"), "{error}");
    let error = read_with(&rows[1..], PreferenceFormat::Pairs, limits, OverlongPrompts::Error).unwrap_err();
    assert!(error.to_string().contains("column \"rejected\" has 9 tokens, expected at most 4"), "{error}");
}

#[test]
fn steps_that_exceed_the_longest_sequence_with_their_prompt_are_left_out_or_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("rows.jsonl");
    let rows = [
        json!({"prompt": "q", "completions": ["ab"], "labels": [true]}),
        json!({"prompt": "0123", "completions": ["ab"], "labels": [true]}),
    ];
    fs::write(&path, rows.map(|row| format!("{row}\n")).concat()).unwrap();
    let limits = PreferenceLimits { max_completion_tokens: 4, max_sequence_tokens: 6 };
    let format = StepFormat { separator: "\n".to_owned(), last_only: false, limits };
    let read = |overlong_prompts| {
        let train = vec![path.display().to_string()];
        let spec = DataSpec { train, overlong_prompts, ..DataSpec::default() };
        let rows = PreferenceRows::Steps(format.clone());
        Dataset::preferences(&spec, Split::Train, &tokenizer(), &rows)
    };
    // A beginning token, "q", two letters and the separator.
    let filtered = read(OverlongPrompts::Filter).unwrap();
    assert_eq!((filtered.len(), filtered.counts().num_filtered), (1, 1));
    let error = read(OverlongPrompts::Error).unwrap_err().to_string();
    assert!(error.contains("column \"prompt\" has 5 tokens, expected at most 3"), "{error}");
}

/// Reads one pair of conversations, a question with the answers "a" and "b", under a chat template.
fn read_under(template: &str, answers: [&str; 2]) -> Result<Dataset<PreferenceExample>, DataError> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("rows.jsonl");
    let [chosen, rejected] = answers.map(|answer| [message("assistant", answer)]);
    let row = json!({"prompt": [message("user", "q")], "chosen": chosen, "rejected": rejected});
    fs::write(&path, row.to_string()).unwrap();
    let spec = DataSpec { train: vec![path.display().to_string()], ..DataSpec::default() };
    let tokenizer = tokenizer().with_chat_template(template).unwrap();
    let pairs = PreferenceRows::Completions(PreferenceFormat::Pairs, LIMITS);
    Dataset::preferences(&spec, Split::Train, &tokenizer, &pairs)
}

#[test]
fn a_prompt_that_the_template_rewrites_is_taken_from_the_whole_conversation() {
    let hiding = "{% for m in messages %}{{ m.role }}:{{ m.content if loop.last else '..' }}<eos>\
                  {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    let pairs = read_under(hiding, ["a", "b"]).unwrap();
    assert_eq!(texts(&pairs), [["user:..<eos>assistant:", "a<eos>", "b<eos>"]]);
    // As DeepSeek-R1's: thoughts are opened before an answer, and dropped from one that is known.
    let thinking = "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<eos>\
                    {% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}";
    let pairs = read_under(thinking, ["<think>why</think>a", "b"]).unwrap();
    assert_eq!(texts(&pairs), [["<|user|>q<eos><|assistant|>", "a<eos>", "b<eos>"]]);
}

#[test]
fn a_template_that_hides_the_answer_or_writes_a_prompt_for_each_is_refused() {
    let silent = "{% for m in messages %}{{ m.content if m.role == 'user' else '' }}{% endfor %}\
                  {% if add_generation_prompt %}assistant:{% endif %}";
    let by_answer =
        "{% if messages[-1].content == 'a' %}one{% else %}other{% endif %}:{{ messages[-1].content }}";
    for template in [silent, by_answer] {
        let error = read_under(template, ["a", "b"]).unwrap_err();
        assert!(matches!(error, DataError::UnstableTemplate { message_idx: 1, .. }), "{error}");
    }
}
