//! A collector of OpenTelemetry traces, in memory: it receives spans over HTTP in protobuf, or accepts
//! connections and never answers.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// Maximum time that a test waits for spans, which a process sends every few seconds and at its end.
const PATIENCE: Duration = Duration::from_secs(100);

/// The fields of a span that tests read; ids are hexadecimal.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// Name of the service that sent the span.
    pub service: String,
    /// Name of the span.
    pub name: String,
    /// Id of the trace that the span belongs to.
    pub trace: String,
    /// Id of the span.
    pub id: String,
    /// Id of the parent span; empty for none.
    pub parent: String,
    /// Attributes of the span in the order of the request, as text.
    pub attributes: Vec<(String, String)>,
    /// Duration of the span.
    pub duration: Duration,
}

impl Received {
    /// Returns the value of an attribute.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A collector of spans; it runs until the process ends.
#[derive(Clone, Debug)]
pub struct Collector {
    port: u16,
    spans: Arc<Mutex<Vec<Received>>>,
}

impl Collector {
    /// Takes spans on a free port.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start() -> io::Result<Self> {
        Self::serve(|stream, spans| drop(take(stream, spans)))
    }

    /// Accepts connections on a free port, and never answers.
    ///
    /// # Errors
    /// When no port is free.
    pub fn silent() -> io::Result<Self> {
        // The wait is longer than any test.
        Self::serve(|stream, _| {
            std::thread::sleep(Duration::from_secs(3600));
            drop(stream);
        })
    }

    fn serve(answer: fn(TcpStream, &Mutex<Vec<Received>>)) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let collector = Self { port: listener.local_addr()?.port(), spans: Arc::default() };
        let spans = Arc::clone(&collector.spans);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let spans = Arc::clone(&spans);
                std::thread::spawn(move || answer(stream, &spans));
            }
        });
        Ok(collector)
    }

    /// Returns the environment of a process that sends its spans to this collector. The process may take a
    /// long time for the last ones, because the machine may be busy.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let address = format!("http://127.0.0.1:{}", self.port);
        let patience = PATIENCE.as_millis().to_string();
        vec![
            ("OTEL_EXPORTER_OTLP_ENDPOINT", address),
            ("NO_PROXY", "127.0.0.1".into()),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", patience.clone()),
            ("OTEL_BSP_EXPORT_TIMEOUT", patience),
        ]
    }

    /// The spans received so far.
    pub fn spans(&self) -> Vec<Received> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `wish` is true for the received spans. Returns the spans, also after a timeout.
    pub fn when(&self, wish: impl Fn(&[Received]) -> bool) -> Vec<Received> {
        let started = Instant::now();
        loop {
            let spans = self.spans();
            if wish(&spans) || started.elapsed() > PATIENCE {
                return spans;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Receives the calls of one connection.
fn take(mut stream: TcpStream, spans: &Mutex<Vec<Received>>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let Some((is_known, body)) = read_call(&mut reader)? else { return Ok(()) };
        let request = ExportTraceServiceRequest::decode(body.as_slice()).ok().filter(|_| is_known);
        let status = if request.is_some() { "200 OK" } else { "400 Bad Request" };
        let received = request.iter().flat_map(received);
        spans.lock().unwrap_or_else(PoisonError::into_inner).extend(received);
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
        )?;
    }
}

/// Reads the next request: whether it contains spans, and its body. `None` if the client has closed the
/// connection.
fn read_call(reader: &mut BufReader<TcpStream>) -> io::Result<Option<(bool, Vec<u8>)>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let is_known = line.starts_with("POST /v1/traces ");
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((is_known, body)))
}

fn received(request: &ExportTraceServiceRequest) -> Vec<Received> {
    let of_service = request.resource_spans.iter().flat_map(|from| {
        let service = service(from.resource.as_ref());
        let spans = from.scope_spans.iter().flat_map(|scope| &scope.spans);
        spans.map(move |span| read(span, service.clone()))
    });
    of_service.collect()
}

fn service(resource: Option<&Resource>) -> String {
    let attributes = resource.map(|resource| resource.attributes.as_slice()).unwrap_or_default();
    let name = attributes.iter().find(|attribute| attribute.key == "service.name");
    name.map(|name| text(name.value.as_ref())).unwrap_or_default()
}

fn read(span: &Span, service: String) -> Received {
    let attribute = |attribute: &KeyValue| (attribute.key.clone(), text(attribute.value.as_ref()));
    let nanos = span.end_time_unix_nano.saturating_sub(span.start_time_unix_nano);
    Received {
        service,
        name: span.name.clone(),
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        attributes: span.attributes.iter().map(attribute).collect(),
        duration: Duration::from_nanos(nanos),
    }
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
