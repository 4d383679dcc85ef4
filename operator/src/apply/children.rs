//! A job's objects besides its pods: made where they are missing, changed where they were made from something else.

use std::fmt::Debug;

use futures::future::try_join3;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ApplyError, creation, error, key};
use crate::build::{self, Blueprint};
use crate::index::{Child, Children, Index};
use crate::job::Job;
use crate::labels;
use crate::worker;

/// Makes and changes what has to be there before pods are made.
pub(super) async fn apply(
    client: &Client,
    index: &Index,
    blueprint: &Blueprint<'_>,
) -> Result<(), ApplyError> {
    let job = blueprint.job;
    let known = &index.children(job.uid());
    let config_map = build::config_map(blueprint)
        .map_err(|source| ApplyError::Manifest { name: job.name().to_owned(), source })?;
    let digest = build::content_digest(&config_map).map(str::to_owned);
    let room = Room { client, index, job, known };
    let account = build::service_account(blueprint);
    // A pod is refused without its account; for everything else it waits.
    room.ensure(Child::ServiceAccount, Some(account), None).await?;
    try_join3(
        room.ensure(Child::ConfigMap, Some(config_map), digest),
        room.ensure(Child::Service, build::service(blueprint), None),
        room.ensure(Child::Claim, build::storage_claim(blueprint), None),
    )
    .await?;
    Ok(())
}

struct Room<'a> {
    client: &'a Client,
    index: &'a Index,
    job: &'a Job,
    known: &'a Children,
}

impl Room<'_> {
    async fn ensure<K>(
        &self,
        child: Child,
        wanted: Option<K>,
        digest: Option<String>,
    ) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let Some(wanted) = wanted else { return Ok(()) };
        match self.known.get(&child) {
            Some(known) if *known == digest => return Ok(()),
            Some(_) => self.change(&wanted).await?,
            None => self.make(&wanted).await?,
        }
        self.index.enter_child(&key(self.job), child, digest);
        Ok(())
    }

    async fn make<K>(&self, wanted: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), self.job.namespace());
        let name = wanted.meta().name.clone().unwrap_or_default();
        match api.create(&creation(), wanted).await {
            Ok(_) => Ok(()),
            Err(error) if error::exists(&error) => {
                let found = api.get_metadata(&name).await;
                let found =
                    found.map_err(|source| ApplyError::Call { act: "read", name: name.clone(), source })?;
                let is_ours = worker::owner(&found.metadata).map(|owner| owner == key(self.job));
                match is_ours {
                    Some(true) => self.change(wanted).await,
                    // A claim that outlived a job of this name.
                    None if is_free(&found.metadata) => self.change(wanted).await,
                    _ => Err(ApplyError::Occupied { name }),
                }
            }
            Err(error) => match error::refusal(&error) {
                Some(why) => Err(ApplyError::Refused { message: format!("{} {name}: {why}", K::kind(&())) }),
                None => Err(ApplyError::Call { act: "make", name, source: error }),
            },
        }
    }

    async fn change<K>(&self, wanted: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), self.job.namespace());
        let name = wanted.meta().name.clone().unwrap_or_default();
        let params = PatchParams::apply(labels::OPERATOR).force();
        match api.patch(&name, &params, &Patch::Apply(wanted)).await {
            Ok(_) => Ok(()),
            Err(source) => Err(ApplyError::Call { act: "change", name, source }),
        }
    }
}

/// Whether an object is ours, and of no job that still exists.
fn is_free(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> bool {
    let label = metadata.labels.as_ref().and_then(|labels| labels.get(labels::MANAGED_BY));
    label.is_some_and(|by| by == labels::OPERATOR)
        && metadata.owner_references.iter().flatten().next().is_none()
}
