//! The status channel from a rank's client to the released reports: over TLS, with valid and invalid tokens.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::StreamExt as _;
use jiff::Timestamp;
use rlt_channel::channel_client::ChannelClient;
use rlt_channel::client::{Client, Pace, Settings, Urgency};
use rlt_channel::{
    Assignment, Checkpoint, Ending, FollowRequest, FollowResponse, ReportRequest, Source, limits,
};
use rlt_objects::worker::JobKey;
use rlt_operator::metrics::Metrics;
use rlt_operator::progress::{
    Certificates, ChannelService, FollowingPod, PodIdentity, RendezvousKeys, ReportingWorker, Reports,
    ReviewError, Reviewer, UnknownWorker, Workers, serve,
};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request};

/// Limit of each wait; a quiet machine needs a few seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Largest number of connections from one address.
const MAX_FROM_ADDRESS: usize = 256;

/// Vouches for tokens whose signature reads `signed`, and counts its reviews.
#[derive(Clone, Default)]
struct Tokens(Arc<AtomicUsize>);

#[tonic::async_trait]
impl Reviewer for Tokens {
    async fn review(&self, token: &str) -> Result<Option<PodIdentity>, ReviewError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let parts: Vec<&str> = token.split('.').collect();
        let [_, claims, "signed"] = parts[..] else { return Ok(None) };
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
        let bound = &claims["kubernetes.io"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (namespace, name) = (text(&bound["namespace"]), text(&bound["pod"]["name"]));
        Ok(Some(PodIdentity { namespace, name, uid: text(&bound["pod"]["uid"]) }))
    }
}

