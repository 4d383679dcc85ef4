//! The status channel from a rank's client to what statuses are written from: over TLS, with tokens, wrong
//! ones included.

#![expect(clippy::unwrap_used, reason = "a test that can not go on says where")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use jiff::Timestamp;
use rlt_channel::channel_client::ChannelClient;
use rlt_channel::client::{Client, Pace, Settings, Urgency};
use rlt_channel::{Checkpoint, ReportRequest, Source, limits};
use rlt_operator::metrics::Metrics;
use rlt_operator::progress::{
    Certificates, ChannelService, PodIdentity, ReportingWorker, Reports, ReviewError, Reviewer, Workers,
    serve,
};
use tokio::sync::oneshot;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Request};

/// Tokens read `<namespace>.<pod>.signed`; the pod's UID is its name.
struct Tokens;

#[tonic::async_trait]
impl Reviewer for Tokens {
    async fn review(&self, token: &str) -> Result<Option<PodIdentity>, ReviewError> {
        let parts: Vec<&str> = token.split('.').collect();
        let [namespace, pod, "signed"] = parts[..] else { return Ok(None) };
        Ok(Some(PodIdentity { namespace: namespace.into(), name: pod.into(), uid: pod.into() }))
    }
}

/// Job `adding` in `team` has attempt 2 with the pod `adding-0`.
struct OneJob;

impl Workers for OneJob {
    fn worker(&self, job_uid: &str, pod_uid: &str) -> Option<ReportingWorker> {
        let worker = ReportingWorker { namespace: "team".into(), job_name: "adding".into(), attempt: 2 };
        (job_uid == "adding-uid" && pod_uid == "adding-0").then_some(worker)
    }
}

struct Served {
    reports: Reports,
    address: SocketAddr,
    certificates: Certificates,
    stop: oneshot::Sender<()>,
    news: Box<dyn futures::Stream<Item = String> + Send + Unpin>,
}

async fn start() -> Served {
    let certificates = Certificates::current(None, &["127.0.0.1".into()], Timestamp::now()).unwrap();
    let reports = Reports::new();
    let news = reports.take_news().unwrap();
    let service = ChannelService::new(Tokens, OneJob, reports.clone(), Metrics::default());
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let (address, _task) = serve(service, ([127, 0, 0, 1], 0).into(), &certificates, stopped).await.unwrap();
    Served { reports, address, certificates, stop, news: Box::new(news.map(|job| job.name)) }
}

fn source() -> Source {
    Source {
        job_uid: "adding-uid".into(),
        namespace: "team".into(),
        name: "adding".into(),
        attempt: 2,
        rank: 0,
    }
}

/// The files of a pod, and the settings that point to them.
fn pod(served: &Served, token: &str) -> (tempfile::TempDir, Settings) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let pace = Pace {
        report_every: Duration::from_millis(50),
        first_backoff: Duration::from_millis(10),
        longest_backoff: Duration::from_millis(50),
        ..Pace::default()
    };
    let settings = Settings {
        address: format!("https://{}", served.address),
        ca_file: file("ca.crt", served.certificates.authority()),
        token_file: file("token", token),
        source: source(),
        pace,
    };
    (folder, settings)
}

/// What the server says to one report under a token.
async fn answer(served: &Served, token: Option<&str>, report: ReportRequest) -> Result<u32, Code> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(served.certificates.authority()));
    let endpoint =
        Endpoint::from_shared(format!("https://{}", served.address)).unwrap().tls_config(tls).unwrap();
    let mut client = ChannelClient::new(endpoint.connect().await.unwrap());
    let mut request = Request::new(report);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    let answered = client.report(request).await;
    answered.map(|response| response.into_inner().report_every_seconds).map_err(|status| status.code())
}

fn report(source: Source) -> ReportRequest {
    ReportRequest { source: Some(source), sequence: 1, ..ReportRequest::default() }
}

