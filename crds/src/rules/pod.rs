//! The rules of `spec.workers.pod` and of resources by name.

use super::{Check, Rule};
use crate::quantity::is_positive_quantity;
use crate::spec::{RLTrainingJobSpec, VolumeSpec};

/// Folders of a worker that nobody else may mount over, nor below.
const RESERVED_FOLDERS: [&str; 6] = ["/storage", "/tmp", "/etc/rltraining", "/dev", "/proc", "/sys"];
/// Labels and annotations of the operator.
const OWN_PREFIX: &str = "rltraining.dev/";

fn all_volumes(spec: &RLTrainingJobSpec, holds: impl Fn(&VolumeSpec) -> bool) -> bool {
    spec.workers.pod.volumes.iter().all(holds)
}

fn is_free_folder(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let is_plain = path.starts_with('/') && parts.iter().all(|part| !["", ".", ".."].contains(part));
    let is_below = |folder: &&str| path == *folder || path.starts_with(&format!("{folder}/"));
    is_plain && !path.contains(':') && !RESERVED_FOLDERS.iter().any(is_below)
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.workers.resources.extra",
        at: "",
        reads: &[""],
        message: "extra resources are quantities by a name other than cpu and memory, which have fields of their own",
        cel: || {
            "self.all(name, !(name in ['cpu', 'memory']) && isQuantity(self[name]) && \
             quantity(self[name]).isGreaterThan(quantity('0')))"
                .into()
        },
        holds: Check::Spec(|spec| {
            let extra = &spec.workers.resources.extra;
            extra.iter().all(|(name, amount)| {
                !["cpu", "memory"].contains(&name.as_str()) && is_positive_quantity(amount)
            })
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.pod",
        at: "labels",
        reads: &["labels", "annotations"],
        message: "labels and annotations that begin with rltraining.dev/ are set by the operator",
        cel: || {
            let own = format!("name.startsWith('{OWN_PREFIX}')");
            format!("!self.labels.exists(name, {own}) && !self.annotations.exists(name, {own})")
        },
        holds: Check::Spec(|spec| {
            let pod = &spec.workers.pod;
            !pod.labels.keys().chain(pod.annotations.keys()).any(|name| name.starts_with(OWN_PREFIX))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.pod.volumes",
        at: "",
        reads: &["[].claimName", "[].ephemeral", "[].configMap", "[].secret", "[].image"],
        message: "a volume has one source: claimName, ephemeral, configMap, secret or image",
        cel: || {
            "self.all(one, [has(one.claimName), has(one.ephemeral), has(one.configMap), has(one.secret), \
             has(one.image)].filter(given, given).size() == 1)"
                .into()
        },
        holds: Check::Spec(|spec| all_volumes(spec, |volume| volume.num_sources() == 1)),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.pod.volumes",
        at: "",
        reads: &["[].mountPath"],
        message: "volumes are mounted at different folders",
        cel: || "self.all(one, self.exists_one(other, other.mountPath == one.mountPath))".into(),
        holds: Check::Spec(|spec| {
            let volumes = &spec.workers.pod.volumes;
            let is_first =
                |idx: usize| volumes[..idx].iter().all(|other| other.mount_path != volumes[idx].mount_path);
            (0..volumes.len()).all(is_first)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.pod.volumes",
        at: "",
        reads: &["[].mountPath"],
        message: "a volume is mounted at an absolute path without . or .., outside of /storage, /tmp, /etc/rltraining, \
                  /dev, /proc and /sys",
        cel: || {
            let is_plain = "one.mountPath.matches('^(/[^/:]+)+$') && !one.mountPath.matches('/[.][.]?(/|$)')";
            let folders = RESERVED_FOLDERS.join("|");
            format!("self.all(one, {is_plain} && !one.mountPath.matches('^({folders})(/|$)'))")
        },
        holds: Check::Spec(|spec| all_volumes(spec, |volume| is_free_folder(&volume.mount_path))),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.pod.volumes",
        at: "",
        reads: &["[].ephemeral.size"],
        message: "the size of an ephemeral volume must be a quantity of Kubernetes",
        cel: || {
            "self.all(one, !has(one.ephemeral) || isQuantity(one.ephemeral.size) && \
             quantity(one.ephemeral.size).isGreaterThan(quantity('0')))"
                .into()
        },
        holds: Check::Spec(|spec| {
            let size =
                |volume: &VolumeSpec| volume.ephemeral.as_ref().map(|ephemeral| ephemeral.size.clone());
            all_volumes(spec, |volume| size(volume).is_none_or(|size| is_positive_quantity(&size)))
        }),
        allowed: None,
    },
];
