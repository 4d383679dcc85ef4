//! Defaults for the pods of a namespace's jobs, from a ConfigMap with a well-known name, as the watch caches
//! them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use rlt_api::Defaults;

/// Name of the ConfigMap.
pub const NAME: &str = "rltraining-defaults";
/// Key of the defaults in the ConfigMap.
pub const KEY: &str = "defaults.yaml";

/// Defaults of a namespace, or their problems.
#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceDefaults {
    /// Resource version of the ConfigMap.
    pub version: String,
    /// Parsed defaults, or a line for each problem.
    pub defaults: Result<Defaults, Vec<String>>,
}

impl NamespaceDefaults {
    /// Reads a ConfigMap. A ConfigMap without [`KEY`] has no defaults. Any other key is a problem, because it
    /// is probably a typo.
    pub fn read(map: &ConfigMap) -> Self {
        let data = map.data.as_ref();
        let others = data.into_iter().flatten().map(|(key, _)| key).filter(|key| *key != KEY);
        let unknown: Vec<_> = others.map(|key| format!("key {key}: is not known; allowed: {KEY}")).collect();
        let defaults = match data.and_then(|data| data.get(KEY)) {
            _ if !unknown.is_empty() => Err(unknown),
            None => Ok(Defaults::default()),
            Some(text) => Defaults::parse(text)
                .map_err(|problems| problems.iter().map(|problem| format!("{KEY}:{problem}")).collect()),
        };
        Self { version: map.resource_version().unwrap_or_default(), defaults }
    }
}

/// Defaults of all namespaces that have some.
#[derive(Debug, Default)]
pub struct PodDefaults {
    by_namespace: Mutex<HashMap<String, Arc<NamespaceDefaults>>>,
}

impl PodDefaults {
    /// Returns the defaults of a namespace.
    pub fn of(&self, namespace: &str) -> Option<Arc<NamespaceDefaults>> {
        self.lock().get(namespace).cloned()
    }

    /// Sets or removes the defaults of a namespace.
    pub fn set(&self, namespace: &str, defaults: Option<NamespaceDefaults>) {
        let mut all = self.lock();
        match defaults {
            Some(defaults) => drop(all.insert(namespace.to_owned(), Arc::new(defaults))),
            None => drop(all.remove(namespace)),
        }
    }

    /// Replaces the defaults of `namespace`, or of all namespaces, by those of a new list.
    pub fn replace(&self, namespace: Option<&str>, listed: Vec<(String, NamespaceDefaults)>) {
        let mut all = self.lock();
        all.retain(|known, _| namespace.is_some_and(|namespace| namespace != known));
        all.extend(listed.into_iter().map(|(namespace, defaults)| (namespace, Arc::new(defaults))));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<NamespaceDefaults>>> {
        self.by_namespace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
