//! Rules of `spec.model.quantization`.

use crate::conflicts::{
    QUANTIZED_DORA, QUANTIZED_EXPERTS, QUANTIZED_MERGED, QUANTIZED_ROLLOUT_TP, QUANTIZED_TRAINED,
};
use crate::rules::{Check, Rule, conflict};
use crate::spec::{BLOCK_SIZES, LoraInit, QuantizationFormat, QuantizationSpec, RLTrainingJobSpec};

fn quantization(spec: &RLTrainingJobSpec, holds: fn(&QuantizationSpec) -> bool) -> bool {
    spec.model.quantization.as_ref().is_none_or(holds)
}

pub(in crate::rules) const RULES: &[Rule] = &[
    conflict(QUANTIZED_TRAINED),
    conflict(QUANTIZED_DORA),
    Rule {
        scope: "spec.model",
        at: "lora.init",
        reads: &["quantization", "lora.init"],
        message: "init Loftq starts from what quantization takes from the weights: model.quantization must be given",
        cel: || "!has(self.lora) || self.lora.init != 'Loftq' || has(self.quantization)".into(),
        holds: Check::Spec(|spec| {
            let is_loftq = spec.model.lora.as_ref().is_some_and(|lora| lora.init == LoraInit::Loftq);
            !is_loftq || spec.model.quantization.is_some()
        }),
        allowed: Some(|_| "Peft, Gaussian, Orthogonal, Xavier".into()),
    },
    conflict(QUANTIZED_MERGED),
    conflict(QUANTIZED_EXPERTS),
    Rule {
        scope: "spec.model.quantization",
        at: "blockSize",
        reads: &["blockSize"],
        message: "blockSize must be a power of two from 32 to 4096",
        cel: || format!("self.blockSize in {BLOCK_SIZES:?}"),
        holds: Check::Spec(|spec| quantization(spec, |own| BLOCK_SIZES.contains(&own.block_size))),
        allowed: Some(|_| format!("one of {}", BLOCK_SIZES.map(|size| size.to_string()).join(", "))),
    },
    Rule {
        scope: "spec.model.quantization",
        at: "format",
        reads: &["format", "blockSize", "doubleQuantization"],
        message: "Int8 has one scale a row: blockSize and doubleQuantization are for Nf4 and Fp4",
        cel: || "self.format != 'Int8' || (self.blockSize == 64 && !self.doubleQuantization)".into(),
        holds: Check::Spec(|spec| {
            quantization(spec, |own| {
                let is_default = own.block_size == 64 && !own.double_quantization;
                own.format != QuantizationFormat::Int8 || is_default
            })
        }),
        allowed: None,
    },
    conflict(QUANTIZED_ROLLOUT_TP),
];
