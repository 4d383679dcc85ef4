//! Export of spans: in batches, on a separate thread, from a bounded queue. If the collector is slow or
//! unreachable, spans are dropped, which is logged once; nothing else is affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::global;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData};
use reqwest::blocking::Client;
use reqwest::redirect::Policy;
use tracing::level_filters::LevelFilter;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::{FilterExt as _, Targets, filter_fn};
use tracing_subscriber::layer::Filter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::ids::Ids;
use crate::variables::Endpoint;
use crate::{SCOPE, TARGET};

/// Timeout of a call to the collector, unless the environment sets one.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest wait for the export of the last spans when a process ends, unless the environment sets one. There
/// is no wait if the collector refused the previous batch.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Reason why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
enum TracesError {
    #[error("traces are sent by http/protobuf only, got OTEL_EXPORTER_OTLP_PROTOCOL `{0}`")]
    Protocol(String),
    #[error("failed to prepare sending traces to `{address}`")]
    Exporter { address: String, source: ExporterBuildError },
    #[error("failed to prepare calls to the collector of traces")]
    Client(#[from] reqwest::Error),
    #[error("failed to start a thread for traces")]
    Thread,
}

/// Starts logging and tracing. Log lines are filtered by `levels`. Spans are exported as the environment
/// says, under the name `service` unless the environment sets one. Spans are not exported without a
/// `service`, or if the environment requests an unsupported protocol, which is logged.
pub fn start<L>(lines: L, levels: EnvFilter, service: Option<&'static str>) -> Option<Traces>
where
    L: Layer<Registry> + Send + Sync + 'static,
{
    let traces = service.map_or(Ok(None), Traces::from_environment);
    let (traces, refused) = match traces {
        Ok(traces) => (traces, None),
        Err(error) => (None, Some(error)),
    };
    let lines = lines.with_filter(logged(levels));
    tracing_subscriber::registry().with(lines).with(traces.as_ref().map(Traces::layer)).init();
    if let Some(error) = refused {
        tracing::warn!(error = &error as &dyn std::error::Error, "traces are not exported");
    }
    traces
}

/// Span exporter of this process.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    sent: Arc<Sent>,
    /// Longest wait for the export of the last spans.
    patience: Duration,
}

impl Traces {
    /// Builds the exporter from the environment, under the name `service` unless it sets one; `None` if the
    /// environment turns export off.
    fn from_environment(service: &'static str) -> Result<Option<Self>, TracesError> {
        let variable = |name: &str| std::env::var(name).ok();
        let address = match Endpoint::read(variable) {
            Endpoint::Off => return Ok(None),
            Endpoint::OtherProtocol(protocol) => return Err(TracesError::Protocol(protocol)),
            Endpoint::Collector(address) => address,
        };
        let client = on_its_own_thread(client(&address, variable))?;
        // The exporter itself reads address and headers from the environment.
        let exporter =
            SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).with_http_client(client);
        let exporter =
            exporter.build().map_err(|source| TracesError::Exporter { address: address.clone(), source })?;
        let sent = Arc::new(Sent::default());
        let exporter = Unhurried { exporter, address, sent: Arc::clone(&sent) };
        let is_named = variable("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
            || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|given| given.contains("service.name="));
        let resource = Resource::builder();
        let resource = if is_named { resource } else { resource.with_service_name(service) };
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_id_generator(Ids::default())
            .with_batch_exporter(exporter)
            .build();
        global::set_tracer_provider(provider.clone());
        Ok(Some(Self { provider, sent, patience: patience(variable) }))
    }

    /// Returns the layer that receives spans of [`TARGET`].
    fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(SCOPE))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false)
            .with_filter(Targets::new().with_target(TARGET, LevelFilter::TRACE))
    }

    /// Exports the last spans, within a bounded time.
    pub fn finish(self) {
        let is_refused = self.sent.is_refused.load(Ordering::Relaxed);
        let patience = if is_refused { Duration::ZERO } else { self.patience };
        let ended = self.provider.shutdown_with_timeout(patience);
        let num_lost = self.sent.num_lost.load(Ordering::Relaxed);
        if num_lost > 0 {
            tracing::warn!(num_lost, "spans were lost because the collector did not take them");
        }
        if let Err(error) = ended {
            tracing::warn!(%error, "the last spans of this process's traces are lost");
        }
    }
}

/// Returns the longest wait for the export of the last spans, which is the time that the environment allows
/// for the export of a batch.
fn patience(variable: impl Fn(&str) -> Option<String>) -> Duration {
    milliseconds(variable, "OTEL_BSP_EXPORT_TIMEOUT").unwrap_or(LAST_SPANS)
}

