//! Service of the channel: authenticates and authorizes a report, checks its bounds, and stores it.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use rlt_channel::channel_server::Channel;
use rlt_channel::{
    AUTHORIZATION, Assignment, Ending, FollowRequest, FollowResponse, ReportRequest, ReportResponse, Source,
};
use rlt_objects::worker::{Exit, JobKey, Launcher};
use tonic::{Code, Request, Response, Status};

use super::connections::Peer;
use super::identity::{Authenticator, PodIdentity, Reviewer};
use super::keys::RendezvousKeys;
use super::rate::{self, Rate};
use super::reports::{self, Reports};
use super::{bounds, token};
use crate::metrics::Metrics;

/// Shortest polling intervals in seconds, of a launcher whose processes run, and of one that waits for ranks.
const ASK_EVERY_SECONDS: [usize; 2] = [5, 1];

/// Worker that may report, with its attempt and ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportingWorker {
    /// Attempt to which the pod belongs.
    pub attempt: u32,
    /// Ranks whose processes run in the pod.
    pub ranks: Range<u32>,
}

/// Pod whose launcher may be assigned ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FollowingPod {
    /// Attempt to which the pod belongs; 0 for a spare.
    pub attempt: u32,
    /// Ranks of the pod in this attempt; `None` for a spare, and while the address of rank 0 is unknown.
    pub assignment: Option<Assignment>,
}

/// Reason why a pod may not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownWorker {
    /// The pod is no worker of that job.
    NoWorker,
    /// The job has no plan yet, so its ranks are unknown; the pod may report shortly.
    NotPlanned,
}

/// Lookup of the workers of jobs.
pub trait Workers: Send + Sync + 'static {
    /// Returns the worker of a job whose pod has `pod_uid`.
    ///
    /// # Errors
    /// [`UnknownWorker`].
    fn worker(&self, job: &JobKey, pod_uid: &str) -> Result<ReportingWorker, UnknownWorker>;

    /// Returns the assignment of a job's pod, which may be a spare.
    ///
    /// # Errors
    /// [`UnknownWorker`].
    fn pod(&self, job: &JobKey, pod_uid: &str) -> Result<FollowingPod, UnknownWorker>;
}

/// The gRPC service of the status channel.
pub struct ChannelService<R, W> {
    authenticator: Authenticator<R>,
    workers: W,
    reports: Reports,
    keys: RendezvousKeys,
    of_ranks: Rate<(String, u32)>,
    of_launchers: Rate<String>,
    of_addresses: Rate<IpAddr>,
    reviews: Rate<IpAddr>,
    metrics: Metrics,
}

impl<R: Reviewer, W: Workers> ChannelService<R, W> {
    /// Returns a service that stores accepted reports in `reports`, hands out `keys`, and counts all in
    /// `metrics`.
    pub fn new(
        reviewer: R,
        workers: W,
        reports: Reports,
        keys: RendezvousKeys,
        metrics: Metrics,
    ) -> Arc<Self> {
        let authenticator = Authenticator::new(reviewer);
        let (of_ranks, of_addresses) = (Rate::new(rate::OF_RANK), Rate::new(rate::OF_ADDRESS));
        let (of_launchers, reviews) = (Rate::new(rate::OF_RANK), Rate::new(rate::REVIEWS_OF_ADDRESS));
        Arc::new(Self {
            authenticator,
            workers,
            reports,
            keys,
            of_ranks,
            of_launchers,
            of_addresses,
            reviews,
            metrics,
        })
    }

    async fn take(&self, request: Request<ReportRequest>) -> Result<ReportResponse, Status> {
        let source = request.get_ref().source.clone();
        let pod = self.identify(&request, source.as_ref(), |pod, source| self.authorize(pod, source)).await?;
        let source = source.unwrap_or_default();
        if !self.of_ranks.allows((pod.uid, source.rank), Instant::now()) {
            return Err(Status::resource_exhausted("the rank reports too often"));
        }
        let mut report = request.into_inner();
        bounds::drop_unknown(&mut report);
        bounds::check(&report).map_err(Status::invalid_argument)?;
        let seconds = rate::report_every(self.reports.take(&source, report)).as_secs();
        Ok(ReportResponse { report_every_seconds: u32::try_from(seconds).unwrap_or(u32::MAX) })
    }

    /// Stores the report of a launcher, and answers with its pod's assignment.
    async fn answer(&self, request: Request<FollowRequest>) -> Result<FollowResponse, Status> {
        let source = request.get_ref().source.clone();
        let pod = self
            .identify(&request, source.as_ref(), |pod, source| self.following(pod, source).map(drop))
            .await?;
        let source = source.unwrap_or_default();
        if !self.of_launchers.allows(pod.uid.clone(), Instant::now()) {
            return Err(Status::resource_exhausted("the launcher asks too often"));
        }
        let FollowRequest { ending, is_loaded, only_key, .. } = request.into_inner();
        ending.as_ref().map_or(Ok(()), bounds::check_ending).map_err(Status::invalid_argument)?;
        let FollowingPod { attempt, assignment } = self.following(&pod, &source)?;
        // A spare belongs to no attempt.
        let rendezvous_key =
            if attempt == 0 { String::new() } else { self.keys.of(&source.job_uid, attempt) };
        if only_key {
            // The pod cannot run another attempt, so its launcher is not stored as one that polls for an
            // assignment.
            return Ok(FollowResponse {
                attempt,
                ask_again_seconds: 1,
                rendezvous_key,
                ..FollowResponse::default()
            });
        }
        let has_none = ending.is_some() || source.attempt == 0;
        let launcher = Launcher { attempt: source.attempt, ended: ending.map(exit), is_loaded };
        let taken = self.reports.take_launcher(&source, &pod.uid, launcher);
        let every = ASK_EVERY_SECONDS[usize::from(has_none)];
        let seconds = taken.num_launchers.div_ceil(rate::REPORTS_PER_SECOND).max(every);
        Ok(FollowResponse {
            attempt,
            assignment: assignment.filter(|new| has_none && new.attempt > source.attempt),
            is_over: taken.is_over,
            ask_again_seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
            rendezvous_key,
        })
    }

