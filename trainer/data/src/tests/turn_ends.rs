//! Ends of turns that are no end-of-sequence token of the tokenizer, with templates like those of GLM-4,
//! Phi-3 and Nemotron.

use super::*;

/// Each role's token ends the message before it, as in GLM-4.
const NEXT_ROLE: &str = "{% for m in messages %}{% if m.role == 'tool' %}<|observation|>{% else %}\
                         <|{{ m.role }}|>{% endif %}\n{{ m.content }}{% endfor %}\
                         {% if add_generation_prompt %}<|assistant|>\n{% endif %}";

pub(super) fn chat_fixture(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/tests/fixtures/chat/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// A tokenizer with a token for each byte and for each special token of TRL's templates. The first of `eos`
/// is that of the tokenizer, and all are in `generation_config.json`.
pub(super) fn byte_tokenizer(eos: &[&str], template: &str) -> Tokenizer {
    let definition = fs::read(chat_fixture("bytes.json")).unwrap();
    let parsed: Value = serde_json::from_slice(&definition).unwrap();
    let added = parsed["added_tokens"].as_array().unwrap();
    let id = |token: &&str| added.iter().find(|added| added["content"] == **token).unwrap()["id"].clone();
    let ids: Vec<Value> = eos.iter().map(id).collect();
    let dir = TempDir::new().unwrap();
    let write = |name: &str, content: Value| fs::write(dir.path().join(name), content.to_string()).unwrap();
    fs::write(dir.path().join("tokenizer.json"), &definition).unwrap();
    write("tokenizer_config.json", json!({"bos_token": "<bos>", "eos_token": eos[0]}));
    write("generation_config.json", json!({"eos_token_id": ids}));
    Tokenizer::load(dir.path()).unwrap().with_chat_template(template).unwrap()
}

/// Returns the texts that are learned of a row, each without a gap.
pub(super) fn learned_runs(
    tokenizer: &Tokenizer,
    row: &Value,
    train_on: TrainOn,
) -> Result<Vec<String>, DataError> {
    let mut files = Files::rows(std::slice::from_ref(row));
    files.spec.train_on = train_on;
    let examples = Dataset::demonstrations(&files.spec, Split::Train, tokenizer, 1 << 20)?;
    let example = &examples.items()[0];
    let tokens: Vec<(u32, bool)> =
        example.tokens.iter().copied().zip(example.loss_mask.iter().copied()).collect();
    let runs = tokens.chunk_by(|one, next| one.1 == next.1).filter(|run| run[0].1);
    let text = |run: &[(u32, bool)]| {
        let run: Vec<u32> = run.iter().map(|(token, _)| *token).collect();
        tokenizer.decode_verbatim(&run).unwrap()
    };
    Ok(runs.map(text).collect())
}

fn conversation(turns: &[(&str, &str)]) -> Value {
    let message = |(role, content): &(&str, &str)| json!({"role": role, "content": content});
    json!({"messages": turns.iter().map(message).collect::<Vec<_>>()})
}

#[test]
fn the_token_of_the_next_role_is_learned_where_it_ends_a_turn() {
    let stops = ["<|endoftext|>", "<|user|>", "<|observation|>"];
    for eos in [&stops[..], &stops[..1]] {
        let tokenizer = byte_tokenizer(eos, NEXT_ROLE);
        let learned = |row, train_on| learned_runs(&tokenizer, row, train_on).unwrap();
        let turns = conversation(&TWO_TURNS);
        assert_eq!(learned(&turns, TrainOn::Assistant), ["(w)b<|user|>", "(x)d<|user|>"]);
        assert_eq!(learned(&turns, TrainOn::LastTurn), ["(x)d<|user|>"]);
        let call = json!([{"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}]);
        let call = json!({"messages": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": call}
        ]});
        assert_eq!(learned(&call, TrainOn::Assistant), ["b<|observation|>"]);
        // The assistant writes the next message too, so nothing ends its first one.
        let twice = conversation(&[("user", "a"), ("assistant", "b"), ("assistant", "c"), ("user", "d")]);
        assert_eq!(learned(&twice, TrainOn::Assistant), ["b", "c<|user|>"]);
    }
}

#[test]
fn generation_stops_at_every_end_token_of_the_model() {
    let tokenizer = byte_tokenizer(&["<|endoftext|>", "<|user|>", "<|observation|>"], NEXT_ROLE);
    let ids =
        ["<|endoftext|>", "<|user|>", "<|observation|>"].map(|token| tokenizer.token_id(token).unwrap());
    assert_eq!(tokenizer.eos_ids(), ids);
}

#[test]
fn completions_of_pairs_end_with_the_token_of_the_next_role() {
    let tokenizer = byte_tokenizer(&["<|endoftext|>", "<|user|>"], NEXT_ROLE);
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let [good, bad] = ["b", "c"].map(|content| message("assistant", content));
    let limits = PreferenceLimits { max_completion_tokens: 99, max_sequence_tokens: 999 };
    let rows = PreferenceRows::Completions(PreferenceFormat::Pairs, limits);
    for row in [
        json!({"prompt": [message("user", "a")], "chosen": [good], "rejected": [bad]}),
        json!({"chosen": [message("user", "a"), good], "rejected": [message("user", "a"), bad]}),
    ] {
        let files = Files::rows(&[row]);
        let pairs = Dataset::preferences(&files.spec, Split::Train, &tokenizer, &rows).unwrap();
        let completions = pairs.items()[0].completions.iter();
        let texts: Vec<String> =
            completions.map(|tokens| tokenizer.decode_verbatim(tokens).unwrap()).collect();
        assert_eq!(texts, ["b<|user|>", "c<|user|>"]);
    }
}

#[test]
fn a_token_that_ends_each_turn_is_learned_without_the_next_role() {
    let phi = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}\
               {% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}";
    let turns = conversation(&TWO_TURNS);
    let learned = |eos: &[&str]| learned_runs(&byte_tokenizer(eos, phi), &turns, TrainOn::Assistant).unwrap();
    assert_eq!(learned(&["<|endoftext|>"]), ["(w)b<|end|>\n", "(x)d<|end|>\n<|endoftext|>"]);
    let stops = ["<|endoftext|>", "<|assistant|>", "<|end|>"];
    assert_eq!(learned(&stops), ["(w)b<|end|>", "(x)d<|end|>\n<|endoftext|>"]);
}

#[test]
fn the_end_of_a_thought_that_the_prompt_opens_is_learned() {
    let thinking = "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}<think></think>\
                    {% endif %}{{ m.content }}<|end|>\n{% endfor %}\
                    {% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}";
    let tokenizer = byte_tokenizer(&["<|end|>"], thinking);
    let learned = learned_runs(&tokenizer, &conversation(&TWO_TURNS), TrainOn::Assistant).unwrap();
    assert_eq!(learned, ["</think>(w)b<|end|>", "</think>(x)d<|end|>"]);
}
