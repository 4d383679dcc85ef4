//! Scoring files: values compared with the model's logits, refused lines, atomic output.

use std::path::Path;

use rlt_decoder::{ExportOptions, LoadOptions};
use rlt_models::ModelConfig;
use serde_json::json;
use tch::Kind;

use super::*;
use crate::commands::model_args::{DeviceChoice, Dtype};

struct Setting {
    dir: tempfile::TempDir,
    decoder: Decoder,
}

impl Setting {
    fn new() -> Self {
        let config = ModelConfig::from_json(&json!({
            "architectures": ["Qwen3ForCausalLM"], "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 10,
            "initializer_range": 0.3
        }))
        .unwrap();
        let decoder = Decoder::from_config(&config, 11, &LoadOptions::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let options = ExportOptions { merge_lora: false, dtype: Kind::Float };
        decoder.export(&dir.path().join("model"), &options).unwrap();
        Tokenizer::characters("0123456789+=").unwrap().save(&dir.path().join("model")).unwrap();
        Self { dir, decoder }
    }

    fn args(&self) -> ScoreArgs {
        let path = self.dir.path();
        ScoreArgs {
            model: ModelArgs {
                model: path.join("model"),
                adapter: None,
                dtype: Dtype::Fp32,
                device: DeviceChoice::Cpu,
            },
            temperature: 0.7,
            input: path.join("in.jsonl"),
            output: path.join("out.jsonl"),
            max_tokens: None,
        }
    }

    fn run(&self, args: &ScoreArgs, input: &str) -> Result<Vec<Value>, String> {
        std::fs::write(&args.input, input).unwrap();
        run(args).map_err(|error| chain(&error).replace(&format!("{}/", self.dir.path().display()), ""))?;
        let output = std::fs::read_to_string(&args.output).unwrap();
        Ok(output.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    /// Computes log-probs and entropies of one sequence alone, from all of its logits at once.
    fn expected(&self, tokens: &[TokenId]) -> (Vec<f32>, Vec<f32>) {
        let input = PackedInput::new(&[tokens], tch::Device::Cpu);
        let hidden = self.decoder.hidden_states(&input, Adapter::On);
        let rows = (self.decoder.logits(&hidden, Adapter::On) / 0.7).log_softmax(-1, Kind::Float);
        let rows = rows.narrow(0, 0, tokens.len() as i64 - 1);
        let next = input.tokens.narrow(0, 1, tokens.len() as i64 - 1).unsqueeze(1);
        let entropies = -(rows.exp() * &rows).sum_dim_intlist(-1, false, None);
        let vector = |tensor: tch::Tensor| Vec::<f32>::try_from(tensor).unwrap();
        (vector(rows.gather(1, &next, false).squeeze_dim(1)), vector(entropies))
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn close(got: &[f32], expected: &[f32]) -> bool {
    got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
}

#[test]
fn sequences_are_scored_independently_in_the_order_of_the_lines() {
    let setting = Setting::new();
    let sequences: [&[TokenId]; 4] = [&[3, 1, 4, 1, 5, 9, 2, 6], &[7], &[2, 7, 1, 8], &[1, 1]];
    let lines: Vec<String> = sequences
        .iter()
        .enumerate()
        .map(|(id, tokens)| json!({"id": id, "tokens": tokens}).to_string())
        .collect();
    for max_tokens in [None, Some(8), Some(100)] {
        let args = ScoreArgs { max_tokens, ..setting.args() };
        let scored = setting.run(&args, &lines.join("\n")).unwrap();
        for (id, (tokens, scored)) in sequences.iter().zip(&scored).enumerate() {
            assert_eq!((&scored["id"], &scored["tokens"]), (&json!(id), &json!(tokens)));
            let (logprobs, entropies) =
                if tokens.len() > 1 { setting.expected(tokens) } else { Default::default() };
            assert!(close(&floats(&scored["logprobs"]), &logprobs), "{scored}");
            assert!(close(&floats(&scored["entropies"]), &entropies), "{scored}");
        }
    }
}

#[test]
fn text_is_encoded_by_the_model_s_tokenizer() {
    let setting = Setting::new();
    let scored = setting.run(&setting.args(), "{\"id\": \"sum\", \"text\": \"1+2=3\"}\n").unwrap();
    let tokenizer = Tokenizer::load(&setting.args().model.model).unwrap();
    assert_eq!(scored[0]["tokens"], json!(tokenizer.encode("1+2=3").unwrap()));
    assert_eq!(scored[0]["id"], "sum");
}

#[test]
fn a_bad_line_is_named_and_nothing_is_written() {
    let setting = Setting::new();
    let refusal = |line: &str| {
        let input = format!("{{\"id\": 1, \"tokens\": [1, 2]}}\n\n{line}\n");
        setting.run(&setting.args(), &input).unwrap_err()
    };
    assert_eq!(
        refusal("{\"id\": 2, \"tokens\": [1, 23]}"),
        "in.jsonl, line 3: expected token ids below vocab_size 23, got 23"
    );
    assert_eq!(
        refusal("{\"id\": 2, \"tokens\": []}"),
        "in.jsonl, line 3: expected at least one token, got none"
    );
    assert_eq!(
        refusal("{\"id\": 2}"),
        "in.jsonl, line 3: expected either \"tokens\" or \"text\", got neither"
    );
    let both = refusal("{\"id\": 2, \"tokens\": [1], \"text\": \"1\"}");
    assert_eq!(both, "in.jsonl, line 3: expected either \"tokens\" or \"text\", got both");
    for malformed in
        ["{\"id\": 2, \"tokens\": [1", "{\"id\": 2, \"tokens\": [-1]}", "{\"id\": 2, \"token\": [1]}"]
    {
        assert!(refusal(malformed).starts_with("in.jsonl, line 3: "), "{malformed}");
    }
    assert!(!setting.args().output.exists());
    assert!(setting.run(&setting.args(), "").unwrap_err().contains("expected at least one line"));
}

#[test]
fn a_budget_that_one_sequence_exceeds_is_an_error() {
    let setting = Setting::new();
    let args = ScoreArgs { max_tokens: Some(3), ..setting.args() };
    let refusal = setting.run(&args, "{\"id\": 1, \"tokens\": [1, 2, 3, 4]}").unwrap_err();
    assert!(refusal.starts_with("packing sequences under a budget of 3 tokens: "), "{refusal}");
}

#[test]
fn a_folder_without_a_model_is_named() {
    let setting = Setting::new();
    let mut args = setting.args();
    args.model.model = Path::new("no/such/model").to_owned();
    let refusal = setting.run(&args, "{\"id\": 1, \"tokens\": [1, 2]}").unwrap_err();
    assert!(
        refusal.starts_with("loading the model no/such/model: reading no/such/model/config.json: "),
        "{refusal}"
    );
}
