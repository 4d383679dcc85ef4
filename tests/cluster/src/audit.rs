//! The API server's own account of who called what: the honest way to count an operator's calls.

use std::path::Path;

use serde::Deserialize;

/// One call that the API server answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Call {
    /// The caller, such as `system:serviceaccount:default:rlt-operator`.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// Plural name of the kind, such as `pods`; empty for paths that are no resource.
    pub resource: String,
    /// Such as `status`; empty when the object itself was meant.
    pub subresource: String,
    /// Namespace of the object; empty for those without.
    pub namespace: String,
    /// Name of the object; empty for lists and for names the server makes.
    pub name: String,
    /// Status of the answer, such as 200.
    pub code: u16,
    /// When the call came in, as RFC 3339 with microseconds.
    pub at: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    user: EventUser,
    impersonated_user: Option<EventUser>,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    request_received_timestamp: String,
}

#[derive(Deserialize)]
struct EventUser {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

/// Every answered call of the log, in its order. A watch counts once, when it begins.
pub(crate) fn read(log: &Path) -> std::io::Result<Vec<Call>> {
    let text = match std::fs::read_to_string(log) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).filter_map(call).collect())
}

fn call(event: Event) -> Option<Call> {
    let counted = if event.verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
    (event.stage == counted).then(|| Call {
        user: event.impersonated_user.unwrap_or(event.user).username,
        verb: event.verb,
        resource: event.object_ref.resource,
        subresource: event.object_ref.subresource,
        namespace: event.object_ref.namespace,
        name: event.object_ref.name,
        code: event.response_status.code,
        at: event.request_received_timestamp,
    })
}
