//! Fields that the rules of several sections of parallelism read, and the parts that their conditions share.

use crate::spec::{MeshSpec, RLTrainingJobSpec};

/// Query and key heads of a newly initialized model; `None` for others, which are checked once their files
/// are read.
pub(super) fn heads(spec: &RLTrainingJobSpec) -> Option<(u64, u64)> {
    let shape = spec.model.architecture.as_ref()?;
    Some((shape.num_heads.into(), shape.kv_heads().into()))
}

/// Feed-forward width of a newly initialized model; `None` for others.
pub(super) fn feed_forward_width(spec: &RLTrainingJobSpec) -> Option<u64> {
    spec.model.architecture.as_ref().map(|shape| shape.intermediate_size.into())
}

/// CEL condition that a degree is 1 or absent. The API server fills in a degree that has a default.
pub(super) fn cel_is_one(path: &str, degree: fn(&MeshSpec) -> Option<u32>) -> String {
    match degree(&MeshSpec::default()) {
        Some(_) => format!("{path} == 1"),
        None => format!("!has({path}) || {path} == 1"),
    }
}

/// CEL expression of the number of ranks.
pub(super) const NUM_RANKS: &str = "(self.count * self.ranksPerWorker)";

/// CEL prefix that accepts an absent degree, which follows another field; empty for a degree with a default.
pub(super) fn given_default(degree: fn(&MeshSpec) -> Option<u32>, path: &str) -> String {
    match degree(&MeshSpec::default()) {
        Some(_) => String::new(),
        None => format!("!has({path}) || "),
    }
}

/// Returns a degree of the mesh; `None` if it follows another field.
pub(super) fn given(spec: &RLTrainingJobSpec, degree: fn(&MeshSpec) -> Option<u32>) -> Option<u32> {
    degree(&spec.workers.mesh)
}