#[tokio::test]
async fn what_a_rank_reports_is_there_to_be_written_and_its_job_is_reconciled() {
    let mut served = start().await;
    let (_folder, settings) = pod(&served, "team.adding-0.signed");
    let client = Client::start(settings).unwrap();
    client.update(Urgency::AtOnce, |report| {
        report.knows_checkpoints = true;
        report.checkpoints.push(Checkpoint { step: 20, is_latest: true, ..Checkpoint::default() });
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    let has_checkpoint = |reports: &Reports| {
        let report = reports.of("adding-uid");
        report.is_some_and(|report| report.checkpoints.as_ref().is_some_and(|all| all[0].step == 20))
    };
    while !has_checkpoint(&served.reports) {
        assert!(Instant::now() < deadline, "{:?}", served.reports);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(served.news.next().await.unwrap(), "adding");
    served.stop.send(()).unwrap();
}

#[tokio::test]
async fn a_pod_speaks_for_its_own_job_and_attempt_only() {
    let served = start().await;
    let own = Some("team.adding-0.signed");
    assert_eq!(answer(&served, own, report(source())).await, Ok(5));
    let other_attempt = Source { attempt: 1, ..source() };
    let other_job = Source { job_uid: "other-uid".into(), ..source() };
    let other_name = Source { name: "other".into(), ..source() };
    let other_namespace = Source { namespace: "kube-system".into(), ..source() };
    for source in [other_attempt, other_job, other_name, other_namespace] {
        assert_eq!(
            answer(&served, own, report(source.clone())).await,
            Err(Code::PermissionDenied),
            "{source:?}"
        );
    }
    for foreigner in ["team.other-0.signed", "elsewhere.adding-0.signed"] {
        assert_eq!(
            answer(&served, Some(foreigner), report(source())).await,
            Err(Code::PermissionDenied),
            "{foreigner}"
        );
    }
    for nobody in [None, Some("team.adding-0.forged"), Some("nonsense")] {
        assert_eq!(answer(&served, nobody, report(source())).await, Err(Code::Unauthenticated), "{nobody:?}");
    }
}

#[tokio::test]
async fn a_report_without_a_source_or_beyond_its_bounds_is_refused() {
    let served = start().await;
    let token = Some("team.adding-0.signed");
    assert_eq!(answer(&served, token, ReportRequest::default()).await, Err(Code::InvalidArgument));
    let many = vec![Checkpoint::default(); limits::MAX_CHECKPOINTS + 1];
    let many = ReportRequest { checkpoints: many, ..report(source()) };
    assert_eq!(answer(&served, token, many).await, Err(Code::InvalidArgument));
    let path = "x".repeat(limits::MAX_REPORT_BYTES);
    let large =
        ReportRequest { checkpoints: vec![Checkpoint { path, ..Checkpoint::default() }], ..report(source()) };
    assert_eq!(answer(&served, token, large).await, Err(Code::OutOfRange));
    assert!(served.reports.is_empty());
}

#[tokio::test]
async fn a_pod_that_floods_is_held_back() {
    let served = start().await;
    let mut refused = 0;
    for _ in 0..40 {
        let answered = answer(&served, Some("team.adding-0.signed"), report(source())).await;
        refused += usize::from(answered == Err(Code::ResourceExhausted));
    }
    assert!((10..=20).contains(&refused), "{refused} of 40 refused");
}

#[tokio::test]
async fn two_replicas_of_one_secret_serve_the_same_clients() {
    let first = start().await;
    let read = Certificates::from_data(&first.certificates.to_data()).unwrap();
    let renewed = Certificates::current(Some(&read), &["127.0.0.1".into()], Timestamp::now()).unwrap();
    let reports = Reports::new();
    let service = ChannelService::new(Tokens, OneJob, reports.clone(), Metrics::default());
    let forever = std::future::pending();
    let (address, _task) =
        serve(Arc::clone(&service), ([127, 0, 0, 1], 0).into(), &renewed, forever).await.unwrap();
    let second = Served { address, reports, ..start().await };
    let second = Served { certificates: first.certificates.clone(), ..second };
    assert_eq!(answer(&second, Some("team.adding-0.signed"), report(source())).await, Ok(5));
}
