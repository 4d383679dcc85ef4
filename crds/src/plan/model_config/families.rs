//! Model families: their class names, the defaults of their configuration classes in transformers 5, and
//! their differences from Llama. A family is a file, in this folder or in that of its maker, and an entry of
//! [`FAMILIES`].

mod cohere;
mod cohere2;
mod deepseek;
mod definition;
mod ernie4_5;
mod exaone4;
mod gemma;
mod gemma2;
mod gemma3;
mod glm;
mod glm4;
mod gpt_oss;
mod granite;
mod llama;
mod mistralai;
mod olmo;
mod phi3;
mod qwen;
mod seed_oss;
mod smollm3;

use super::Family;
pub(super) use definition::Defaults;
use definition::{Definition, nothing, read_attention_bias, write_attention_bias};

/// All families, in the order in which errors list them.
const FAMILIES: &[(Family, &Definition)] = &[
    (Family::Llama, &llama::LLAMA),
    (Family::Mistral, &mistralai::mistral::MISTRAL),
    (Family::Ministral, &mistralai::ministral::MINISTRAL),
    (Family::Qwen2, &qwen::qwen2::QWEN2),
    (Family::Qwen2Vl, &qwen::qwen2_vl::QWEN2_VL),
    (Family::Qwen25Vl, &qwen::qwen2_vl::QWEN2_5_VL),
    (Family::Qwen3, &qwen::qwen3::QWEN3),
    (Family::Qwen3Vl, &qwen::qwen3_vl::QWEN3_VL),
    (Family::Gemma, &gemma::GEMMA),
    (Family::Gemma2, &gemma2::GEMMA2),
    (Family::Gemma3, &gemma3::GEMMA3),
    (Family::Phi3, &phi3::PHI3),
    (Family::Olmo2, &olmo::olmo2::OLMO2),
    (Family::Olmo3, &olmo::olmo3::OLMO3),
    (Family::Granite, &granite::GRANITE),
    (Family::SmolLm3, &smollm3::SMOLLM3),
    (Family::Glm, &glm::GLM),
    (Family::Glm4, &glm4::GLM4),
    (Family::SeedOss, &seed_oss::SEED_OSS),
    (Family::Cohere, &cohere::COHERE),
    (Family::Cohere2, &cohere2::COHERE2),
    (Family::Exaone4, &exaone4::EXAONE4),
    (Family::Ernie45, &ernie4_5::ERNIE4_5),
    (Family::Mixtral, &mistralai::mixtral::MIXTRAL),
    (Family::Qwen2Moe, &qwen::qwen2_moe::QWEN2_MOE),
    (Family::Qwen3Moe, &qwen::qwen3_moe::QWEN3_MOE),
    (Family::GptOss, &gpt_oss::GPT_OSS),
    (Family::DeepseekV2, &deepseek::deepseek_v2::DEEPSEEK_V2),
    (Family::DeepseekV3, &deepseek::deepseek_v3::DEEPSEEK_V3),
];

impl Family {
    /// Yields all families, in the order in which errors list them.
    pub fn all() -> impl Iterator<Item = Self> {
        FAMILIES.iter().map(|(family, _)| *family)
    }

    /// Class name in `architectures`.
    pub fn architecture(self) -> &'static str {
        self.definition().architecture
    }

    /// Class name of the sequence classifier with the same body.
    pub fn classifier(self) -> &'static str {
        self.definition().classifier
    }

    /// `model_type` of the configuration.
    pub fn model_type(self) -> &'static str {
        self.definition().model_type
    }

    /// Whether transformers has classifiers with bodies of this family.
    pub fn has_classifier(self) -> bool {
        !matches!(self, Self::Cohere | Self::Cohere2 | Self::Ernie45 | Self::Qwen3Vl)
    }

    /// Whether models of the family have a vision tower.
    pub fn has_vision(self) -> bool {
        matches!(self, Self::Qwen2Vl | Self::Qwen25Vl | Self::Qwen3Vl)
    }

    /// Whether layers of the family may have a sliding window.
    pub fn has_windows(self) -> bool {
        !matches!(
            self,
            Self::Llama
                | Self::Gemma
                | Self::Olmo2
                | Self::Granite
                | Self::Glm
                | Self::Glm4
                | Self::SeedOss
                | Self::Cohere
                | Self::Ernie45
                | Self::DeepseekV2
                | Self::DeepseekV3
                | Self::Qwen3Vl
        )
    }

    pub(super) fn definition(self) -> &'static Definition {
        let own = FAMILIES.iter().find(|(family, _)| *family == self);
        own.map_or(&llama::LLAMA, |(_, definition)| definition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_of_the_manifest_has_one_definition() {
        let schema = serde_json::to_value(schemars::schema_for!(Family)).unwrap_or_default().to_string();
        for (family, _) in FAMILIES {
            assert!(schema.contains(&format!("\"{family:?}\"")), "{family:?}");
            assert_eq!(FAMILIES.iter().filter(|(other, _)| other == family).count(), 1, "{family:?}");
        }
        assert_eq!(schema.matches("\"const\"").count(), FAMILIES.len(), "{schema}");
    }
}
