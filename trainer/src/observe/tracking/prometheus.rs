//! `/metrics` endpoint for Prometheus: a separate thread serves the metrics of the last finished step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use axum::serve::Listener;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::oneshot;

use super::{Stage, StepMetrics, Tracker, TrackingError};

pub(crate) const TRACKER: &str = "prometheus";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Largest number of open connections; Prometheus needs one.
const MAX_CONNECTIONS: usize = 64;

/// A running endpoint; dropping it closes the port.
pub(crate) struct Endpoint {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Endpoint {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A tracker that stores the last step for the endpoint.
pub(crate) struct Exporter(LastStep);

impl Tracker for Exporter {
    fn log_step(&mut self, metrics: &StepMetrics) -> Result<(), TrackingError> {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(metrics.clone());
        Ok(())
    }
}

/// Listens on `port` of all IPv4 interfaces and serves from a background thread.
pub(crate) fn serve(port: u16) -> Result<(Exporter, Endpoint), TrackingError> {
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let listen = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?, listener))
    };
    let (address, listener) = listen().map_err(|source| TrackingError::Listen { address, source })?;
    let last_step = LastStep::default();
    let (stop, stopped) = oneshot::channel();
    let served = last_step.clone();
    std::thread::Builder::new()
        .name("serve metrics".into())
        .spawn(move || {
            if let Err(error) = run(listener, served, stopped) {
                tracing::warn!(%error, "the Prometheus endpoint has ended");
            }
        })
        .map_err(|source| TrackingError::Thread { tracker: TRACKER, source })?;
    Ok((Exporter(last_step), Endpoint { address, _stop: stop }))
}

fn run(listener: TcpListener, last_step: LastStep, stopped: oneshot::Receiver<()>) -> std::io::Result<()> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(last_step));
    let registry = Arc::new(registry);
    let handler = move || {
        let registry = registry.clone();
        async move {
            let mut text = String::new();
            // Writing to a string cannot fail.
            let _ = encode(&mut text, &registry);
            ([(CONTENT_TYPE, OPEN_METRICS)], text)
        }
    };
    let router = Router::new().route("/metrics", get(handler));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let listener = BoundedListener { listener, newest: VecDeque::new() };
        tokio::select! {
            // There is no graceful shutdown, because a reader that never finishes its request would keep the
            // port open.
            _ = stopped => Ok(()),
            ended = axum::serve(listener, router) => ended,
        }
    })
}

/// Listener that closes the oldest connection when a new one exceeds the limit. Any pod may reach the port,
/// and could otherwise take the memory and the open files that the training needs.
struct BoundedListener {
    listener: tokio::net::TcpListener,
    /// Handles of the newest connections, those that have ended included.
    newest: VecDeque<TcpStream>,
}

impl Listener for BoundedListener {
    type Io = tokio::net::TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            // Without a handle the connection is closed: the process has too many open files.
            let Ok(handle) = stream.as_fd().try_clone_to_owned() else { continue };
            if self.newest.len() >= MAX_CONNECTIONS
                && let Some(oldest) = self.newest.pop_front()
            {
                // The connection may have ended already.
                let _ = oldest.shutdown(Shutdown::Both);
            }
            self.newest.push_back(handle.into());
            return (stream, address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[derive(Clone, Default)]
struct LastStep(Arc<Mutex<Option<StepMetrics>>>);

impl fmt::Debug for LastStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LastStep")
    }
}

impl Collector for LastStep {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let last_step = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (name, samples) in last_step.iter().flat_map(families) {
            let kind = prometheus_client::metrics::MetricType::Gauge;
            let help = format!("{} of the last step", samples[0].help);
            let mut metric = encoder.encode_descriptor(&name, &help, None, kind)?;
            for Sample { label, value, .. } in samples {
                match label {
                    Some(label) => {
                        let labels = [label];
                        ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
                    }
                    None => metric.encode_gauge(&value)?,
                }
            }
        }
        Ok(())
    }
}

/// A sample of a metric family.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    /// verl's name of the metric, which becomes the help text.
    help: String,
    label: Option<(&'static str, String)>,
    value: f64,
}

/// Converts the metrics of a step to Prometheus families, each with all of its samples.
fn families(metrics: &StepMetrics) -> BTreeMap<String, Vec<Sample>> {
    let stage = f64::from(u8::from(metrics.stage == Stage::Training));
    let own = [("training/phase", stage), ("step", metrics.step as f64), ("timestamp", metrics.timestamp)];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    let mut families = BTreeMap::<String, Vec<Sample>>::new();
    let mut seen = BTreeSet::new();
    for (help, value) in own.chain(metrics.values.clone()) {
        let (name, label) = family(&help);
        // Two names that differ only in punctuation map to one; a duplicate would make the full page invalid.
        if seen.insert((name.clone(), label.clone())) {
            families.entry(name).or_default().push(Sample { help, label, value });
        }
    }
    families
}

/// Returns the family name and label of the metric that verl calls `name`: variable parts become a label,
/// seconds are spelled out.
fn family(name: &str) -> (String, Option<(&'static str, String)>) {
    if let Some(phase) = name.strip_prefix("timing_s/") {
        return ("rlt_trainer_timing_seconds".into(), Some(("phase", phase.into())));
    }
    if name == "timestamp" {
        return ("rlt_trainer_last_step_timestamp_seconds".into(), None);
    }
    for (prefix, room) in [("val-core/", "core"), ("val-aux/", "aux")] {
        if let Some((source, variable)) =
            name.strip_prefix(prefix).and_then(|rest| rest.rsplit_once("/reward/"))
        {
            let name = format!("rlt_trainer_val_{room}_reward_{}", plain(variable));
            return (name, Some(("data_source", source.into())));
        }
    }
    (format!("rlt_trainer_{}", plain(name)), None)
}

fn plain(name: &str) -> String {
    let name = name.replace('@', "_at_");
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests;
