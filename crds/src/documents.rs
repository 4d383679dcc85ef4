//! Documents: manifests, their YAML and quantities, and how one document is merged into another.

pub(super) mod manifest;
pub(super) mod overlay;
pub(super) mod quantity;
pub(super) mod yaml;
