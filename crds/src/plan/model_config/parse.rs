//! From JSON to [`ModelConfig`]: each family's defaults, and what follows from the sizes.

use serde_json::{Value, json};

use super::fields::Fields;
use super::{Family, HiddenActivation, ModelConfig, ModelConfigError, RopeScaling, rope};
use crate::spec::ArchitectureSpec;

/// What a family's configuration class in transformers 5 assumes where a field is absent.
struct Defaults {
    num_kv_heads: Option<usize>,
    head_dim: Option<usize>,
    max_positions: usize,
    activation: &'static str,
    sliding_window: Option<usize>,
    tie_word_embeddings: bool,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
}

fn defaults(family: Family) -> Defaults {
    let plain = Defaults {
        num_kv_heads: None,
        head_dim: None,
        max_positions: 2048,
        activation: "silu",
        sliding_window: None,
        tie_word_embeddings: false,
        bos: Some(1),
        eos: Some(2),
        pad: None,
    };
    let qwen = Defaults {
        num_kv_heads: Some(32),
        max_positions: 32_768,
        sliding_window: Some(4096),
        bos: None,
        eos: None,
        ..plain
    };
    match family {
        Family::Llama => plain,
        Family::Mistral => {
            Defaults { num_kv_heads: Some(8), max_positions: 131_072, sliding_window: Some(4096), ..plain }
        }
        Family::Qwen2 => qwen,
        Family::Qwen3 => Defaults { head_dim: Some(128), ..qwen },
        Family::Gemma => Defaults {
            num_kv_heads: Some(16),
            head_dim: Some(256),
            max_positions: 8192,
            activation: "gelu_pytorch_tanh",
            tie_word_embeddings: true,
            bos: Some(2),
            eos: Some(1),
            pad: Some(0),
            ..plain
        },
    }
}

pub(super) fn parse(document: &Value) -> Result<ModelConfig, ModelConfigError> {
    let fields = Fields::root(document)?;
    let family = family(&fields)?;
    refuse_what_changes_numbers(&fields)?;
    let defaults = defaults(family);
    let hidden_size = fields.required_size("hidden_size")?;
    let num_heads = fields.required_size("num_attention_heads")?;
    let num_layers = fields.required_size("num_hidden_layers")?;
    let max_position_embeddings = fields.size("max_position_embeddings")?.unwrap_or(defaults.max_positions);
    let (rope_theta, rope_scaling) = rope::parse(&fields, max_position_embeddings)?;
    let attention_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let reads_attention_bias = matches!(family, Family::Llama | Family::Qwen3 | Family::Gemma);
    let default_kv_heads = match fields.get("num_key_value_heads") {
        None => defaults.num_kv_heads.unwrap_or(num_heads),
        Some(_) => num_heads,
    };
    let default_head_dim = defaults.head_dim.unwrap_or(hidden_size / num_heads);
    check(ModelConfig {
        family,
        vocab_size: fields.required_size("vocab_size")?,
        hidden_size,
        intermediate_size: fields.required_size("intermediate_size")?,
        num_layers,
        num_heads,
        num_kv_heads: fields.size("num_key_value_heads")?.unwrap_or(default_kv_heads),
        head_dim: fields.size("head_dim")?.unwrap_or(default_head_dim),
        max_position_embeddings,
        rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta,
        rope_scaling,
        hidden_activation: activation(&fields, defaults.activation)?,
        layer_windows: layer_windows(&fields, family, num_layers, defaults.sliding_window)?,
        qkv_bias: family == Family::Qwen2 || (reads_attention_bias && attention_bias),
        output_bias: reads_attention_bias && attention_bias,
        mlp_bias: family == Family::Llama && fields.flag("mlp_bias")?.unwrap_or(false),
        qk_norm: family == Family::Qwen3,
        norm_offset: norm_offset(family),
        scale_embeddings: family == Family::Gemma,
        tie_word_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(defaults.tie_word_embeddings),
        initializer_range: fields.number("initializer_range")?.unwrap_or(0.02),
        bos_token_id: fields.token_id("bos_token_id", defaults.bos)?,
        pad_token_id: fields.token_id("pad_token_id", defaults.pad)?,
        eos_token_ids: match fields.get("eos_token_id") {
            None => defaults.eos.into_iter().collect(),
            Some(_) => token_ids(document, "eos_token_id")?.unwrap_or_default(),
        },
    })
}

