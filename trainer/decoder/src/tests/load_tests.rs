//! Folders without a valid model are refused with errors that name the file, the tensor, and the expected and
//! the actual value.

use std::path::Path;

use rlt_models::ModelConfig;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::{Adapter, Decoder, ExportOptions, LoadOptions, PackedInput};

fn config(tied: bool) -> ModelConfig {
    ModelConfig::from_json(&json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 19, "hidden_size": 12, "intermediate_size": 20,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "tie_word_embeddings": tied
    }))
    .unwrap()
}

/// A model folder whose tensors and configuration can be tampered with.
struct Folder {
    dir: tempfile::TempDir,
    tensors: Vec<(String, Tensor)>,
}

impl Folder {
    fn new(tied: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let decoder = Decoder::from_config(&config(tied), 3, &LoadOptions::default()).unwrap();
        decoder.export(dir.path(), &ExportOptions { merge_lora: false, dtype: Kind::Float }).unwrap();
        Self { dir, tensors: decoder.named_parameters() }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn set(&mut self, name: &str, tensor: Tensor) {
        self.tensors.retain(|(existing, _)| existing != name);
        self.tensors.push((name.to_owned(), tensor));
    }

    fn load(&self) -> Result<Decoder, crate::ModelError> {
        Tensor::write_safetensors(&self.tensors, self.path().join("model.safetensors")).unwrap();
        Decoder::load(self.path(), &LoadOptions::default())
    }

    fn refusal(&self) -> String {
        let message = self.load().unwrap_err().to_string();
        message.replace(&self.path().display().to_string(), "DIR")
    }
}

fn zeros(shape: &[i64]) -> Tensor {
    Tensor::zeros(shape, (Kind::Float, tch::Device::Cpu))
}

#[test]
fn fresh_weights_follow_the_seed_and_the_configuration() {
    let make = |seed| Decoder::from_config(&config(false), seed, &LoadOptions::default()).unwrap();
    assert_eq!(make(1).named_parameters(), make(1).named_parameters());
    let decoder = make(1);
    for (name, tensor) in decoder.named_parameters() {
        let std = tensor.std(false).double_value(&[]);
        match name.contains("norm") {
            true => assert!(tensor.equal(&tensor.ones_like()), "{name}"),
            // At least 96 draws of deviation .02: four standard errors are .006.
            false => assert!((std - 0.02).abs() < 0.006, "{name}: {std}"),
        }
    }
    assert_ne!(make(2).named_parameters(), decoder.named_parameters());
    let names: Vec<String> = decoder.named_parameters().into_iter().map(|(name, _)| name).collect();
    let expected: Vec<String> = decoder.config.tensors().into_iter().map(|tensor| tensor.name).collect();
    assert_eq!(names, expected);
}

#[test]
fn reads_every_floating_point_type_into_the_storage_type() {
    for (kind, tolerance) in [(Kind::Float, 0.0), (Kind::Half, 1e-4), (Kind::BFloat16, 1e-3)] {
        let mut folder = Folder::new(true);
        let original = folder.tensors[0].1.shallow_clone();
        folder.tensors.iter_mut().for_each(|(_, tensor)| *tensor = tensor.to_kind(kind));
        let embedding = folder.load().unwrap().embedding;
        assert_eq!(embedding.kind(), Kind::Float);
        assert!((embedding - original).abs().max().double_value(&[]) <= tolerance, "{kind:?}");
    }
}

#[test]
fn an_export_can_be_read_by_others_and_leaves_nothing_else() {
    let folder = Folder::new(true);
    let mut names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap()).collect();
    names.sort_by_key(std::fs::DirEntry::file_name);
    let names: Vec<_> = names.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert_eq!(names, ["config.json", "generation_config.json", "model.safetensors"]);
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    let mode = |path: &Path| std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    for name in names {
        assert_eq!(mode(&folder.path().join(&name)), mode(&plain), "{name}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("taken"), "").unwrap();
    let decoder = Decoder::from_config(&config(true), 3, &LoadOptions::default()).unwrap();
    let options = ExportOptions { merge_lora: false, dtype: Kind::Float };
    let error = decoder.export(&dir.path().join("taken"), &options).unwrap_err();
    assert!(error.to_string().ends_with("taken/config.json"), "{error}");
}

#[test]
fn refuses_tensors_that_are_missing_left_over_or_misshapen() {
    let mut folder = Folder::new(false);
    folder.tensors.retain(|(name, _)| name != "model.layers.1.mlp.up_proj.weight");
    assert_eq!(
        folder.refusal(),
        "reading the weights in DIR/model.safetensors: tensor model.layers.1.mlp.up_proj.weight is missing, \
         expected shape [20, 12]"
    );
    folder.set("model.layers.1.mlp.up_proj.weight", zeros(&[12, 20]));
    assert_eq!(
        folder.refusal(),
        "reading DIR/model.safetensors: tensor model.layers.1.mlp.up_proj.weight: expected shape [20, 12], \
         got [12, 20]"
    );
    folder.set("model.layers.1.mlp.up_proj.weight", zeros(&[20, 12]));
    folder.set("model.layers.2.mlp.up_proj.weight", zeros(&[20, 12]));
    assert!(
        folder.refusal().contains("unexpected tensor model.layers.2.mlp.up_proj.weight of shape [20, 12]")
    );
}

#[test]
fn refuses_values_that_are_not_finite() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut folder = Folder::new(true);
        let mut norm = zeros(&[12]);
        let _ = norm.get(5).fill_(bad);
        let _ = norm.requires_grad_(false);
        folder.set("model.norm.weight", norm);
        assert_eq!(
            folder.refusal(),
            "reading DIR/model.safetensors: tensor model.norm.weight: expected finite numbers, got 1 of 12 that are \
             NaN or infinite"
        );
    }
}

