//! The tower layer around every call: its turn, its time limit, its count.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

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
        Box::pin(async move {
            let _turn = limiter.turn(call.importance()).await;
            let started = Instant::now();
            let answered = match call.verb {
                // A watch may take its time.
                Verb::Watch => answer.await,
                _ => tokio::time::timeout(CALL_TIMEOUT, answer).await.map_err(BoxError::from).flatten(),
            };
            let code = answered.as_ref().map(|response| response.status().as_u16()).ok();
            metrics.called(&call, code, started.elapsed());
            answered
        })
    }
}
