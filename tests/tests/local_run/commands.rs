//! `rlt-trainer score` and `generate` on an exported model.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::job::{Ended, Place, small_model, tiny_with};

/// Id of the end-of-sequence token, one of the four special tokens before the characters.
const END_OF_SEQUENCE: f64 = 2.0;

/// The lines that `command` writes for `lines`.
fn lines_of(command: &str, model: &Path, options: &[&str], lines: &[Value]) -> Vec<Value> {
    let place = Place::new();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(place.file("in.jsonl"), text).unwrap();
    let mut process = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
    process.arg(command).arg("--model").arg(model).args(["--device", "cpu"]).args(options);
    process.arg("--input").arg(place.file("in.jsonl")).arg("--output").arg(place.file("out.jsonl"));
    Ended::of(process.output().unwrap()).expect(0, &[]);
    let written = fs::read_to_string(place.file("out.jsonl")).unwrap();
    written.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn largest_difference(a: &Value, b: &Value) -> f64 {
    let (a, b) = (numbers(a), numbers(b));
    assert_eq!(a.len(), b.len());
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn generate_and_score_report_the_same_rewards() {
    let prompts = [json!({ "id": "sum", "prompt": "1+2=" }), json!({ "id": 2, "prompt": "90+8=" })];
    let options = ["--max-new-tokens", "6", "--n", "3", "--seed", "4", "--temperature", "0.8"];
    let generated = lines_of("generate", small_model(), &options, &prompts);
    assert_eq!(generated.len(), 6);
    let whole = |line: &Value| {
        let prompt = &prompts[usize::from(line["id"] == 2)]["prompt"];
        json!({ "id": line["id"], "text": prompt })
    };
    let encoded = lines_of("score", small_model(), &[], &generated.iter().map(whole).collect::<Vec<_>>());
    let sequences: Vec<Value> = generated
        .iter()
        .zip(&encoded)
        .map(|(line, prompt)| {
            let tokens = [numbers(&prompt["tokens"]), numbers(&line["tokens"])].concat();
            json!({ "id": line["id"], "tokens": tokens.iter().map(|token| *token as u32).collect::<Vec<_>>() })
        })
        .collect();
    let scored = lines_of("score", small_model(), &["--temperature", "0.8"], &sequences);
    for (line, scored) in generated.iter().zip(&scored) {
        let num_new = numbers(&line["logprobs"]).len();
        let logprobs = scored["logprobs"].as_array().unwrap();
        let of_completion = json!(logprobs[logprobs.len() - num_new..]);
        assert!(largest_difference(&line["logprobs"], &of_completion) <= 1e-5, "{line} {scored}");
        let reason = line["finish_reason"].as_str().unwrap();
        let ended = numbers(&line["tokens"]).last() == Some(&END_OF_SEQUENCE);
        assert_eq!(reason, if ended { "stop" } else { "length" }, "{line}");
        assert!(ended || num_new == 6, "{line}");
        // Four special tokens come first. After them, characters are numbered in the order of the manifest.
        let characters = numbers(&line["tokens"]).into_iter().filter(|token| *token >= 4.0);
        let text: String = characters.map(|token| &"0123456789+="[token as usize - 4..][..1]).collect();
        assert_eq!(line["text"], text, "{line}");
    }
}

#[test]
fn text_that_stops_a_completion_is_cut_off_and_named_as_the_reason() {
    let free = ["--max-new-tokens", "6", "--ignore-eos", "--temperature", "0"];
    let prompt = [json!({ "id": 1, "prompt": "1+2=" })];
    let text = lines_of("generate", small_model(), &free, &prompt)[0]["text"].as_str().unwrap().to_owned();
    let last = &text[5..];
    let stopped = &lines_of("generate", small_model(), &[&free[..], &["--stop", last]].concat(), &prompt)[0];
    assert_eq!(stopped["text"], text.split(last).next().unwrap());
    assert_eq!(stopped["finish_reason"], "stop");
}

#[test]
fn an_exported_adapter_on_its_base_is_the_exported_model_that_holds_it() {
    let place = Place::new();
    let model =
        json!({ "architecture": null, "tokenizer": null, "path": small_model(), "lora": { "rank": 4 } });
    let training = json!({ "optimizer": { "learningRate": 0.05 } });
    place.train(&tiny_with(json!({ "model": model, "training": training }))).expect(0, &[]);
    let line = [json!({ "id": 1, "text": "12+34=46" })];
    let adapter = place.run("export/adapter");
    let adapted = lines_of("score", small_model(), &["--adapter", adapter.to_str().unwrap()], &line);
    let merged = lines_of("score", &place.run("export"), &[], &line);
    let base = lines_of("score", small_model(), &[], &line);
    for field in ["logprobs", "entropies"] {
        let error = largest_difference(&adapted[0][field], &merged[0][field]);
        let learnt = largest_difference(&adapted[0][field], &base[0][field]);
        assert!(error <= 1e-5 && learnt > 1e-3, "{field}: {error:.1e} of {learnt:.1e}");
    }
}

#[test]
fn half_precision_scores_are_near_to_whole_ones_but_not_the_same() {
    let line = [json!({ "id": 1, "text": "12+34=46" })];
    let [fp32, bf16] =
        ["fp32", "bf16"].map(|dtype| lines_of("score", small_model(), &["--dtype", dtype], &line));
    let error = largest_difference(&fp32[0]["logprobs"], &bf16[0]["logprobs"]);
    assert!(error > 0.0 && error < 0.05, "8 bits of mantissa: {error:.1e}");
}

#[test]
fn messages_go_through_the_chat_template_of_the_model() {
    let place = Place::new();
    let model = place.file("model");
    crate::job::copy_of_small_model(&model);
    let template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}={% endfor %}";
    fs::write(model.join("chat_template.jinja"), template).unwrap();
    let options = ["--max-new-tokens", "4", "--temperature", "0"];
    let messages = json!([{ "role": "user", "content": "1+2" }]);
    let lines = [json!({ "id": 1, "messages": messages }), json!({ "id": 1, "prompt": "1+2=" })];
    let completions = lines_of("generate", &model, &options, &lines);
    assert_eq!(completions[0], completions[1]);
}

#[test]
fn variables_that_cannot_be_read_end_the_command_before_it_begins() {
    let place = Place::new();
    fs::write(place.file("list.json"), r#"["RANK=1"]"#).unwrap();
    fs::write(place.file("number.json"), r#"{"RANK": 1}"#).unwrap();
    for (file, code, words) in [
        ("absent.json", 75, ["failed to read variables", "No such file"]),
        ("list.json", 2, ["list.json", "is no JSON object of strings"]),
        ("number.json", 2, ["number.json", "expected a string at line 1 column 10"]),
    ] {
        let mut command = Command::new(rlt_tests::fresh_binary("rlt-trainer"));
        command.arg("env").arg(place.file(file)).args(["launch", "--manifest", "job.yaml"]);
        Ended::of(command.output().unwrap()).expect(code, &words);
    }
}
