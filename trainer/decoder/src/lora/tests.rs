//! Matching, initial values and invalid adapters. The parity tests compare values with PEFT's.

use rlt_api::spec::DropoutPosition;
use rlt_models::ModelConfig;
use serde_json::json;
use tch::{Device, Kind};

use super::*;
use crate::{Adapter, Dropout, LoadOptions, PackedInput};

fn decoder() -> Decoder {
    let config = ModelConfig::from_json(&json!({
        "architectures": ["Qwen2ForCausalLM"], "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3
    }))
    .unwrap();
    Decoder::from_config(&config, 7, &LoadOptions { trainable: true, ..LoadOptions::default() }).unwrap()
}

fn lora(targets: ModuleMatch) -> LoraConfig {
    LoraConfig { targets, ..LoraConfig::from_spec(&LoraSpec { rank: 4, ..LoraSpec::default() }) }
}

fn names(names: &[&str]) -> ModuleMatch {
    ModuleMatch::Names(names.iter().map(|name| (*name).to_owned()).collect())
}

fn adapted(config: &LoraConfig) -> Vec<String> {
    let mut decoder = decoder();
    decoder.attach_lora(config, 1).unwrap();
    let layers = decoder.layers.iter().flat_map(|layer| &layer.projections);
    layers.filter(|projection| projection.lora.is_some()).map(|projection| projection.name.clone()).collect()
}

fn refusal(config: &LoraConfig) -> String {
    decoder().attach_lora(config, 1).unwrap_err().to_string()
}

fn hidden(decoder: &Decoder, adapter: Adapter) -> Tensor {
    let input = PackedInput::new(&[&[3, 14, 15, 9, 26], &[5, 35]], Device::Cpu);
    tch::no_grad(|| decoder.hidden_states(&input, adapter))
}

#[test]
fn all_linear_adapts_every_projection_and_nothing_else_trains() {
    let mut decoder = decoder();
    decoder.attach_lora(&lora(ModuleMatch::AllLinear), 1).unwrap();
    let trainable = decoder.trainable_parameters();
    assert_eq!(trainable.len(), 2 * 7 * 2);
    assert!(trainable.iter().all(|(name, _)| name.starts_with("base_model.model.model.layers.")));
    let expected: u64 =
        decoder.config.projections(0).iter().map(|p| 4 * (p.in_features + p.out_features) as u64).sum();
    let got: usize = trainable.iter().map(|(_, tensor)| tensor.numel()).sum();
    assert_eq!(got as u64, expected * 2);
}

#[test]
fn names_match_as_ends_and_patterns_as_wholes() {
    assert_eq!(
        adapted(&lora(names(&["q_proj", "layers.1.mlp.down_proj"]))),
        [
            "model.layers.0.self_attn.q_proj",
            "model.layers.1.self_attn.q_proj",
            "model.layers.1.mlp.down_proj"
        ]
    );
    let mut config = lora(ModuleMatch::Pattern(r".*\.1\.self_attn\.(?!o).*".to_owned()));
    config.exclude = Some(names(&["k_proj"]));
    assert_eq!(adapted(&config), ["model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"]);
    assert!(
        refusal(&lora(ModuleMatch::Pattern("q_proj".to_owned())))
            .contains("no linear layer matches /q_proj/")
    );
}

