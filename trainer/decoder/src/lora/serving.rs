//! Reasons why vLLM cannot serve an exported adapter without merging it: settings that its `peft_helper`
//! refuses, and those that it silently ignores. Merged weights have no such limits.

use rlt_models::OutputHead;

use super::LoraConfig;
use crate::decoder::Decoder;

/// Default of vLLM's `--max-lora-rank`.
const MAX_RANK_OF_VLLM: usize = 16;

impl Decoder {
    /// Reasons why vLLM cannot serve the attached adapter, or only with a flag; empty if it can.
    pub fn not_served_by_vllm(&self) -> Vec<String> {
        let Some(config) = &self.lora else { return Vec::new() };
        let refused = [
            (config.dora, "it refuses DoRA (`use_dora`)"),
            (self.config.head != OutputHead::Vocabulary, "it refuses a head next to it (`modules_to_save`)"),
            (
                !config.modules_to_save.is_empty(),
                "it refuses modules that are trained whole (`modules_to_save`)",
            ),
            (config.has_several_scalings(), "it scales all modules alike, whatever their `alpha_pattern`"),
            (!config.target_parameters.is_empty(), "it reads no adapters of experts in this layout"),
        ];
        let refused = refused.into_iter().filter(|(is_so, _)| *is_so).map(|(_, why)| why.to_owned());
        let rank = config.patterns.ranks.iter().map(|(_, rank)| *rank).fold(config.rank, usize::max);
        let adapts_tower = self.tower_projections().any(|projection| projection.lora.is_some());
        let tower = adapts_tower
            .then(|| "it adapts no vision tower without `--enable-tower-connector-lora`".to_owned());
        let flag = (rank > MAX_RANK_OF_VLLM).then(|| format!("it needs `--max-lora-rank {rank}`"));
        refused.chain(tower).chain(flag).collect()
    }
}

impl LoraConfig {
    /// Whether patterns give some module another scaling than most have.
    fn has_several_scalings(&self) -> bool {
        let others = self.patterns.ranks.iter().map(|(_, rank)| self.scaling_of(*rank, self.alpha));
        let others =
            others.chain(self.patterns.alphas.iter().map(|(_, alpha)| self.scaling_of(self.rank, *alpha)));
        others.into_iter().any(|scaling| scaling != self.scaling())
    }
}

#[cfg(test)]
mod tests {
    use rlt_api::spec::LoraSpec;
    use rlt_models::ModelConfig;
    use serde_json::json;

    use crate::{Decoder, LoadOptions};

    fn not_served(spec: &LoraSpec) -> Vec<String> {
        let config = ModelConfig::from_json(&json!({
            "architectures": ["Qwen2ForCausalLM"], "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2
        }));
        let mut decoder = Decoder::from_config(&config.unwrap(), 7, &LoadOptions::default()).unwrap();
        decoder.attach_lora_spec(spec, 1).unwrap();
        decoder.not_served_by_vllm()
    }

    #[test]
    fn each_thing_that_vllm_does_not_serve_is_named() {
        let plain = LoraSpec::default();
        assert_eq!(not_served(&plain), [""; 0]);
        assert_eq!(not_served(&LoraSpec { rank_stabilized: true, ..plain.clone() }), [""; 0]);
        let all = LoraSpec {
            dora: true,
            rank: 24,
            rank_pattern: [("q_proj".to_owned(), 32)].into(),
            ..plain.clone()
        };
        let named = not_served(&all);
        assert_eq!(named.len(), 3);
        assert!(named[0].contains("DoRA") && named[1].contains("alpha_pattern"));
        assert_eq!(named[2], "it needs `--max-lora-rank 32`");
        // The same scaling by another rank and alpha is no other scaling.
        let same = LoraSpec { alpha_pattern: [("q_proj".to_owned(), plain.alpha)].into(), ..plain };
        assert_eq!(not_served(&same), [""; 0]);
    }
}
