//! The command on a fixture model: input lines, output lines, and errors that name the line.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::{Value, json};

use super::*;

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    args: GenerateArgs,
}

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new(lines: &[Value]) -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap() };
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(files.input(), text).unwrap();
        files
    }

    fn input(&self) -> PathBuf {
        self.dir.path().join("in.jsonl")
    }

    fn output(&self) -> PathBuf {
        self.dir.path().join("out.jsonl")
    }

    fn run(&self, options: &[&str]) -> Result<Vec<Value>, GenerateError> {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama");
        let (input, output) = (self.input(), self.output());
        let paths = [("--model", &model), ("--input", &input), ("--output", &output)];
        let paths = paths.into_iter().flat_map(|(name, path)| [name, path.to_str().unwrap()]);
        let fixed = ["generate", "--max-new-tokens", "6", "--device", "cpu"];
        let line = fixed.into_iter().chain(paths).chain(options.iter().copied());
        run(&CommandLine::try_parse_from(line).unwrap().args)?;
        let lines = fs::read_to_string(output).unwrap();
        Ok(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }
}

fn prompts() -> Vec<Value> {
    vec![json!({"id": "a", "tokens": [5, 6, 7]}), json!({"id": 2, "tokens": [9], "answer": 3})]
}

#[test]
fn every_prompt_gets_a_line_with_new_tokens_and_logprobs() {
    let lines = Files::new(&prompts()).run(&["--ignore-eos"]).unwrap();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["id"], &lines[1]["id"]), (&json!("a"), &json!(2)));
    for line in &lines {
        assert_eq!(line["tokens"].as_array().unwrap().len(), 6);
        assert_eq!(line["logprobs"].as_array().unwrap().len(), 6);
        assert_eq!(line["finish_reason"], "length");
        assert_eq!(line["text"], Value::Null, "the fixture has no tokenizer");
        assert_eq!(line.get("sample"), None);
    }
}

#[test]
fn samples_are_numbered_and_the_seed_decides_them() {
    let files = Files::new(&prompts());
    let first = files.run(&["--n", "3", "--seed", "5", "--temperature", "1.3"]).unwrap();
    let numbers: Vec<&Value> = first.iter().map(|line| &line["sample"]).collect();
    assert_eq!(numbers, [0, 1, 2, 0, 1, 2]);
    let again =
        files.run(&["--n", "3", "--seed", "5", "--temperature", "1.3", "--max-concurrent", "1"]).unwrap();
    let tokens = |lines: &[Value]| lines.iter().map(|line| line["tokens"].clone()).collect::<Vec<_>>();
    assert_eq!(tokens(&first), tokens(&again));
    assert_ne!(tokens(&first), tokens(&files.run(&["--n", "3", "--seed", "6"]).unwrap()));
}

#[test]
fn a_line_at_fault_is_named_and_nothing_is_written() {
    let broken = [
        (json!({"id": 1}), "expected exactly one of `prompt`, `messages` and `tokens`, got 0"),
        (json!({"id": 1, "tokens": [1], "prompt": "x"}), "got 2"),
        (json!({"id": 1, "tokens": []}), "at least one"),
        (json!({"id": 1, "prompt": "x"}), "no tokenizer.json"),
        (json!({"id": 1, "tokens": [128]}), "token 128 is outside the model's vocabulary of 128"),
        (json!({"id": 1, "tokens": vec![3; 256]}), "prompt has 256 tokens"),
        (json!({"id": 1, "tokens": "x"}), "invalid type"),
        (json!({"tokens": [1]}), "missing field `id`"),
    ];
    for (line, reason) in broken {
        let files = Files::new(&[prompts().remove(0), line]);
        let error = files.run(&[]).unwrap_err();
        assert_eq!(error.to_string(), format!("{}, line 2", files.input().display()));
        let source = error.source().unwrap().to_string();
        assert!(source.contains(reason), "{source}");
        assert!(!files.output().exists());
    }
}

#[test]
fn options_out_of_range_are_refused_before_the_model_is_loaded() {
    let error = Files::new(&prompts()).run(&["--top-p", "1.5"]).unwrap_err();
    assert_eq!(error.to_string(), "sampling parameter top_p is 1.5, must be above 0 and at most 1");
}

#[test]
fn the_adapter_changes_the_sampled_tokens() {
    let files = Files::new(&prompts());
    let adapter = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama/adapter");
    let base = files.run(&["--temperature", "0"]).unwrap();
    let adapted = files.run(&["--temperature", "0", "--adapter", adapter.to_str().unwrap()]).unwrap();
    assert_ne!(base[0]["logprobs"], adapted[0]["logprobs"]);
}
