//! One candidate of the election: watch, acquire, renew, give up.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, ResourceExt as _};
use rlt_objects::labels::OPERATOR;
use rlt_objects::release_metadata;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Candidate, LeaseError, Term};
use crate::backoff;

/// State of a candidate.
#[derive(Debug)]
enum Standing {
    /// No Lease was observed yet.
    Unknown { since: Instant },
    /// There is no Lease. The holder of a deleted Lease may still lead until `not_before`.
    Absent { not_before: Instant },
    /// Another process or none holds the Lease, which has not changed since `seen_at`.
    Standby { lease: Box<Lease>, seen_at: Instant },
    /// This candidate holds the Lease; the last renewal began at `renewed_at`.
    Leader { lease: Box<Lease>, renewed_at: Instant, due: Instant },
}

pub(super) struct Elector {
    api: Api<Lease>,
    candidate: Candidate,
    leading: watch::Sender<bool>,
    term: Term,
    standing: Standing,
    /// Number of consecutive failures to become the leader.
    num_failures: u32,
    /// Earliest time of the next try to become the leader.
    not_before: Instant,
}

impl Elector {
    pub(super) fn new(
        api: Api<Lease>,
        candidate: Candidate,
        leading: watch::Sender<bool>,
        term: Term,
    ) -> Self {
        let now = Instant::now();
        let standing = Standing::Unknown { since: now };
        Self { api, candidate, leading, term, standing, num_failures: 0, not_before: now }
    }

    pub(super) async fn run(mut self, mut released: oneshot::Receiver<()>) -> Result<(), LeaseError> {
        let ended = self.campaign(&mut released).await;
        // Sent before another process may acquire the Lease.
        let _ = self.leading.send(false);
        ended?;
        self.release().await
    }

    async fn campaign(&mut self, released: &mut oneshot::Receiver<()>) -> Result<(), LeaseError> {
        let mut seen = pin!(watch_object(self.api.clone(), &self.candidate.name).default_backoff());
        loop {
            tokio::select! {
                _ = &mut *released => return Ok(()),
                lease = seen.next() => match lease {
                    Some(Ok(lease)) => self.observe(lease)?,
                    Some(Err(error)) => tracing::warn!(%error, "lease watch failed; restarting it"),
                    None => return Err(LeaseError::Ended),
                },
                () = sleep_until(self.due()) => self.act().await?,
            }
        }
    }

    /// Updates the state by an observed Lease.
    fn observe(&mut self, lease: Option<Lease>) -> Result<(), LeaseError> {
        match (&self.standing, lease) {
            // The next renewal handles a deleted Lease.
            (Standing::Leader { .. }, None) => {}
            (Standing::Leader { .. }, Some(lease)) => {
                // The watch may return writes late that came before this candidate's acquisition.
                let is_newer = transitions(&lease) > self.own_transitions();
                if is_newer && holder(&lease) != self.candidate.identity {
                    return Err(LeaseError::TakenOver { holder: holder(&lease).to_owned() });
                }
            }
            (_, None) => self.standing = self.absent(),
            (Standing::Standby { lease: known, .. }, Some(lease))
                if known.resource_version() == lease.resource_version() => {}
            (_, Some(lease)) => self.see(lease),
        }
        Ok(())
    }

    /// Returns the state for a missing Lease. The holder of a deleted Lease notices the deletion only at its
    /// next renewal. Until then it may lead, like the holder of a Lease that is not renewed.
    fn absent(&self) -> Standing {
        let not_before = match &self.standing {
            Standing::Absent { not_before } => *not_before,
            Standing::Standby { lease, seen_at } if !is_free(lease, &self.candidate) => {
                *seen_at + self.patience(lease)
            }
            Standing::Unknown { .. } | Standing::Standby { .. } | Standing::Leader { .. } => Instant::now(),
        };
        Standing::Absent { not_before }
    }

    fn see(&mut self, lease: Lease) {
        self.standing = Standing::Standby { lease: Box::new(lease), seen_at: Instant::now() };
    }