    /// Returns the pod behind a launcher, which may only ask about its own job.
    fn following(&self, pod: &PodIdentity, source: &Source) -> Result<FollowingPod, Status> {
        let job = reports::job(source);
        let is_of_job = *job.namespace == *pod.namespace;
        let known = if is_of_job { self.workers.pod(&job, &pod.uid) } else { Err(UnknownWorker::NoWorker) };
        known.map_err(refusal)
    }

    /// Authenticates the pod of a request. Unverified claims are checked first, so that a wrong one costs no
    /// TokenReview.
    async fn identify<T>(
        &self,
        request: &Request<T>,
        source: Option<&Source>,
        authorize: impl FnOnce(&PodIdentity, &Source) -> Result<(), Status>,
    ) -> Result<PodIdentity, Status> {
        let peer = request.extensions().get::<Peer>();
        let peer = peer.ok_or_else(|| Status::internal("the connection is not counted"))?;
        let address = peer.address();
        if !self.of_addresses.allows(address, Instant::now()) {
            return Err(Status::resource_exhausted("too many reports come from this address"));
        }
        let source = source.ok_or_else(|| Status::invalid_argument("source is missing"))?;
        let value = request.metadata().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = value.and_then(|value| value.strip_prefix("Bearer "));
        let token = token.ok_or_else(|| Status::unauthenticated("a report needs a bearer token"))?;
        let problem = "the token is not valid for this channel, or is not bound to a pod";
        let claimed = token::claimed_pod(token, Timestamp::now());
        let claimed = claimed.ok_or_else(|| Status::unauthenticated(problem))?;
        authorize(&claimed, source)?;
        if !self.authenticator.remembers(token) && !self.reviews.allows(address, Instant::now()) {
            return Err(Status::resource_exhausted("too many tokens of this address are new"));
        }
        let identified = self.authenticator.identify(token).await.map_err(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "a token could not be reviewed");
            Status::unavailable("the token could not be reviewed")
        })?;
        let pod = identified.filter(|pod| *pod == claimed);
        let pod = pod.ok_or_else(|| Status::unauthenticated(problem))?;
        if !peer.authenticate(&pod.namespace) {
            return Err(Status::resource_exhausted("too many connections come from this namespace"));
        }
        Ok(pod)
    }

    /// Checks that a pod reports only for its own job, attempt and ranks.
    fn authorize(&self, pod: &PodIdentity, source: &Source) -> Result<(), Status> {
        // A job and its pods are in one namespace, which the token states.
        let job = reports::job(source);
        let is_of_job = *job.namespace == *pod.namespace;
        let worker =
            if is_of_job { self.workers.worker(&job, &pod.uid) } else { Err(UnknownWorker::NoWorker) };
        let worker = worker.map_err(refusal)?;
        if worker.attempt != source.attempt {
            return Err(Status::permission_denied("the pod belongs to another attempt"));
        }
        if !worker.ranks.contains(&source.rank) {
            let Range { start, end } = worker.ranks;
            let problem =
                format!("the pod runs the ranks from {start} to below {end}, not rank {}", source.rank);
            return Err(Status::permission_denied(problem));
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl<R: Reviewer, W: Workers> Channel for ChannelService<R, W> {
    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        let taken = self.take(request).await;
        self.metrics.reported(match &taken {
            Ok(_) => "taken",
            Err(status) => outcome(status.code()),
        });
        taken.map(Response::new)
    }

    async fn follow(&self, request: Request<FollowRequest>) -> Result<Response<FollowResponse>, Status> {
        let answered = self.answer(request).await;
        self.metrics.reported(match &answered {
            Ok(_) => "answered",
            Err(status) => outcome(status.code()),
        });
        answered.map(Response::new)
    }
}

fn refusal(unknown: UnknownWorker) -> Status {
    match unknown {
        UnknownWorker::NoWorker => Status::permission_denied("the pod is no worker of that job"),
        UnknownWorker::NotPlanned => Status::unavailable("the job was not reconciled yet"),
    }
}

/// Converts the end of a pod's processes to the form of a container's exit.
fn exit(ending: Ending) -> Exit {
    Exit {
        code: i32::try_from(ending.exit_code).unwrap_or(i32::MAX),
        reason: "Error".to_owned(),
        message: ending.message,
        finished_at: k8s_openapi::jiff::Timestamp::from_millisecond(ending.time_ms).ok(),
    }
}

fn outcome(refusal: Code) -> &'static str {
    match refusal {
        Code::Unauthenticated => "unauthenticated",
        Code::PermissionDenied => "forbidden",
        Code::ResourceExhausted => "too_many",
        Code::InvalidArgument => "invalid",
        _ => "failed",
    }
}
