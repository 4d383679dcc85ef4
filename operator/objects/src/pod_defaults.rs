//! Defaults for the pods of a namespace's jobs: a ConfigMap with a well-known name, as cached by the watch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use rlt_api::Defaults;

/// The name of the ConfigMap.
pub const NAME: &str = "rltraining-defaults";
/// Its key.
pub const KEY: &str = "defaults.yaml";

/// The defaults of a namespace, or their errors.
#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceDefaults {
    /// The version of the ConfigMap.
    pub version: String,
    /// The defaults, or each problem in a line of its own.
    pub defaults: Result<Defaults, Vec<String>>,
}

impl NamespaceDefaults {
    /// Reads a ConfigMap. One without the key says nothing, but for a key that is meant to be it.
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

/// The defaults of every namespace that has some.
#[derive(Debug, Default)]
pub struct PodDefaults {
    by_namespace: Mutex<HashMap<String, Arc<NamespaceDefaults>>>,
}

impl PodDefaults {
    /// Those of a namespace.
    pub fn of(&self, namespace: &str) -> Option<Arc<NamespaceDefaults>> {
        self.lock().get(namespace).cloned()
    }

    /// Enters those of a namespace, or removes them.
    pub fn set(&self, namespace: &str, defaults: Option<NamespaceDefaults>) {
        let mut all = self.lock();
        match defaults {
            Some(defaults) => drop(all.insert(namespace.to_owned(), Arc::new(defaults))),
            None => drop(all.remove(namespace)),
        }
    }

    /// Replaces those of a namespace, or of all, after they were listed again.
    pub fn replace(&self, namespace: Option<&str>, listed: Vec<(String, NamespaceDefaults)>) {
        let mut all = self.lock();
        all.retain(|known, _| namespace.is_some_and(|namespace| namespace != known));
        all.extend(listed.into_iter().map(|(namespace, defaults)| (namespace, Arc::new(defaults))));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<NamespaceDefaults>>> {
        self.by_namespace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
