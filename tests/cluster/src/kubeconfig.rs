//! Users of the API server: tokens, and the kubeconfig by which `kubectl`, `helm` and clients find the
//! cluster.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use serde_json::json;

/// A user with a static token of the API server.
#[derive(Clone, Debug)]
pub(crate) struct User {
    /// The user's name.
    pub(crate) name: String,
    /// Groups of the user, separated by commas.
    pub(crate) groups: &'static str,
    /// Secret token of the user.
    pub(crate) token: String,
}

impl User {
    /// A user with a token of its own.
    pub(crate) fn new(name: &str, groups: &'static str) -> Self {
        Self { name: name.to_owned(), groups, token: random_token() }
    }

    /// The line of the API server's token file.
    pub(crate) fn line(&self) -> String {
        format!("{},{},{},\"{}\"\n", self.token, self.name, self.name, self.groups)
    }
}

/// 32 hexadecimal digits that no other process knows: the standard library keys its hashers from the system's
/// randomness.
fn random_token() -> String {
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// A kubeconfig with one context; JSON, which is YAML. `authority` is the certificate of the authority as
/// PEM.
pub(crate) fn kubeconfig(server: &str, authority: &[u8], token: &str, namespace: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "rlt",
            "cluster": { "server": server, "certificate-authority-data": base64(authority) }
        }],
        "users": [{ "name": "rlt", "user": { "token": token } }],
        "contexts": [{ "name": "rlt", "context": { "cluster": "rlt", "user": "rlt", "namespace": namespace } }],
        "current-context": "rlt"
    })
}

/// Standard base64, by the means the API's own byte strings are written.
fn base64(bytes: &[u8]) -> serde_json::Value {
    serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).unwrap_or_default()
}
