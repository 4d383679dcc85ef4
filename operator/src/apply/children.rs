//! The children of a job other than pods: created if they are missing, updated if their digest differs.

use std::fmt::Debug;

use futures::future::{join, join_all};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, Resource};
use rlt_api::spec::NetworkAccess;
use rlt_objects::build::{self, BuildInput};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::worker::{self, Worker};
use rlt_plan::WorkerGroup;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{ApplyError, claim, creation, endpoint, error, exactly, merge_patch, owned_fields};
use crate::index::{Child, ChildEntry, ChildId, Children, Index};

/// The children of a job, observed and desired.
pub(super) struct JobChildren<'a> {
    client: &'a Client,
    index: &'a Index,
    input: &'a BuildInput<'a>,
    job: &'a Job,
    known: Children,
    /// Each group of workers with its first worker; `None` until other pods can reach that worker.
    groups: Vec<(&'a WorkerGroup, Option<&'a Worker>)>,
}

impl<'a> JobChildren<'a> {
    pub(super) fn new(
        client: &'a Client,
        index: &'a Index,
        input: &'a BuildInput<'a>,
        groups: Vec<(&'a WorkerGroup, Option<&'a Worker>)>,
    ) -> Self {
        let job = input.job;
        Self { client, index, input, job, known: index.children(&job.key()), groups }
    }

    /// Applies the children that must be up to date before pods are created. The API server refuses pods
    /// without their ServiceAccount. Pods of an isolated job must not run without its NetworkPolicy. Pods
    /// must not find the manifest or the address of an earlier attempt, and would wait for ever for a claim
    /// that they cannot mount. `starts_ranks` says whether ranks are about to start.
    pub(super) async fn apply_prerequisites(&self, starts_ranks: bool) -> Result<(), ApplyError> {
        match self.is_isolated() {
            true if starts_ranks && self.is_known(Child::NetworkPolicy) => {
                Box::pin(self.restore_network_policy()).await?;
            }
            true => self.apply_network_policy().await?,
            false => {}
        }
        self.change_claim(true).await?;
        let account = build::service_account(self.input);
        let digest = build::content_digest(&account).map(str::to_owned);
        self.ensure(Child::ServiceAccount.into(), digest, || Some(account)).await?;
        match self.is_known(Child::ConfigMap) {
            true if starts_ranks => Box::pin(self.restore_config_map()).await?,
            true => self.apply_config_map().await?,
            false => {}
        }
        for (group, first) in &self.groups {
            if first.is_none() && self.known.contains_key(&id(Child::Endpoint, group)) {
                self.clear_endpoint(group).await?;
            }
        }
        Ok(())
    }

    /// Creates the missing children that pods mount: the ConfigMap and the claim.
    pub(super) async fn apply_volumes(&self) -> Result<(), ApplyError> {
        let manifest = async {
            match self.is_known(Child::ConfigMap) {
                true => Ok(()),
                false => self.apply_config_map().await,
            }
        };
        let claim = async {
            match self.is_known(Child::Claim) {
                true => Ok(()),
                false => self.make_claim().await,
            }
        };
        // The ConfigMap does not depend on the claim: both are tried.
        let (manifest, claim) = join(manifest, claim).await;
        ApplyError::first_of([manifest, claim])
    }

    /// Applies the children of the pods' network: Service, EndpointSlice, NetworkPolicy.
    pub(super) async fn apply_network(&self) -> Result<(), ApplyError> {
        let names = join_all(self.groups.iter().map(|(group, first)| self.apply_name(group, *first)));
        let policy = async {
            match self.is_isolated() {
                true => Ok(()),
                false => self.apply_network_policy().await,
            }
        };
        let (names, policy) = join(names, policy).await;
        ApplyError::first_of(names.into_iter().chain([policy]))
    }

    /// Applies the DNS name of a group's first worker: its Service and EndpointSlice.
    async fn apply_name(&self, group: &WorkerGroup, first: Option<&Worker>) -> Result<(), ApplyError> {
        let endpoint = async {
            match first {
                Some(first) => self.apply_endpoint(group, first).await,
                None => Ok(()),
            }
        };
        let service = self.ensure(id(Child::Service, group), None, || build::service(self.input, group));
        let (service, endpoint) = join(service, endpoint).await;
        ApplyError::first_of([service, endpoint])
    }

