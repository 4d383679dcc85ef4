//! Plans of jobs whose frozen weights have 4 or 8 bits.

use rlt_api::{ValidatedJob, validate};
use rlt_models::ModelConfig;
use serde_json::{Value, json};

use super::{Models, Phase, bytes, check_model, manifest, spec};
use crate::{MemoryPlan, plan};

/// The shape of SmolLM2-135M.
fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
        "max_position_embeddings": 8192, "tie_word_embeddings": true
    })
}

fn job(quantization: Value, workers: Value) -> ValidatedJob {
    let mut spec = spec();
    spec["model"] = json!({"path": "/models/smollm2", "lora": {"rank": 8}});
    if !quantization.is_null() {
        spec["model"]["quantization"] = quantization;
    }
    spec["training"]["precision"] = "Bf16".into();
    spec["workers"] = workers;
    validate(&manifest(&spec)).unwrap()
}

fn memory_on(quantization: Value, workers: Value) -> MemoryPlan {
    let policy = ModelConfig::from_json(&config()).unwrap();
    let models = Models { policy: Some(policy), reward: Vec::new() };
    plan(&job(quantization, workers), &models).memory.unwrap()
}

fn memory(quantization: Value) -> MemoryPlan {
    memory_on(quantization, json!({"device": "Cpu"}))
}

/// Returns the bytes of the model's weights on a rank, adapter included.
fn base(memory: &MemoryPlan) -> u64 {
    bytes(memory, Phase::Update, "weights") + bytes(memory, Phase::Update, "quantized weights")
}

/// 30 layers of q, k, v, o, gate, up and down.
const NUMBERS: u64 = 30 * (576 * 576 * 2 + 192 * 576 * 2 + 1536 * 576 * 3);

#[test]
fn codes_and_scales_are_counted_by_the_byte() {
    let weights = |quantization: Value| base(&memory(quantization));
    let dense = weights(Value::Null);
    let nested_scales = |numbers: u64| numbers / 64 + 4 * (numbers / 64).div_ceil(256) + 4;
    let scales: u64 = [576 * 576, 576 * 576, 192 * 576, 192 * 576, 1536 * 576, 1536 * 576, 1536 * 576]
        .map(nested_scales)
        .iter()
        .sum();
    let nf4 = weights(json!({"format": "Nf4"}));
    assert_eq!(dense - nf4, 2 * NUMBERS - NUMBERS / 2 - 4 * NUMBERS / 64);
    let nested = weights(json!({"doubleQuantization": true}));
    assert_eq!(dense - nested, 2 * NUMBERS - NUMBERS / 2 - 30 * scales);
    let int8 = weights(json!({"format": "Int8"}));
    let rows = 30 * (576 + 192 + 192 + 576 + 1536 + 1536 + 576);
    assert_eq!(dense - int8, 2 * NUMBERS - NUMBERS - 4 * rows);
    let skipped = weights(json!({"skipModules": ["down_proj"]}));
    let down = 30 * 1536 * 576;
    assert_eq!(skipped - nf4, 2 * down - down / 2 - 4 * down / 64);
}

#[test]
fn a_start_from_the_quantization_error_takes_the_memory_of_a_decomposition_and_the_whole_adapter() {
    let held = |init: &str| {
        let mut spec = spec();
        spec["model"] = json!({
            "path": "/models/smollm2", "lora": {"rank": 8, "init": init}, "quantization": {"format": "Nf4"}
        });
        spec["workers"] = json!({"device": "Cpu"});
        let policy = ModelConfig::from_json(&config()).unwrap();
        let models = Models { policy: Some(policy), reward: Vec::new() };
        let memory = plan(&validate(&manifest(&spec)).unwrap(), &models).memory.unwrap();
        bytes(&memory, Phase::Loading, "quantization error being decomposed")
    };
    let adapter = 30 * 8 * ((576 + 576) * 2 + (576 + 192) * 2 + (576 + 1536) * 3);
    assert_eq!(held("Loftq"), 4 * (8 * 1536 * 576 + adapter));
    assert_eq!(held("Peft"), 0);
}

/// The quantized weights and their packed copy. The embeddings, which keep 16 bits, are a fifth of this
/// model.
#[test]
fn a_base_of_135m_in_nf4_takes_a_third_of_its_bfloat16_size() {
    let held = |quantization: Value| {
        let memory = memory(quantization);
        let of = |name| bytes(&memory, Phase::Rollout, name);
        base(&memory) + of("rollout weights")
    };
    let ratio = held(json!({})) as f64 / held(Value::Null) as f64;
    assert!(ratio <= 0.35, "{ratio}");
}