pub(super) fn from_architecture(
    spec: &ArchitectureSpec,
    vocab_size: usize,
    eos_token_ids: &[u32],
) -> Result<ModelConfig, ModelConfigError> {
    let family = spec.family;
    let num_layers = spec.num_layers as usize;
    check(ModelConfig {
        family,
        vocab_size,
        hidden_size: spec.hidden_size as usize,
        intermediate_size: spec.intermediate_size as usize,
        num_layers,
        num_heads: spec.num_heads as usize,
        num_kv_heads: spec.kv_heads() as usize,
        head_dim: spec.head_width() as usize,
        max_position_embeddings: spec.max_position_embeddings as usize,
        rms_norm_eps: 1e-5,
        rope_theta: spec.rope_theta,
        rope_scaling: RopeScaling::None,
        hidden_activation: match family {
            Family::Gemma => HiddenActivation::GeluTanh,
            _ => HiddenActivation::Silu,
        },
        layer_windows: vec![None; num_layers],
        qkv_bias: family == Family::Qwen2,
        output_bias: false,
        mlp_bias: false,
        qk_norm: family == Family::Qwen3,
        norm_offset: norm_offset(family),
        scale_embeddings: family == Family::Gemma,
        tie_word_embeddings: spec.tie_word_embeddings,
        initializer_range: spec.initializer_range,
        bos_token_id: None,
        pad_token_id: None,
        eos_token_ids: eos_token_ids.to_vec(),
    })
}

/// The body of a sequence classifier: its `config.json`, read as that of a model without a head for tokens of
/// its own.
pub(super) fn classifier(document: &Value) -> Result<ModelConfig, ModelConfigError> {
    let class = document["architectures"][0].as_str().unwrap_or_default();
    let family = Family::ALL.into_iter().find(|family| family.classifier() == class);
    let family = family.ok_or_else(|| ModelConfigError::UnknownArchitecture {
        got: class.to_owned(),
        known: Family::ALL.map(Family::classifier).join(", "),
    })?;
    let mut body = document.clone();
    body["architectures"] = json!([family.architecture()]);
    body["tie_word_embeddings"] = true.into();
    parse(&body)
}

fn norm_offset(family: Family) -> f64 {
    if family == Family::Gemma { 1.0 } else { 0.0 }
}

fn family(fields: &Fields<'_>) -> Result<Family, ModelConfigError> {
    let class = fields.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
    let found = match class {
        Some(class) => Family::ALL.into_iter().find(|family| family.architecture() == class),
        None => {
            let model_type = fields.text("model_type")?.ok_or_else(|| fields.missing("architectures"))?;
            Family::ALL.into_iter().find(|family| family.model_type() == model_type)
        }
    };
    let family = found.ok_or_else(|| ModelConfigError::UnknownArchitecture {
        got: class.or(fields.text("model_type").ok().flatten()).unwrap_or_default().to_owned(),
        known: Family::ALL.map(Family::architecture).join(", "),
    })?;
    match fields.text("model_type")? {
        Some(model_type) if model_type != family.model_type() => {
            let expected = format!("{:?} beside {}", family.model_type(), family.architecture());
            Err(fields.invalid("model_type", &expected))
        }
        _ => Ok(family),
    }
}

fn refuse_what_changes_numbers(fields: &Fields<'_>) -> Result<(), ModelConfigError> {
    if fields.get("quantization_config").is_some_and(|value| !value.is_null()) {
        return Err(fields.unsupported("quantization_config", "unquantised weights"));
    }
    if fields.flag("use_bidirectional_attention")?.unwrap_or(false) {
        return Err(fields.unsupported("use_bidirectional_attention", "false"));
    }
    Ok(())
}

fn activation(fields: &Fields<'_>, default: &str) -> Result<HiddenActivation, ModelConfigError> {
    match fields.text("hidden_act")?.unwrap_or(default) {
        "silu" | "swish" => Ok(HiddenActivation::Silu),
        // One formula under the names it had in turn.
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(HiddenActivation::GeluTanh),
        "gelu" => Ok(HiddenActivation::Gelu),
        _ => {
            Err(fields.unsupported("hidden_act", "silu, swish, gelu, gelu_pytorch_tanh, gelu_new, gelu_fast"))
        }
    }
}

