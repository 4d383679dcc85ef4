//! Model families: their class names, the defaults of their configuration classes in transformers 5, and
//! their differences from Llama. A family is a file, in this folder or in that of its maker, and a line of
//! the list in `crds/src/spec/families.rs`.

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
pub(super) use definition::{Defaults, Definition};
use definition::{nothing, read_attention_bias, write_attention_bias};
use rlt_api::model_families;

macro_rules! table_of_definitions {
    ($($(#[$doc:meta])* $family:ident: $($definition:ident)::+,)*) => {
        /// All families, in the order in which errors list them.
        const FAMILIES: &[(Family, &Definition)] = &[$((Family::$family, &$($definition)::+)),*];
    };
}

model_families!(table_of_definitions);

/// Returns the names and defaults of a family, and its differences from Llama.
pub(crate) fn definition(family: Family) -> &'static Definition {
    let entry = FAMILIES.iter().find(|(listed, _)| *listed == family);
    entry.map_or(&llama::LLAMA, |(_, definition)| definition)
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
