//! Trace of an attempt. Its ids are a function of the job and the attempt, so an operator that takes over
//! continues the same trace.

use std::sync::LazyLock;
use std::time::SystemTime;

use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
    TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_sdk::trace::{Config, SamplingDecision, ShouldSample};
use sha2::{Digest as _, Sha256};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::{SCOPE, ids};

/// Environment variable with the parent span of a process, in W3C's form `00-<trace>-<span>-<flags>`.
pub const TRACEPARENT: &str = "TRACEPARENT";

/// Sampler of the environment's variables, which decides for the root of a trace which attempts are sampled.
static SAMPLER: LazyLock<Box<dyn ShouldSample>> = LazyLock::new(|| Config::default().sampler);

/// Trace context of one attempt of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptTrace(SpanContext);

impl AttemptTrace {
    /// Returns the trace of an attempt, counted from 1, of the job with this UID.
    pub fn of(job_uid: &str, attempt: u32) -> Self {
        let digest =
            Sha256::new().chain_update(job_uid).chain_update([0]).chain_update(attempt.to_le_bytes());
        let digest: [u8; 32] = digest.finalize().into();
        let trace = TraceId::from_bytes(std::array::from_fn(|idx| digest[idx]));
        let span = SpanId::from_bytes(std::array::from_fn(|idx| digest[16 + idx]));
        let flags = TraceFlags::default().with_sampled(is_sampled(trace));
        Self(SpanContext::new(trace, span, flags, true, TraceState::NONE))
    }

    /// Formats the trace for `TRACEPARENT` in a pod's environment.
    pub fn traceparent(&self) -> String {
        text(&self.0)
    }

    /// Trace id: 32 hexadecimal digits.
    pub fn id(&self) -> String {
        self.0.trace_id().to_string()
    }

    /// Whether the attempt's trace is sampled.
    pub fn is_followed(&self) -> bool {
        self.0.is_sampled()
    }

    /// Makes `span`, which has not been entered yet, a child of the attempt's span.
    pub fn adopt(&self, span: &Span) {
        // This fails for a span that is not recorded, which needs no parent.
        let _ = span.set_parent(Context::new().with_remote_span_context(self.0.clone()));
    }

    /// Exports the attempt's own span, the root of its trace: from `start` until now, with the `error` that
    /// ended the attempt.
    pub fn end(
        &self,
        start: SystemTime,
        attributes: impl IntoIterator<Item = (&'static str, String)>,
        error: Option<String>,
    ) {
        let attributes = attributes.into_iter().map(|(name, value)| KeyValue::new(name, value));
        let builder = SpanBuilder::from_name("attempt").with_start_time(start).with_attributes(attributes);
        let tracer = global::tracer(SCOPE);
        let mut span = ids::given(&self.0, || tracer.build_with_context(builder, &Context::new()));
        if let Some(error) = error {
            span.set_status(Status::error(error));
        }
        span.end();
    }
}

fn is_sampled(trace: TraceId) -> bool {
    let sampled = SAMPLER.should_sample(None, trace, "attempt", &SpanKind::Internal, &[], &[]);
    sampled.decision == SamplingDecision::RecordAndSample
}

/// Makes `span`, which has not been entered yet, a child of the span in this process's `TRACEPARENT`, if it
/// is set.
pub fn follow_environment(span: &Span) {
    let parent = std::env::var(TRACEPARENT).ok().and_then(|text| parse(&text));
    if let Some(parent) = parent {
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
}

/// Returns the id of the trace that contains `span`; `None` if it is not sampled.
pub fn trace_id(span: &Span) -> Option<String> {
    followed(span).filter(SpanContext::is_sampled).map(|context| context.trace_id().to_string())
}

/// Returns the `TRACEPARENT` for a process that `span` starts; `None` without a trace.
pub fn traceparent(span: &Span) -> Option<String> {
    followed(span).map(|context| text(&context))
}

fn followed(span: &Span) -> Option<SpanContext> {
    let context = span.context();
    let context = context.span().span_context().clone();
    context.is_valid().then_some(context)
}

fn text(context: &SpanContext) -> String {
    let flags = context.trace_flags().to_u8();
    format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id())
}

/// Parses W3C's form; later versions may append parts to it.
fn parse(text: &str) -> Option<SpanContext> {
    let mut parts = text.trim().split('-');
    let [version, trace, span, flags] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let is_known = version.len() == 2 && version != "ff" && (version != "00" || parts.next().is_none());
    let sizes_fit = (trace.len(), span.len(), flags.len()) == (32, 16, 2);
    if !is_known || !sizes_fit {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let parsed = SpanContext::new(trace, span, flags & TraceFlags::SAMPLED, true, TraceState::NONE);
    parsed.is_valid().then_some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "6f1c7a52-7f0e-4a6e-9d6f-0f8f1f0c2b11";

    #[test]
    fn the_trace_id_is_a_function_of_job_and_attempt() {
        let first = AttemptTrace::of(UID, 1);
        assert_eq!(first, AttemptTrace::of(UID, 1));
        assert_ne!(first.id(), AttemptTrace::of(UID, 2).id());
        assert_ne!(first.id(), AttemptTrace::of("another", 1).id());
        assert_eq!(parse(&first.traceparent()), Some(first.0.clone()));
        assert!(first.traceparent().starts_with(&format!("00-{}-", first.id())));
    }

    #[test]
    fn a_traceparent_that_is_none_is_not_followed() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(parse(good).map(|context| text(&context)).as_deref(), Some(good));
        assert!(parse(&format!("{good}-later").replacen("00", "01", 1)).is_some());
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c8031zz-b7ad6b7169203331-01",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
