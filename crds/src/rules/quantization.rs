//! Rules of `spec.model.quantization`.

use super::{Check, Rule};
use crate::plan::model_config::BLOCK_SIZES;
use crate::spec::{LoraInit, QuantizationFormat, QuantizationSpec, RLTrainingJobSpec};

fn quantization(spec: &RLTrainingJobSpec, holds: fn(&QuantizationSpec) -> bool) -> bool {
    spec.model.quantization.as_ref().is_none_or(holds)
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.model",
        at: "quantization",
        reads: &["quantization", "lora"],
        message: "quantized weights are frozen: model.lora must be given, full-parameter training needs 16 or 32 bits",
        cel: || "!has(self.quantization) || has(self.lora)".into(),
        holds: Check::Spec(|spec| spec.model.quantization.is_none() || spec.model.lora.is_some()),
        allowed: None,
    },
    Rule {
        scope: "spec.model",
        at: "lora.dora",
        reads: &["quantization", "lora.dora"],
        message: "DoRA of quantized weights is not sampled from yet: dora must be false",
        cel: || "!has(self.quantization) || !has(self.lora) || !self.lora.dora".into(),
        holds: Check::Spec(|spec| {
            let has_dora = spec.model.lora.as_ref().is_some_and(|lora| lora.dora);
            spec.model.quantization.is_none() || !has_dora
        }),
        allowed: None,
    },
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
    Rule {
        scope: "spec.model",
        at: "lora.merge",
        reads: &["quantization", "lora.merge"],
        message: "the rollout folds no adapter into quantized weights: merge must not be true",
        cel: || {
            "!has(self.quantization) || !has(self.lora) || !has(self.lora.merge) || !self.lora.merge".into()
        },
        holds: Check::Spec(|spec| {
            let merges = spec.model.lora.as_ref().is_some_and(|lora| lora.merge == Some(true));
            spec.model.quantization.is_none() || !merges
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.model",
        at: "quantization",
        reads: &["quantization", "architecture.experts"],
        message: "experts cannot be quantized yet",
        cel: || {
            "!has(self.quantization) || !has(self.architecture) || !has(self.architecture.experts)".into()
        },
        holds: Check::Spec(|spec| {
            let experts = spec.model.architecture.as_ref().and_then(|shape| shape.experts);
            spec.model.quantization.is_none() || experts.is_none()
        }),
        allowed: None,
    },
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
    Rule {
        scope: "spec",
        at: "workers.mesh.rolloutTp",
        reads: &["model.quantization", "workers.mesh.rolloutTp"],
        message: "with model.quantization each rank samples alone: rolloutTp must be 1",
        cel: || "!has(self.model.quantization) || self.workers.mesh.rolloutTp == 1".into(),
        holds: Check::Spec(|spec| spec.model.quantization.is_none() || spec.workers.mesh.rollout_tp == 1),
        allowed: None,
    },
];