    /// Returns the time of the next action, if no change of the Lease is observed before.
    fn due(&self) -> Instant {
        let due = match &self.standing {
            Standing::Unknown { since } => *since + self.candidate.timing.valid_for,
            Standing::Absent { not_before } => *not_before,
            Standing::Standby { lease, .. } if is_free(lease, &self.candidate) => Instant::now(),
            Standing::Standby { lease, seen_at } => *seen_at + self.patience(lease),
            Standing::Leader { due, .. } => return *due,
        };
        due.max(self.not_before)
    }

    /// Returns the time for which an unchanged Lease is respected: the duration that its holder has set, up
    /// to an hour, but at least this candidate's own.
    fn patience(&self, lease: &Lease) -> Duration {
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        let theirs = Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(3600));
        theirs.max(self.candidate.timing.valid_for)
    }

    async fn act(&mut self) -> Result<(), LeaseError> {
        match &self.standing {
            Standing::Unknown { .. } => self.read().await,
            Standing::Absent { .. } => self.create().await,
            Standing::Standby { lease, .. } => {
                let lease = lease.clone();
                self.take_over(*lease).await;
            }
            Standing::Leader { .. } => return self.renew().await,
        }
        Ok(())
    }

    /// Reads the Lease by a call, for the case that the watch has shown nothing or an old version.
    async fn read(&mut self) {
        match self.call(self.api.get_opt(&self.candidate.name)).await {
            Ok(Some(lease)) => self.see(lease),
            Ok(None) => self.standing = self.absent(),
            Err(error) => {
                tracing::warn!(
                    error = error.as_ref().map(tracing::field::display),
                    "failed to read the lease"
                );
                self.standing = Standing::Unknown { since: Instant::now() };
            }
        }
    }

    async fn create(&mut self) {
        let metadata = self.metadata().await;
        let started = Instant::now();
        let lease = self.with_holder(Lease { metadata, spec: None }, true);
        match self.call(self.api.create(&params(), &lease)).await {
            Ok(lease) => self.lead(lease, started),
            Err(_) => self.back_off().await,
        }
    }

    /// Returns the metadata of a new Lease. If the Service cannot be read, the Lease belongs to no release,
    /// but the process can still lead.
    async fn metadata(&self) -> ObjectMeta {
        let service = self.service().await.unwrap_or_default();
        release_metadata::copy_from(&service, &self.candidate.name)
    }

    /// Returns the metadata of the Service of the same release.
    async fn service(&self) -> Option<ObjectMeta> {
        let name = self.candidate.service.as_ref()?;
        let client = self.api.clone().into_client();
        let services = Api::<Service>::namespaced(client, &self.candidate.namespace);
        let found = self.call(services.get_metadata_opt(name)).await;
        Some(found.ok()??.metadata)
    }

    async fn take_over(&mut self, lease: Lease) {
        let started = Instant::now();
        let lease = self.with_holder(lease, true);
        match self.replace(&lease).await {
            Ok(lease) => self.lead(lease, started),
            // Another process was faster, or the watch is behind.
            Err(_) => self.back_off().await,
        }
    }

    /// Waits before the next try to become the leader, twice as long after each failure, and reads the
    /// Lease's holder.
    async fn back_off(&mut self) {
        let timing = self.candidate.timing;
        let wait = backoff::doubled(timing.retry_after, self.num_failures, timing.valid_for);
        self.num_failures = self.num_failures.saturating_add(1);
        self.not_before = Instant::now() + wait;
        self.read().await;
    }

    fn lead(&mut self, lease: Lease, started: Instant) {
        let due = started + self.candidate.timing.renew_every;
        self.standing = Standing::Leader { lease: Box::new(lease), renewed_at: started, due };
        self.term.set_end(started + self.candidate.timing.renew_within);
        self.num_failures = 0;
        tracing::info!(identity = self.candidate.identity, "became the leader");
        let _ = self.leading.send(true);
    }

    async fn renew(&mut self) -> Result<(), LeaseError> {
        let Standing::Leader { lease, renewed_at, .. } = &self.standing else { return Ok(()) };
        let (lease, renewed_at, started) =
            (self.with_holder((**lease).clone(), false), *renewed_at, Instant::now());
        let timing = self.candidate.timing;
        let Some(deadline) = self.term_ends_at().filter(|deadline| started < *deadline) else {
            return Err(self.not_renewed(None));
        };
        let (lease, renewed_at, due, problem) = match self.replace(&lease).await {
            Ok(lease) => (lease, started, started + timing.renew_every, None),
            Err(problem) => {
                let error = problem.as_ref().map(tracing::field::display);
                tracing::warn!(error, "failed to renew the lease");
                let lease = self.still_held(lease, problem.as_ref()).await?;
                let due = (Instant::now() + timing.retry_after).min(deadline);
                (lease, renewed_at, due, Some(problem))
            }
        };
        if problem.is_some() && Instant::now() >= deadline {
            return Err(self.not_renewed(problem.flatten()));
        }
        self.standing = Standing::Leader { lease: Box::new(lease), renewed_at, due };
        self.term.set_end(renewed_at + timing.renew_within);
        Ok(())
    }

    /// Returns the time at which the leader must stop unless it renews the Lease; `None` for other
    /// candidates.
    fn term_ends_at(&self) -> Option<Instant> {
        match &self.standing {
            Standing::Leader { renewed_at, .. } => Some(*renewed_at + self.candidate.timing.renew_within),
            _ => None,
        }
    }

    fn not_renewed(&self, source: Option<kube::Error>) -> LeaseError {
        LeaseError::NotRenewed { seconds: self.candidate.timing.renew_within.as_secs_f64(), source }
    }

    /// Returns the Lease to renew next, after a failed renewal: the current one, if it can be read and is
    /// still held by this candidate.
    async fn still_held(&self, lease: Lease, problem: Option<&kube::Error>) -> Result<Lease, LeaseError> {
        if !matches!(problem, Some(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found())
        {
            return Ok(lease);
        }
        match self.call(self.api.get_opt(&self.candidate.name)).await {
            Ok(Some(now)) if holder(&now) == self.candidate.identity => Ok(now),
            Ok(Some(now)) => Err(LeaseError::TakenOver { holder: holder(&now).to_owned() }),
            Ok(None) => Err(LeaseError::TakenOver { holder: String::new() }),
            Err(_) => Ok(lease),
        }
    }

    async fn release(&mut self) -> Result<(), LeaseError> {
        let Standing::Leader { lease, .. } = &self.standing else { return Ok(()) };
        let mut lease = (**lease).clone();
        lease.spec.get_or_insert_default().holder_identity = Some(String::new());
        let released = self.replace(&lease).await;
        released.map(drop).map_err(|source| LeaseError::NotRenewed { seconds: 0.0, source })
    }

    /// Returns the Lease as held by this candidate. The operator gives up the ownership of labels and
    /// annotations, which it has if it created the Lease.
    fn with_holder(&self, mut lease: Lease, is_new: bool) -> Lease {
        release_metadata::disown(&mut lease.metadata);
        let now = MicroTime(Timestamp::now());
        let spec: &mut LeaseSpec = lease.spec.get_or_insert_default();
        if is_new {
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
        }
        spec.holder_identity = Some(self.candidate.identity.clone());
        spec.renew_time = Some(now);
        let seconds = self.candidate.timing.valid_for.as_secs().max(1);
        spec.lease_duration_seconds = Some(i32::try_from(seconds).unwrap_or(i32::MAX));
        lease
    }

    fn own_transitions(&self) -> i32 {
        match &self.standing {
            Standing::Leader { lease, .. } => transitions(lease),
            _ => i32::MAX,
        }
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, Option<kube::Error>> {
        self.call(self.api.replace(&self.candidate.name, &params(), lease)).await
    }

    /// Makes a call with a timeout, which for a leader ends with its term; the error `None` is a timeout.
    async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Option<kube::Error>> {
        let limit = Instant::now() + self.candidate.timing.call_timeout;
        let limit = self.term_ends_at().map_or(limit, |end| limit.min(end));
        let answered = timeout_at(limit, call).await;
        answered.map_err(|_| None)?.map_err(Some)
    }
}

fn params() -> PostParams {
    PostParams { field_manager: Some(OPERATOR.into()), ..PostParams::default() }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or("")
}

fn transitions(lease: &Lease) -> i32 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0)
}

/// Whether no process holds the Lease, or its holder has this candidate's identity and was replaced by this
/// process.
fn is_free(lease: &Lease, candidate: &Candidate) -> bool {
    holder(lease).is_empty() || holder(lease) == candidate.identity
}
