//! A job's objects besides its pods: made where they are missing, changed where they were made from something
//! else.

use std::fmt::Debug;

use futures::future::{join, join3};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ApplyError, creation, error};
use crate::build::{self, BuildInput};
use crate::index::{Child, Children, Index};
use crate::job::Job;
use crate::labels;
use crate::worker::{self, Worker};

/// A job's objects besides its pods, as they are known and as they are wanted.
pub(super) struct JobChildren<'a> {
    client: &'a Client,
    index: &'a Index,
    input: &'a BuildInput<'a>,
    job: &'a Job,
    known: Children,
}

impl<'a> JobChildren<'a> {
    pub(super) fn new(client: &'a Client, index: &'a Index, input: &'a BuildInput<'a>) -> Self {
        let job = input.job;
        Self { client, index, input, job, known: index.children(&job.key()) }
    }

    /// What has to be there before pods are made: they are refused without their account, and must not find
    /// the manifest or a worker of an earlier attempt.
    pub(super) async fn prepare(&self, first: Option<&Worker>) -> Result<(), ApplyError> {
        self.ensure(Child::ServiceAccount, None, || Some(build::service_account(self.input))).await?;
        if self.known.contains_key(&Child::ConfigMap) {
            self.hand_over_manifest().await?;
        }
        if first.is_none() && self.known.contains_key(&Child::Endpoint) {
            self.point_to(None).await
        } else {
            Ok(())
        }
    }

    /// What nodes need to start pods.
    pub(super) async fn supply(&self) -> Result<(), ApplyError> {
        let manifest = async {
            match self.known.contains_key(&Child::ConfigMap) {
                true => Ok(()),
                false => self.hand_over_manifest().await,
            }
        };
        let claim = self.ensure(Child::Claim, None, || build::storage_claim(self.input));
        // A claim that is refused leaves workers without a manifest no less than one that is not.
        let (manifest, claim) = join(manifest, claim).await;
        ApplyError::first_of([manifest, claim])
    }

    /// What pods meet each other by, and what keeps others away from them.
    pub(super) async fn surround(&self, first: Option<&Worker>) -> Result<(), ApplyError> {
        let point_to_first = async {
            match first {
                Some(first) => self.point_to(Some(first)).await,
                None => Ok(()),
            }
        };
        let service = self.ensure(Child::Service, None, || build::service(self.input));
        let (service, policy, endpoint) = join3(service, self.guard(), point_to_first).await;
        ApplyError::first_of([service, policy, endpoint])
    }

    async fn hand_over_manifest(&self) -> Result<(), ApplyError> {
        // Made anew only where it is not known: jobs are looked at often, and manifests are long.
        let made = &self.input.prepared.manifest_digest;
        if made.get().is_some_and(|digest| self.known.get(&Child::ConfigMap) == Some(&Some(digest.clone()))) {
            return Ok(());
        }
        let config_map = build::config_map(self.input)
            .map_err(|source| ApplyError::Manifest { name: self.job.name().to_owned(), source })?;
        let digest = build::content_digest(&config_map).unwrap_or_default().to_owned();
        self.ensure(Child::ConfigMap, Some(made.get_or_init(|| digest).clone()), || Some(config_map)).await
    }

    async fn point_to(&self, first: Option<&Worker>) -> Result<(), ApplyError> {
        let digest = build::endpoint_digest(first);
        self.ensure(Child::Endpoint, Some(digest), || build::endpoint(self.input, first)).await
    }

    async fn guard(&self) -> Result<(), ApplyError> {
        let Some(policy) = build::network_policy(self.input) else { return self.remove_policy().await };
        let digest = build::content_digest(&policy).map(str::to_owned);
        self.ensure(Child::NetworkPolicy, digest, || Some(policy)).await
    }

    /// A policy that the job wants no more would go on to keep others away.
    async fn remove_policy(&self) -> Result<(), ApplyError> {
        if !self.known.contains_key(&Child::NetworkPolicy) {
            return Ok(());
        }
        let api: Api<NetworkPolicy> = Api::namespaced(self.client.clone(), self.job.namespace());
        let name = build::workers_name(self.job.name());
        match Box::pin(api.delete(&name, &DeleteParams::default())).await {
            Err(error) if !error::is_done(&error) => {
                Err(ApplyError::Call { act: "delete network policy", name, source: error })
            }
            _ => {
                self.index.remove_child(&self.job.key(), Child::NetworkPolicy);
                Ok(())
            }
        }
    }

    async fn ensure<K>(
        &self,
        child: Child,
        digest: Option<String>,
        wanted: impl FnOnce() -> Option<K>,
    ) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let known = self.known.get(&child);
        if known == Some(&digest) {
            return Ok(());
        }
        let Some(wanted) = wanted() else { return Ok(()) };
        // Boxed, as every call here: its future is large, and a reconcile that waits or has nothing to do
        // does not need the memory.
        match known {
            Some(_) => Box::pin(self.change(&wanted)).await?,
            None => Box::pin(self.make(&wanted)).await?,
        }
        self.index.enter_child(&self.job.key(), child, digest);
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
                let is_ours = worker::owner(&found.metadata).map(|owner| owner == self.job.key());
                match is_ours {
                    Some(true) => self.change(wanted).await,
                    // A claim that outlived a job of this name.
                    None if is_free(&found.metadata) => self.change(wanted).await,
                    _ => Err(ApplyError::occupied(self.job, &found.metadata)),
                }
            }
            Err(source) => Err(ApplyError::Call { act: "create", name, source }),
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
