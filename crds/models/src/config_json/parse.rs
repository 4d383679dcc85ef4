//! Parses JSON to [`ModelConfig`]: the fields that all families have, and the values that follow from sizes.

use rlt_api::spec::ArchitectureSpec;
use serde_json::{Map, Value, json};

use super::super::families::{self, Defaults, Definition};
use super::super::head::classifier_head;
use super::super::quantization;
use super::super::rope::{self, Context};
use super::super::{
    BlockNorms, Family, FusedProjections, HiddenActivation, ModelConfig, ModelConfigError, NormKind,
    OutputHead, QkNorm, RopeConfig, RopePairing, RopeScaling,
};
use super::super::{VisionTokens, new_tower, vision, windows};
use super::bounds;
use super::fields::Fields;
use super::unknown::{ACTIVATIONS, described, unknown_parts};
use crate::model_files::ModelFile;

pub(crate) fn parse(document: &Value) -> Result<ModelConfig, ModelConfigError> {
    let fields = Fields::root(document)?;
    let family = family(&fields)?;
    let flat = family.has_vision().then(|| vision::flattened(document, family));
    let fields = flat.as_ref().map_or(Ok(fields), Fields::root)?;
    refuse_what_changes_numbers(&fields)?;
    let definition = families::definition(family);
    let mut config = common(&fields, family, &definition.defaults)?;
    (definition.shape)(&mut config);
    config.hidden_activation = activation(&fields, &definition.defaults)?;
    (definition.read)(&fields, &mut config)?;
    quantization::read(&fields, &mut config)?;
    if config.ropes.len() == 1 {
        rope::refuse_by_window(&fields)?;
    }
    if !definition.has_windows {
        windows::refuse_window(&fields, &config)?;
    }
    check(config)
}

/// Reads the fields that every family's configuration has, with Llama's shape.
fn common(fields: &Fields<'_>, family: Family, defaults: &Defaults) -> Result<ModelConfig, ModelConfigError> {
    let hidden_size = fields.required_size("hidden_size")?;
    let num_heads = fields.required_size("num_attention_heads")?;
    let num_layers = fields.depth("num_hidden_layers")?.ok_or_else(|| fields.missing("num_hidden_layers"))?;
    let max_positions = fields.length("max_position_embeddings")?.unwrap_or(defaults.max_positions);
    let default_kv_heads = match fields.get("num_key_value_heads") {
        None => defaults.num_kv_heads.unwrap_or(num_heads),
        Some(_) => num_heads,
    };
    let head_dim = fields.size("head_dim")?.or(defaults.head_dim).unwrap_or(hidden_size / num_heads);
    let rotary_dim = rope::rotary_dim(fields, head_dim, defaults.partial_rotary_factor)?;
    let context = Context {
        default_theta: defaults.rope_theta,
        max_positions,
        rotary_dim,
        longrope_context: defaults.longrope_context,
    };
    let sizes = Sizes {
        vocab_size: fields.required_size("vocab_size")?,
        hidden_size,
        intermediate_size: fields.required_size("intermediate_size")?,
        num_layers,
        num_heads,
        num_kv_heads: fields.size("num_key_value_heads")?.unwrap_or(default_kv_heads),
        head_dim,
    };
    Ok(ModelConfig {
        max_position_embeddings: max_positions,
        rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(defaults.rms_norm_eps),
        ropes: vec![rope::parse(fields, context)?],
        rotary_dim,
        tie_word_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(defaults.tie_word_embeddings),
        initializer_range: fields.number("initializer_range")?.unwrap_or(0.02),
        bos_token_id: fields.token_id("bos_token_id", defaults.bos)?,
        pad_token_id: fields.token_id("pad_token_id", defaults.pad)?,
        eos_token_ids: match fields.get("eos_token_id") {
            None => defaults.eos.to_vec(),
            Some(_) => token_ids_of(fields, "eos_token_id")?.unwrap_or_default(),
        },
        ..sizes.as_llama(family)
    })
}