    fn is_isolated(&self) -> bool {
        self.input.prepared.job.spec().workers.network == NetworkAccess::Isolated
    }

    async fn make_claim(&self) -> Result<(), ApplyError> {
        let Some(claim) = build::storage_claim(self.input) else { return Ok(()) };
        let is_found = Box::pin(self.create(&claim)).await? == Created::Found;
        // A claim that could not be changed yet is left to the watch, which enters it with its old digest.
        if !is_found || claim::change(self.client, self.job.namespace(), &claim).await? {
            self.enter_claim(&claim);
        }
        Ok(())
    }

    /// Updates the existing claim to the one that the job requests. An impossible change is an error only
    /// with `must_fit`.
    pub(super) async fn change_claim(&self, must_fit: bool) -> Result<(), ApplyError> {
        let Some(claim) = self.outdated_claim() else { return Ok(()) };
        match Box::pin(claim::change(self.client, self.job.namespace(), &claim)).await {
            Ok(true) => self.enter_claim(&claim),
            Err(error @ ApplyError::Unfit { .. }) if must_fit => return Err(error),
            Ok(false) | Err(ApplyError::Unfit { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Changes the claim so that it outlives the job or is deleted with it, as the job requests. Called
    /// before the job is deleted. If a claim that is to be retained cannot be released, the error keeps the
    /// job. If a claim that is to be deleted may not be changed, this is only logged: nothing is lost if the
    /// claim stays.
    pub(super) async fn settle_claim(&self) -> Result<(), ApplyError> {
        let Some(claim) = self.outdated_claim() else { return Ok(()) };
        let namespace = self.job.namespace();
        if claim::is_retained(&claim) {
            return Box::pin(claim::retain(self.client, namespace, &claim)).await;
        }
        match Box::pin(claim::change(self.client, namespace, &claim)).await {
            Err(ApplyError::Unfit { message }) => {
                tracing::warn!(namespace, why = message, "the claim of a deleted job may stay");
                Ok(())
            }
            Err(ApplyError::Call { name, source, .. }) if error::refusal(&source).is_some() => {
                tracing::warn!(namespace, name, error = %source, "the claim of a deleted job may stay");
                Ok(())
            }
            changed => changed.map(|_| ()),
        }
    }

    /// Returns the claim that the job requests, if the existing one was made for another specification.
    /// `None` for a claim that is being deleted: the next one is created as the job requests.
    fn outdated_claim(&self) -> Option<PersistentVolumeClaim> {
        let known = self.known.get(&Child::Claim.into())?;
        let claim = build::storage_claim(self.input)?;
        let is_outdated = known.as_deref() != build::content_digest(&claim);
        (is_outdated && !self.index.is_deleting(&self.job.key(), Child::Claim)).then_some(claim)
    }

    fn enter_claim(&self, claim: &PersistentVolumeClaim) {
        let digest = build::content_digest(claim).map(str::to_owned);
        self.index.enter(&self.job.key(), ChildEntry::written(Child::Claim.into(), digest));
    }

    fn is_known(&self, child: Child) -> bool {
        self.known.contains_key(&child.into())
    }

    async fn apply_config_map(&self) -> Result<(), ApplyError> {
        // The ConfigMap is built only if its cached digest does not match: reconciles are frequent, and
        // manifests are long.
        let made = &self.input.prepared.manifest_digest;
        if made
            .get()
            .is_some_and(|digest| self.known.get(&Child::ConfigMap.into()) == Some(&Some(digest.clone())))
        {
            return Ok(());
        }
        let config_map = self.config_map()?;
        let digest = self.manifest_digest(&config_map);
        self.ensure(Child::ConfigMap.into(), Some(digest), || Some(config_map)).await
    }

    /// Writes the ConfigMap again if it does not have the data of the job, before ranks read it. The watch
    /// only caches the digest in the annotation, which an edit of the data does not change.
    async fn restore_config_map(&self) -> Result<(), ApplyError> {
        let wanted = self.config_map()?;
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.job.namespace());
        let name = build::config_map_name(self.job.name());
        let found = api.get_opt(&name).await;
        let found = found.map_err(|source| ApplyError::Call { act: "read", name, source })?;
        let is_ours =
            |found: &ConfigMap| worker::owner(&found.metadata).is_some_and(|owner| owner == self.job.key());
        match found.filter(is_ours) {
            Some(found) if holds(&found, &wanted) => {}
            Some(found) => {
                if build::content_digest(&found) == build::content_digest(&wanted) {
                    let (namespace, job) = (self.job.namespace(), self.job.name());
                    tracing::warn!(namespace, job, "the ConfigMap was edited; writing it again");
                }
                Box::pin(self.take_over_and_change(&wanted)).await?;
            }
            None => Box::pin(self.make(&wanted)).await?,
        }
        let digest = Some(self.manifest_digest(&wanted));
        self.index.enter(&self.job.key(), ChildEntry::written(Child::ConfigMap.into(), digest));
        Ok(())
    }

    fn config_map(&self) -> Result<ConfigMap, ApplyError> {
        build::config_map(self.input)
            .map_err(|source| ApplyError::Manifest { name: self.job.name().to_owned(), source })
    }

    /// Returns the digest of the ConfigMap, and caches it so that the ConfigMap need not be built again.
    fn manifest_digest(&self, config_map: &ConfigMap) -> String {
        let digest = || build::content_digest(config_map).unwrap_or_default().to_owned();
        self.input.prepared.manifest_digest.get_or_init(digest).clone()
    }

    async fn apply_endpoint(&self, group: &WorkerGroup, first: &Worker) -> Result<(), ApplyError> {
        let (id, digest) = (id(Child::Endpoint, group), Some(build::endpoint_digest(Some(first))));
        let wanted = || build::endpoint(self.input, group, Some(first));
        let refused = match self.ensure(id.clone(), digest.clone(), wanted).await {
            Err(error) if error.is_invalid() => error,
            applied => return applied,
        };
        let Some(wanted) = wanted() else { return Err(refused) };
        Box::pin(endpoint::replace(self.client, self.job, &wanted, refused)).await?;
        self.index.enter(&self.job.key(), ChildEntry::written(id, digest));
        Ok(())
    }

    /// Removes the address from the EndpointSlice of a group. The address family stays: it is immutable, and
    /// the family of the next address is not known yet.
    async fn clear_endpoint(&self, group: &WorkerGroup) -> Result<(), ApplyError> {
        let (id, digest) = (id(Child::Endpoint, group), build::endpoint_digest(None));
        if self.known.get(&id) == Some(&Some(digest.clone())) {
            return Ok(());
        }
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), self.job.namespace());
        let name = group.service_name();
        let patch = json!({"metadata": {"annotations": {labels::CONTENT_DIGEST: digest}}, "endpoints": []});
        match Box::pin(api.patch_metadata(&name, &merge_patch(), &Patch::Merge(patch))).await {
            Ok(_) => {}
            // The EndpointSlice is created with the next address.
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
            Err(source) => return Err(ApplyError::Call { act: "change", name, source }),
        }
        self.index.enter(&self.job.key(), ChildEntry::written(id, Some(digest)));
        Ok(())
    }

    async fn apply_network_policy(&self) -> Result<(), ApplyError> {
        let Some(policy) = build::network_policy(self.input) else { return self.remove_policy().await };
        let digest = build::content_digest(&policy).map(str::to_owned);
        self.ensure(Child::NetworkPolicy.into(), digest, || Some(policy)).await
    }

    /// Writes the NetworkPolicy again before the ranks that it isolates start. The watch does not show an
    /// edit of its rules, which does not change the digest in the annotation.
    async fn restore_network_policy(&self) -> Result<(), ApplyError> {
        let Some(policy) = build::network_policy(self.input) else { return Ok(()) };
        self.take_over_and_change(&policy).await?;
        let digest = build::content_digest(&policy).map(str::to_owned);
        self.index.enter(&self.job.key(), ChildEntry::written(Child::NetworkPolicy.into(), digest));
        Ok(())
    }

    /// Deletes a NetworkPolicy that is no longer desired: it would still block traffic. An object of the same
    /// name that has another owner stays.
    async fn remove_policy(&self) -> Result<(), ApplyError> {
        if !self.is_known(Child::NetworkPolicy) {
            return Ok(());
        }
        let api: Api<NetworkPolicy> = Api::namespaced(self.client.clone(), self.job.namespace());
        let name = build::workers_name(self.job.name());
        let failed = |act| {
            let name = name.clone();
            move |source| ApplyError::Call { act, name, source }
        };
        let found = Box::pin(api.get_metadata_opt(&name)).await.map_err(failed("read network policy"))?;
        let is_own =
            |metadata: &ObjectMeta| worker::owner(metadata).is_some_and(|owner| owner == self.job.key());
        let own = found.map(|found| found.metadata).filter(is_own);
        if let Some(uid) = own.and_then(|metadata| metadata.uid) {
            let params = exactly(&uid, DeleteParams::default());
            match Box::pin(api.delete(&name, &params)).await {
                Err(error) if !error::is_done(&error) => return Err(failed("delete network policy")(error)),
                _ => {}
            }
        }
        let entry = ChildEntry::written(Child::NetworkPolicy.into(), None);
        self.index.remove(&self.job.key(), &entry);
        Ok(())
    }

    async fn ensure<K>(
        &self,
        id: ChildId,
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
        let known = self.known.get(&id);
        if known == Some(&digest) {
            return Ok(());
        }
        let Some(wanted) = wanted() else { return Ok(()) };
        // Boxed, as every call here: the future is large, and most reconciles make no call.
        match known {
            // Every apply sends all fields that an EndpointSlice may have, so none is left to remove.
            Some(_) if id.child == Child::Endpoint => Box::pin(self.change(&wanted)).await?,
            Some(_) => Box::pin(self.take_over_and_change(&wanted)).await?,
            None => Box::pin(self.make(&wanted)).await?,
        }
        self.index.enter(&self.job.key(), ChildEntry::written(id, digest));
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
        match self.create(wanted).await? {
            Created::New => Ok(()),
            Created::Found => self.take_over_and_change(wanted).await,
        }
    }

    /// Changes an object by server-side apply, and removes fields that the operator set before and no longer
    /// sends.
    async fn take_over_and_change<K>(&self, wanted: &K) -> Result<(), ApplyError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), self.job.namespace());
        owned_fields::take_over(&api, wanted.meta().name.as_deref().unwrap_or_default()).await?;
        self.change(wanted).await
    }

    /// Creates an object, unless an object of the same name exists that belongs to the job or that the job
    /// may adopt.
    async fn create<K>(&self, wanted: &K) -> Result<Created, ApplyError>
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
            Ok(_) => Ok(Created::New),
            Err(error) if error::exists(&error) => {
                let found = api.get_metadata(&name).await;
                let found =
                    found.map_err(|source| ApplyError::Call { act: "read", name: name.clone(), source })?;
                let is_ours = worker::owner(&found.metadata).map(|owner| owner == self.job.key());
                match is_ours {
                    Some(true) => Ok(Created::Found),
                    // A claim that was retained after an earlier job of this name.
                    None if is_free(&found.metadata) => Ok(Created::Found),
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

/// The outcome of creating an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Created {
    /// The object was created as it was sent.
    New,
    /// An object of the same name exists already.
    Found,
}

/// Returns the identifier of a child of a group of workers.
fn id(child: Child, group: &WorkerGroup) -> ChildId {
    ChildId { child, group: group.name.as_str().into() }
}

/// Whether a ConfigMap has the digest and all data of the wanted one.
fn holds(found: &ConfigMap, wanted: &ConfigMap) -> bool {
    let data = found.data.as_ref();
    let has = |key: &String, text: &String| data.is_some_and(|data| data.get(key) == Some(text));
    build::content_digest(found) == build::content_digest(wanted)
        && wanted.data.iter().flatten().all(|(key, text)| has(key, text))
}

/// Whether the operator created the object, and it has no owner.
fn is_free(metadata: &ObjectMeta) -> bool {
    let label = metadata.labels.as_ref().and_then(|labels| labels.get(labels::MANAGED_BY));
    label.is_some_and(|by| by == labels::OPERATOR)
        && metadata.owner_references.iter().flatten().next().is_none()
}
