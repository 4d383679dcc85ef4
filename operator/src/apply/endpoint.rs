//! EndpointSlices whose address family has changed. The API server refuses that change for ever, so such an
//! object is deleted and created again.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::DeleteParams;
use kube::{Api, Client};
use rlt_objects::job::Job;
use rlt_objects::worker;

use super::{ApplyError, creation, error, exactly};

/// Replaces the job's EndpointSlice by the `wanted` one if it has addresses of another family.
///
/// # Errors
/// The error of the refused change if the EndpointSlice is gone, is another job's, has the same family, or is
/// still being deleted; otherwise the error of the call that failed.
pub(super) async fn replace(
    client: &Client,
    job: &Job,
    wanted: &EndpointSlice,
    refused: ApplyError,
) -> Result<(), ApplyError> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), job.namespace());
    let name = wanted.metadata.name.clone().unwrap_or_default();
    let failed = |act| {
        let name = name.clone();
        move |source| ApplyError::Call { act, name, source }
    };
    let found = api.get_opt(&name).await.map_err(failed("read endpoint slice"))?;
    let is_replaced = |found: &EndpointSlice| {
        let is_own = worker::owner(&found.metadata).is_some_and(|owner| owner == job.key());
        is_own && found.address_type != wanted.address_type
    };
    let Some(uid) = found.filter(is_replaced).and_then(|found| found.metadata.uid) else {
        return Err(refused);
    };
    match api.delete(&name, &exactly(&uid, DeleteParams::default())).await {
        Err(error) if !error::is_done(&error) => return Err(failed("delete endpoint slice")(error)),
        _ => {}
    }
    match api.create(&creation(), wanted).await {
        Ok(_) => Ok(()),
        // A finalizer still holds the deleted EndpointSlice.
        Err(error) if error::exists(&error) => Err(refused),
        Err(error) => Err(failed("create endpoint slice")(error)),
    }
}
