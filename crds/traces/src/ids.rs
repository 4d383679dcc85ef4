//! Ids of spans: random, except for the span of an attempt, whose children refer to it before it is exported.

use std::cell::Cell;

use opentelemetry::trace::{SpanContext, SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};

thread_local! {
    static GIVEN: Cell<Option<(TraceId, SpanId)>> = const { Cell::new(None) };
}

/// Runs `make` so that the span which it creates on this thread gets the ids of `context`.
pub(crate) fn given<T>(context: &SpanContext, make: impl FnOnce() -> T) -> T {
    GIVEN.set(Some((context.trace_id(), context.span_id())));
    let made = make();
    GIVEN.set(None);
    made
}

/// Generator of span ids.
#[derive(Debug, Default)]
pub(crate) struct Ids(RandomIdGenerator);

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        GIVEN.get().map_or_else(|| self.0.new_trace_id(), |(trace, _)| trace)
    }

    fn new_span_id(&self) -> SpanId {
        GIVEN.get().map_or_else(|| self.0.new_span_id(), |(_, span)| span)
    }
}