#[test]
fn refuses_types_that_are_no_weights() {
    let mut folder = Folder::new(true);
    folder.set("model.norm.weight", zeros(&[12]).to_kind(Kind::Int64));
    assert!(folder.refusal().contains("tensor model.norm.weight: expected F32, F16 or BF16, got I64"));
}

#[test]
fn refuses_files_that_are_cut_off_garbled_or_absent() {
    let folder = Folder::new(true);
    folder.load().unwrap();
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let load = || {
        let error = Decoder::load(folder.path(), &LoadOptions::default()).unwrap_err();
        error.to_string().replace(&folder.path().display().to_string(), "DIR")
    };
    std::fs::write(&path, &whole[..whole.len() - 7]).unwrap();
    let expected = format!("expected {} bytes by its header, got {}", whole.len(), whole.len() - 7);
    assert_eq!(load(), format!("reading DIR/model.safetensors: {expected}"));
    for num_bytes in [0, 7, 100] {
        std::fs::write(&path, &whole[..num_bytes]).unwrap();
        assert!(
            load().starts_with("reading the safetensors header of DIR/model.safetensors: "),
            "{}",
            load()
        );
    }
    let mut garbled = whole.clone();
    garbled[20] = b'\x01';
    std::fs::write(&path, garbled).unwrap();
    assert!(load().starts_with("reading the safetensors header of DIR/model.safetensors: "), "{}", load());
    std::fs::remove_file(&path).unwrap();
    assert_eq!(
        load(),
        "looking for weights in DIR: expected model.safetensors or model.safetensors.index.json, got neither"
    );
    std::fs::write(folder.path().join("config.json"), "{\"model_type\": \"llama\", ").unwrap();
    assert_eq!(load(), "parsing DIR/config.json as JSON");
}

#[test]
fn refuses_an_index_whose_shards_do_not_hold_what_it_says() {
    let folder = Folder::new(true);
    folder.load().unwrap();
    std::fs::rename(folder.path().join("model.safetensors"), folder.path().join("a.safetensors")).unwrap();
    let load = |weight_map: Value| {
        let index = json!({"weight_map": weight_map}).to_string();
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        Decoder::load(folder.path(), &LoadOptions::default()).map_err(|error| error.to_string())
    };
    let map = |file: &str| {
        let names = folder.tensors.iter().map(|(name, _)| (name.clone(), json!(file)));
        Value::Object(names.collect())
    };
    load(map("a.safetensors")).unwrap();
    assert!(load(map("b.safetensors")).unwrap_err().contains("b.safetensors"));
    assert!(load(map("../a.safetensors")).unwrap_err().contains("weight_map"));
    assert!(
        load(json!({"model.norm.bias": "a.safetensors"}))
            .unwrap_err()
            .contains("expected tensor model.norm.bias in \"a.saf")
    );
    assert!(load(json!([])).unwrap_err().contains("weight_map"));
}

