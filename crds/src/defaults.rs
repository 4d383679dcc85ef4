//! Defaults of a cluster or of a namespace for the pods of jobs. The defaults of a namespace override those
//! of the cluster, and the fields of a job override both. They are fields of `spec.workers` in YAML; other
//! sections have only built-in defaults.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::overlay::{Items, Overlay, pod_key};
use crate::spec::WorkersSpec;
use crate::validate::{Problem, check_defaults};

/// Fields of `spec.workers` that a cluster or a namespace can give a default.
pub(crate) const FIELDS: [&str; 13] = [
    "image",
    "imagePullSecrets",
    "resources",
    "nodeSelector",
    "tolerations",
    "priorityClassName",
    "schedulerName",
    "topology",
    "network",
    "env",
    "pod",
    "podTemplate",
    "storage",
];

/// Defaults of a cluster or a namespace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    workers: Map<String, Value>,
}

impl Defaults {
    /// Reads defaults: YAML with the one section `workers`.
    ///
    /// # Errors
    /// All problems, with their positions in the text.
    pub fn parse(yaml: &str) -> Result<Self, Vec<Problem>> {
        check_defaults(yaml).map(|workers| Self { workers })
    }

    /// Whether no field has a default.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Fields of the section `workers`.
    pub fn workers(&self) -> &Map<String, Value> {
        &self.workers
    }
}

/// Source of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Origin {
    /// Set by the job.
    Job,
    /// Set by the defaults of its namespace.
    Namespace,
    /// Set by the defaults of its cluster.
    Cluster,
    /// Built-in default, because no other source sets the field.
    BuiltIn,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "job",
            Self::Namespace => "namespace's defaults",
            Self::Cluster => "cluster's defaults",
            Self::BuiltIn => "built in",
        })
    }
}

/// Specification of a job merged with its defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedSpec {
    /// The merged specification.
    pub spec: Value,
    /// Values of `spec.workers` by path, each with its source.
    pub origins: BTreeMap<String, (Value, Origin)>,
}

/// Merges the specification of a job over the defaults of its namespace, and those over the cluster's. Maps
/// are merged by key, and a pod template as Kubernetes does. Environment variables, claims and volumes are
/// replaced one by one, other lists as a whole. An empty list or map of a job counts as absent.
pub fn merge(spec: &Value, namespace: Option<&Defaults>, cluster: Option<&Defaults>) -> MergedSpec {
    let mut origins = BTreeMap::new();
    let mut workers = json!({});
    let built_in = serde_json::to_value(WorkersSpec::default()).unwrap_or_default();
    let of_defaults = |defaults: &Defaults| fitting(&defaults.workers, spec);
    let layers = [
        (Some(without_empty(&built_in)), Origin::BuiltIn),
        (cluster.map(of_defaults), Origin::Cluster),
        (namespace.map(of_defaults), Origin::Namespace),
        (spec.get("workers").map(without_empty), Origin::Job),
    ];
    for (layer, origin) in layers {
        let Some(layer) = layer else { continue };
        if layer.get("topology").is_some() {
            // The two fields of `topology` are one choice, so they are replaced together.
            workers["topology"] = Value::Null;
            origins.retain(|path: &String, _| !path.starts_with("spec.workers.topology"));
        }
        let mut path = vec!["spec".to_owned(), "workers".to_owned()];
        let mut taken = |path: &[String], value: &Value| {
            let path = path.join(".");
            let is_built_in = |known: &(Value, Origin)| *known == (value.clone(), Origin::BuiltIn);
            if !origins.get(&path).is_some_and(is_built_in) {
                origins.insert(path, (value.clone(), origin));
            }
        };
        Overlay { items_of: &items_of, taken: &mut taken }.lay(&mut workers, &layer, &mut path);
    }
    let mut spec = spec.clone();
    if let Some(fields) = spec.as_object_mut() {
        fields.insert("workers".into(), workers);
    }
    MergedSpec { spec, origins }
}

/// Returns the defaults that apply to a job. Default storage applies only to a job without storage, and a
/// default storage class also to a job that requests a new claim.
fn fitting(defaults: &Map<String, Value>, spec: &Value) -> Value {
    let mut fields = defaults.clone();
    let own = spec.pointer("/workers/storage").filter(|own| !own.is_null());
    if let Some(Value::Object(storage)) = fields.get_mut("storage") {
        match own {
            Some(own) if own.get("size").is_some() => storage.retain(|name, _| name == "storageClassName"),
            Some(_) => storage.clear(),
            None if storage.contains_key("size") || storage.contains_key("claimName") => {}
            None => storage.clear(),
        }
        if storage.is_empty() {
            fields.remove("storage");
        }
    }
    fields.into()
}

/// Returns how items of the list at `path`, which begins with `spec.workers`, are identified.
fn items_of(path: &[String]) -> Option<Items> {
    let path: Vec<&str> = path.iter().skip(2).map(String::as_str).collect();
    match path[..] {
        ["podTemplate", .., list] => pod_key(list).map(Items::Merged),
        ["env"] | ["pod", "resourceClaims"] => Some(Items::Replaced("name")),
        ["pod", "volumes"] => Some(Items::Replaced("mountPath")),
        _ => None,
    }
}

/// Returns the value without empty lists and maps, which the API server fills in where a job omits them.
fn without_empty(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, value)| !is_empty(value));
            let kept = kept.map(|(name, value)| match name.as_str() {
                "podTemplate" => (name.clone(), value.clone()),
                _ => (name.clone(), without_empty(value)),
            });
            Value::Object(kept.collect())
        }
        value => value.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
