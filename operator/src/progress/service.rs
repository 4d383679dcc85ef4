//! The channel's service: who speaks, may they, is it small enough; then it is taken.

use std::sync::Arc;
use std::time::Instant;

use rlt_channel::channel_server::Channel;
use rlt_channel::{AUTHORIZATION, ReportRequest, ReportResponse, Source, limits};
use tonic::{Code, Request, Response, Status};

use super::identity::{Authenticator, PodIdentity, Reviewer};
use super::rate::ReportRate;
use super::reports::Reports;
use crate::metrics::Metrics;

/// Reports a second that all jobs together are asked to stay below.
const REPORTS_PER_SECOND: usize = 200;
/// Seconds between two reports of a rank where that is no concern.
const REPORT_EVERY_SECONDS: usize = 5;

/// A worker as the operator knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportingWorker {
    /// Namespace of the pod and its job.
    pub namespace: String,
    /// Name of the job.
    pub job_name: String,
    /// The attempt that the pod belongs to.
    pub attempt: u32,
}

/// Whoever knows which pods are workers of which jobs.
pub trait Workers: Send + Sync + 'static {
    /// The worker of job `job_uid` whose pod has `pod_uid`.
    fn worker(&self, job_uid: &str, pod_uid: &str) -> Option<ReportingWorker>;
}

/// The service.
pub struct ChannelService<R, W> {
    authenticator: Authenticator<R>,
    workers: W,
    reports: Reports,
    rate: ReportRate,
    metrics: Metrics,
}

impl<R: Reviewer, W: Workers> ChannelService<R, W> {
    /// Takes what is allowed into `reports`, and counts everything.
    pub fn new(reviewer: R, workers: W, reports: Reports, metrics: Metrics) -> Arc<Self> {
        let authenticator = Authenticator::new(reviewer);
        Arc::new(Self { authenticator, workers, reports, rate: ReportRate::default(), metrics })
    }

    async fn take(&self, request: Request<ReportRequest>) -> Result<ReportResponse, Status> {
        let pod = self.identify(&request).await?;
        if !self.rate.allows(&pod.uid, Instant::now()) {
            return Err(Status::resource_exhausted("the pod reports too often"));
        }
        let report = request.into_inner();
        let source = report.source.clone().ok_or_else(|| Status::invalid_argument("source is missing"))?;
        self.authorize(&pod, &source)?;
        check_size(&report)?;
        self.reports.take(&source, report);
        let seconds = (self.reports.len() / REPORTS_PER_SECOND).max(REPORT_EVERY_SECONDS);
        Ok(ReportResponse { report_every_seconds: u32::try_from(seconds).unwrap_or(u32::MAX) })
    }

    async fn identify(&self, request: &Request<ReportRequest>) -> Result<PodIdentity, Status> {
        let value = request.metadata().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = value.and_then(|value| value.strip_prefix("Bearer "));
        let token = token.ok_or_else(|| Status::unauthenticated("a report needs a bearer token"))?;
        let identified = self.authenticator.identify(token).await.map_err(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "a token could not be reviewed");
            Status::unavailable("the token could not be reviewed")
        })?;
        let problem = "the token is not valid for this channel, or is not bound to a pod";
        identified.ok_or_else(|| Status::unauthenticated(problem))
    }

    /// A pod speaks for itself only: for its own job, in its own attempt.
    fn authorize(&self, pod: &PodIdentity, source: &Source) -> Result<(), Status> {
        let worker = self.workers.worker(&source.job_uid, &pod.uid);
        let Some(worker) = worker.filter(|worker| worker.namespace == pod.namespace) else {
            return Err(Status::permission_denied("the pod is no worker of that job"));
        };
        if (&worker.namespace, &worker.job_name) != (&source.namespace, &source.name) {
            return Err(Status::permission_denied("the job has another name or namespace"));
        }
        if worker.attempt != source.attempt {
            return Err(Status::permission_denied("the pod belongs to another attempt"));
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

/// Refuses what no trainer of ours sends.
fn check_size(report: &ReportRequest) -> Result<(), Status> {
    let within = |what: &str, size: usize, limit: usize| {
        let problem = || Status::invalid_argument(format!("{what}: at most {limit} are taken, got {size}"));
        if size > limit { Err(problem()) } else { Ok(()) }
    };
    within("checkpoints", report.checkpoints.len(), limits::MAX_CHECKPOINTS)?;
    within("metrics", report.metrics.len(), limits::MAX_METRICS)?;
    for checkpoint in &report.checkpoints {
        within("bytes of checkpoints.path", checkpoint.path.len(), limits::MAX_TEXT_BYTES)?;
        within("bytes of checkpoints.digest", checkpoint.digest.len(), limits::MAX_TEXT_BYTES)?;
    }
    let message = report.ending.as_ref().map_or(0, |ending| ending.message.len());
    within("bytes of ending.message", message, limits::MAX_MESSAGE_BYTES)
}