/// Equal tensors of embedding and head become one, and different ones stay separate, whatever the
/// configuration says about tying, as in transformers.
#[test]
fn a_stored_head_that_differs_from_a_tied_embedding_is_used() {
    let mut folder = Folder::new(true);
    let embedding = folder.tensors[0].1.copy();
    folder.set("lm_head.weight", embedding.copy());
    assert!(folder.load().unwrap().head.is_none());
    folder.set("lm_head.weight", &embedding * 2.0);
    let untied = folder.load().unwrap();
    assert!(!untied.config.tie_word_embeddings && untied.head_weight(Adapter::On).equal(&(&embedding * 2.0)));
    folder.tensors.retain(|(name, _)| name != "model.embed_tokens.weight");
    let moved = folder.load().unwrap();
    assert!(moved.head.is_none() && moved.embedding.equal(&(&embedding * 2.0)));
}

#[test]
fn a_tokenizer_must_not_know_more_tokens_than_the_embedding() {
    let decoder = Folder::new(true).load().unwrap();
    decoder.check_vocabulary(18).unwrap();
    assert_eq!(
        decoder.check_vocabulary(19).unwrap_err().to_string(),
        "pairing tokenizer and model: expected token ids below vocab_size 19, got ids up to 19"
    );
}

#[test]
fn bf16_compute_stays_near_f32_and_keeps_gradients_in_storage() {
    let folder = Folder::new(true);
    folder.load().unwrap();
    let input = PackedInput::new(&[&[3, 1, 4, 1, 5], &[9, 2]], tch::Device::Cpu);
    let run = |compute| {
        let options = LoadOptions { compute, trainable: true, ..LoadOptions::default() };
        let decoder = Decoder::load(folder.path(), &options).unwrap();
        let logits = decoder.logits(&decoder.hidden_states(&input, Adapter::On), Adapter::On);
        assert_eq!(logits.kind(), compute);
        logits.to_kind(Kind::Float).square().sum(Kind::Float).backward();
        (logits.to_kind(Kind::Float).detach(), decoder.embedding.grad())
    };
    let (full, half) = (run(Kind::Float), run(Kind::BFloat16));
    assert_eq!(half.1.kind(), Kind::Float);
    // Eight bits of mantissa through two layers: a few percent of the largest value.
    let relative = |a: &Tensor, b: &Tensor| ((a - b).abs().max() / b.abs().max()).double_value(&[]);
    assert!(relative(&half.0, &full.0) < 0.03, "{}", relative(&half.0, &full.0));
    assert!(relative(&half.1, &full.1) < 0.06, "{}", relative(&half.1, &full.1));
}

/// Tensors have the names of published files, then those that transformers 5 writes.
#[test]
fn a_text_model_is_read_without_its_vision_tower() {
    let text = json!({
        "vocab_size": 19, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8
    });
    let mut alone = text.clone();
    alone["architectures"] = json!(["Gemma3ForCausalLM"]);
    let alone = ModelConfig::from_json(&alone).unwrap();
    let alone = Decoder::from_config(&alone, 3, &LoadOptions::default()).unwrap();
    let whole = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text,
        "vision_config": {"hidden_size": 8}
    });
    for (of_text, of_others) in [("language_model.model.", ""), ("model.language_model.", "model.")] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), whole.to_string()).unwrap();
        let renamed = |(name, tensor): (String, Tensor)| (name.replacen("model.", of_text, 1), tensor);
        let mut tensors: Vec<_> = alone.named_parameters().into_iter().map(renamed).collect();
        for part in ["vision_tower", "multi_modal_projector"] {
            tensors.push((format!("{of_others}{part}.weight"), zeros(&[3])));
        }
        Tensor::write_safetensors(&tensors, dir.path().join("model.safetensors")).unwrap();
        let read = Decoder::load(dir.path(), &LoadOptions::default()).unwrap();
        assert_eq!(read.named_parameters(), alone.named_parameters());
    }
}