/// A token that claims to be a pod's, whose UID is its name, for this audience.
fn token_for(audience: &str, namespace: &str, pod: &str, signature: &str) -> String {
    let claims = json!({
        "aud": [audience], "exp": Timestamp::now().as_second() + 600,
        "kubernetes.io": {"namespace": namespace, "pod": {"name": pod, "uid": pod}},
    });
    format!("e30.{}.{signature}", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

fn token(namespace: &str, pod: &str, signature: &str) -> String {
    token_for(rlt_channel::AUDIENCE, namespace, pod, signature)
}

fn own_token() -> String {
    token("team", "adding-0", "signed")
}

/// Job `adding` in `team` has attempt 2 with the pod `adding-0`, which runs rank 0.
struct OneJob;

impl Workers for OneJob {
    fn worker(&self, job: &JobKey, pod_uid: &str) -> Result<ReportingWorker, UnknownWorker> {
        let is_known = *job == key() && pod_uid == "adding-0";
        is_known.then_some(ReportingWorker { attempt: 2, ranks: 0..1 }).ok_or(UnknownWorker::NoWorker)
    }

    fn pod(&self, job: &JobKey, pod_uid: &str) -> Result<FollowingPod, UnknownWorker> {
        let assignment =
            Assignment { attempt: 2, first_rank: 0, master_address: "10.0.0.7".into(), master_port: 29500 };
        match (*job == key(), pod_uid) {
            (true, "adding-0") => Ok(FollowingPod { attempt: 2, assignment: Some(assignment) }),
            (true, "adding-spare-0") => Ok(FollowingPod::default()),
            _ => Err(UnknownWorker::NoWorker),
        }
    }
}

fn key() -> JobKey {
    JobKey { uid: "adding-uid".into(), namespace: "team".into(), name: "adding".into() }
}

struct Served {
    reports: Reports,
    reviews: Tokens,
    address: SocketAddr,
    certificates: Certificates,
    stop: oneshot::Sender<()>,
    changes: Box<dyn futures::Stream<Item = String> + Send + Unpin>,
}

async fn start() -> Served {
    let certificates = Certificates::current(None, &["127.0.0.1".into()], Timestamp::now()).unwrap();
    let reports = Reports::new();
    let changes = reports.take_changes().unwrap();
    let reviews = Tokens::default();
    let service = service(reviews.clone(), &reports, &certificates);
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let (address, _task) = serve(service, ([127, 0, 0, 1], 0).into(), &certificates, stopped).await.unwrap();
    Served { reports, reviews, address, certificates, stop, changes: Box::new(changes.map(|job| job.name)) }
}

fn service(
    reviews: Tokens,
    reports: &Reports,
    certificates: &Certificates,
) -> Arc<ChannelService<Tokens, OneJob>> {
    let keys = RendezvousKeys::default();
    keys.replace(certificates);
    ChannelService::new(reviews, OneJob, reports.clone(), keys, Metrics::default())
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

/// The server's answer to one report with a token.
async fn answer(served: &Served, token: Option<&str>, report: ReportRequest) -> Result<u32, Code> {
    answer_to(&mut client(served).await, token, report).await
}

async fn answer_to(
    client: &mut ChannelClient<Channel>,
    token: Option<&str>,
    report: ReportRequest,
) -> Result<u32, Code> {
    let answered = client.report(signed(report, token)).await;
    answered.map(|response| response.into_inner().report_every_seconds).map_err(|status| status.code())
}

/// The server's answer to a launcher's request with a token.
async fn follow(served: &Served, token: &str, question: FollowRequest) -> Result<FollowResponse, Code> {
    follow_by(&mut client(served).await, token, question).await
}

async fn follow_by(
    client: &mut ChannelClient<Channel>,
    token: &str,
    question: FollowRequest,
) -> Result<FollowResponse, Code> {
    let answered = client.follow(signed(question, Some(token))).await;
    answered.map(tonic::Response::into_inner).map_err(|status| status.code())
}

/// Calls until a call is refused for its rate. Fails unless the whole burst was allowed, and at most what the
/// rate adds in the time that the calls took.
async fn flood(burst: u32, per_second: f64, mut is_refused: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    let mut num_allowed = 0;
    while !is_refused().await {
        num_allowed += 1;
        assert!(num_allowed < 10_000, "no call is refused");
    }
    let most = f64::from(burst) + per_second * begin.elapsed().as_secs_f64();
    assert!(num_allowed >= burst && f64::from(num_allowed) <= most, "{num_allowed} of at most {most}");
}

async fn client(served: &Served) -> ChannelClient<Channel> {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(served.certificates.authority()));
    let endpoint =
        Endpoint::from_shared(format!("https://{}", served.address)).unwrap().tls_config(tls).unwrap();
    // The server leaves a peer that it could not shake hands with in time, as when both were not scheduled.
    let begin = Instant::now();
    loop {
        match endpoint.connect().await {
            Ok(channel) => return ChannelClient::new(channel),
            Err(error) => assert!(begin.elapsed() < TIMEOUT, "{error:?}"),
        }
    }
}

fn signed<T>(message: T, token: Option<&str>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    request
}

fn report(source: Source) -> ReportRequest {
    ReportRequest { source: Some(source), sequence: 1, ..ReportRequest::default() }
}

#[tokio::test]
async fn a_report_is_stored_for_the_status_and_its_job_is_requeued() {
    let mut served = start().await;
    let (_folder, settings) = pod(&served, &own_token());
    let client = Client::start(settings).unwrap();
    client.update(Urgency::AtOnce, |report| {
        report.knows_checkpoints = true;
        report.checkpoints.push(Checkpoint { step: 20, is_latest: true, ..Checkpoint::default() });
    });
    let deadline = Instant::now() + TIMEOUT;
    let has_checkpoint = |reports: &Reports| {
        let report = reports.of(&key());
        report.is_some_and(|report| report.checkpoints.as_ref().is_some_and(|all| all[0].step == 20))
    };
    while !has_checkpoint(&served.reports) {
        assert!(Instant::now() < deadline, "{:?}", served.reports);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(served.changes.next().await.unwrap(), "adding");
    served.stop.send(()).unwrap();
}

#[tokio::test]
async fn a_pod_reports_only_for_its_own_job_and_attempt() {
    let served = start().await;
    let own_token = own_token();
    let own = Some(own_token.as_str());
    assert_eq!(answer(&served, own, report(source())).await, Ok(5));
    let other_attempt = Source { attempt: 1, ..source() };
    let other_job = Source { job_uid: "other-uid".into(), ..source() };
    let other_name = Source { name: "other".into(), ..source() };
    let other_namespace = Source { namespace: "kube-system".into(), ..source() };
    let other_rank = Source { rank: 1, ..source() };
    for source in [other_attempt, other_job, other_name, other_namespace, other_rank] {
        assert_eq!(
            answer(&served, own, report(source.clone())).await,
            Err(Code::PermissionDenied),
            "{source:?}"
        );
    }
    for foreigner in [token("team", "other-0", "signed"), token("elsewhere", "adding-0", "signed")] {
        assert_eq!(
            answer(&served, Some(&foreigner), report(source())).await,
            Err(Code::PermissionDenied),
            "{foreigner}"
        );
    }
    assert_eq!(
        served.reviews.0.load(Ordering::SeqCst),
        1,
        "a token that does not claim to be a worker causes no TokenReview"
    );
    let for_others = token_for("https://kubernetes.default.svc", "team", "adding-0", "signed");
    let forged = token("team", "adding-0", "forged");
    for token in [None, Some("nonsense"), Some(&*for_others), Some(&*forged)] {
        assert_eq!(answer(&served, token, report(source())).await, Err(Code::Unauthenticated), "{token:?}");
    }
    assert_eq!(served.reviews.0.load(Ordering::SeqCst), 2, "only what may be true is reviewed");
}

#[tokio::test]
async fn tokens_that_are_forged_one_after_the_other_cost_a_bounded_number_of_reviews() {
    let served = start().await;
    let mut client = client(&served).await;
    let (mut num_calls, reviews) = (0, &served.reviews.0);
    flood(64, 1.0, async || {
        num_calls += 1;
        let forged = token("team", "adding-0", &format!("forged{num_calls}"));
        let answered = answer_to(&mut client, Some(&forged), report(source())).await;
        answered == Err(Code::ResourceExhausted)
    })
    .await;
    assert_eq!(reviews.load(Ordering::SeqCst), num_calls - 1, "the refused call is not reviewed");
}

/// Waits until the server has closed all connections.
async fn until_closed(streams: &mut [TcpStream]) {
    let mut byte = [0];
    for (idx, stream) in streams.iter_mut().enumerate() {
        let read = tokio::time::timeout(TIMEOUT, stream.read(&mut byte)).await;
        assert!(
            read.is_ok_and(|read| read.is_err() || read.is_ok_and(|length| length == 0)),
            "{idx} is open"
        );
    }
}

/// Whether the server has not closed a connection, on which it sends nothing.
fn is_open(stream: &TcpStream) -> bool {
    let stream = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned().unwrap());
    stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[tokio::test]
async fn a_peer_that_does_not_shake_hands_is_left_and_one_address_opens_a_bounded_number_of_connections() {
    let served = start().await;
    let begin = Instant::now();
    loop {
        let connected = Instant::now();
        let mut silent = Vec::new();
        for _ in 0..300 {
            silent.push(TcpStream::connect(served.address).await.unwrap());
        }
        let (admitted, further) = silent.split_at_mut(MAX_FROM_ADDRESS);
        until_closed(further).await;
        let num_open = admitted.iter().filter(|stream| is_open(stream)).count();
        until_closed(admitted).await;
        assert!(connected.elapsed() >= Duration::from_secs(3), "those that were admitted had their time");
        if num_open == MAX_FROM_ADDRESS {
            break;
        }
        // A server that does not run until their time is over leaves the first before it refuses others.
        assert!(begin.elapsed() < TIMEOUT, "{num_open} of {MAX_FROM_ADDRESS} were open beside those refused");
    }
    assert_eq!(answer(&served, Some(&own_token()), report(source())).await, Ok(5));
}

#[tokio::test]
async fn a_report_without_a_source_or_beyond_its_bounds_is_refused() {
    let served = start().await;
    let own_token = own_token();
    let token = Some(own_token.as_str());
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
async fn a_rank_that_floods_is_held_back() {
    let served = start().await;
    let (mut client, own_token) = (client(&served).await, own_token());
    flood(20, 2.0, async || {
        let answered = answer_to(&mut client, Some(&own_token), report(source())).await;
        answered == Err(Code::ResourceExhausted)
    })
    .await;
}

#[tokio::test]
async fn two_replicas_of_one_secret_serve_the_same_clients() {
    let first = start().await;
    let read = Certificates::from_data(&first.certificates.to_data()).unwrap();
    let renewed = Certificates::current(Some(&read), &["127.0.0.1".into()], Timestamp::now()).unwrap();
    let reports = Reports::new();
    let service = service(Tokens::default(), &reports, &renewed);
    let forever = std::future::pending();
    let (address, _task) =
        serve(Arc::clone(&service), ([127, 0, 0, 1], 0).into(), &renewed, forever).await.unwrap();
    let second = Served { address, reports, ..start().await };
    let second = Served { certificates: first.certificates.clone(), ..second };
    assert_eq!(answer(&second, Some(&own_token()), report(source())).await, Ok(5));
}

/// A launcher that has started this attempt last, with its end once no process is left.
fn question(attempt: u32, exit_code: Option<u32>) -> FollowRequest {
    let ending = exit_code.map(|exit_code| Ending { exit_code, ..Ending::default() });
    FollowRequest { source: Some(Source { attempt, ..source() }), ending, ..FollowRequest::default() }
}

#[tokio::test]
async fn the_key_of_an_attempt_is_given_to_its_pods_alone() {
    let served = start().await;
    let asked = FollowRequest { only_key: true, ..question(2, None) };
    let given = follow(&served, &own_token(), asked.clone()).await.unwrap();
    assert_eq!((given.attempt, given.rendezvous_key.len(), given.assignment), (2, 64, None));
    assert!(served.reports.launchers(&key()).is_empty(), "a pod that follows no attempt is not kept for one");
    let follows = follow(&served, &own_token(), question(2, None)).await.unwrap();
    assert_eq!(follows.rendezvous_key, given.rendezvous_key);
    let spare = token("team", "adding-spare-0", "signed");
    let waits = follow(&served, &spare, FollowRequest { only_key: true, ..question(0, None) }).await.unwrap();
    assert_eq!((waits.attempt, &*waits.rendezvous_key), (0, ""));
    for (foreigner, code) in [
        (token("team", "other-0", "signed"), Code::PermissionDenied),
        (token("elsewhere", "adding-0", "signed"), Code::PermissionDenied),
        (token("team", "adding-0", "forged"), Code::Unauthenticated),
    ] {
        assert_eq!(follow(&served, &foreigner, asked.clone()).await.unwrap_err(), code, "{foreigner}");
    }
}

#[tokio::test]
async fn every_replica_gives_an_attempt_the_same_key() {
    let first = start().await;
    let reports = Reports::new();
    let service = service(Tokens::default(), &reports, &first.certificates);
    let forever = std::future::pending();
    let (address, _task) =
        serve(service, ([127, 0, 0, 1], 0).into(), &first.certificates, forever).await.unwrap();
    let second = Served { address, reports, certificates: first.certificates.clone(), ..start().await };
    let mut keys = Vec::new();
    for served in [&first, &second] {
        keys.push(follow(served, &own_token(), question(2, None)).await.unwrap().rendezvous_key);
    }
    assert_eq!(keys[0], keys[1]);
}

#[tokio::test]
async fn a_launcher_gets_the_ranks_of_a_new_attempt_only_once_no_process_of_the_last_is_left() {
    let mut served = start().await;
    let own = own_token();
    let busy = follow(&served, &own, question(1, None)).await.unwrap();
    assert_eq!((busy.attempt, busy.assignment, busy.ask_again_seconds), (2, None, 5));
    assert_eq!(served.changes.next().await.unwrap(), "adding", "the job is reconciled");
    let gone = follow(&served, &own, question(1, Some(76))).await.unwrap();
    let assignment = gone.assignment.unwrap();
    assert_eq!((assignment.attempt, assignment.first_rank), (2, 0));
    assert_eq!((&*assignment.master_address, assignment.master_port), ("10.0.0.7", 29500));
    assert_eq!(gone.ask_again_seconds, 1, "it waits for nothing else");
    let done = follow(&served, &own, question(2, Some(76))).await.unwrap();
    assert_eq!(done.assignment, None, "the attempt that has ended is not started again");
    let known = &served.reports.launchers(&key())["adding-0"];
    assert_eq!((known.attempt, known.ended.as_ref().unwrap().code), (2, 76));
    assert!(!done.is_over);
    served.reports.end_launchers(&key());
    assert!(follow(&served, &own, question(2, Some(76))).await.unwrap().is_over);
}

#[tokio::test]
async fn a_launcher_asks_for_its_own_pod_only_and_a_spare_has_no_ranks() {
    let served = start().await;
    let spare = token("team", "adding-spare-0", "signed");
    let waits = follow(&served, &spare, question(0, None)).await.unwrap();
    assert_eq!((waits.attempt, waits.assignment, waits.ask_again_seconds), (0, None, 1));
    assert_eq!(answer(&served, Some(&spare), report(source())).await, Err(Code::PermissionDenied));
    for foreigner in [token("team", "other-0", "signed"), token("elsewhere", "adding-0", "signed")] {
        let answered = follow(&served, &foreigner, question(1, None)).await;
        assert_eq!(answered.unwrap_err(), Code::PermissionDenied, "{foreigner}");
    }
    let forged = token("team", "adding-0", "forged");
    assert_eq!(follow(&served, &forged, question(1, None)).await.unwrap_err(), Code::Unauthenticated);
    let own = own_token();
    let endless = Ending { message: "x".repeat(limits::MAX_MESSAGE_BYTES + 1), ..Ending::default() };
    let endless = FollowRequest { ending: Some(endless), ..question(1, None) };
    assert_eq!(follow(&served, &own, endless).await.unwrap_err(), Code::InvalidArgument);
    assert_eq!(follow(&served, &own, question(1, Some(4000))).await.unwrap_err(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_launcher_that_floods_is_held_back() {
    let served = start().await;
    let (mut client, own_token) = (client(&served).await, own_token());
    flood(20, 2.0, async || {
        let answered = follow_by(&mut client, &own_token, question(1, None)).await;
        answered == Err(Code::ResourceExhausted)
    })
    .await;
}
