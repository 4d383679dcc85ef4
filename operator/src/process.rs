//! The process around the controller: client, leader election, probes, and the status channel.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use kube::{Client, Config};
use rlt_objects::args::{CHANNEL_PORT, ProcessArgs};
use tokio::sync::watch;

use crate::client::{self, CallRate, Limiter};
use crate::health::{self, Health, ListenError};
use crate::lease::{Candidate, Election, LeaseError, Term, Timing};
use crate::metrics::Metrics;
use crate::progress::{
    self, Certificates, ChannelService, EndpointError, Reports, SecretError, ServeError, TokenReviewer,
    Workers,
};

/// Between two tries to serve the channel.
const CHANNEL_RETRY: Duration = Duration::from_secs(5);

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
    #[error("this operator is no longer the leader")]
    Lease(#[from] LeaseError),
}

/// Address to which ranks report, and the authority by which they verify the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// `https://host:port`.
    pub address: String,
    /// The authority behind the certificate, in PEM.
    pub authority: String,
    host: String,
    secret: String,
    service: Option<String>,
}

/// A process of the operator: its clients, metrics, reports and leadership.
pub struct Process {
    /// The way to the API server.
    pub client: Client,
    /// Limiter of calls to the API server: the rate, and whose turn it is.
    pub limiter: Limiter,
    /// Metrics of the process.
    pub metrics: Metrics,
    /// The reports of ranks.
    pub reports: Reports,
    /// The status channel, where one is requested.
    pub channel: Option<Channel>,
    /// Whether all objects were seen; the controller sets it.
    pub synced: watch::Sender<bool>,
    election: Option<Election>,
    leadership: watch::Receiver<bool>,
    // Held for as long as a process leads that believes it is alone.
    _alone: watch::Sender<bool>,
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
        let client = client::client(config, &limiter, &metrics, &term).map_err(ProcessError::Client)?;
        let elect = |name: &String| Election::start(client.clone(), candidate(args, name), term);
        let election = args.lease.as_ref().map(elect);
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
        Ok(Self { client, limiter, metrics, reports, channel, synced, election, leadership, _alone: alone })
    }

    /// Whether this process leads, now and from now on.
    pub fn leadership(&self) -> watch::Receiver<bool> {
        self.leadership.clone()
    }

    /// Waits until leading is over for good, which calls for the end of the process.
    pub async fn lost(&mut self) -> LeaseError {
        match &mut self.election {
            Some(election) => election.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Lets another replica lead at once. To be called when nothing is written any more.
    pub async fn release(self) {
        if let Some(election) = self.election {
            election.release().await;
        }
    }

    /// Serves the channel whenever this process leads, for as long as it lives.
    pub fn serve_channel(&self, args: &ProcessArgs, workers: impl Workers) {
        let Some(channel) = self.channel.clone() else { return };
        let reviewer = TokenReviewer(self.client.clone());
        let service = ChannelService::new(reviewer, workers, self.reports.clone(), self.metrics.clone());
        let (client, args, leadership) = (self.client.clone(), args.clone(), self.leadership());
        tokio::spawn(async move {
            let mut leadership = leadership;
            while leadership.wait_for(|leads| *leads).await.is_ok() {
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

/// An error that ends the serving of the channel.
#[derive(Debug, thiserror::Error)]
enum ChannelError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

impl Channel {
    async fn prepare(args: &ProcessArgs, client: &Client) -> Result<Option<Self>, ProcessError> {
        let (service, port) = (args.channel_service.clone(), args.channel_listen.port());
        let of_service = service.as_ref().map(|name| format!("{name}.{}.svc", args.namespace));
        let Some(host) = of_service.or_else(|| args.channel_host.clone()) else { return Ok(None) };
        let secret = service.clone().unwrap_or_else(|| "rl-operator-channel".to_owned());
        let port = if service.is_some() { CHANNEL_PORT } else { port };
        let mut channel = Self {
            address: format!("https://{host}:{port}"),
            authority: String::new(),
            host,
            secret,
            service,
        };
        channel.authority = channel.certificates(client, &args.namespace).await?.authority().to_owned();
        Ok(Some(channel))
    }

    async fn certificates(&self, client: &Client, namespace: &str) -> Result<Certificates, SecretError> {
        progress::certificates(client, namespace, &self.secret, std::slice::from_ref(&self.host)).await
    }

    /// Serves until leading is over or the certificate is to be renewed.
    async fn serve<S: rlt_channel::channel_server::Channel>(
        &self,
        client: &Client,
        args: &ProcessArgs,
        service: std::sync::Arc<S>,
        mut leadership: watch::Receiver<bool>,
    ) -> Result<(), ChannelError> {
        let certificates = self.certificates(client, &args.namespace).await?;
        if certificates.authority() != self.authority {
            tracing::warn!(
                "the status channel's authority has changed; restart the operator so that new jobs trust it"
            );
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
        if let Some(service) = &self.service {
            let ip = args.pod_ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
            progress::announce(client, &args.namespace, service, (ip, address.port())).await?;
        }
        task.await.unwrap_or(Ok(()))?;
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
        timing: Timing::default(),
    }
}
