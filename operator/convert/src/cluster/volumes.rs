//! Volumes of a pod with their mounts in one container.

use serde_json::{Value, json};

use super::fields::Target;

/// Folders of a worker that a job cannot mount over.
const RESERVED: [&str; 6] = ["/storage", "/tmp", "/etc/rltraining", "/dev", "/proc", "/sys"];

/// Converts the mounts of a container, whose path is `path`, with the pod's volumes that they name.
pub(super) fn convert(volumes: &Value, mounts: &Value, path: &str, target: &mut Target<'_>) {
    for mount in mounts.as_array().into_iter().flatten() {
        let name = mount["name"].as_str().unwrap_or_default();
        let key = format!("{path}.{name}");
        let volume = volumes.as_array().into_iter().flatten().find(|volume| volume["name"] == name);
        let folder = mount["mountPath"].as_str().unwrap_or_default().trim_end_matches('/');
        match volume {
            Some(volume) => one(volume, mount, folder, &key, target),
            None => target.absent(&key, &mount["mountPath"], "the file has no volume of this name"),
        }
    }
}

fn one(volume: &Value, mount: &Value, folder: &str, key: &str, target: &mut Target<'_>) {
    let given = &mount["mountPath"];
    let claim = volume["persistentVolumeClaim"]["claimName"].as_str();
    if mount.get("subPath").is_some() || mount.get("subPathExpr").is_some() {
        target.absent(key, given, "say it in workers.podTemplate, which mounts parts of a volume");
    } else if let Some(claim) = claim.filter(|_| folder == "/storage") {
        target.set(key, given, "workers.storage.claimName", claim);
    } else if volume.get("emptyDir").is_some() && matches!(folder, "/dev/shm" | "/tmp") {
        empty(volume, given, folder, key, target);
    } else if RESERVED.iter().any(|own| folder == *own || folder.starts_with(&format!("{own}/"))) {
        let reason = "the folder is the operator's: mount the volume elsewhere by workers.pod.volumes";
        target.absent(key, given, reason);
    } else if let Some(converted) = converted(volume, mount, folder) {
        target.extend(key, given, "workers.pod.volumes", vec![converted]);
    } else {
        let reason =
            "say an ephemeral volume or a claim in workers.pod.volumes, or the volume in workers.podTemplate";
        target.absent(key, given, reason);
    }
}

/// Converts an empty folder at `/dev/shm` or `/tmp`, which workers have by default.
fn empty(volume: &Value, given: &Value, folder: &str, key: &str, target: &mut Target<'_>) {
    match volume["emptyDir"]["sizeLimit"].as_str() {
        Some(size) if folder == "/dev/shm" => {
            target.set(key, given, "workers.resources.sharedMemory", size);
        }
        _ => target.inherent(key, given, "workers have this folder"),
    }
}

/// Converts a volume to the form of `workers.pod.volumes`; `None` if its source is not supported.
fn converted(volume: &Value, mount: &Value, folder: &str) -> Option<Value> {
    let source = |kind: &str, field: &str| volume[kind][field].as_str().map(str::to_owned);
    let plain = [
        ("claimName", source("persistentVolumeClaim", "claimName")),
        ("configMap", source("configMap", "name")),
        ("secret", source("secret", "secretName")),
        ("image", source("image", "reference")),
    ];
    let mut converted = json!({"mountPath": folder});
    match plain.into_iter().find_map(|(field, name)| Some((field, name?))) {
        Some((field, name)) => converted[field] = name.into(),
        None => {
            let claim = &volume["ephemeral"]["volumeClaimTemplate"]["spec"];
            converted["ephemeral"] = json!({"size": claim["resources"]["requests"]["storage"].as_str()?});
            if let Some(class) = claim["storageClassName"].as_str() {
                converted["ephemeral"]["storageClassName"] = class.into();
            }
        }
    }
    // Selected keys of a ConfigMap or Secret have no equivalent.
    let chooses = ["configMap", "secret"].iter().any(|kind| volume[*kind].get("items").is_some());
    let is_read_only = mount["readOnly"] == true || volume["persistentVolumeClaim"]["readOnly"] == true;
    if is_read_only {
        converted["readOnly"] = true.into();
    }
    (!chooses && folder.len() > 1).then_some(converted)
}
