//! Rules of `spec.workers` and `spec.runPolicy`.

use super::super::{Check, Rule, cel_list, divisors};
use crate::quantity::is_positive_quantity;
use crate::spec::{EnvSpec, RLTrainingJobSpec, ResourcesSpec, StorageSpec, TolerationOperator, TopologySpec};

/// Environment variables that give a rank its identity, which only the operator sets. `RLT_` is reserved too.
const RESERVED_VARIABLES: [&str; 6] =
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];

/// Whether only the operator may set a variable.
pub(crate) fn is_variable_reserved(name: &str) -> bool {
    name.starts_with("RLT_") || RESERVED_VARIABLES.contains(&name)
}

fn is_quantity(field: Option<&String>) -> bool {
    field.is_none_or(|text| is_positive_quantity(text))
}

const CEL_IS_QUANTITY: &str = "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))";

fn of_resources(spec: &RLTrainingJobSpec, field: fn(&ResourcesSpec) -> Option<&String>) -> bool {
    is_quantity(field(&spec.workers.resources))
}

fn of_storage(spec: &RLTrainingJobSpec, holds: fn(&StorageSpec) -> bool) -> bool {
    spec.workers.storage.as_ref().is_none_or(holds)
}

fn all_env(spec: &RLTrainingJobSpec, holds: fn(&EnvSpec) -> bool) -> bool {
    spec.workers.env.iter().all(holds)
}

/// Whether a name is a C identifier, in which Kubernetes also allows dots and dashes.
fn is_variable_name(name: &str) -> bool {
    let is_part = |each: char| each.is_ascii_alphanumeric() || "-._".contains(each);
    name.chars().all(is_part) && !name.starts_with(|first: char| first.is_ascii_digit())
}

const A_QUANTITY: &str = "a quantity above zero such as 500m, 4 or 16Gi";

