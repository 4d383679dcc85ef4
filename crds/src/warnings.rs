//! Warnings: settings that are allowed but probably unintended. Errors are in `rules`.

use crate::reason::Reason;
use crate::resolved::ResolvedSpec;
use crate::variables::{has_secret_header, has_secret_value};

/// The job has neither storage nor an object store.
const NO_STORAGE: &str = "neither spec.workers.storage nor spec.checkpoint.uri is set: on a cluster the checkpoints, the \
                              metrics and the exported model are lost with the pod";

/// A secret stands in the manifest.
const OPEN_SECRET: &str = "spec.workers has the value of a variable that is called a token, key, password or secret: everyone who \
                           may read the job or its pods can read it; take it from a Secret (secret: {name, key})";

/// A secret stands in a header of a reward server.
const OPEN_HEADER: &str = "spec.rewards has the value of a header that is called authorization, cookie, token, key, password or \
                           secret: everyone who may read the job can read it; name a variable (env) instead, which \
                           spec.workers.env takes from a Secret (secret: {name, key})";

/// A setting that is allowed but probably unintended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Reason of the Event that reports the warning on a cluster.
    pub reason: Reason,
    /// Text for the user: the setting, its effect, and what to write instead.
    pub message: &'static str,
}

/// Returns all warnings of a job.
pub(crate) fn warnings(spec: &ResolvedSpec) -> Vec<Warning> {
    let has_no_storage = spec.workers.storage.is_none() && spec.checkpoint.uri.is_none();
    let conditions = [
        (has_no_storage, Reason::NoStorage, NO_STORAGE),
        (has_secret_value(spec), Reason::OpenSecret, OPEN_SECRET),
        (has_secret_header(spec), Reason::OpenSecret, OPEN_HEADER),
    ];
    let held = conditions.into_iter().filter(|(holds, ..)| *holds);
    held.map(|(_, reason, message)| Warning { reason, message }).collect()
}