/// Widths and counts of a decoder.
struct Sizes {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_layers: usize,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
}

impl Sizes {
    /// Returns a model of these sizes with Llama's shape, which [`crate::families`] change.
    fn as_llama(&self, family: Family) -> ModelConfig {
        ModelConfig {
            family,
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            experts: None,
            num_layers: self.num_layers,
            num_heads: self.num_heads,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            latent: None,
            max_position_embeddings: 2048,
            norm_kind: NormKind::Rms,
            rms_norm_eps: 1e-5,
            ropes: vec![RopeConfig { theta: 10_000.0, scaling: RopeScaling::None }],
            layer_ropes: vec![Some(0); self.num_layers],
            rotary_dim: self.head_dim,
            rope_pairing: RopePairing::Halves,
            hidden_activation: HiddenActivation::Silu,
            layer_windows: vec![None; self.num_layers],
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            fused_projections: FusedProjections::default(),
            parallel_blocks: false,
            block_norms: BlockNorms::BEFORE,
            qk_norm: QkNorm::None,
            norm_offset: 0.0,
            embedding_scale: 1.0,
            attention_scale: (self.head_dim as f64).powf(-0.5),
            attention_softcap: None,
            attention_sinks: false,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: None,
            has_prediction_layers: false,
            quantization: None,
            vision: None,
            head: OutputHead::Vocabulary,
            tie_word_embeddings: false,
            initializer_range: 0.02,
            bos_token_id: None,
            pad_token_id: None,
            eos_token_ids: Vec::new(),
            generation: Map::new(),
        }
    }
}

pub(crate) fn from_architecture(
    spec: &ArchitectureSpec,
    vocab_size: usize,
    eos_token_ids: &[u32],
    vision_tokens: Option<VisionTokens>,
) -> Result<ModelConfig, ModelConfigError> {
    let sizes = Sizes {
        vocab_size,
        hidden_size: spec.hidden_size as usize,
        intermediate_size: spec.intermediate_size as usize,
        num_layers: spec.num_layers as usize,
        num_heads: spec.num_heads as usize,
        num_kv_heads: spec.kv_heads() as usize,
        head_dim: spec.head_width() as usize,
    };
    let definition = families::definition(spec.family);
    let factor = definition.defaults.partial_rotary_factor;
    let mut config = ModelConfig {
        max_position_embeddings: spec.max_position_embeddings as usize,
        ropes: vec![RopeConfig { theta: spec.rope_theta, scaling: RopeScaling::None }],
        rotary_dim: rope::rotary_dim(&Fields::empty(), sizes.head_dim, factor)?,
        tie_word_embeddings: spec.tie_word_embeddings,
        initializer_range: spec.initializer_range,
        eos_token_ids: eos_token_ids.to_vec(),
        ..sizes.as_llama(spec.family)
    };
    (definition.shape)(&mut config);
    shape_experts(spec, &mut config)?;
    new_tower::shape(spec, vision_tokens, &mut config)?;
    check(config)
}

/// Gives the experts of a model that is initialized from scratch the requested sizes. Weights of a token's
/// experts add up to 1.
fn shape_experts(spec: &ArchitectureSpec, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
    let invalid = |expected: &str, got: String| ModelConfigError::InvalidField {
        field: "experts".to_owned(),
        expected: format!("{expected} {:?}", spec.family),
        got,
    };
    match (&mut config.experts, spec.experts) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(invalid("nothing with the family", "experts".to_owned())),
        (Some(_), None) => Err(invalid("count and perToken with the family", "nothing".to_owned())),
        (Some(_), Some(sizes)) if sizes.per_token > sizes.count => {
            let got = format!("perToken {} of {}", sizes.per_token, sizes.count);
            Err(invalid("perToken of at most count for the family", got))
        }
        (Some(experts), Some(sizes)) => {
            experts.num_experts = sizes.count as usize;
            experts.num_experts_per_token = sizes.per_token as usize;
            experts.intermediate_size = spec.intermediate_size as usize;
            Ok(())
        }
    }
}

