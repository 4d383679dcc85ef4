//! Weights in 4 or 8 bits: which linear layers are quantized, the tensors of a quantized weight in memory,
//! and bitsandbytes' `quantization_config`.
//!
//! ```text
//! 4 bits    X.weight [n / 2, 1] u8, X.weight.absmax [blocks] f32
//!   nested  X.weight.absmax [blocks] u8,
//!           X.weight.nested_absmax [blocks / 256] f32, X.weight.nested_offset [1] f32
//! int8      X.weight [out, in] i8, X.SCB [out] f32
//! ```
//! Names are those of bitsandbytes' files, where `nested_offset` is a field of the quantization state.

use rlt_api::conflicts::{Conflict, Fact, parts_against};
use rlt_api::spec::{QuantizationFormat, QuantizationSpec};
use serde_json::Value;

use super::fields::Fields;
use super::{ExpertForm, ModelConfig, ModelConfigError, ProjectionShape, Quantization};

/// Number of 8-bit scales that share a second scale.
const NESTED_BLOCK: usize = 256;

/// One tensor of a quantized weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizedTensor {
    /// Part of the quantized weight that the tensor holds.
    pub part: QuantizedPart,
    /// Name of the tensor in memory.
    pub name: String,
    /// Dimensions of the tensor.
    pub shape: Vec<usize>,
    /// Bytes of one element.
    pub width: usize,
}

/// Part of a quantized weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantizedPart {
    /// Codes of the quantized elements.
    Codes,
    /// Scales, one for each block or row.
    Absmax,
    /// Scales of nested (8-bit) scales.
    NestedAbsmax,
    /// Offset that is added to nested scales.
    NestedOffset,
}

impl Quantization {
    fn new(spec: &QuantizationSpec) -> Self {
        Self {
            format: spec.format,
            block_size: spec.block_size as usize,
            double: spec.double_quantization,
            skip_modules: spec.skip_modules.clone(),
            is_stored: false,
            stored: None,
        }
    }

    /// Returns the tensors of `module`'s weight, of shape `[outputs, inputs]`.
    pub fn tensors(&self, module: &str, [outputs, inputs]: [usize; 2]) -> Vec<QuantizedTensor> {
        let tensor = |part, name: &str, shape: &[usize], width| QuantizedTensor {
            part,
            name: format!("{module}.{name}"),
            shape: shape.to_vec(),
            width,
        };
        if self.format == QuantizationFormat::Int8 {
            return vec![
                tensor(QuantizedPart::Codes, "weight", &[outputs, inputs], 1),
                tensor(QuantizedPart::Absmax, "SCB", &[outputs], 4),
            ];
        }
        let num = outputs * inputs;
        let blocks = num.div_ceil(self.block_size);
        let codes = tensor(QuantizedPart::Codes, "weight", &[num.div_ceil(2), 1], 1);
        if !self.double {
            return vec![codes, tensor(QuantizedPart::Absmax, "weight.absmax", &[blocks], 4)];
        }
        let nested = [blocks.div_ceil(NESTED_BLOCK)];
        vec![
            codes,
            tensor(QuantizedPart::Absmax, "weight.absmax", &[blocks], 1),
            tensor(QuantizedPart::NestedAbsmax, "weight.nested_absmax", &nested, 4),
            tensor(QuantizedPart::NestedOffset, "weight.nested_offset", &[1], 4),
        ]
    }

    /// Number of bytes of a weight of shape `[out, in]`.
    fn num_bytes(&self, size: [usize; 2]) -> u64 {
        let bytes = |tensor: &QuantizedTensor| tensor.shape.iter().product::<usize>() * tensor.width;
        self.tensors("", size).iter().map(bytes).sum::<usize>() as u64
    }

    /// Whether transformers' `llm_int8_skip_modules` excludes a module: one of its names is the beginning or
    /// end of the full module name, or occurs in it before a dot.
    fn skips(&self, module: &str) -> bool {
        self.skip_modules.iter().any(|name| {
            module.starts_with(name.as_str())
                || module.ends_with(name.as_str())
                || module.contains(&format!("{name}."))
        })
    }
}

/// Number of quantized weights, and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuantizedSize {
    /// Number of quantized weights.
    pub numbers: u64,
    /// Size of codes and scales in bytes.
    pub bytes: u64,
}

impl ModelConfig {
    /// Returns the quantization of the linear layer with this full name; `None` where it is not quantized.
    pub fn quantization_of(&self, module: &str) -> Option<&Quantization> {
        self.quantization.as_ref().filter(|quantization| !quantization.skips(module))
    }

    /// Counts the quantized weights of a layer.
    pub fn quantized_in_layer(&self, layer_idx: usize) -> QuantizedSize {
        let quantized = |sum: QuantizedSize, shape: ProjectionShape| {
            let module = format!("model.layers.{layer_idx}.{}", shape.name);
            let size = [shape.out_features, shape.in_features];
            self.quantization_of(&module).map_or(sum, |quantization| QuantizedSize {
                numbers: sum.numbers + (size[0] * size[1]) as u64,
                bytes: sum.bytes + quantization.num_bytes(size),
            })
        };
        self.projections(layer_idx).into_iter().fold(QuantizedSize::default(), quantized)
    }

