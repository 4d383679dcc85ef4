//! The API server's audit log: counts and times the calls of each user, independently of the operator's own
//! metrics.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

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
    /// Name of the subresource, such as `status`; empty for the object itself.
    pub subresource: String,
    /// Namespace of the object; empty for those without.
    pub namespace: String,
    /// Name of the object; empty for lists and for names the server makes.
    pub name: String,
    /// Status of the answer, such as 200.
    pub code: u16,
    /// The time of the call, as RFC 3339 with microseconds.
    pub at: String,
    /// The time of the answer, in the same form.
    pub answered_at: String,
}

/// A reader of the log that continues where it stopped before.
#[derive(Debug)]
pub struct CallLog {
    path: PathBuf,
    offset: u64,
}

impl CallLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0 }
    }

    /// The calls that were answered since this was last asked, oldest first.
    ///
    /// # Errors
    /// When the log can not be read.
    pub fn new_calls(&mut self) -> io::Result<Vec<Call>> {
        let text = self.read()?;
        let calls = text.lines().filter_map(|line| serde_json::from_str(line).ok()).filter_map(call);
        Ok(calls.collect())
    }

    /// Passes over what was answered so far.
    ///
    /// # Errors
    /// When the log exists and cannot be read.
    pub fn skip(&mut self) -> io::Result<()> {
        self.offset = match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            found => found?.len(),
        };
        Ok(())
    }

    /// All whole lines that were not read yet: the last one may still be in the making.
    fn read(&mut self) -> io::Result<String> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
            opened => opened?,
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        self.offset += bytes.len() as u64;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
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
    stage_timestamp: String,
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
pub(crate) fn read(log: &Path) -> io::Result<Vec<Call>> {
    CallLog::new(log.to_owned()).new_calls()
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
        answered_at: event.stage_timestamp,
    })
}