#[test]
fn refuses_what_would_adapt_nothing() {
    assert_eq!(
        refusal(&lora(names(&["q_proj", "c_attn"]))),
        "attaching an adapter: the module name \"c_attn\" matches no linear layer, \
         the model has down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    );
    let excluded = LoraConfig { exclude: Some(ModuleMatch::AllLinear), ..lora(ModuleMatch::AllLinear) };
    assert!(refusal(&excluded).contains("no linear layer matches all-linear without all-linear"));
    assert!(refusal(&lora(ModuleMatch::Pattern("(".to_owned()))).contains("parsing the pattern"));
    let odd = LoraConfig { rank: 3, init: LoraInit::Orthogonal, ..lora(ModuleMatch::AllLinear) };
    assert!(refusal(&odd).contains("even rank"));
}

#[test]
fn step_0_equals_the_base_bitwise() {
    let base = hidden(&decoder(), Adapter::On);
    for init in [LoraInit::Peft, LoraInit::Gaussian, LoraInit::Xavier] {
        let mut adapted = decoder();
        adapted.attach_lora(&LoraConfig { init, ..lora(ModuleMatch::AllLinear) }, 5).unwrap();
        assert_eq!(hidden(&adapted, Adapter::On), base);
        assert_eq!(hidden(&adapted, Adapter::Off), base);
    }
    // B A is a product of orthogonal rows here: zero up to f32 rounding, not bitwise.
    let mut adapted = decoder();
    adapted
        .attach_lora(&LoraConfig { init: LoraInit::Orthogonal, ..lora(ModuleMatch::AllLinear) }, 5)
        .unwrap();
    assert_eq!(hidden(&adapted, Adapter::Off), base);
    let drift = (hidden(&adapted, Adapter::On) - &base).abs().max().double_value(&[]);
    assert!(drift > 0.0 && drift < 1e-5, "{drift}");
    assert!(
        adapted.adapter_parameters().iter().all(|(_, matrix)| matrix.abs().max().double_value(&[]) > 0.01)
    );
}

#[test]
fn merging_folds_the_scaled_product_in_and_leaves_the_base_alone() {
    let mut decoder = decoder();
    let config = LoraConfig { rank_stabilized: true, ..lora(ModuleMatch::AllLinear) };
    assert_eq!(config.scaling(), 16.0);
    decoder.attach_lora(&config, 5).unwrap();
    for (_, mut matrix) in decoder.adapter_parameters() {
        tch::no_grad(|| matrix.f_add_scalar_(0.01).map(drop)).unwrap();
    }
    let layer = &decoder.layers[0];
    let before = layer.projections[0].weight.numbers().copy();
    let x = Tensor::ones([3, 24], (Kind::Float, Device::Cpu));
    let unmerged = layer.projections[0].forward(&x, Adapter::On, None);
    let weights = &layer.merged_projection_weights(Adapter::On)[0];
    let merged = x.linear(&weights.weight, weights.bias.as_ref());
    let error = (unmerged - merged).abs().max().double_value(&[]);
    assert!(error < 1e-5, "{error}");
    assert_eq!(layer.projections[0].weight.numbers(), before);
    assert_eq!(layer.merged_projection_weights(Adapter::Off)[0].weight, before);
}

#[test]
fn dropout_repeats_for_a_seed_and_is_off_without_one() {
    let mut decoder = decoder();
    decoder.attach_lora(&LoraConfig { dropout: 0.5, ..lora(ModuleMatch::AllLinear) }, 5).unwrap();
    let projection = &mut decoder.layers[0].projections[0];
    let pair = projection.lora.as_mut().unwrap();
    pair.b = pair.b.ones_like();
    let x = Tensor::ones([64, 24], (Kind::Float, Device::Cpu));
    let dropout = |seed| Dropout { seed, first_token: 0 };
    let run = |seed: Option<u64>| projection.forward(&x, Adapter::On, seed.map(dropout));
    assert_eq!(run(Some(1)), run(Some(1)));
    assert_ne!(run(Some(1)), run(Some(2)));
    assert_ne!(run(Some(1)), run(None));
    let behind =
        projection.forward(&x.narrow(0, 9, 20), Adapter::On, Some(Dropout { seed: 1, first_token: 9 }));
    assert_eq!(behind, run(Some(1)).narrow(0, 9, 20), "a token's place decides, wherever it is computed");
    let mask = projection.lora.as_ref().unwrap().dropout_mask(&x, "any", dropout(3));
    assert!(
        (mask.mean(Kind::Float).double_value(&[]) - 1.0).abs() < 0.1,
        "kept inputs make up for dropped ones"
    );
}

#[test]
fn dropout_after_b_drops_outputs_of_the_update_alone() {
    let mut decoder = decoder();
    let config =
        LoraConfig { dropout: 0.5, dropout_position: DropoutPosition::After, ..lora(ModuleMatch::AllLinear) };
    decoder.attach_lora(&config, 5).unwrap();
    let projection = &mut decoder.layers[0].projections[0];
    let pair = projection.lora.as_mut().unwrap();
    pair.b = pair.b.ones_like();
    let x = Tensor::ones([64, 24], (Kind::Float, Device::Cpu));
    let with = |dropout| projection.forward(&x, Adapter::On, dropout);
    let base = projection.forward(&x, Adapter::Off, None);
    let (whole, dropped) = (with(None) - &base, with(Some(Dropout { seed: 1, first_token: 0 })) - base);
    // Each value of the update is either dropped or doubled, to make up for the dropped half.
    let ratio = dropped / whole;
    let is_dropped = ratio.abs().lt(1e-4);
    let is_doubled = (&ratio - 2.0).abs().lt(1e-4);
    assert!(is_dropped.logical_or(&is_doubled).all().int64_value(&[]) == 1);
    let share = is_dropped.to_kind(Kind::Float).mean(None).double_value(&[]);
    assert!((share - 0.5).abs() < 0.1, "{share}");
}

/// Megatron's `xavier` is `torch.nn.init.xavier_normal_`.
#[test]
fn xavier_spreads_by_inputs_and_rank() {
    let mut decoder = decoder();
    let config = LoraConfig { init: LoraInit::Xavier, rank: 8, ..lora(names(&["up_proj"])) };
    decoder.attach_lora(&config, 5).unwrap();
    let a = &decoder.layers[0].projections[5].lora.as_ref().unwrap().a;
    let (std, expected) = (a.std(false).double_value(&[]), (2.0f64 / (24.0 + 8.0)).sqrt());
    assert!((std / expected - 1.0).abs() < 0.2, "{std} beside {expected}");
}

#[test]
fn megatron_s_names_stand_for_the_modules_that_are_there() {
    let of = |names: &[&str]| adapted(&lora(self::names(names)));
    assert_eq!(of(&["linear_qkv", "linear_proj"]), of(&["q_proj", "k_proj", "v_proj", "o_proj"]));
    assert_eq!(of(&["linear_fc1", "linear_fc2"]), of(&["gate_proj", "up_proj", "down_proj"]));
    assert_eq!(of(&["linear_q", "linear_fc1_up"]), of(&["q_proj", "up_proj"]));
    let mut config = lora(ModuleMatch::AllLinear);
    config.exclude = Some(names(&["linear_qkv", "linear_fc1"]));
    assert_eq!(adapted(&config), of(&["o_proj", "down_proj"]));
    // What is saved has PEFT's names.
    let mut decoder = decoder();
    decoder.attach_lora(&lora(names(&["linear_qkv"])), 1).unwrap();
    assert_eq!(decoder.lora().unwrap().targets, names(&["q_proj", "k_proj", "v_proj"]));
    assert!(
        refusal(&lora(names(&["linear_kv_up_proj"]))).contains("\"linear_kv_up_proj\" matches no linear")
    );
}

#[test]
fn a_saved_adapter_loads_back_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let mut saved = decoder();
    let config = LoraConfig { init: LoraInit::Orthogonal, ..lora(names(&["v_proj", "up_proj"])) };
    saved.attach_lora(&config, 5).unwrap();
    saved.save_adapter(dir.path(), None).unwrap();
    let mut loaded = decoder();
    loaded.load_adapter(dir.path()).unwrap();
    assert_eq!(loaded.adapter_parameters(), saved.adapter_parameters());
    assert_eq!(loaded.lora().unwrap().scaling(), config.scaling());
}