pub(in crate::rules) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.workers.resources.cpu",
        at: "",
        reads: &[""],
        message: "cpu must be a quantity of Kubernetes",
        cel: || CEL_IS_QUANTITY.into(),
        holds: Check::Spec(|spec| of_resources(spec, |resources| resources.cpu.as_ref())),
        allowed: Some(|_| A_QUANTITY.into()),
    },
    Rule {
        scope: "spec.workers.resources.memory",
        at: "",
        reads: &[""],
        message: "memory must be a quantity of Kubernetes",
        cel: || CEL_IS_QUANTITY.into(),
        holds: Check::Spec(|spec| of_resources(spec, |resources| resources.memory.as_ref())),
        allowed: Some(|_| A_QUANTITY.into()),
    },
    Rule {
        scope: "spec.workers.resources.sharedMemory",
        at: "",
        reads: &[""],
        message: "sharedMemory must be a quantity of Kubernetes",
        cel: || CEL_IS_QUANTITY.into(),
        holds: Check::Spec(|spec| of_resources(spec, |resources| resources.shared_memory.as_ref())),
        allowed: Some(|_| A_QUANTITY.into()),
    },
    Rule {
        scope: "spec.workers.storage.size",
        at: "",
        reads: &[""],
        message: "size must be a quantity of Kubernetes",
        cel: || CEL_IS_QUANTITY.into(),
        holds: Check::Spec(|spec| of_storage(spec, |storage| is_quantity(storage.size.as_ref()))),
        allowed: Some(|_| A_QUANTITY.into()),
    },
    Rule {
        scope: "spec.workers.storage",
        at: "size",
        reads: &["size", "claimName"],
        message: "storage needs either the claimName of a claim that exists or the size of a new one",
        cel: || "has(self.claimName) != has(self.size)".into(),
        holds: Check::Spec(|spec| {
            of_storage(spec, |storage| storage.claim_name.is_some() != storage.size.is_some())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.storage",
        at: "storageClassName",
        reads: &["storageClassName", "claimName"],
        message: "storageClassName is for a new claim: a claim that exists has its own",
        cel: || "!(has(self.claimName) && has(self.storageClassName))".into(),
        holds: Check::Spec(|spec| {
            of_storage(spec, |storage| storage.claim_name.is_none() || storage.storage_class_name.is_none())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.env",
        at: "",
        reads: &["[].name"],
        message: "the names of variables must differ",
        cel: || "self.all(one, self.exists_one(other, other.name == one.name))".into(),
        holds: Check::Spec(|spec| {
            let env = &spec.workers.env;
            let is_first = |idx: usize| env[..idx].iter().all(|other| other.name != env[idx].name);
            (0..env.len()).all(is_first)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.env",
        at: "",
        reads: &["[].name"],
        message: "the name of a variable consists of letters, digits, '_', '-' and '.', and begins with no digit",
        cel: || "self.all(one, one.name.matches('^[-._a-zA-Z][-._a-zA-Z0-9]*$'))".into(),
        holds: Check::Spec(|spec| all_env(spec, |env| is_variable_name(&env.name))),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.env",
        at: "",
        reads: &["[].name"],
        message: "RLT_ variables and those of the ranks (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, \
                  MASTER_PORT) are set by the operator",
        cel: || {
            format!(
                "self.all(one, !one.name.startsWith('RLT_') && !(one.name in {}))",
                cel_list(&RESERVED_VARIABLES)
            )
        },
        holds: Check::Spec(|spec| all_env(spec, |env| !is_variable_reserved(&env.name))),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.env",
        at: "",
        reads: &["[].value", "[].secret"],
        message: "a variable needs either a value or a secret",
        cel: || "self.all(one, has(one.value) != has(one.secret))".into(),
        holds: Check::Spec(|spec| all_env(spec, |env| env.value.is_some() != env.secret.is_some())),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.tolerations",
        at: "",
        reads: &["[].key", "[].operator", "[].value"],
        message: "a toleration with the operator Equal needs a key, and one with Exists has no value",
        cel: || {
            "self.all(one, has(one.operator) && one.operator == 'Exists' ? !has(one.value) : has(one.key))"
                .into()
        },
        holds: Check::Spec(|spec| {
            spec.workers.tolerations.iter().all(|toleration| match toleration.operator.unwrap_or_default() {
                TolerationOperator::Equal => toleration.key.is_some(),
                TolerationOperator::Exists => toleration.value.is_none(),
            })
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.workers.topology",
        at: "",
        reads: &["required", "preferred", "slice"],
        message: "topology needs required, preferred or slice, and not both of required and preferred",
        cel: || {
            "!(has(self.required) && has(self.preferred)) && (has(self.required) || has(self.preferred) || \
             has(self.slice))"
                .into()
        },
        holds: Check::Spec(|spec| {
            let is_one = |topology: &TopologySpec| {
                let (required, preferred) = (topology.required.is_some(), topology.preferred.is_some());
                !(required && preferred) && (required || preferred || topology.slice.is_some())
            };
            spec.workers.topology.as_ref().is_none_or(is_one)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.workers",
        at: "topology.slice.size",
        reads: &["topology.slice.size", "count"],
        message: "the size of a slice must divide the number of workers",
        cel: || {
            "!has(self.topology) || !has(self.topology.slice) || self.count % self.topology.slice.size == 0"
                .into()
        },
        holds: Check::Spec(|spec| {
            let slice = spec.workers.topology.as_ref().and_then(|topology| topology.slice.as_ref());
            slice.is_none_or(|slice| spec.workers.count.is_multiple_of(slice.size))
        }),
        allowed: Some(|spec| divisors(spec.workers.count)),
    },
    Rule {
        scope: "spec.managedBy",
        at: "",
        reads: &[""],
        message: "managedBy must be a domain and a path such as kueue.x-k8s.io/multikueue",
        cel: || format!("self.matches('^{LABEL}([.]{LABEL})*/[A-Za-z0-9/_.~%!$&\\\\x27()*+,;=:-]+$')"),
        holds: Check::Spec(|spec| spec.managed_by.as_deref().is_none_or(is_domain_path)),
        allowed: None,
    },
];

/// Regular expression of a domain label (RFC 1123).
const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

/// Whether a text is a domain (RFC 1123), a slash, and path characters (RFC 3986): the API server's rule for
/// `spec.managedBy` of a batch Job.
fn is_domain_path(text: &str) -> bool {
    let Some((domain, path)) = text.split_once('/') else { return false };
    let is_lower = |each: char| each.is_ascii_lowercase() || each.is_ascii_digit();
    let is_label = |label: &str| {
        label.starts_with(is_lower)
            && label.ends_with(is_lower)
            && label.chars().all(|each| is_lower(each) || each == '-')
    };
    let is_path = |each: char| each.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(each);
    domain.split('.').all(is_label) && !path.is_empty() && path.chars().all(is_path)
}