    /// Counts the quantized weights of all layers.
    pub fn quantized(&self) -> QuantizedSize {
        let layers = (0..self.num_layers).map(|layer_idx| self.quantized_in_layer(layer_idx));
        layers.fold(QuantizedSize::default(), |sum, layer| QuantizedSize {
            numbers: sum.numbers + layer.numbers,
            bytes: sum.bytes + layer.bytes,
        })
    }

    /// Applies the job's quantization; returns the model unchanged if `spec` is `None`.
    ///
    /// # Errors
    /// [`ModelConfigError::Unsupported`] for experts and latent attention, and
    /// [`ModelConfigError::InvalidField`] where the checkpoint is quantized otherwise.
    pub fn with_quantization(mut self, spec: Option<&QuantizationSpec>) -> Result<Self, ModelConfigError> {
        let Some(spec) = spec else { return Ok(self) };
        let mut wanted = Quantization::new(spec);
        if let Some(stored) = &self.quantization {
            let differs = |field: &str, expected: String, got: String| ModelConfigError::InvalidField {
                field: format!("quantization_config.{field}"),
                expected: format!("{expected} by spec.model.quantization"),
                got,
            };
            if stored.format != wanted.format {
                let [expected, got] = [wanted.format, stored.format].map(|format| format!("{format:?}"));
                return Err(differs("bnb_4bit_quant_type", expected, got));
            }
            if stored.double != wanted.double {
                let [expected, got] = [wanted.double, stored.double].map(|double| double.to_string());
                return Err(differs("bnb_4bit_use_double_quant", expected, got));
            }
            if !wanted.skip_modules.is_empty() && stored.skip_modules != wanted.skip_modules {
                let [expected, got] =
                    [&wanted.skip_modules, &stored.skip_modules].map(|names| format!("{names:?}"));
                return Err(differs("llm_int8_skip_modules", expected, got));
            }
            // The block size is only known after the files have been read.
            if stored.stored.is_some() && stored.block_size != wanted.block_size {
                let [expected, got] = [wanted.block_size, stored.block_size].map(|size| size.to_string());
                return Err(differs("blocksize", expected, got));
            }
            wanted = Quantization { block_size: wanted.block_size, ..stored.clone() };
        }
        self.quantization = Some(wanted);
        refuse_unquantizable(&self)?;
        Ok(self)
    }
}

/// Refuses the parts of a model that conflict with quantized weights: experts, which use grouped matrix
/// products, and latent attention, which multiplies by slices of its weights. No kernel for either reads
/// codes.
fn refuse_unquantizable(config: &ModelConfig) -> Result<(), ModelConfigError> {
    let Some(quantization) = &config.quantization else { return Ok(()) };
    let facts = config.facts();
    let all = || parts_against(Fact::Quantized);
    let own: Vec<_> = all().filter(|conflict| conflict.is_met(&facts)).map(Conflict::part).collect();
    if own.is_empty() {
        return Ok(());
    }
    let (format, family) = (quantization.format, config.family);
    Err(ModelConfigError::Unsupported {
        field: "quantization_config".to_owned(),
        got: format!("{format:?} weights of {family:?}, which has {},", own.join(" and ")),
        supported: format!("models without {}", all().map(Conflict::part).collect::<Vec<_>>().join(" and ")),
    })
}

fn has_clamped_experts(config: &ModelConfig) -> bool {
    config.experts.as_ref().is_some_and(|experts| experts.form == ExpertForm::Clamped)
}

/// Reads the `quantization_config` of bitsandbytes, the only format whose weights stay quantized.
pub(super) fn read(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
    if fields.get("quantization_config").is_none_or(Value::is_null) {
        return Ok(());
    }
    let own = fields.object("quantization_config")?;
    match own.text("quant_method")? {
        Some("bitsandbytes") | None => {}
        // MXFP4 weights are dequantized when they are read, so the model counts as unquantized.
        Some("mxfp4") if has_clamped_experts(config) => return Ok(()),
        Some(_) => return Err(own.unsupported("quant_method", "bitsandbytes")),
    }
    let flag = |name: &str| own.flag(name).map(Option::unwrap_or_default);
    let format = match (flag("load_in_4bit")?, flag("load_in_8bit")?, own.text("bnb_4bit_quant_type")?) {
        (true, false, Some("nf4")) => QuantizationFormat::Nf4,
        // transformers' default.
        (true, false, Some("fp4") | None) => QuantizationFormat::Fp4,
        (true, false, Some(_)) => return Err(own.unsupported("bnb_4bit_quant_type", "nf4, fp4")),
        (false, true, _) => QuantizationFormat::Int8,
        _ => return Err(own.invalid("load_in_4bit", "either load_in_4bit or load_in_8bit to be true")),
    };
    if flag("llm_int8_has_fp16_weight")? {
        return Err(own.unsupported("llm_int8_has_fp16_weight", "false"));
    }
    let names = own.list("llm_int8_skip_modules")?.unwrap_or_default().iter().map(|name| {
        let plain =
            |name: &&str| name.chars().all(|char| char.is_ascii_alphanumeric() || "_.".contains(char));
        let name = name.as_str().filter(plain);
        name.map(str::to_owned)
            .ok_or_else(|| own.unsupported("llm_int8_skip_modules", "plain names of modules"))
    });
    config.quantization = Some(Quantization {
        format,
        block_size: 64,
        double: format != QuantizationFormat::Int8 && flag("bnb_4bit_use_double_quant")?,
        skip_modules: names.collect::<Result<_, _>>()?,
        is_stored: true,
        stored: None,
    });
    refuse_unquantizable(config)
}
