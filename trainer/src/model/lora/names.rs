//! PEFT's names of an adapter's files and of the matrices in them.

/// Name of the file with an adapter's configuration.
pub(super) const CONFIG_FILE: &str = "adapter_config.json";
/// Name of the file with an adapter's matrices.
pub(super) const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// PEFT's prefix of the names of a model's parameters.
pub(crate) const ADAPTED_MODEL: &str = "base_model.model.";

/// PEFT's names of a projection's matrices A and B.
pub(crate) fn peft_names(projection: &str) -> [String; 2] {
    ["A", "B"].map(|matrix| format!("{ADAPTED_MODEL}{projection}.lora_{matrix}.weight"))
}

/// PEFT's name of the magnitudes of a projection.
pub(in crate::model) fn magnitudes_name(projection: &str) -> String {
    format!("{ADAPTED_MODEL}{projection}.lora_magnitude_vector")
}