#[test]
fn ranks_divide_codes_and_gather_them_and_each_samples_with_all() {
    let two = json!({"device": "Cpu", "ranksPerWorker": 2, "mesh": {"dpShard": 2}});
    let (alone, shared) = (memory(json!({})), memory_on(json!({}), two.clone()));
    assert_eq!(base(&shared), base(&alone) / 2);
    let dense = memory_on(Value::Null, two);
    let gathered = |memory| bytes(memory, Phase::Update, "gathered weights");
    assert_eq!(gathered(&dense) - gathered(&shared), 2 * (2 * NUMBERS - NUMBERS / 2 - 4 * NUMBERS / 64) / 30);
    let sampled = |memory| bytes(memory, Phase::Rollout, "rollout weights");
    assert_eq!(sampled(&shared) - sampled(&alone), NUMBERS / 2 + 4 * NUMBERS / 64);
}

#[test]
fn files_that_are_quantized_are_planned_as_they_are_and_refused_where_they_do_not_fit() {
    let mut stored = config();
    stored["quantization_config"] = json!({
        "quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": true, "llm_int8_skip_modules": null
    });
    let model = ModelConfig::from_json(&stored).unwrap();
    let refusal =
        |job: &ValidatedJob| check_model(job.spec(), &model).err().map(|refusal| refusal.to_string());
    let cpu = json!({"device": "Cpu"});
    assert_eq!(refusal(&job(Value::Null, cpu.clone())), None);
    let planned =
        plan(&job(Value::Null, cpu.clone()), &Models { policy: Some(model.clone()), reward: Vec::new() });
    let nested = memory(json!({"doubleQuantization": true}));
    assert_eq!(base(&planned.memory.unwrap()), base(&nested));
    let message = refusal(&job(json!({"format": "Int8"}), cpu.clone())).unwrap();
    assert!(message.contains("bnb_4bit_quant_type"), "{message}");
    assert_eq!(refusal(&job(Value::Null, json!({"device": "Cuda"}))), None);
    let tp = json!({"device": "Cpu", "ranksPerWorker": 3, "mesh": {"rolloutTp": 3}});
    let message = refusal(&job(Value::Null, tp)).unwrap();
    assert!(message.contains("spec.workers.mesh.rolloutTp"), "{message}");
    let mut full = spec();
    full["model"] = json!({"path": "/models/smollm2"});
    let message = refusal(&validate(&manifest(&full)).unwrap()).unwrap();
    assert!(message.contains("spec.model.lora"), "{message}");
}

#[test]
fn quantization_settings_without_support_are_refused_by_field() {
    let refusal = |quantization: Value, more: Value| {
        let mut stored = config();
        stored["quantization_config"] = quantization;
        for (field, value) in more.as_object().unwrap() {
            stored[field] = value.clone();
        }
        ModelConfig::from_json(&stored).unwrap_err().to_string()
    };
    let four_bits = json!({"quant_method": "bitsandbytes", "load_in_4bit": true});
    for (quantization, more, part) in [
        (json!({"quant_method": "gptq"}), json!({}), "quantization_config.quant_method"),
        (json!({"quant_method": "bitsandbytes"}), json!({}), "quantization_config.load_in_4bit"),
        (
            json!({"load_in_4bit": true, "bnb_4bit_quant_type": "af4"}),
            json!({}),
            "quantization_config.bnb_4bit_quant_type",
        ),
        (
            json!({"load_in_8bit": true, "llm_int8_skip_modules": ["model\\..*"]}),
            json!({}),
            "quantization_config.llm_int8_skip_modules",
        ),
        (
            four_bits.clone(),
            json!({"architectures": ["MixtralForCausalLM"], "num_local_experts": 4}),
            "field `quantization_config`: Fp4 weights of Mixtral, which has experts,",
        ),
        (
            four_bits,
            json!({
                "architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 64, "q_lora_rank": null,
                "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 48, "num_key_value_heads": 9
            }),
            "field `quantization_config`: Fp4 weights of DeepseekV3, which has experts and latent attention,",
        ),
    ] {
        let message = refusal(quantization, more);
        assert!(message.contains(part), "{message}");
    }
}