fn milliseconds(variable: impl Fn(&str) -> Option<String>, name: &str) -> Option<Duration> {
    variable(name)?.parse().ok().map(Duration::from_millis)
}

/// Returns a constructor of the HTTP client for the collector at `address`, with the environment's timeout.
fn client(
    address: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> impl FnOnce() -> reqwest::Result<Client> + Send + 'static {
    let limit = milliseconds(&variable, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT");
    let limit = limit.or_else(|| milliseconds(&variable, "OTEL_EXPORTER_OTLP_TIMEOUT")).unwrap_or(ANSWER);
    // Headers of the environment, such as a key, are for this collector alone.
    let builder = Client::builder().redirect(Policy::none()).timeout(limit);
    // Certificate authorities are loaded only for https; an image need not have any.
    let is_secret = address.starts_with("https:");
    let builder = if is_secret { builder } else { builder.tls_certs_only([]) };
    move || builder.build()
}

/// Builds a blocking client on a separate thread, because building one panics in an asynchronous runtime.
fn on_its_own_thread<T: Send + 'static>(
    make: impl FnOnce() -> reqwest::Result<T> + Send + 'static,
) -> Result<T, TracesError> {
    let made = std::thread::spawn(make).join().map_err(|_| TracesError::Thread)?;
    Ok(made?)
}

/// Filter of the log: `levels`, without the spans of traces and the exporter's message about each failure.
fn logged<S>(levels: EnvFilter) -> impl Filter<S> + Send + Sync + 'static
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    levels.and(filter_fn(is_logged))
}

fn is_logged(metadata: &Metadata<'_>) -> bool {
    let of_exporter = metadata.target().starts_with("opentelemetry");
    // The exporter logs a full queue once, and the number of lost spans at the end.
    metadata.target() != TARGET && (!of_exporter || metadata.name().contains("Dropp"))
}

/// Result of the last export, shared with the exporter.
#[derive(Debug, Default)]
struct Sent {
    num_lost: AtomicUsize,
    /// Whether the collector refused the last batch.
    is_refused: AtomicBool,
}

impl Sent {
    /// Records whether a batch was accepted; returns true for the first one that was not.
    fn note(&self, is_taken: bool, num_spans: usize) -> bool {
        self.is_refused.store(!is_taken, Ordering::Relaxed);
        !is_taken && self.num_lost.fetch_add(num_spans, Ordering::Relaxed) == 0
    }
}

/// Exporter that logs only the first failure.
#[derive(Debug)]
struct Unhurried {
    exporter: SpanExporter,
    address: String,
    sent: Arc<Sent>,
}

impl opentelemetry_sdk::trace::SpanExporter for Unhurried {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let num_spans = batch.len();
        let taken = self.exporter.export(batch).await;
        let is_first_loss = self.sent.note(taken.is_ok(), num_spans);
        if let Err(error) = &taken
            && is_first_loss
        {
            let collector = &self.address;
            tracing::warn!(collector, %error, "the collector does not accept traces; this is logged once");
        }
        taken
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_collector_that_redirects_sends_neither_spans_nor_headers_elsewhere() {
        let [collector, elsewhere] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address_of = |server: &TcpListener| format!("http://{}/v1/traces", server.local_addr().unwrap());
        let (address, location) = (address_of(&collector), address_of(&elsewhere));
        elsewhere.set_nonblocking(true).unwrap();
        let answer = std::thread::spawn(move || {
            let (mut stream, _) = collector.accept().unwrap();
            let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
            while !request.ends_with(b"spans") {
                let num_read = stream.read(&mut buffer).unwrap();
                assert!(num_read > 0, "the request broke off");
                request.extend_from_slice(&buffer[..num_read]);
            }
            let head = "HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\nConnection: close\r\n";
            write!(stream, "{head}Location: {location}\r\n\r\n").unwrap();
        });
        let client = client(&address, |_| None)().unwrap();
        let answered = client.post(&address).header("x-api-key", "secret").body("spans").send().unwrap();
        assert_eq!(answered.status().as_u16(), 307);
        answer.join().unwrap();
        assert!(elsewhere.accept().is_err(), "nothing was sent there");
    }

    #[test]
    fn a_process_waits_for_its_last_spans_as_long_as_the_environment_says() {
        let waits = |text: &'static str| {
            patience(move |name| (name == "OTEL_BSP_EXPORT_TIMEOUT").then(|| text.to_owned()))
        };
        assert_eq!(waits("30000"), Duration::from_secs(30));
        assert_eq!([waits("soon"), patience(|_| None)], [LAST_SPANS; 2]);
    }
}