/// Mistral slides in every layer, Qwen where `layer_types` or else `max_window_layers` says so, others
/// nowhere.
fn layer_windows(
    fields: &Fields<'_>,
    family: Family,
    num_layers: usize,
    default: Option<usize>,
) -> Result<Vec<Option<usize>>, ModelConfigError> {
    let stated = fields.size("sliding_window")?;
    let window = if fields.get("sliding_window").is_some() { stated } else { default };
    match family {
        Family::Llama | Family::Gemma => Ok(vec![None; num_layers]),
        Family::Mistral => Ok(vec![window; num_layers]),
        Family::Qwen2 | Family::Qwen3 => {
            let used = fields.flag("use_sliding_window")?.unwrap_or(false);
            let window = if used { window } else { None };
            match fields.list("layer_types")? {
                Some(types) => windows_by_type(fields, types, num_layers, window),
                None => {
                    let first = fields.count("max_window_layers")?.unwrap_or(28);
                    Ok((0..num_layers).map(|layer_idx| window.filter(|_| layer_idx >= first)).collect())
                }
            }
        }
    }
}

fn windows_by_type(
    fields: &Fields<'_>,
    types: &[Value],
    num_layers: usize,
    window: Option<usize>,
) -> Result<Vec<Option<usize>>, ModelConfigError> {
    if types.len() != num_layers {
        return Err(fields.invalid("layer_types", &format!("{num_layers} entries, one a layer")));
    }
    let window_of = |layer_type: &Value| match layer_type.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") if window.is_some() => Ok(window),
        Some("sliding_attention") => {
            Err(fields.invalid("layer_types", "full_attention everywhere, as no sliding_window is in use"))
        }
        _ => Err(fields.unsupported("layer_types", "full_attention, sliding_attention")),
    };
    types.iter().map(window_of).collect()
}

fn check(config: ModelConfig) -> Result<ModelConfig, ModelConfigError> {
    let invalid = |field: &str, expected: String, got: usize| ModelConfigError::InvalidField {
        field: field.to_owned(),
        expected,
        got: got.to_string(),
    };
    let sizes = [
        ("vocab_size", config.vocab_size),
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
        ("num_hidden_layers", config.num_layers),
        ("num_attention_heads", config.num_heads),
        ("num_key_value_heads", config.num_kv_heads),
        ("head_dim", config.head_dim),
        ("max_position_embeddings", config.max_position_embeddings),
    ];
    if let Some((field, got)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(invalid(field, "an integer above 0".to_owned(), got));
    }
    if !config.num_heads.is_multiple_of(config.num_kv_heads) {
        let expected = format!("a divisor of num_attention_heads {}", config.num_heads);
        return Err(invalid("num_key_value_heads", expected, config.num_kv_heads));
    }
    if !config.head_dim.is_multiple_of(2) {
        return Err(invalid(
            "head_dim",
            "an even number, as the rotary embedding turns pairs".to_owned(),
            config.head_dim,
        ));
    }
    if let Some(id) = config.pad_token_id.filter(|id| *id as usize >= config.vocab_size) {
        let expected = format!("a token id below vocab_size {}", config.vocab_size);
        return Err(invalid("pad_token_id", expected, id as usize));
    }
    Ok(config)
}

/// Token ids of `field`, which holds one id, a list, or null; `None` when it is absent or null. Negative ids
/// mean "no such token" in old configurations and are left out.
pub(super) fn token_ids(document: &Value, field: &str) -> Result<Option<Vec<u32>>, ModelConfigError> {
    let fields = Fields::root(document)?;
    let Some(value) = fields.get(field).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let mut ids = Vec::with_capacity(list.len());
    for item in list {
        let id = item.as_i64().ok_or_else(|| fields.invalid(field, "a token id, a list of them, or null"))?;
        if id >= 0 {
            let id = u32::try_from(id).map_err(|_| fields.invalid(field, "a token id below 2^32"))?;
            ids.push(id);
        }
    }
    Ok(Some(ids))
}
