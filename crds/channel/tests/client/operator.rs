//! An operator that misbehaves on request, on a real port with real TLS.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rlt_channel::channel_server::{Channel, ChannelServer};
use rlt_channel::client::{Pace, Settings};
use rlt_channel::{FollowRequest, FollowResponse, ReportRequest, ReportResponse, Source};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status};

/// The operator's behaviour on a report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Behaviour {
    #[default]
    Take,
    Refuse(Code),
    Hang,
}

/// A report with its token.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) token: String,
    pub(crate) report: ReportRequest,
}

#[derive(Clone, Default)]
struct Service {
    behaviour: Arc<Mutex<Behaviour>>,
    taken: Arc<Mutex<Vec<Taken>>>,
    questions: Arc<Mutex<Vec<FollowRequest>>>,
}

#[tonic::async_trait]
impl Channel for Service {
    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        let behaviour = *self.behaviour.lock().unwrap();
        match behaviour {
            Behaviour::Take => {}
            Behaviour::Refuse(code) => return Err(Status::new(code, "not now")),
            Behaviour::Hang => std::future::pending().await,
        }
        let token = request.metadata().get("authorization").unwrap().to_str().unwrap().to_owned();
        self.taken.lock().unwrap().push(Taken { token, report: request.into_inner() });
        Ok(Response::new(ReportResponse::default()))
    }

    async fn follow(&self, request: Request<FollowRequest>) -> Result<Response<FollowResponse>, Status> {
        let behaviour = *self.behaviour.lock().unwrap();
        match behaviour {
            Behaviour::Take => {}
            Behaviour::Refuse(code) => return Err(Status::new(code, "not now")),
            Behaviour::Hang => std::future::pending().await,
        }
        let question = request.into_inner();
        let asked_for = question.source.clone().unwrap_or_default().attempt;
        self.questions.lock().unwrap().push(question);
        Ok(Response::new(FollowResponse { attempt: asked_for, ask_again_seconds: 60, ..Default::default() }))
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
    runtime: Option<Runtime>,
}

impl Operator {
    pub(crate) fn start(authority: &Authority, address: Option<SocketAddr>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let service = Service::default();
        let address = address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).unwrap();
        let address = listener.local_addr().unwrap();
        let tls = ServerTlsConfig::new().identity(authority.identity());
        let served = Server::builder()
            .tls_config(tls)
            .unwrap()
            .add_service(ChannelServer::new(service.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        runtime.spawn(served);
        Self { address, service, runtime: Some(runtime) }
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.service.behaviour.lock().unwrap() = behaviour;
    }

    pub(crate) fn taken(&self) -> Vec<Taken> {
        self.service.taken.lock().unwrap().clone()
    }

    /// The questions of launchers.
    pub(crate) fn questions(&self) -> Vec<FollowRequest> {
        self.service.questions.lock().unwrap().clone()
    }

    /// Waits for a report that fits.
    pub(crate) fn wait_for(&self, what: &str, fits: impl Fn(&Taken) -> bool) -> Taken {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(taken) = self.taken().into_iter().rev().find(&fits) {
                return taken;
            }
            assert!(Instant::now() < deadline, "{what} was not received, only {:#?}", self.taken());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
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

    fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// Settings with waiting times made for tests: a report every 0.1 s.
    pub(crate) fn settings(&self, address: SocketAddr) -> Settings {
        let pace = Pace {
            report_every: Duration::from_millis(100),
            timeout: Duration::from_millis(500),
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
