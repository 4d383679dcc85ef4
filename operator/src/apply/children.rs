//! The children of a job besides its pods: created where they are missing, updated where their digest
//! differs.

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
use crate::index::{Child, ChildEntry, Children, Index};
use crate::job::Job;
use crate::labels;
use crate::worker::{self, Worker};

/// The children of a job, observed and desired.
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

    /// Children that must exist before pods: without their ServiceAccount pods are refused, and they must not
    /// find the manifest or the address of an earlier attempt.
    pub(super) async fn apply_prerequisites(&self, first: Option<&Worker>) -> Result<(), ApplyError> {
        let account = build::service_account(self.input);
        let digest = build::content_digest(&account).map(str::to_owned);
        self.ensure(Child::ServiceAccount, digest, || Some(account)).await?;
        if self.known.contains_key(&Child::ConfigMap) {
            self.apply_config_map().await?;
        }
        if first.is_none() && self.known.contains_key(&Child::Endpoint) {
            self.apply_endpoint(None).await
        } else {
            Ok(())
        }
    }

    /// Children that pods mount: the ConfigMap and the claim.
    pub(super) async fn apply_volumes(&self) -> Result<(), ApplyError> {
        let manifest = async {
            match self.known.contains_key(&Child::ConfigMap) {
                true => Ok(()),
                false => self.apply_config_map().await,
            }
        };
        let claim = self.ensure(Child::Claim, None, || build::storage_claim(self.input));
        // The ConfigMap does not depend on the claim: both are tried.
        let (manifest, claim) = join(manifest, claim).await;
        ApplyError::first_of([manifest, claim])
    }

    /// Children of the pods' network: Service, EndpointSlice, NetworkPolicy.
    pub(super) async fn apply_network(&self, first: Option<&Worker>) -> Result<(), ApplyError> {
        let endpoint = async {
            match first {
                Some(first) => self.apply_endpoint(Some(first)).await,
                None => Ok(()),
            }
        };
        let service = self.ensure(Child::Service, None, || build::service(self.input));
        let (service, policy, endpoint) = join3(service, self.apply_network_policy(), endpoint).await;
        ApplyError::first_of([service, policy, endpoint])
    }

    async fn apply_config_map(&self) -> Result<(), ApplyError> {
        // Built only where the digest is not known: reconciles are frequent, and manifests are long.
        let made = &self.input.prepared.manifest_digest;
        if made.get().is_some_and(|digest| self.known.get(&Child::ConfigMap) == Some(&Some(digest.clone()))) {
            return Ok(());
        }
        let config_map = build::config_map(self.input)
            .map_err(|source| ApplyError::Manifest { name: self.job.name().to_owned(), source })?;
        let digest = build::content_digest(&config_map).unwrap_or_default().to_owned();
        self.ensure(Child::ConfigMap, Some(made.get_or_init(|| digest).clone()), || Some(config_map)).await
    }

    async fn apply_endpoint(&self, first: Option<&Worker>) -> Result<(), ApplyError> {
        let digest = build::endpoint_digest(first);
        self.ensure(Child::Endpoint, Some(digest), || build::endpoint(self.input, first)).await
    }

    async fn apply_network_policy(&self) -> Result<(), ApplyError> {
        let Some(policy) = build::network_policy(self.input) else { return self.remove_policy().await };
        let digest = build::content_digest(&policy).map(str::to_owned);
        self.ensure(Child::NetworkPolicy, digest, || Some(policy)).await
    }

    /// A NetworkPolicy that is no longer desired would still block traffic.
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
                self.index.remove(&self.job.key(), &ChildEntry { child: Child::NetworkPolicy, digest: None });
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
        // Boxed, as every call here: the future is large, and most reconciles make no call.
        match known {
            Some(_) => Box::pin(self.change(&wanted)).await?,
            None => Box::pin(self.make(&wanted)).await?,
        }
        self.index.enter(&self.job.key(), ChildEntry { child, digest });
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
                    // A claim that was retained after an earlier job of this name.
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
