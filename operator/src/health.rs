//! HTTP server for kubelet and Prometheus: `/healthz`, `/readyz`, `/metrics`.
//!
//! Live: every watch was restarted in time, so that an operator that silently lost one is restarted. Ready:
//! all caches are synced, on the leader and on standbys.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::progress::{Connections, Counted, Limits, Reports};

/// Largest number of open connections; the kubelet and Prometheus need a few.
const MAX_CONNECTIONS: usize = 128;

/// Age at which a watch counts as dead. A watch ends after 200 s and is restarted: twice that, and a minute
/// for failed tries.
pub const WATCH_MAX_AGE: Duration = Duration::from_secs(2 * 200 + 60);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// State that the server shows.
#[derive(Clone, Debug)]
pub struct Health {
    /// Metrics of calls and watches.
    pub metrics: Metrics,
    /// Whether all objects were listed once.
    pub synced: watch::Receiver<bool>,
    /// Whether this replica leads.
    pub leadership: watch::Receiver<bool>,
    /// Reports of ranks.
    pub reports: Reports,
}

/// The server cannot listen on its port.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address} for probes and metrics")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Starts the server, which runs until the process ends, and returns its address.
///
/// # Errors
/// [`ListenError`].
pub async fn serve(health: Health, address: SocketAddr) -> Result<SocketAddr, ListenError> {
    let listen = async {
        let listener = TcpListener::bind(address).await?;
        Ok((listener.local_addr()?, listener))
    };
    let (address, listener) = listen.await.map_err(|source| ListenError { address, source })?;
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(health));
    let connections = Connections::within(Limits::of_strangers(MAX_CONNECTIONS));
    let listener = CountingListener { listener, connections };
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "stopped serving probes and metrics");
        }
    });
    Ok(address)
}

/// Listener that bounds the open connections. Any pod of the cluster may connect, and could otherwise use up
/// the file descriptors of this process.
struct CountingListener {
    listener: TcpListener,
    connections: Connections,
}

impl Listener for CountingListener {
    type Io = Counted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Counted, SocketAddr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            if let Some(counted) = self.connections.admit(stream) {
                return (counted, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

async fn healthz(State(health): State<Arc<Health>>) -> Response {
    let dead = dead_watches(&health.metrics.watch_ages());
    if dead.is_empty() { "alive\n".into_response() } else { unavailable(dead.join("")) }
}

/// Returns a line for each watch that was not restarted in time.
fn dead_watches(ages: &[(String, Duration)]) -> Vec<String> {
    let dead = ages.iter().filter(|(_, age)| *age > WATCH_MAX_AGE);
    dead.map(|(resource, age)| {
        format!("the watch of {resource} is dead: last begun {} s ago\n", age.as_secs())
    })
    .collect()
}

async fn readyz(State(health): State<Arc<Health>>) -> Response {
    if *health.synced.borrow() {
        return "ready\n".into_response();
    }
    unavailable("not all objects were seen yet\n".to_owned())
}

async fn metrics(State(health): State<Arc<Health>>) -> Response {
    health.metrics.set_leader(*health.leadership.borrow());
    health.metrics.set_reporting(health.reports.len(), &health.reports.time_spent());
    ([(CONTENT_TYPE, OPEN_METRICS)], health.metrics.page()).into_response()
}

fn unavailable(text: String) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn fetch(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn an_operator_is_ready_once_its_caches_are_synced_and_serves_metrics_before() {
        let (synced, is_synced) = watch::channel(false);
        let (_leader, leadership) = watch::channel(true);
        let reports = Reports::new();
        let health = Health { metrics: Metrics::default(), synced: is_synced, leadership, reports };
        let address = serve(health, ([127, 0, 0, 1], 0).into()).await.unwrap();
        assert!(fetch(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        assert!(fetch(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(fetch(address, "/metrics").await.contains("rlt_operator_leader 1"));
        synced.send(true).unwrap();
        assert!(fetch(address, "/readyz").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn peers_that_send_nothing_replace_each_other_and_keep_no_probe_out() {
        let (_synced, is_synced) = watch::channel(true);
        let (_leader, leadership) = watch::channel(true);
        let reports = Reports::new();
        let health = Health { metrics: Metrics::default(), synced: is_synced, leadership, reports };
        let address = serve(health, ([127, 0, 0, 1], 0).into()).await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS + 8 {
            silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        // Connections are accepted in order, so all of them were accepted before the answer.
        assert!(fetch(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let mut byte = [0];
        let read = tokio::time::timeout(Duration::from_secs(100), silent[0].read(&mut byte));
        assert!(!matches!(read.await.unwrap(), Ok(1..)), "the oldest one is closed");
    }

    #[test]
    fn a_watch_that_was_not_begun_anew_in_time_is_dead() {
        let ages = [("pods".to_owned(), WATCH_MAX_AGE), ("leases".to_owned(), WATCH_MAX_AGE * 2)];
        assert_eq!(dead_watches(&ages), ["the watch of leases is dead: last begun 920 s ago\n"]);
    }
}
