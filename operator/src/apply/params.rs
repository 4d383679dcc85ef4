//! Parameters of calls that several kinds of objects share.

use kube::api::{DeleteParams, PatchParams, PostParams, Preconditions};
use rlt_objects::labels;

/// Deletes the object of this UID, never another one of its name.
pub(super) fn exactly(uid: &str, params: DeleteParams) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..params }
}

/// Creates an object under the name of the operator as the manager of its fields.
pub(super) fn creation() -> PostParams {
    PostParams { field_manager: Some(labels::OPERATOR.into()), ..PostParams::default() }
}

/// Changes the fields of a merge patch under the name of the operator as their manager.
pub(super) fn merge_patch() -> PatchParams {
    PatchParams { field_manager: Some(labels::OPERATOR.into()), ..PatchParams::default() }
}
