//! Model families: their class names, the defaults of their configuration classes in transformers 5, and
//! their differences from Llama. A family is a file, in this folder or in that of its maker, and a line of
//! the list in `spec/families.rs`.

mod cohere_labs;
mod deepseek;
mod definition;
mod ernie4_5;
mod exaone4;
mod google;
mod gpt_oss;
mod granite;
mod llama;
mod mistralai;
mod olmo;
mod phi3;
mod qwen;
mod seed_oss;
mod smollm3;
mod zai_org;

use super::Family;
use crate::spec::model_families;
pub(super) use definition::Defaults;
use definition::{Definition, nothing, read_attention_bias, write_attention_bias};

macro_rules! table_of_definitions {
    ($($(#[$doc:meta])* $family:ident: $($definition:ident)::+,)*) => {
        /// All families, in the order in which errors list them.
        const FAMILIES: &[(Family, &Definition)] = &[$((Family::$family, &$($definition)::+)),*];
    };
}

model_families!(table_of_definitions);

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
        self.definition().has_classifier
    }

    /// Whether models of the family have a vision tower.
    pub fn has_vision(self) -> bool {
        matches!(self, Self::Qwen2Vl | Self::Qwen25Vl | Self::Qwen3Vl)
    }

    /// Whether layers of the family may have a sliding window.
    pub fn has_windows(self) -> bool {
        self.definition().has_windows
    }

    pub(super) fn definition(self) -> &'static Definition {
        let own = FAMILIES.iter().find(|(family, _)| *family == self);
        own.map_or(&llama::LLAMA, |(_, definition)| definition)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_families_share_a_class_or_a_model_type() {
        let names: BTreeSet<&str> = FAMILIES
            .iter()
            .flat_map(|(_, family)| [family.architecture, family.classifier, family.model_type])
            .collect();
        assert_eq!(names.len(), 3 * FAMILIES.len(), "{names:?}");
    }
}
