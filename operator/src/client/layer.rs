//! The tower layer around every call: its turn, its time limit, its count.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use kube::client::Body;
use tower::{BoxError, Layer, Service};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::{CALL_TIMEOUT, Call, Limiter, Verb};
use crate::metrics::Metrics;

/// Puts [`ApiService`] around a client's service.
#[derive(Clone, Debug)]
pub struct ApiLayer {
    limiter: Limiter,
    metrics: Metrics,
}

impl ApiLayer {
    /// Lets calls through by `limiter` and counts them into `metrics`.
    pub fn new(limiter: Limiter, metrics: Metrics) -> Self {
        Self { limiter, metrics }
    }
}

impl<S> Layer<S> for ApiLayer {
    type Service = ApiService<S>;

    fn layer(&self, inner: S) -> ApiService<S> {
        ApiService { inner, layer: self.clone() }
    }
}

/// A client's service with [`ApiLayer`] around it.
#[derive(Clone, Debug)]
pub struct ApiService<S> {
    inner: S,
    layer: ApiLayer,
}

impl<S, B> Service<Request<Body>> for ApiService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let call = Call::of(&request);
        let ApiLayer { limiter, metrics } = self.layer.clone();
        // Nothing is sent before the first poll.
        let answer = self.inner.call(request);
        let span = span(&call);
        let answered = async move {
            let _turn = limiter.turn(call.importance()).await;
            let started = Instant::now();
            let answered = match call.verb {
                // A watch may take its time.
                Verb::Watch => answer.await,
                _ => tokio::time::timeout(CALL_TIMEOUT, answer).await.map_err(BoxError::from).flatten(),
            };
            let code = answered.as_ref().map(|response| response.status().as_u16()).ok();
            metrics.called(&call, code, started.elapsed());
            match code {
                Some(code) => drop(Span::current().record("http.response.status_code", code)),
                None => drop(Span::current().record("otel.status_code", "ERROR")),
            }
            answered
        };
        Box::pin(answered.instrument(span))
    }
}

/// A part of the look at a job for which the call is made; calls that belong to no job are not followed.
fn span(call: &Call) -> Span {
    let is_followed = Span::current().metadata().is_some_and(|span| span.target() == rlt_traces::TARGET);
    if !is_followed {
        return Span::none();
    }
    let (verb, resource) = (call.verb.name(), call.resource.as_str());
    tracing::info_span!(
        target: rlt_traces::TARGET, "call", otel.name = format_args!("{verb} {resource}"), otel.kind = "client",
        verb, resource, http.response.status_code = Empty, otel.status_code = Empty
    )
}
