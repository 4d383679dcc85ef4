//! Resources of a container: cores, memory, GPUs and others.

use serde_json::{Map, Value};

use super::fields::Target;
use crate::settings::{number, text_of};

/// Resource of NVIDIA's GPUs, which workers request by default.
const GPU: &str = "nvidia.com/gpu";
/// Parts of the names of accelerators that no job can request.
const OTHER_ACCELERATORS: [&str; 7] =
    ["amd.com/", "intel.com/", "google.com/tpu", "habana.ai/", "huawei.com/", "neuron", "tenstorrent.com/"];

/// Returns the number of GPUs that the resources of a container request.
pub(super) fn num_gpus(resources: &Value) -> u64 {
    let amounts = amounts(resources);
    amounts.iter().find(|(name, _)| name.starts_with("nvidia.com/")).map_or(0, |(_, amount)| count(amount))
}

/// Returns a count of a manifest, which may also be written as a text.
pub(super) fn count(amount: &Value) -> u64 {
    let number = number(text_of(amount).trim());
    number.and_then(|number| number.as_u64()).unwrap_or_default()
}

/// Returns the amount of each resource: its limit, else its request.
fn amounts(resources: &Value) -> Map<String, Value> {
    let of = |kind: &str| resources[kind].as_object().cloned().unwrap_or_default();
    let mut amounts = of("requests");
    amounts.extend(of("limits"));
    amounts
}

/// Converts the resources of a container, whose path is `path`.
pub(super) fn convert(resources: &Value, path: &str, target: &mut Target<'_>) {
    let mut extra = Map::new();
    for (name, amount) in amounts(resources) {
        let key = format!("{path}.{name}");
        match name.as_str() {
            // A worker requests cores and has no limit of them.
            "cpu" => {
                let request = resources["requests"].get("cpu").unwrap_or(&amount);
                target.set(&key, request, "workers.resources.cpu", text_of(request));
            }
            "memory" => target.set(&key, &amount, "workers.resources.memory", text_of(&amount)),
            GPU => target.inherent(&key, &amount, "each rank has a GPU: workers.ranksPerWorker"),
            name if name.starts_with("nvidia.com/") => {
                target.set(&key, &amount, "workers.resources.gpu", name);
            }
            name if OTHER_ACCELERATORS.iter().any(|other| name.contains(other)) => {
                target.absent(&key, &amount, "there are CPUs and GPUs of NVIDIA: workers.device");
            }
            name => {
                extra.insert(name.to_owned(), text_of(&amount).into());
            }
        }
    }
    target.merge(path, resources, "workers.resources.extra", extra);
}
