//! Adapters of experts: matching, initial values, PEFT's layouts, and invalid adapters. The parity tests
//! compare values with PEFT's.

use rlt_models::ModelConfig;
use serde_json::{Value, json};
use tch::Device;

use super::*;
use crate::{Adapter, ExportOptions, LoadOptions, PackedInput};

/// Creates a decoder with experts, whose stacked gate and up are `2 width` wide; its hidden size is 24.
fn decoder(width: u64) -> Decoder {
    let config = ModelConfig::from_json(&json!({
        "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
        "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": width, "norm_topk_prob": true,
        "initializer_range": 0.3
    }))
    .unwrap();
    Decoder::from_config(&config, 7, &LoadOptions { trainable: true, ..LoadOptions::default() }).unwrap()
}

fn lora(modules: &[&str], parameters: &[&str]) -> LoraConfig {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let spec = LoraSpec { rank: 3, target_parameters: owned(parameters), ..LoraSpec::default() };
    LoraConfig::from_spec(&LoraSpec { target_modules: owned(modules), ..spec })
}

/// Makes a decoder with an adapter that changes the output.
fn adapted(width: u64, config: &LoraConfig) -> Decoder {
    let mut decoder = decoder(width);
    decoder.attach_lora(config, 5).unwrap();
    for (_, mut matrix) in decoder.adapter_parameters() {
        tch::no_grad(|| drop(matrix.f_add_scalar_(0.05).unwrap()));
    }
    decoder
}

fn hidden(decoder: &Decoder, adapter: Adapter) -> Tensor {
    let input = PackedInput::new(&[&[3, 14, 15, 9, 26], &[5, 35]], Device::Cpu);
    tch::no_grad(|| decoder.hidden_states(&input, adapter))
}

const ALL: [&str; 3] = ["mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"];

#[test]
fn a_fresh_adapter_of_experts_is_the_base_bitwise_and_alone_trains() {
    let base = hidden(&decoder(10), Adapter::On);
    let mut adapted = decoder(10);
    adapted.attach_lora(&lora(&[], &ALL), 1).unwrap();
    assert_eq!(hidden(&adapted, Adapter::On), base);
    let shapes: Vec<(String, Vec<i64>)> = adapted
        .trainable_parameters()
        .into_iter()
        .map(|(name, matrix)| (name, matrix.size()))
        .filter(|(name, _)| name.contains("layers.1."))
        .collect();
    let name = |name: &str| format!("base_model.model.model.layers.1.mlp.{name}.weight");
    let expected = [
        (name("gate.lora_A"), vec![3, 24]),
        (name("gate.lora_B"), vec![5, 3]),
        (name("experts.base_layer.lora_A"), vec![15, 24]),
        (name("experts.base_layer.lora_B"), vec![20, 15]),
        (name("experts.lora_A"), vec![15, 10]),
        (name("experts.lora_B"), vec![24, 15]),
    ];
    assert_eq!(shapes, expected);
    assert_eq!(adapted.trainable_parameters().len(), 12);
}

#[test]
fn a_single_adapted_tensor_is_in_the_outer_wrapper() {
    let mut adapted = decoder(10);
    adapted.attach_lora(&lora(&["q_proj"], &["layers.0.mlp.experts.gate_up_proj"]), 1).unwrap();
    let names: Vec<String> = adapted.trainable_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.iter().filter(|name| name.contains("experts")).count(), 2, "{names:?}");
    assert!(names.contains(&"base_model.model.model.layers.0.mlp.experts.lora_A.weight".to_owned()));
}

#[test]
fn merged_experts_compute_the_same_as_an_unmerged_adapter() {
    let decoder = adapted(10, &lora(&["o_proj"], &ALL));
    let dir = tempfile::tempdir().unwrap();
    decoder.export(dir.path(), &ExportOptions { merge_lora: true, dtype: tch::Kind::Float }).unwrap();
    let merged = Decoder::load(dir.path(), &LoadOptions::default()).unwrap();
    let difference = hidden(&merged, Adapter::On) - hidden(&decoder, Adapter::On);
    let error = difference.abs().max().double_value(&[]);
    assert!(error < 2e-5, "{error}");
    let base = Decoder::load(dir.path(), &LoadOptions::default()).unwrap();
    decoder.export(dir.path(), &ExportOptions { merge_lora: false, dtype: tch::Kind::Float }).unwrap();
    let plain = Decoder::load(dir.path(), &LoadOptions::default()).unwrap();
    assert_eq!(hidden(&plain, Adapter::On), hidden(&decoder, Adapter::Off));
    assert_ne!(hidden(&plain, Adapter::On), hidden(&base, Adapter::On));
}

