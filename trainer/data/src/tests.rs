//! Data as users hand it over: files on disk, good and bad.

mod columns;
mod datasets;
mod foreign;
mod images;
mod mutated;
mod pages;
mod trl;
mod turn_ends;

use std::fs;
use std::path::PathBuf;

use rlt_api::spec::{DataSpec, OverlongPrompts, TaskSpec, TrainOn};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::tokenizer::TokenizerError;

const CHATML: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor %}\
                      {% if add_generation_prompt %}<|assistant|>{% endif %}";

fn tokenizer() -> Tokenizer {
    let printable: String = (' '..='~').chain(['\n']).collect();
    Tokenizer::characters(&printable).unwrap().with_chat_template(CHATML).unwrap()
}

struct Files {
    dir: TempDir,
    spec: DataSpec,
}

impl Files {
    fn new(name: &str, content: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        let spec = DataSpec { train: vec![path.display().to_string()], ..DataSpec::default() };
        Self { dir, spec }
    }

    fn rows(rows: &[Value]) -> Self {
        Self::new("rows.jsonl", &rows.iter().map(|row| format!("{row}\n")).collect::<String>())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn prompts(&self) -> Result<Dataset<Prompt>, DataError> {
        Dataset::prompts(&self.spec, Split::Train, &tokenizer())
    }

    fn demonstrations(&self, max_tokens: usize) -> Result<Dataset<Demonstration>, DataError> {
        Dataset::demonstrations(&self.spec, Split::Train, &tokenizer(), max_tokens)
    }
}

fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn verl_rows_are_read_equally_from_every_format() {
    let read = |name: &str| {
        let spec = DataSpec { train: vec![fixture(name)], ..DataSpec::default() };
        Dataset::prompts(&spec, Split::Train, &tokenizer()).unwrap()
    };
    let parquet = read("verl.parquet");
    assert_eq!(parquet.len(), 3);
    let first = &parquet.items()[0];
    assert_eq!(first.data_source, "openai/gsm8k");
    assert_eq!(first.ground_truth, json!("72"));
    assert_eq!(first.extra_info["index"], json!(0));
    assert!(first.text.starts_with("<|user|>Natalia"), "{}", first.text);
    assert!(first.text.ends_with("<eos>\n<|assistant|>"), "{}", first.text);
    for other in ["verl.jsonl", "verl.json", "verl_zstd.parquet"] {
        let other = read(other);
        assert_eq!(other.items(), parquet.items());
        assert_eq!(other.digest(), parquet.digest());
    }
}

#[test]
fn a_plain_prompt_gets_the_special_tokens_of_plain_text() {
    let files =
        Files::rows(&[json!({"prompt": "1+1="}), json!({"prompt": [{"role": "user", "content": "1"}]})]);
    let prompts = files.prompts().unwrap();
    let tokenizer = tokenizer();
    assert_eq!(prompts.items()[0].tokens, tokenizer.encode("1+1=").unwrap());
    assert_eq!(prompts.items()[0].data_source, "default");
    let chat = &prompts.items()[1];
    assert_eq!(chat.text, "<|user|>1<eos>\n<|assistant|>");
    assert_eq!(chat.tokens, tokenizer.encode_rendered(&chat.text).unwrap());
}

#[test]
fn a_malformed_row_is_named_by_file_and_number() {
    for (content, number) in
        [("{\"prompt\": \"a\"}\n\n{\"prompt\": \n", 3), ("[1]\n", 1), ("{\"prompt\": \"a\"} x", 1)]
    {
        let files = Files::new("bad.jsonl", content);
        let error = files.prompts().unwrap_err();
        let DataError::Json { location, .. } = &error else { panic!("{error}") };
        assert_eq!(location.number, number);
        assert!(error.to_string().contains(&format!("bad.jsonl row {number}")), "{error}");
    }
    let not_utf8 = Files::new("bytes.jsonl", "");
    fs::write(not_utf8.path("bytes.jsonl"), b"{\"prompt\": \"\xff\"}\n").unwrap();
    assert!(matches!(not_utf8.prompts().unwrap_err(), DataError::Read { .. }));
}

#[test]
fn a_missing_column_is_named_with_those_that_are_there() {
    let files = Files::rows(&[json!({"prompt": "a"}), json!({"question": "b", "index": 1})]);
    let error = files.prompts().unwrap_err();
    let DataError::MissingColumn { location, column, found } = error else { panic!("{error}") };
    assert_eq!((location.number, column.as_str(), found.len()), (2, "prompt", 2));
    let error = files.demonstrations(100).unwrap_err();
    assert!(matches!(error, DataError::MissingColumn { .. }), "{error}");
}

#[test]
fn columns_of_the_wrong_type_are_refused() {
    let rows = [
        json!({"prompt": 3}),
        json!({"prompt": []}),
        json!({"prompt": [{"content": "no role"}]}),
        json!({"prompt": "a", "data_source": 1}),
        json!({"prompt": "a", "reward_model": "18"}),
        json!({"prompt": [{"role": "user", "content": "a"}], "tools": "{"}),
    ];
    for row in rows {
        let error = Files::rows(std::slice::from_ref(&row)).prompts().unwrap_err();
        assert!(matches!(error, DataError::WrongType { .. }), "{row}: {error}");
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let absent = DataSpec { train: vec!["/nowhere/a.jsonl".into()], ..DataSpec::default() };
    assert!(matches!(Dataset::prompts(&absent, Split::Train, &tokenizer()), Err(DataError::Open { .. })));
    for name in ["a.csv", "a"] {
        assert!(matches!(Files::new(name, "x").prompts(), Err(DataError::UnknownFormat { .. })));
    }
    let truncated = Files::new("a.parquet", "");
    let whole = fs::read(fixture("verl.parquet")).unwrap();
    fs::write(truncated.path("a.parquet"), &whole[..whole.len() / 2]).unwrap();
    let error = truncated.prompts().unwrap_err();
    assert!(matches!(error, DataError::Parquet { .. }) && error.to_string().contains("a.parquet"), "{error}");
}

#[test]
fn a_data_file_that_is_no_regular_file_is_refused_at_once_and_for_good() {
    for name in ["a.jsonl", "a.json", "a.parquet"] {
        let files = Files::new(name, "");
        fs::remove_file(files.path(name)).unwrap();
        // Opening the pipe to read it would block until a writer opens it.
        rustix::fs::mkfifoat(rustix::fs::CWD, files.path(name), rustix::fs::Mode::RWXU).unwrap();
        let streamed = rows::open_at(&Arc::from(files.path(name)), Place::default());
        for error in [files.prompts().unwrap_err(), streamed.err().unwrap()] {
            assert!(matches!(error, DataError::Open { .. }) && !error.is_io(), "{error}");
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert_eq!(source, "expected a regular file, found a pipe");
        }
    }
    let files = Files::new("a.jsonl", "");
    fs::write(files.path("a.jsonl"), [0xff]).unwrap();
    let error = files.prompts().unwrap_err();
    assert!(matches!(error, DataError::Read { .. }) && !error.is_io(), "{error}");
    let absent = DataSpec { train: vec!["/nowhere/a.jsonl".into()], ..DataSpec::default() };
    let error = Dataset::prompts(&absent, Split::Train, &tokenizer()).unwrap_err();
    assert!(error.is_io(), "a folder may be mounted late: {error}");
}

#[test]
fn an_empty_data_set_is_an_error() {
    for files in [Files::new("empty.jsonl", "\n"), Files::new("empty.json", "[]")] {
        assert!(matches!(files.prompts(), Err(DataError::Empty { num_filtered: 0, .. })));
    }
    let none = Dataset::prompts(&DataSpec::default(), Split::HeldOut, &tokenizer()).unwrap();
    assert!(none.is_empty());
    assert_eq!(PromptLoader::new(&none, true, 0).unwrap_err(), LoaderError::Empty);
}

#[test]
fn overlong_prompts_are_filtered_cut_or_refused() {
    let mut files = Files::rows(&[json!({"prompt": "abcdef"}), json!({"prompt": "abc"})]);
    files.spec.max_prompt_tokens = 4;
    let mut read = |rule| {
        files.spec.overlong_prompts = rule;
        files.prompts()
    };
    let filtered = read(OverlongPrompts::Filter).unwrap();
    assert_eq!(filtered.counts(), DatasetCounts { num_rows: 2, num_filtered: 1, num_truncated: 0 });
    assert_eq!((filtered.items()[0].row_idx, filtered.location(0).unwrap().number), (1, 2));
    let left = read(OverlongPrompts::TruncateLeft).unwrap();
    assert_eq!((left.items()[0].text.as_str(), left.items()[0].tokens.len()), ("cdef", 4));
    assert_eq!(left.counts().num_truncated, 1);
    assert_eq!(read(OverlongPrompts::TruncateRight).unwrap().items()[0].text, "<bos>abc");
    let error = read(OverlongPrompts::Error).unwrap_err();
    assert!(matches!(error, DataError::TooLong { num_tokens: 7, max_tokens: 4, .. }), "{error}");
    files.spec.max_prompt_tokens = 1;
    files.spec.overlong_prompts = OverlongPrompts::Filter;
    assert!(matches!(files.prompts(), Err(DataError::Empty { num_filtered: 2, .. })));
}

#[test]
fn a_late_long_prompt_is_reported_with_its_row_before_the_first_step() {
    let mut rows = vec![json!({"prompt": "abc"}); 40];
    rows[36] = json!({"prompt": "abcdef"});
    let mut files = Files::rows(&rows);
    files.spec.max_prompt_tokens = 4;
    files.spec.overlong_prompts = OverlongPrompts::Error;
    let error = files.prompts().unwrap_err();
    let DataError::TooLong { location, num_tokens: 7, max_tokens: 4, .. } = &error else { panic!("{error}") };
    assert_eq!(location.number, 37);
    assert!(error.to_string().contains("rows.jsonl row 37"), "{error}");
}

#[test]
fn demonstrations_that_are_too_long_are_left_out_and_counted() {
    let mut files = Files::rows(&[
        json!({"prompt": "q", "response": "a"}),
        json!({"prompt": "q", "response": "a long answer"}),
        json!({"prompt": "q", "response": "b"}),
    ]);
    files.spec.overlong_prompts = OverlongPrompts::Filter;
    let counts = files.demonstrations(6).unwrap().counts();
    assert_eq!(counts, DatasetCounts { num_rows: 3, num_filtered: 1, num_truncated: 0 });
    files.spec.overlong_prompts = OverlongPrompts::Error;
    let error = files.demonstrations(6).unwrap_err();
    let DataError::TooLong { location, max_tokens: 6, .. } = &error else { panic!("{error}") };
    assert_eq!(location.number, 2);
}

#[test]
fn a_role_that_the_template_refuses_is_reported_with_its_row_and_the_templates_words() {
    let gemma = fs::read_to_string(turn_ends::chat_fixture("templates/gemma.jinja")).unwrap();
    let tokenizer = tokenizer().with_chat_template(&gemma).unwrap();
    let turn = |role: &str| json!({"role": role, "content": "a"});
    for (messages, words) in [
        ([turn("system"), turn("user")], "System role not supported"),
        ([turn("user"), turn("user")], "Conversation roles must alternate"),
    ] {
        let files = Files::rows(&[json!({"prompt": [turn("user")]}), json!({"prompt": messages})]);
        let error = Dataset::prompts(&files.spec, Split::Train, &tokenizer).unwrap_err();
        assert!(error.to_string().contains("row 2"), "{error}");
        let mut causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
        assert!(causes.any(|cause| cause.to_string().contains(words)), "{error}: {words}");
    }
}

#[test]
fn only_the_first_rows_are_used_when_asked() {
    let mut files = Files::rows(&[json!({"prompt": "a"}), json!({"prompt": "b"}), json!({"prompt": "c"})]);
    files.spec.max_train_prompts = Some(2);
    let prompts = files.prompts().unwrap();
    assert_eq!(prompts.items().iter().map(|p| p.text.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

fn task() -> DataSpec {
    let task: TaskSpec =
        serde_json::from_value(json!({"kind": "Arithmetic", "numTrain": 50, "numHeldOut": 7})).unwrap();
    DataSpec { task: Some(task), ..DataSpec::default() }
}

#[test]
fn a_generated_task_needs_no_files() {
    let tokenizer = Tokenizer::characters(rlt_core::task::Arithmetic::ALPHABET).unwrap();
    let train = Dataset::prompts(&task(), Split::Train, &tokenizer).unwrap();
    let held_out = Dataset::prompts(&task(), Split::HeldOut, &tokenizer).unwrap();
    assert_eq!((train.len(), held_out.len()), (50, 7));
    assert_ne!(train.digest(), held_out.digest());
    let demonstrations = Dataset::demonstrations(&task(), Split::Train, &tokenizer, 64).unwrap();
    for (prompt, shown) in train.items().iter().zip(demonstrations.items().iter()) {
        assert_eq!(prompt.tokens, shown.tokens[..prompt.tokens.len()]);
        assert_eq!(shown.tokens.last(), tokenizer.eos_ids().first());
        let answer = tokenizer.decode(&shown.tokens[prompt.tokens.len()..]).unwrap();
        assert_eq!(json!(answer), prompt.ground_truth);
    }
}

#[test]
fn an_impossible_task_is_refused_before_anything_is_generated() {
    let mut spec = task();
    spec.task.as_mut().unwrap().max_operand = 1;
    assert!(matches!(Dataset::prompts(&spec, Split::Train, &tokenizer()), Err(DataError::Task(_))));
}

/// The learned part of each demonstration as text.
fn learned(files: &Files) -> Vec<String> {
    let tokenizer = tokenizer();
    let demonstrations = files.demonstrations(1000).unwrap();
    let text = |demonstration: &Arc<Demonstration>| {
        let masked = demonstration.tokens.iter().zip(&demonstration.loss_mask);
        let tokens: Vec<u32> = masked.filter(|(_, learn)| **learn).map(|(token, _)| *token).collect();
        tokenizer.decode_verbatim(&tokens).unwrap()
    };
    demonstrations.items().iter().map(text).collect()
}

#[test]
fn only_what_the_assistant_wrote_is_learned() {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let turns =
        [message("system", "s"), message("user", "q"), message("assistant", "a1"), message("user", "r")];
    let conversation: Vec<Value> = turns.into_iter().chain([message("assistant", "a2")]).collect();
    let files = Files::rows(&[
        json!({"messages": conversation}),
        json!({"prompt": [message("user", "q")], "response": "a"}),
        json!({"prompt": "q ", "completion": "a"}),
        json!({"prompt": "q ", "demonstration": "b"}),
    ]);
    assert_eq!(learned(&files), ["a1<eos>a2<eos>", "a<eos>", "a<eos>", "b<eos>"]);
}

#[test]
fn examples_that_teach_nothing_are_refused() {
    let only_user = Files::rows(&[json!({"messages": [{"role": "user", "content": "q"}]})]);
    assert!(matches!(only_user.demonstrations(100), Err(DataError::NothingToLearn { .. })));
    let mut cut = Files::rows(&[json!({"prompt": "long prompt", "response": "a"})]);
    cut.spec.overlong_prompts = OverlongPrompts::TruncateRight;
    assert!(matches!(cut.demonstrations(5), Err(DataError::NothingToLearn { .. })));
    cut.spec.overlong_prompts = OverlongPrompts::TruncateLeft;
    assert_eq!(cut.demonstrations(5).unwrap().counts().num_truncated, 1);
}

/// Returns the text of a conversation that is learned under a chat template.
fn learned_by(template: &str, train_on: TrainOn, conversation: &[(&str, &str)]) -> String {
    let tokenizer = tokenizer().with_chat_template(template).unwrap();
    let message = |(role, content): &(&str, &str)| json!({"role": role, "content": content});
    let mut files = Files::rows(&[json!({"messages": conversation.iter().map(message).collect::<Vec<_>>()})]);
    files.spec.train_on = train_on;
    let examples = Dataset::demonstrations(&files.spec, Split::Train, &tokenizer, 200).unwrap();
    let example = &examples.items()[0];
    let tokens = example.tokens.iter().zip(&example.loss_mask);
    let tokens: Vec<u32> = tokens.filter(|(_, learned)| **learned).map(|(token, _)| *token).collect();
    tokenizer.decode_verbatim(&tokens).unwrap()
}

const TWO_TURNS: [(&str, &str); 4] =
    [("user", "a"), ("assistant", "(w)b"), ("user", "c"), ("assistant", "(x)d")];

#[test]
fn a_template_that_rewrites_earlier_turns_is_learned_as_it_writes_them() {
    let dropping = "{% for m in messages %}<{{ m.role }}>{% if loop.last %}{{ m.content }}{% else %}\
                    {{ m.content.split(')')[-1] }}{% endif %}<eos>\n{% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}";
    assert_eq!(learned_by(dropping, TrainOn::Assistant, &TWO_TURNS), "b<eos>(x)d<eos>");
    assert_eq!(learned_by(dropping, TrainOn::LastTurn, &TWO_TURNS), "(x)d<eos>");
}

#[test]
fn the_text_within_generation_tags_is_learned() {
    let tagged = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}\
                  {{ m.content }}!{% endgeneration %}{% else %}{{ m.content }}{% endif %}<eos>{% endfor %}";
    assert_eq!(learned_by(tagged, TrainOn::Assistant, &TWO_TURNS), "(w)b!(x)d!");
    assert_eq!(learned_by(tagged, TrainOn::LastTurn, &TWO_TURNS), "(x)d!");
    let twice = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}\
                 {{ m.content }}{% endgeneration %}|{% generation %}!{% endgeneration %}{% endif %}{% endfor %}";
    assert_eq!(learned_by(twice, TrainOn::Assistant, &TWO_TURNS), "(w)b!(x)d!");
    assert_eq!(learned_by(twice, TrainOn::LastTurn, &TWO_TURNS), "(x)d!");
}

#[test]
fn the_last_turn_or_everything_can_be_learned() {
    assert_eq!(learned_by(CHATML, TrainOn::LastTurn, &TWO_TURNS), "(x)d<eos>");
    let whole = "|user|>a<eos>\n<|assistant|>(w)b<eos>\n<|user|>c<eos>\n<|assistant|>(x)d<eos>\n";
    assert_eq!(learned_by(CHATML, TrainOn::Everything, &TWO_TURNS), whole, "all but the first token");
    let mut plain = Files::rows(&[json!({"prompt": "q", "response": "a"})]);
    plain.spec.train_on = TrainOn::Everything;
    assert_eq!(learned(&plain), ["qa<eos>"]);
}

#[test]
fn a_response_with_an_end_token_gets_no_second_one() {
    let files =
        Files::rows(&[json!({"prompt": "q", "response": "a<eos>"}), json!({"prompt": "q", "response": "a"})]);
    assert_eq!(learned(&files), ["a<eos>", "a<eos>"]);
}

#[test]
fn a_conversation_needs_a_chat_template() {
    let files = Files::rows(&[json!({"prompt": [{"role": "user", "content": "q"}]})]);
    let plain = Tokenizer::characters("q").unwrap();
    let error = Dataset::prompts(&files.spec, Split::Train, &plain).unwrap_err();
    assert!(matches!(error, DataError::Tokenize { source: TokenizerError::NoChatTemplate, .. }), "{error}");
}

fn loader(num_prompts: usize, shuffle: bool) -> PromptLoader {
    let rows: Vec<Value> = (0..num_prompts).map(|idx| json!({"prompt": idx.to_string()})).collect();
    PromptLoader::new(&Files::rows(&rows).prompts().unwrap(), shuffle, 5).unwrap()
}

fn texts(prompts: &[Arc<Prompt>]) -> Vec<u64> {
    prompts.iter().map(|prompt| prompt.row_idx).collect()
}

#[test]
fn an_epoch_visits_every_prompt_once_in_an_order_of_its_own() {
    let mut loader = loader(10, true);
    let epochs: Vec<Vec<u64>> = (0..3).map(|_| texts(&loader.next_prompts(10).unwrap())).collect();
    for epoch in &epochs {
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
    }
    assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2]);
}

#[test]
fn the_rest_of_an_epoch_is_dropped_and_a_small_data_set_wraps() {
    let mut sequential = loader(5, false);
    let batches: Vec<Vec<u64>> = (0..3).map(|_| texts(&sequential.next_prompts(2).unwrap())).collect();
    assert_eq!(batches, [[0, 1], [2, 3], [0, 1]]);
    assert_eq!(sequential.state().epoch, 1);
    assert_eq!(texts(&loader(2, false).next_prompts(5).unwrap()), [0, 1, 0, 1, 0]);
}

#[test]
fn a_resumed_loader_continues_exactly() {
    let mut uninterrupted = loader(7, true);
    for batches_before in 0..9 {
        let saved = serde_json::to_string(&uninterrupted.state()).unwrap();
        let mut resumed = loader(7, true);
        resumed.resume(&serde_json::from_str(&saved).unwrap()).unwrap();
        let mut ahead = loader(7, true);
        (0..batches_before).for_each(|_| drop(ahead.next_prompts(3).unwrap()));
        for _ in 0..5 {
            assert_eq!(
                texts(&resumed.next_prompts(3).unwrap()),
                texts(&ahead.next_prompts(3).unwrap()),
                "after {batches_before}"
            );
        }
        uninterrupted.next_prompts(3).unwrap();
    }
}

#[test]
fn a_state_of_other_data_is_refused() {
    let mut here = loader(7, true);
    let refused =
        |here: &mut PromptLoader, there: PromptLoader| match here.resume(&there.state()).unwrap_err() {
            LoaderError::OtherData { field, .. } => field,
            LoaderError::Empty => "empty",
        };
    assert_eq!(refused(&mut here, loader(8, true)), "the number of items");
    assert_eq!(refused(&mut here, loader(7, false)), "the order");
    let mut changed = here.state();
    changed.data_digest = "0".into();
    assert!(matches!(here.resume(&changed), Err(LoaderError::OtherData { field: "the data's digest", .. })));
}
