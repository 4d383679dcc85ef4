//! Rules of `spec.workers.pod` and of named resources.

use super::super::{Check, Rule};
use crate::quantity::is_positive_quantity;
use crate::spec::{RLTrainingJobSpec, ResourceClaimSpec, VolumeSpec};

/// Folders of a worker that a job may not mount over, above or below.
const RESERVED_FOLDERS: [&str; 6] = ["/storage", "/tmp", "/etc/rltraining", "/dev", "/proc", "/sys"];
/// Prefix of the operator's labels and annotations.
const OWN_PREFIX: &str = "rltraining.dev/";

fn all_volumes(spec: &RLTrainingJobSpec, holds: impl Fn(&VolumeSpec) -> bool) -> bool {
    spec.workers.pod.volumes.iter().all(holds)
}

fn all_claims(spec: &RLTrainingJobSpec, holds: impl Fn(&ResourceClaimSpec) -> bool) -> bool {
    spec.workers.pod.resource_claims.iter().all(holds)
}

fn is_free_folder(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let is_plain = path.starts_with('/') && parts.iter().all(|part| !["", ".", ".."].contains(part));
    is_plain && !path.contains(':') && !is_reserved_folder(path)
}

/// Whether a folder is one of [`RESERVED_FOLDERS`], or below one.
pub(crate) fn is_reserved_folder(path: &str) -> bool {
    let is_below = |folder: &&str| path == *folder || path.starts_with(&format!("{folder}/"));
    RESERVED_FOLDERS.iter().any(is_below)
}

pub(in crate::rules) const RULES: &[Rule] = &[
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
    Rule {
        scope: "spec.workers.pod",
        at: "serviceAccountAnnotations",
        reads: &["serviceAccountAnnotations", "serviceAccountName"],
        message: "serviceAccountAnnotations are for the account that is made for the job: one that exists has its own",
        cel: || "!has(self.serviceAccountName) || self.serviceAccountAnnotations.size() == 0".into(),
        holds: Check::Spec(|spec| {
            let pod = &spec.workers.pod;
            pod.service_account_name.is_none() || pod.service_account_annotations.is_empty()
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.pod.resourceClaims",
        at: "",
        reads: &["[].templateName", "[].claimName"],
        message: "a resource claim has one source: templateName or claimName",
        cel: || "self.all(one, has(one.templateName) != has(one.claimName))".into(),
        holds: Check::Spec(|spec| {
            all_claims(spec, |claim| claim.template_name.is_some() != claim.claim_name.is_some())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.pod.resourceClaims",
        at: "",
        reads: &["[].name"],
        message: "the names of resource claims differ, and consist of lower-case letters, digits and '-'",
        cel: || {
            "self.all(one, one.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && \
             self.exists_one(other, other.name == one.name))"
                .into()
        },
        holds: Check::Spec(|spec| {
            let claims = &spec.workers.pod.resource_claims;
            let is_only =
                |one: &ResourceClaimSpec| claims.iter().filter(|other| other.name == one.name).count() == 1;
            all_claims(spec, |claim| is_dns_label(&claim.name) && is_only(claim))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.pod.capabilities",
        at: "",
        reads: &[""],
        message: "capabilities have Kubernetes' names, such as IPC_LOCK: capital letters and '_', without CAP_",
        cel: || "self.all(one, one.matches('^[A-Z][A-Z_]*$') && !one.startsWith('CAP_'))".into(),
        holds: Check::Spec(|spec| spec.workers.pod.capabilities.iter().all(|name| is_capability(name))),
        allowed: None,
    },
];

fn is_dns_label(name: &str) -> bool {
    let is_inner = |each: char| each.is_ascii_lowercase() || each.is_ascii_digit();
    name.starts_with(is_inner)
        && name.ends_with(is_inner)
        && name.chars().all(|each| is_inner(each) || each == '-')
}

fn is_capability(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
        && name.chars().all(|each| each.is_ascii_uppercase() || each == '_')
        && !name.starts_with("CAP_")
}