/// Saves the adapter of `decoder` as PEFT 0.18 would, with a configuration that `change` has edited.
fn save_in_old_layout(decoder: &Decoder, dir: &Path, change: impl Fn(&mut Value)) {
    decoder.save_adapter(dir, None).unwrap();
    let path = dir.join("adapter_model.safetensors");
    let stored: std::collections::BTreeMap<String, Tensor> =
        Tensor::read_safetensors(&path).unwrap().into_iter().collect();
    let old = stored.iter().map(|(name, matrix)| {
        if !name.contains(".experts.") {
            return (name.clone(), matrix.shallow_clone());
        }
        // In the old layout A of an expert is the transposed B of the new one, and B the transposed A.
        if name.contains("lora_A") {
            let b = stored[&name.replace("lora_A", "lora_B")].unflatten(1, [-1, 5]);
            let of_expert = |expert| b.select(2, expert).tr();
            (name.clone(), Tensor::cat(&(0..5).map(of_expert).collect::<Vec<_>>(), 0))
        } else {
            let a = stored[&name.replace("lora_B", "lora_A")].unflatten(0, [5, -1]);
            let of_expert = |expert| a.select(0, expert).tr();
            (name.clone(), Tensor::stack(&(0..5).map(of_expert).collect::<Vec<_>>(), 2).flatten(1, 2))
        }
    });
    let old: Vec<(String, Tensor)> = old.map(|(name, matrix)| (name, matrix.contiguous())).collect();
    Tensor::write_safetensors(&old, &path).unwrap();
    let path = dir.join("adapter_config.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut document);
    std::fs::write(&path, document.to_string()).unwrap();
}

#[test]
fn the_layout_of_peft_0_18_is_recognized_by_shape_or_version_and_refused_if_ambiguous() {
    let dir = tempfile::tempdir().unwrap();
    let config = lora(&["q_proj"], &ALL);
    let loaded = |width: u64| {
        let mut loaded = decoder(width);
        loaded.load_adapter(dir.path()).map(|()| loaded.adapter_parameters())
    };
    // Inputs and outputs of every expert tensor differ in size, so shapes tell the layout, whatever the file
    // says.
    let saved = adapted(10, &config);
    for version in [json!("0.18.1"), json!(null), json!("0.21.2")] {
        save_in_old_layout(&saved, dir.path(), |document| document["peft_version"] = version.clone());
        assert_eq!(loaded(10).unwrap(), saved.adapter_parameters());
    }
    // Gate and up together are as wide as the residual stream, so shapes do not tell the layout.
    let saved = adapted(12, &config);
    save_in_old_layout(&saved, dir.path(), |document| document["peft_version"] = json!("0.18.1"));
    assert_eq!(loaded(12).unwrap(), saved.adapter_parameters());
    save_in_old_layout(&saved, dir.path(), |document| document["peft_version"] = json!(null));
    let error = loaded(12).unwrap_err().to_string();
    assert!(error.contains("layers.0.mlp.experts.base_layer.lora_A.weight of shape [15, 24]"), "{error}");
    assert!(error.contains("expected a `peft_version`") && error.ends_with("got null"), "{error}");
    saved.save_adapter(dir.path(), None).unwrap();
    assert_eq!(loaded(12).unwrap(), saved.adapter_parameters(), "what is saved here names its version");
}

#[test]
fn refuses_adapters_of_parameters_that_could_not_be() {
    let refusal = |config: LoraConfig| decoder(10).attach_lora(&config, 1).unwrap_err().to_string();
    assert_eq!(
        refusal(lora(&["q_proj"], &["experts.up_proj"])),
        "attaching an adapter: targetParameters: \"experts.up_proj\" matches no parameter of experts, \
         the model has gate.weight, gate_up_proj, down_proj"
    );
    let with = |change: fn(&mut LoraConfig)| {
        let mut config = lora(&["q_proj"], &ALL);
        change(&mut config);
        refusal(config)
    };
    assert!(
        with(|config| config.dropout = 0.1).contains("dropout: expected 0, as PEFT has none there, got 0.1")
    );
    assert!(with(|config| config.dora = true).contains("dora: expected false, as PEFT has none there"));
    let odd = with(|config| (config.init, config.rank) = (LoraInit::Orthogonal, 4));
    assert!(odd.contains("init: expected Peft, Gaussian or Xavier"), "{odd}");
}

#[test]
fn experts_of_gpt_oss_have_no_adapters_and_say_so_by_the_field() {
    let config = ModelConfig::from_json(&json!({
        "architectures": ["GptOssForCausalLM"], "vocab_size": 11, "hidden_size": 12, "intermediate_size": 7,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6,
        "num_local_experts": 3, "num_experts_per_tok": 2, "max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}
    }))
    .unwrap();
    let mut decoder = Decoder::from_config(&config, 7, &LoadOptions::default()).unwrap();
    let refused = decoder.attach_lora(&lora(&["q_proj"], &["experts.gate_up_proj"]), 1).unwrap_err();
    let expected = "targetParameters: expected none, as experts with biases have no adapters, got \
                    experts.gate_up_proj";
    assert!(refused.to_string().ends_with(expected), "{refused}");
    decoder.attach_lora(&lora(&["q_proj"], &[]), 1).unwrap();
}

#[test]
fn patterns_give_a_tensor_a_rank_and_an_alpha_of_its_own_and_are_saved_as_they_were() {
    let config = LoraConfig {
        patterns: Patterns {
            ranks: vec![(r".*\.gate_up_proj".to_owned(), 6)],
            alphas: vec![("gate_up_proj".to_owned(), 5.0), ("q_proj".to_owned(), 1.5)],
        },
        ..lora(&["q_proj"], &["gate_up_proj"])
    };
    let saved = adapted(10, &config);
    let projection = &saved.layers[0].projections[0];
    assert_eq!(projection.lora.as_ref().unwrap().scaling, 1.5 / 3.0);
    let (_, matrix) =
        saved.adapter_parameters().into_iter().find(|(name, _)| name.contains("experts")).unwrap();
    assert_eq!(matrix.size(), [30, 24]);
    let dir = tempfile::tempdir().unwrap();
    saved.save_adapter(dir.path(), None).unwrap();
    let mut loaded = decoder(10);
    loaded.load_adapter(dir.path()).unwrap();
    assert_eq!(loaded.lora().unwrap().patterns, config.patterns);
    assert_eq!(hidden(&loaded, Adapter::On), hidden(&saved, Adapter::On));
    // A job that continues from the adapter must have the adapter's patterns.
    let path = Some(dir.path().to_string_lossy().into_owned());
    let spec = LoraSpec {
        rank: 3,
        adapter_path: path,
        target_modules: vec!["q_proj".to_owned()],
        rank_pattern: config.patterns.ranks.iter().map(|(name, rank)| (name.clone(), *rank as u32)).collect(),
        alpha_pattern: config.patterns.alphas.iter().cloned().collect(),
        ..LoraSpec::default()
    };
    let spec = LoraSpec { target_parameters: vec!["gate_up_proj".to_owned()], ..spec };
    let mut continued = decoder(10);
    continued.attach_lora_spec(&spec, 0).unwrap();
    assert_eq!(hidden(&continued, Adapter::On), hidden(&saved, Adapter::On));
}

/// PEFT 0.21 takes `all-linear` in a mixture for every expert, too.
#[test]
fn all_linear_layers_of_a_mixture_are_saved_by_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let written = |config: &LoraConfig| -> Value {
        adapted(10, config).save_adapter(dir.path(), None).unwrap();
        let document: Value =
            serde_json::from_slice(&std::fs::read(dir.path().join("adapter_config.json")).unwrap()).unwrap();
        document["target_modules"].clone()
    };
    assert_eq!(written(&lora(&["all-linear"], &[])), json!(["k_proj", "o_proj", "q_proj", "v_proj"]));
    let pattern = ModuleMatch::Pattern(r".*\.1\.self_attn\.q_proj".to_owned());
    let config = LoraConfig { targets: pattern, ..lora(&[], &[]) };
    assert_eq!(written(&config), json!(["model.layers.1.self_attn.q_proj"]));
}
