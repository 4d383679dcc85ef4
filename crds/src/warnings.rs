//! Warnings: settings that are allowed but probably unintended. Errors are in `rules`.

use crate::resolved::ResolvedSpec;

/// The job has neither storage nor an object store.
const NO_STORAGE: &str = "neither spec.workers.storage nor spec.checkpoint.uri is set: on a cluster the checkpoints, the \
                              metrics and the exported model are lost with the pod";

/// Everything to warn of.
pub(crate) fn warnings(spec: &ResolvedSpec) -> Vec<&'static str> {
    let has_no_storage = spec.workers.storage.is_none() && spec.checkpoint.uri.is_none();
    has_no_storage.then_some(NO_STORAGE).into_iter().collect()
}
