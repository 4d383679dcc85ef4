//! Rows in the columns that people have: verl's, TRL's and their own.

use super::*;
use crate::preview::{self, RowOutcome};
use crate::tokenizer::ConversationDefaults;

fn first(files: &Files) -> Prompt {
    Prompt::clone(&files.prompts().unwrap().items()[0])
}

#[test]
fn the_ground_truth_is_found_where_verl_and_trl_have_it_or_where_the_manifest_says() {
    for row in [
        json!({"prompt": "1", "reward_model": {"ground_truth": "x"}, "answer": "y"}),
        json!({"prompt": "1", "ground_truth": "x", "solution": "y"}),
        json!({"prompt": "1", "answer": "x"}),
        json!({"prompt": "1", "solution": "x", "answer": null}),
    ] {
        assert_eq!(first(&Files::rows(std::slice::from_ref(&row))).ground_truth, "x", "{row}");
    }
    let own = json!({"prompt": "1", "answer": "y", "meta": {"target": 7, "set": "b"}, "a.b": "z"});
    let mut files = Files::rows(&[own, json!({"prompt": "1", "meta": {}})]);
    files.spec.data_source_key = "meta.set".into();
    files.spec.ground_truth_key = Some("a.b".into());
    files.spec.max_train_prompts = Some(1);
    assert_eq!(first(&files).ground_truth, "z", "a column whose name has a dot is that column");
    files.spec.ground_truth_key = Some("meta.target".into());
    assert_eq!((first(&files).ground_truth, first(&files).data_source.as_str()), (json!(7), "b"));
    files.spec.max_train_prompts = None;
    let error = files.prompts().unwrap_err().to_string();
    assert!(error.contains("row 2") && error.contains("\"meta.target\""), "{error}");
}

#[test]
fn a_conversation_is_a_prompt_up_to_the_assistants_last_turn() {
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let conversation = [turn("user", "1"), turn("assistant", "2"), turn("user", "3"), turn("assistant", "4")];
    let whole = Files::rows(&[json!({"messages": conversation})]);
    let asked = Files::rows(&[json!({"prompt": conversation[..3]})]);
    assert_eq!(first(&whole), first(&asked));
    assert_eq!(first(&Files::rows(&[json!({"messages": conversation[..3]})])), first(&asked));
    let both = Files::rows(&[json!({"prompt": "1+1=", "messages": conversation})]);
    assert_eq!(first(&both).text, "1+1=");
}

#[test]
fn a_completion_of_messages_gives_the_same_demonstration_as_its_conversation() {
    let user = json!({"role": "user", "content": "1"});
    let assistant = json!({"role": "assistant", "content": "2"});
    let of = |row: Value| Files::rows(&[row]).demonstrations(99).unwrap().items()[0].clone();
    let whole = of(json!({"messages": [user, assistant]}));
    assert_eq!(of(json!({"prompt": [user], "completion": [assistant]})), whole);
    assert_eq!(of(json!({"prompt": [user], "completion": "2"})), whole);
    let error = Files::rows(&[json!({"prompt": "1", "completion": [assistant]})]).demonstrations(99);
    assert!(matches!(error, Err(DataError::WrongType { .. })));
}

#[test]
fn a_system_prompt_and_variables_reach_every_conversation() {
    let template = "{% if not enable_thinking %}!{% endif %}".to_owned() + CHATML;
    let mut variables = serde_json::Map::new();
    variables.insert("enable_thinking".into(), json!(false));
    let defaults = ConversationDefaults { system_prompt: Some("be brief".into()), variables };
    let with = tokenizer().with_chat_template(&template).unwrap().with_conversation_defaults(defaults);
    let user = json!({"role": "user", "content": "1"});
    let own = json!({"role": "system", "content": "own"});
    let files =
        Files::rows(&[json!({"prompt": [user]}), json!({"prompt": "1"}), json!({"prompt": [own, user]})]);
    let prompts = Dataset::prompts(&files.spec, Split::Train, &with).unwrap();
    let texts: Vec<&str> = prompts.items().iter().map(|prompt| prompt.text.as_str()).collect();
    let expected = "!<|system|>be brief<eos>\n<|user|>1<eos>\n<|assistant|>";
    assert_eq!(texts, [expected, expected, "!<|system|>own<eos>\n<|user|>1<eos>\n<|assistant|>"]);
    let system = json!({"role": "system", "content": "be brief"});
    let messages: Vec<&Value> = prompts.items().iter().map(|prompt| &prompt.messages).collect();
    assert_eq!(messages, [&json!([system, user]), &json!([system, user]), &json!([own, user])]);
    let supervised = Files::rows(&[json!({"prompt": "1", "completion": "2"})]);
    let supervised = Dataset::demonstrations(&supervised.spec, Split::Train, &with, 99).unwrap();
    let text = with.decode_verbatim(&supervised.items()[0].tokens).unwrap();
    assert_eq!(text, format!("{expected}2<eos>\n"));
}

#[test]
fn a_preview_shows_the_rows_of_a_training_and_why_others_are_left_out() {
    let rows = [
        json!({"prompt": "1+1="}),
        json!({"prompt": "123456789"}),
        json!({"question": "?"}),
        json!({"prompt": "2"}),
    ];
    let mut files = Files::rows(&rows);
    files.spec.max_prompt_tokens = 6;
    let seen = |files: &Files, num_rows| {
        let sets = preview::prompts(&files.spec, Split::Train, &tokenizer(), num_rows).unwrap();
        sets.into_iter().flatten().collect::<Vec<_>>()
    };
    let previews = seen(&files, 3);
    let [kept, long, broken] = &previews[..] else { panic!("three rows were asked for: {previews:?}") };
    assert!(matches!(&kept.outcome, RowOutcome::Kept(prompt) if prompt.text == "1+1="));
    let num_tokens = tokenizer().encode("123456789").unwrap().len();
    assert!(
        matches!(long.outcome, RowOutcome::Filtered { num_tokens: n, max_tokens: 6 } if n == num_tokens),
        "{long:?}"
    );
    assert!(matches!(&broken.outcome, RowOutcome::Broken(DataError::MissingColumn { .. })));
    assert_eq!(broken.location.number, 3);
    files.spec.overlong_prompts = OverlongPrompts::TruncateLeft;
    assert!(matches!(&seen(&files, 2)[1].outcome, RowOutcome::Truncated(prompt) if prompt.tokens.len() == 6));
    files.spec.max_train_prompts = Some(2);
    let whole = files.prompts().unwrap();
    for (preview, item) in seen(&files, 9).iter().zip(whole.items().iter()) {
        assert!(
            matches!(&preview.outcome, RowOutcome::Kept(prompt) | RowOutcome::Truncated(prompt) if prompt == &**item)
        );
    }
}
