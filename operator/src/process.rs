//! The process around the controller: client, leader election, probes, and the status channel.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use kube::{Client, Config};
use rlt_objects::args::{CHANNEL_PORT, ProcessArgs};
use rlt_objects::build::Authority;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::client::{self, CallRate, Limiter};
use crate::health::{self, Health, ListenError};
use crate::lease::{Candidate, Election, LeaseError, Term, Timing};
use crate::metrics::Metrics;
use crate::progress::{
    self, CachedCertificates, Certificates, ChannelService, RendezvousKeys, Reports, SecretError, ServeError,
    TokenReviewer, Workers,
};

/// Wait between two tries to serve the channel.
const CHANNEL_RETRY: Duration = Duration::from_secs(5);
/// Interval at which the leader looks for the Secret of the channel.
const LOOK_FOR_SECRET_EVERY: Duration = Duration::from_secs(60);

/// An error that keeps the process from its work.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum ProcessError {
    #[error("failed to find the cluster")]
    Config(#[source] kube::config::InferConfigError),
    #[error("failed to create the API server's client")]
    Client(#[source] kube::Error),
    #[error("failed to serve probes")]
    Listen(#[from] ListenError),
    #[error("failed to prepare the status channel")]
    Secret(#[from] SecretError),
    #[error("failed to start the thread of the leader election")]
    Thread(#[source] std::io::Error),
    #[error("this operator is no longer the leader")]
    Lease(#[from] LeaseError),
}

/// Address to which ranks report, and the authority by which they verify the operator.
#[derive(Clone, Debug)]
pub struct Channel {
    /// `https://host:port`.
    pub address: String,
    /// Certificate authority by which ranks verify the operator's certificate.
    pub authority: Authority,
    /// Keys of the rendezvous of attempts, derived from the authority.
    keys: RendezvousKeys,
    /// Certificates that were read from the Secret, by which a deleted Secret is restored.
    cached: CachedCertificates,
    /// Notified when the authority was replaced.
    renewed: watch::Sender<()>,
    host: String,
    secret: String,
    service: Option<String>,
}

/// A process of the operator: its clients, metrics, reports and leadership.
pub struct Process {
    /// Client of the API server.
    pub client: Client,
    /// Rate limiter of the client's calls.
    pub limiter: Limiter,
    /// Metrics of the process.
    pub metrics: Metrics,
    /// The reports of ranks.
    pub reports: Reports,
    /// The status channel; `None` if the arguments ask for none.
    pub channel: Option<Channel>,
    /// Whether all objects were listed once; the controller sets it.
    pub synced: watch::Sender<bool>,
    election: Option<Election>,
    leadership: watch::Receiver<bool>,
    // Keeps `leadership` true in a process without a leader election.
    _alone: watch::Sender<bool>,
    // Declared after `election`, which runs on this thread and is dropped first.
    _thread: Option<ElectorThread>,
}

impl Process {
    /// Finds the cluster, becomes a candidate, serves probes and prepares the channel.
    ///
    /// # Errors
    /// [`ProcessError`].
    pub async fn start(args: &ProcessArgs, reports: Reports) -> Result<Self, ProcessError> {
        let metrics = Metrics::default();
        let rate = CallRate { per_second: args.calls_per_second.into(), burst: args.call_burst.into() };
        let config = Config::infer().await.map_err(ProcessError::Config)?;
        let limiter = Limiter::new(rate, client::MAX_IN_FLIGHT);
        let term = Term::default();
        let client =
            client::client(config.clone(), &limiter, &metrics, &term).map_err(ProcessError::Client)?;
        let elector = match &args.lease {
            Some(name) => {
                let connect =
                    || client::client(config, &limiter, &metrics, &term).map_err(ProcessError::Client);
                let campaign = |client| Election::start(client, candidate(args, name), term.clone());
                Some(ElectorThread::start(|| Ok(campaign(connect()?)))?)
            }
            None => None,
        };
        let (thread, election) = elector.unzip();
        let (alone, always) = watch::channel(true);
        let leadership = election.as_ref().map_or(always, Election::leadership);
        let (synced, is_synced) = watch::channel(false);
        let health = Health {
            metrics: metrics.clone(),
            synced: is_synced,
            leadership: leadership.clone(),
            reports: reports.clone(),
        };
        let address = health::serve(health, args.listen).await?;
        tracing::info!(%address, "serving probes and metrics");
        let channel = Channel::prepare(args, &client).await?;
        Ok(Self {
            client,
            limiter,
            metrics,
            reports,
            channel,
            synced,
            election,
            leadership,
            _alone: alone,
            _thread: thread,
        })
    }

    /// Returns a receiver of whether this process leads.
    pub fn leadership(&self) -> watch::Receiver<bool> {
        self.leadership.clone()
    }

    /// Waits until this process can no longer lead; then it must end.
    pub async fn lost(&mut self) -> LeaseError {
        match &mut self.election {
            Some(election) => election.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Releases the Lease, so that another replica leads at once. Call it after the last write.
    pub async fn release(self) {
        if let Some(election) = self.election {
            election.release().await;
        }
    }

    /// Serves the channel in the background, whenever this process leads.
    pub fn serve_channel(&self, args: &ProcessArgs, workers: impl Workers) {
        let Some(channel) = self.channel.clone() else { return };
        let reviewer = TokenReviewer(self.client.clone());
        let (reports, metrics) = (self.reports.clone(), self.metrics.clone());
        reports.expect_launchers();
        let service = ChannelService::new(reviewer, workers, reports.clone(), channel.keys.clone(), metrics);
        let (client, args, leadership) = (self.client.clone(), args.clone(), self.leadership());
        tokio::spawn(async move {
            let mut leadership = leadership;
            while leadership.wait_for(|leads| *leads).await.is_ok() {
                reports.lead();
                let served = channel.serve(&client, &args, service.clone(), leadership.clone()).await;
                if let Err(error) = served {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "not serving the status channel"
                    );
                    tokio::time::sleep(CHANNEL_RETRY).await;
                }
            }
        });
    }
}

/// A runtime with one thread for the leader election. The Lease is renewed on time, however long a task on
/// another thread computes, such as the validation of a long manifest.
struct ElectorThread(Option<Runtime>);

impl ElectorThread {
    /// Starts an election whose tasks run on this thread.
    fn start(
        campaign: impl FnOnce() -> Result<Election, ProcessError>,
    ) -> Result<(Self, Election), ProcessError> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("elector").enable_all().build();
        let thread = Self(Some(runtime.map_err(ProcessError::Thread)?));
        let election = {
            let _entered = thread.0.as_ref().map(Runtime::enter);
            campaign()?
        };
        Ok((thread, election))
    }
}

impl Drop for ElectorThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Waiting for the runtime would block the thread that drops it.
            runtime.shutdown_background();
        }
    }
}

/// The status channel cannot be served any longer.
#[derive(Debug, thiserror::Error)]
enum ChannelError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl Channel {
    async fn prepare(args: &ProcessArgs, client: &Client) -> Result<Option<Self>, ProcessError> {
        let (service, port) = (args.channel_service.clone(), args.channel_listen.port());
        let of_service = service.as_ref().map(|name| format!("{name}.{}.svc", args.namespace));
        let Some(host) = of_service.or_else(|| args.channel_host.clone()) else { return Ok(None) };
        let secret = service.clone().unwrap_or_else(|| "rl-operator-channel".to_owned());
        let port = if service.is_some() { CHANNEL_PORT } else { port };
        let channel = Self {
            address: format!("https://{host}:{port}"),
            authority: Authority::default(),
            keys: RendezvousKeys::default(),
            cached: CachedCertificates::default(),
            renewed: watch::Sender::default(),
            host,
            secret,
            service,
        };
        let certificates = channel.certificates(client, &args.namespace).await?;
        channel.authority.replace(certificates.authority());
        channel.keys.replace(&certificates);
        Ok(Some(channel))
    }

    /// Returns a receiver that is notified when the authority was replaced and pods need the new one.
    pub fn renewals(&self) -> watch::Receiver<()> {
        self.renewed.subscribe()
    }

    async fn certificates(&self, client: &Client, namespace: &str) -> Result<Certificates, SecretError> {
        let names = std::slice::from_ref(&self.host);
        progress::certificates(client, namespace, &self.secret, names, &self.cached).await
    }

    /// Stores the certificates again if their Secret was deleted, and checks this every minute. A replica
    /// that starts without the Secret, and has never read it, would create another authority. Never returns.
    async fn keep_stored(&self, client: &Client, namespace: &str) {
        loop {
            tokio::time::sleep(LOOK_FOR_SECRET_EVERY).await;
            if let Err(error) = self.certificates(client, namespace).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the Secret of the channel is not known"
                );
            }
        }
    }

    /// Serves the channel until this process no longer leads or the certificate is to be renewed.
    async fn serve<S: rlt_channel::channel_server::Channel>(
        &self,
        client: &Client,
        args: &ProcessArgs,
        service: std::sync::Arc<S>,
        mut leadership: watch::Receiver<bool>,
    ) -> Result<(), ChannelError> {
        let certificates = self.certificates(client, &args.namespace).await?;
        self.keys.replace(&certificates);
        if self.authority.replace(certificates.authority()) {
            tracing::warn!("the status channel has a new authority: every job gets it, and reports again");
            self.renewed.send_replace(());
        }
        let until_renewal = certificates.renew_after().duration_since(jiff::Timestamp::now());
        let until_renewal = Duration::try_from(until_renewal).unwrap_or_default();
        let stop = async move {
            tokio::select! {
                _ = leadership.wait_for(|leads| !*leads) => {}
                () = tokio::time::sleep(until_renewal) => {}
            }
        };
        let (address, task) = progress::serve(service, args.channel_listen, &certificates, stop).await?;
        tracing::info!(%address, channel = self.address, "serving the status channel");
        let announced = async {
            match &self.service {
                Some(service) => {
                    let ip = args.pod_ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
                    progress::keep_announced(client, &args.namespace, service, ip, address.port()).await;
                }
                None => std::future::pending().await,
            }
        };
        // The task owns the port, so serving ends with the task, and not with a failed announcement.
        tokio::select! {
            served = task => served.unwrap_or(Ok(()))?,
            () = announced => {}
            () = self.keep_stored(client, &args.namespace) => {}
        }
        Ok(())
    }
}

