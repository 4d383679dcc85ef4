//! Warnings: settings that are allowed but probably unintended. Errors are in `rules`.

use crate::resolved::ResolvedSpec;
use crate::variables::has_secret_value;

/// The job has neither storage nor an object store.
const NO_STORAGE: &str = "neither spec.workers.storage nor spec.checkpoint.uri is set: on a cluster the checkpoints, the \
                              metrics and the exported model are lost with the pod";

/// A secret stands in the manifest.
const OPEN_SECRET: &str = "spec.workers has the value of a variable that is called a token, key, password or secret: everyone who \
                           may read the job or its pods can read it; take it from a Secret (secret: {name, key})";

/// Everything to warn of.
pub(crate) fn warnings(spec: &ResolvedSpec) -> Vec<&'static str> {
    let has_no_storage = spec.workers.storage.is_none() && spec.checkpoint.uri.is_none();
    let conditions = [(has_no_storage, NO_STORAGE), (has_secret_value(spec), OPEN_SECRET)];
    conditions.into_iter().filter(|(holds, _)| *holds).map(|(_, warning)| warning).collect()
}
