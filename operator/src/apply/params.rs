//! Parameters of calls that several kinds of objects share.

use kube::api::{DeleteParams, PatchParams, PostParams, Preconditions};
use rlt_objects::labels;

/// Returns parameters that delete only the object of this UID, never another one of the same name.
pub(super) fn exactly(uid: &str, params: DeleteParams) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..params }
}

/// Returns parameters that create an object with the operator as its field manager.
pub(super) fn creation() -> PostParams {
    PostParams { field_manager: Some(labels::OPERATOR.into()), ..PostParams::default() }
}

/// Returns parameters of a merge patch with the operator as its field manager.
pub(super) fn merge_patch() -> PatchParams {
    PatchParams { field_manager: Some(labels::OPERATOR.into()), ..PatchParams::default() }
}