/// Reads the body of a classifier from its `config.json`, as that of a model without a head.
pub(crate) fn classifier(document: &Value) -> Result<ModelConfig, ModelConfigError> {
    let class = document["architectures"][0].as_str().unwrap_or_default();
    let found = classifier_head(document);
    let (_, family) = found.ok_or_else(|| ModelConfigError::UnknownArchitecture {
        got: class.to_owned(),
        parts: described(
            &Fields::root(document).map_or_else(|_| Vec::new(), |fields| unknown_parts(&fields)),
        ),
        known: listed(|definition| definition.classifier),
    })?;
    let fields = Fields::root(document)?;
    if fields.get("quantization_config").is_some_and(|value| !value.is_null()) {
        return Err(fields.unsupported("quantization_config", "unquantized weights of a classifier"));
    }
    let mut body = document.clone();
    body["architectures"] = json!([families::definition(family).architecture]);
    body["tie_word_embeddings"] = true.into();
    parse(&body)
}

/// Lists a name of every family, separated by commas.
fn listed(name: fn(&Definition) -> &'static str) -> String {
    Family::all().map(|family| name(families::definition(family))).collect::<Vec<_>>().join(", ")
}

fn family(fields: &Fields<'_>) -> Result<Family, ModelConfigError> {
    let class = fields.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
    let found = match class {
        Some(class) => Family::all().find(|family| families::definition(*family).architecture == class),
        None => {
            let model_type = fields.text("model_type")?.ok_or_else(|| fields.missing("architectures"))?;
            Family::all().find(|family| families::definition(*family).model_type == model_type)
        }
    };
    let family = found.ok_or_else(|| ModelConfigError::UnknownArchitecture {
        got: class.or(fields.text("model_type").ok().flatten()).unwrap_or_default().to_owned(),
        parts: described(&unknown_parts(fields)),
        known: listed(|definition| definition.architecture),
    })?;
    let definition = families::definition(family);
    match fields.text("model_type")? {
        Some(model_type) if model_type != definition.model_type => {
            let expected = format!("{:?} with {}", definition.model_type, definition.architecture);
            Err(fields.invalid("model_type", &expected))
        }
        _ => Ok(family),
    }
}

/// Refuses fields that would change computed values, but that no family supports.
pub(crate) fn refuse_what_changes_numbers(fields: &Fields<'_>) -> Result<(), ModelConfigError> {
    match ModelFile::Config.refused_field(fields.all()) {
        None => Ok(()),
        Some(refused) => Err(fields.unsupported(&refused.field, refused.supported)),
    }
}

fn activation(fields: &Fields<'_>, defaults: &Defaults) -> Result<HiddenActivation, ModelConfigError> {
    let field = defaults.activation_field;
    match fields.text(field)?.unwrap_or(defaults.activation) {
        "silu" | "swish" => Ok(HiddenActivation::Silu),
        // One formula under the names that it had over time.
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(HiddenActivation::GeluTanh),
        "gelu" => Ok(HiddenActivation::Gelu),
        _ => Err(fields.unsupported(field, &ACTIVATIONS.join(", "))),
    }
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
    if config.latent.is_some() && config.num_heads != config.num_kv_heads {
        let expected =
            format!("num_attention_heads {}, as all heads have keys of one latent", config.num_heads);
        return Err(invalid("num_key_value_heads", expected, config.num_kv_heads));
    }
    if !config.rope_head_dim().is_multiple_of(2) {
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
    bounds::check_total(&config)?;
    Ok(config)
}

/// Reads the token ids of `field`, which is one id, a list, or null; `None` when it is absent or null.
/// Negative ids mean "no such token" in old configurations and are left out.
pub(crate) fn token_ids(document: &Value, field: &str) -> Result<Option<Vec<u32>>, ModelConfigError> {
    token_ids_of(&Fields::root(document)?, field)
}

fn token_ids_of(fields: &Fields<'_>, field: &str) -> Result<Option<Vec<u32>>, ModelConfigError> {
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