fn candidate(args: &ProcessArgs, name: &str) -> Candidate {
    let pod = args.pod_name.clone().or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    // Without a UID two processes on one machine must still differ.
    let unique = args.pod_uid.clone().unwrap_or_else(|| {
        let nanos = jiff::Timestamp::now().as_nanosecond();
        format!("{}-{nanos:x}", std::process::id())
    });
    Candidate {
        namespace: args.namespace.clone(),
        name: name.to_owned(),
        identity: format!("{pod}_{unique}"),
        service: args.channel_service.clone(),
        timing: Timing::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// Returns a client of an API server that stores this Secret and nothing else.
    fn server(secret: &Arc<Mutex<Option<Value>>>) -> Client {
        let secret = Arc::clone(secret);
        let server = tower::service_fn(move |request: Request<Body>| {
            let secret = Arc::clone(&secret);
            async move {
                let (head, body) = request.into_parts();
                let sent: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
                let mut stored = secret.lock().unwrap();
                if head.method != Method::GET {
                    *stored = Some(sent);
                }
                let found = stored.clone().filter(|_| head.uri.path().contains("/secrets"));
                let missing = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
                    "message": "",
                });
                let (code, answer) = found.map_or((404, missing), |found| (200, found));
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, tower::BoxError>(Response::builder().status(code).body(body)?)
            }
        });
        Client::new(server, "rl")
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_stores_the_certificates_again_after_their_secret_was_deleted() {
        let secret = Arc::new(Mutex::new(None));
        let client = server(&secret);
        let channel = Channel {
            address: String::new(),
            authority: Authority::default(),
            keys: RendezvousKeys::default(),
            cached: CachedCertificates::default(),
            renewed: watch::Sender::default(),
            host: "host".into(),
            secret: "channel".into(),
            service: None,
        };
        channel.certificates(&client, "rl").await.unwrap();
        let before = secret.lock().unwrap().take().unwrap();
        assert!(before["data"]["ca.key"].is_string());
        let stored = channel.keep_stored(&client, "rl");
        assert!(tokio::time::timeout(LOOK_FOR_SECRET_EVERY * 3 / 2, stored).await.is_err(), "it never ends");
        let after = secret.lock().unwrap().clone().unwrap();
        assert_eq!(after["data"], before["data"]);
    }

    #[tokio::test]
    async fn an_election_runs_on_while_every_other_thread_computes() {
        let (called, calls) = std::sync::mpsc::channel();
        let server = tower::service_fn(move |_: Request<Body>| {
            let _ = called.send(());
            futures::future::ready(Ok::<_, tower::BoxError>(
                Response::builder().status(500).body(Body::empty()).unwrap(),
            ))
        });
        let candidate = Candidate {
            namespace: "a".into(),
            name: "b".into(),
            identity: "c".into(),
            service: None,
            timing: Timing::default(),
        };
        let campaign = || Ok(Election::start(Client::new(server, "a"), candidate, Term::default()));
        let (_thread, _election) = ElectorThread::start(campaign).unwrap();
        // The only thread of this test's runtime is blocked here, so the call comes from another thread.
        calls.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
