//! Tower layer around every call: rate limit, timeout, end of the leader's term, metrics.
//!
//! A caller can set extensions of its request: an [`Importance`](super::Importance), or a [`Turn`] that it
//! has already acquired.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{Request, Response};
use kube::client::Body;
use tower::{BoxError, Layer, Service};
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::{Call, Closed, Limiter, Turn};
use crate::lease::Term;
use crate::metrics::Metrics;

/// Timeout of a call, and of the start of a watch.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Layer that wraps a client's service in an `ApiService`.
#[derive(Clone, Debug)]
pub struct ApiLayer {
    limiter: Limiter,
    metrics: Metrics,
    term: Term,
}

impl ApiLayer {
    /// Returns a layer that limits calls by `limiter` and counts them in `metrics`.
    pub fn new(limiter: Limiter, metrics: Metrics) -> Self {
        Self { limiter, metrics, term: Term::default() }
    }

    /// Cancels calls that change something when `term` ends, whether they wait or are in flight.
    #[must_use]
    pub fn within(self, term: Term) -> Self {
        Self { term, ..self }
    }
}

impl<S> Layer<S> for ApiLayer {
    type Service = ApiService<S>;

    fn layer(&self, inner: S) -> ApiService<S> {
        ApiService { inner, layer: self.clone() }
    }
}

/// Service of a client, wrapped by [`ApiLayer`].
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

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let call = Call::of(&request);
        let importance = request.extensions().get().copied().unwrap_or_else(|| call.importance());
        request.extensions_mut().insert(call.lane());
        let own_turn = request.extensions_mut().remove::<Arc<Turn>>();
        let ApiLayer { limiter, metrics, term } = self.layer.clone();
        let is_bound = call.is_bound_by_term();
        // Nothing is sent before the future's first poll.
        let answer = self.inner.call(request);
        let span = span(&call);
        let answered = async move {
            let _turn = match own_turn {
                Some(turn) => turn,
                None => Arc::new(limiter.turn(importance).await?),
            };
            let started = Instant::now();
            metrics.asks(&call);
            // The API server sends the headers of a watch at once, before the first event.
            let answered = tokio::time::timeout(CALL_TIMEOUT, answer).await;
            let answered = answered.map_err(BoxError::from).flatten();
            let code = answered.as_ref().map(|response| response.status().as_u16()).ok();
            metrics.called(&call, code, started.elapsed());
            match code {
                Some(code) => drop(Span::current().record("http.response.status_code", code)),
                None => drop(Span::current().record("otel.status_code", "ERROR")),
            }
            answered
        };
        let within_term = async move {
            if !is_bound {
                return answered.await;
            }
            tokio::select! {
                // Polled first, so that nothing is sent once the term is over.
                biased;
                () = term.over() => Err(Closed.into()),
                answered = answered => answered,
            }
        };
        Box::pin(within_term.instrument(span))
    }
}

/// Returns a child span of the reconcile that makes the call; an empty span outside of a reconcile.
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::{CallRate, Importance};
    use super::*;

    /// Lets two calls wait for the only slot, and returns the path of the call that is made first.
    async fn first(status: Option<Importance>) -> String {
        let limiter = Limiter::new(CallRate::default(), 1);
        let made: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = made.clone();
        let server = tower::service_fn(move |request: Request<Body>| {
            let noted = noted.clone();
            async move {
                noted.lock().unwrap().push(request.uri().path().to_owned());
                Ok::<_, BoxError>(Response::new(()))
            }
        });
        let mut service = ApiLayer::new(limiter.clone(), Metrics::default()).layer(server);
        let only_place = limiter.turn(Importance::Change).await.unwrap();
        let mut write = Request::patch("/apis/a/v1/namespaces/b/jobs/c/status").body(Body::empty()).unwrap();
        if let Some(importance) = status {
            write.extensions_mut().insert(importance);
        }
        let make = Request::post("/api/v1/namespaces/b/pods").body(Body::empty()).unwrap();
        let calls = futures::future::join(service.call(write), service.call(make));
        let ((written, made_pod), ()) = futures::join!(calls, async { drop(only_place) });
        written.and(made_pod).unwrap();
        let made = made.lock().unwrap();
        made[0].clone()
    }

    #[tokio::test(start_paused = true)]
    async fn no_write_outlives_the_leaders_term_and_none_begins_after_it() {
        let num_sent = Arc::new(Mutex::new(0));
        let counter = num_sent.clone();
        let server = tower::service_fn(move |_: Request<Body>| {
            let counter = counter.clone();
            async move {
                *counter.lock().unwrap() += 1;
                std::future::pending::<Result<Response<()>, BoxError>>().await
            }
        });
        let (limiter, term) = (Limiter::new(CallRate::default(), 8), Term::default());
        let layer = ApiLayer::new(limiter, Metrics::default()).within(term.clone());
        let mut service = layer.layer(server);
        let mut send = |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
            let (started, answer) = (tokio::time::Instant::now(), service.call(request));
            async move {
                let error = answer.await.unwrap_err();
                (error.is::<Closed>(), started.elapsed().as_secs())
            }
        };
        let now = tokio::time::Instant::now();
        term.set_end(now + std::time::Duration::from_secs(10));
        let put_off = async {
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
            term.set_end(now + std::time::Duration::from_secs(15));
        };
        let (write, read, lease, ()) = futures::join!(
            send("POST", "/api/v1/namespaces/team/pods"),
            send("GET", "/api/v1/namespaces/team/pods/a"),
            send("PUT", "/apis/coordination.k8s.io/v1/namespaces/rl/leases/rl-operator"),
            put_off,
        );
        assert_eq!((write, read, lease), ((true, 15), (false, 30), (false, 30)));
        assert_eq!(*num_sent.lock().unwrap(), 3);
        assert_eq!(send("DELETE", "/api/v1/namespaces/team/pods/a").await, (true, 0));
        assert_eq!(*num_sent.lock().unwrap(), 3, "nothing is sent when the term is over");
    }

    #[tokio::test]
    async fn a_status_precedes_pods_unless_its_writer_marks_it_as_deferrable() {
        assert!(first(None).await.ends_with("/status"));
        assert!(first(Some(Importance::Notice)).await.ends_with("/pods"));
    }
}