#[test]
fn a_saved_adapter_names_the_model_that_it_belongs_to() {
    let dir = tempfile::tempdir().unwrap();
    let mut saved = decoder();
    saved.attach_lora(&lora(ModuleMatch::AllLinear), 5).unwrap();
    let written = |base: Option<&BaseModel>| -> [serde_json::Value; 2] {
        saved.save_adapter(dir.path(), base).unwrap();
        let text = std::fs::read(dir.path().join("adapter_config.json")).unwrap();
        let document: serde_json::Value = serde_json::from_slice(&text).unwrap();
        ["base_model_name_or_path", "revision"].map(|field| document[field].clone())
    };
    let base = |name: &str, revision: Option<&str>| BaseModel {
        name_or_path: name.to_owned(),
        revision: revision.map(str::to_owned),
    };
    assert_eq!(written(Some(&base("/models/qwen", None))), [json!("/models/qwen"), json!(null)]);
    assert_eq!(written(Some(&base("owner/name", Some("0a1b")))), [json!("owner/name"), json!("0a1b")]);
    assert_eq!(written(None), [json!(null), json!(null)]);
}

#[test]
fn starting_from_an_adapter_needs_the_same_rank_and_scaling() {
    let dir = tempfile::tempdir().unwrap();
    let mut saved = decoder();
    saved.attach_lora(&LoraConfig { init: LoraInit::Orthogonal, ..lora(ModuleMatch::AllLinear) }, 5).unwrap();
    saved.save_adapter(dir.path(), None).unwrap();
    let adapter_path = Some(dir.path().to_string_lossy().into_owned());
    let spec = LoraSpec { rank: 4, adapter_path, ..LoraSpec::default() };
    let mut started = decoder();
    started.attach_lora_spec(&spec, 0).unwrap();
    assert_eq!(started.adapter_parameters(), saved.adapter_parameters());
    let refused = |spec: LoraSpec| decoder().attach_lora_spec(&spec, 0).unwrap_err().to_string();
    assert!(refused(LoraSpec { rank: 8, ..spec.clone() }).contains("field `r`: expected 8, got 4"));
    assert!(refused(LoraSpec { alpha: 1.0, ..spec.clone() }).contains("lora_alpha"));
    let fewer = LoraSpec { target_modules: vec!["q_proj".into()], ..spec };
    assert!(refused(fewer).contains("unexpected tensor"));
}

#[test]
fn refuses_adapters_it_would_compute_wrongly() {
    let dir = tempfile::tempdir().unwrap();
    let plain = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]});
    let refuse = |field: &str, value: serde_json::Value| {
        let mut document = plain.clone();
        document[field] = value;
        std::fs::write(dir.path().join("adapter_config.json"), document.to_string()).unwrap();
        decoder().load_adapter(dir.path()).unwrap_err().to_string()
    };
    assert!(refuse("lora_bias", json!(true)).contains("field `lora_bias`: expected nothing"));
    assert!(
        refuse("rank_pattern", json!({"q_proj": 0}))
            .contains("field `rank_pattern`: expected integers above 0")
    );
    assert!(
        refuse("alpha_pattern", json!([2])).contains("field `alpha_pattern`: expected numbers by pattern")
    );
    assert!(refuse("bias", json!("all")).contains("field `bias`: expected \"none\", got \"all\""));
    assert!(refuse("r", json!("four")).contains("field `r`"));
    assert!(refuse("lora_alpha", json!(8)).contains("adapter_model.safetensors"), "weights are missing");
}
