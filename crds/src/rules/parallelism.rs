//! The rules of how ranks share the work, in sections. Here is what several sections read; a rule is in the
//! file of its section. Resources of nodes are not checked.

mod degrees;
mod experts;
mod heads;
mod tensor_parallel;
mod unused;

use super::Rule;
use crate::spec::{MeshSpec, RLTrainingJobSpec};

/// The sections, in the order of the definition.
pub(super) const SECTIONS: [&[Rule]; 6] =
    [degrees::RULES, tensor_parallel::RULES, experts::RULES, degrees::OF_ROLES, unused::RULES, heads::RULES];

/// Query and key heads of a new model; those of others are known where their files are.
fn heads(spec: &RLTrainingJobSpec) -> Option<(u64, u64)> {
    let shape = spec.model.architecture.as_ref()?;
    Some((shape.num_heads.into(), shape.kv_heads().into()))
}

/// The width of its feed-forward block.
fn feed_forward_width(spec: &RLTrainingJobSpec) -> Option<u64> {
    spec.model.architecture.as_ref().map(|shape| shape.intermediate_size.into())
}

/// That a degree is 1, or another field's. One that has a default the API server fills in.
fn cel_is_one(path: &str, degree: fn(&MeshSpec) -> Option<u32>) -> String {
    match degree(&MeshSpec::default()) {
        Some(_) => format!("{path} == 1"),
        None => format!("!has({path}) || {path} == 1"),
    }
}

/// The number of ranks.
const NUM_RANKS: &str = "(self.count * self.ranksPerWorker)";

/// That a degree is not given, and follows another field; nothing where the API server fills it in.
fn given_default(degree: fn(&MeshSpec) -> Option<u32>, path: &str) -> String {
    match degree(&MeshSpec::default()) {
        Some(_) => String::new(),
        None => format!("!has({path}) || "),
    }
}

/// A degree of the mesh; `None` where it is another field's.
fn given(spec: &RLTrainingJobSpec, degree: fn(&MeshSpec) -> Option<u32>) -> Option<u32> {
    degree(&spec.workers.mesh)
}
