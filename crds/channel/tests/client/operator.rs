//! An operator that misbehaves on request, on a real port with real TLS.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rlt_channel::channel_server::{Channel, ChannelServer};
use rlt_channel::client::{Pace, Settings};
use rlt_channel::{FollowRequest, FollowResponse, ReportRequest, ReportResponse, Source};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};

/// Timeout of every wait in a test; a quiet machine needs less than a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Attempt whose launchers are told to ask again after one second. Launchers of other attempts are told to
/// ask after a minute.
pub(crate) const EAGER_ATTEMPT: u32 = 77;
/// The key of each attempt's rendezvous.
pub(crate) const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The operator's behaviour on a call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Behaviour {
    #[default]
    Take,
    Refuse(Code),
    /// Calls get no answer until the behaviour changes.
    Hang,
}

/// A report that the operator has accepted, with its token.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) token: String,
    pub(crate) report: ReportRequest,
}

#[derive(Clone)]
struct Service {
    behaviour: watch::Sender<Behaviour>,
    num_connections: Arc<AtomicUsize>,
    num_calls: Arc<AtomicUsize>,
    taken: Arc<Mutex<Vec<Taken>>>,
    refused: Arc<Mutex<Vec<ReportRequest>>>,
    questions: Arc<Mutex<Vec<FollowRequest>>>,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            behaviour: watch::Sender::new(Behaviour::default()),
            num_connections: Arc::default(),
            num_calls: Arc::default(),
            taken: Arc::default(),
            refused: Arc::default(),
            questions: Arc::default(),
        }
    }
}

impl Service {
    /// Counts a call, and returns once the behaviour allows an answer.
    async fn admit(&self) -> Result<(), Status> {
        self.num_calls.fetch_add(1, Ordering::SeqCst);
        let mut behaviour = self.behaviour.subscribe();
        let behaviour = behaviour.wait_for(|behaviour| *behaviour != Behaviour::Hang).await;
        match *behaviour.unwrap() {
            Behaviour::Refuse(code) => Err(Status::new(code, "not now")),
            Behaviour::Take | Behaviour::Hang => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl Channel for Service {
    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        let admitted = self.admit().await;
        let token = request.metadata().get("authorization").unwrap().to_str().unwrap().to_owned();
        let report = request.into_inner();
        if let Err(refusal) = admitted {
            self.refused.lock().unwrap().push(report);
            return Err(refusal);
        }
        self.taken.lock().unwrap().push(Taken { token, report });
        Ok(Response::new(ReportResponse::default()))
    }

    async fn follow(&self, request: Request<FollowRequest>) -> Result<Response<FollowResponse>, Status> {
        self.admit().await?;
        let question = request.into_inner();
        let attempt = question.source.clone().unwrap_or_default().attempt;
        self.questions.lock().unwrap().push(question);
        let ask_again_seconds = if attempt == EAGER_ATTEMPT { 1 } else { 60 };
        let rendezvous_key = KEY.to_owned();
        Ok(Response::new(FollowResponse { attempt, ask_again_seconds, rendezvous_key, ..Default::default() }))
    }
}

/// A certificate authority and its certificate.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) certificate: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn identity(&self) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity::from_pem(certificate.pem(), key.serialize_pem())
    }
}

/// A listening operator; dropping it closes all of its connections.
pub(crate) struct Operator {
    pub(crate) address: SocketAddr,
    service: Service,
    _runtime: Runtime,
}

impl Operator {
    pub(crate) fn start(authority: &Authority) -> Self {
        Self::on(&listener(), authority)
    }

    /// Starts the operator on a socket that stays open when the operator is dropped, so that the next one
    /// gets the same port.
    pub(crate) fn on(listener: &TcpListener, authority: &Authority) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let service = Service::default();
        let address = listener.local_addr().unwrap();
        let listener = listener.try_clone().unwrap();
        listener.set_nonblocking(true).unwrap();
        let num_connections = Arc::clone(&service.num_connections);
        let connections = {
            let _in_runtime = runtime.enter();
            TcpListenerStream::new(tokio::net::TcpListener::from_std(listener).unwrap())
        };
        let counted = connections.map(move |connection| {
            num_connections.fetch_add(1, Ordering::SeqCst);
            connection
        });
        let tls = ServerTlsConfig::new().identity(authority.identity());
        let served = Server::builder()
            .tls_config(tls)
            .unwrap()
            .add_service(ChannelServer::new(service.clone()))
            .serve_with_incoming(counted);
        runtime.spawn(served);
        Self { address, service, _runtime: runtime }
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        self.service.behaviour.send_replace(behaviour);
    }

    /// Number of connections that were accepted.
    pub(crate) fn num_connections(&self) -> usize {
        self.service.num_connections.load(Ordering::SeqCst)
    }

    /// Number of calls that were received, answered or not.
    pub(crate) fn num_calls(&self) -> usize {
        self.service.num_calls.load(Ordering::SeqCst)
    }

    pub(crate) fn taken(&self) -> Vec<Taken> {
        self.service.taken.lock().unwrap().clone()
    }

    /// Returns the reports that were refused.
    pub(crate) fn refused(&self) -> Vec<ReportRequest> {
        self.service.refused.lock().unwrap().clone()
    }

    /// Returns the requests of launchers.
    pub(crate) fn questions(&self) -> Vec<FollowRequest> {
        self.service.questions.lock().unwrap().clone()
    }

    /// Waits for a report that satisfies `fits`.
    pub(crate) fn wait_for(&self, what: &str, fits: impl Fn(&Taken) -> bool) -> Taken {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(taken) = self.taken().into_iter().rev().find(&fits) {
                return taken;
            }
            assert!(Instant::now() < deadline, "{what} was not received, only {:#?}", self.taken());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns a socket that listens on a free port; nothing answers there yet.
pub(crate) fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// The files of a pod.
pub(crate) struct Pod {
    folder: tempfile::TempDir,
}

impl Pod {
    pub(crate) fn new(authority: &Authority) -> Self {
        let pod = Self { folder: tempfile::tempdir().unwrap() };
        pod.trust(authority);
        pod.rotate("first-token");
        pod
    }

    pub(crate) fn trust(&self, authority: &Authority) {
        std::fs::write(self.ca_file(), &authority.certificate).unwrap();
    }

    pub(crate) fn rotate(&self, token: &str) {
        std::fs::write(self.folder.path().join("token"), format!("{token}\n")).unwrap();
    }

    pub(crate) fn remove_token(&self) {
        std::fs::remove_file(self.folder.path().join("token")).unwrap();
    }

    fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// Settings with a report every 0.1 s; calls time out only where a test asks for that.
    pub(crate) fn settings(&self, address: SocketAddr) -> Settings {
        let pace = Pace {
            report_every: Duration::from_millis(100),
            timeout: PATIENCE,
            first_backoff: Duration::from_millis(20),
            longest_backoff: Duration::from_millis(100),
        };
        Settings {
            address: format!("https://{address}"),
            ca_file: self.ca_file(),
            token_file: self.folder.path().join("token"),
            source: Source { job_uid: "uid".into(), attempt: 1, ..Source::default() },
            pace,
        }
    }
}
