//! Faults between a client and the API server, by a script: refusals, answers lost after execution, lost
//! requests, silence.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;
use tokio::sync::watch;
use tower::{BoxError, Layer, Service};

/// Fault of a call to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server says no with this code, and has done nothing.
    Refuse(u16),
    /// The connection breaks before the request is received.
    LoseRequest,
    /// The server does what it is asked, and its answer is lost.
    LoseAnswer,
    /// The call is not executed, and there is never an answer.
    Hang,
    /// All goes well, this much later.
    Delay(Duration),
    /// All goes well once [`Faults::release`] is called.
    Hold,
    /// The connection breaks this long after the answer has begun, before any data if that is zero: for
    /// watches.
    Break(Duration),
    /// No more data is sent this long after the answer has begun, none at all if that is zero, and the
    /// connection stays open: for watches.
    Stall(Duration),
}

#[derive(Clone, Debug)]
struct Rule {
    method: &'static str,
    path: String,
    num_left: usize,
    fault: Fault,
}

/// A script of faults, empty at first. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    rules: Arc<Mutex<Vec<Rule>>>,
    num_silent: Arc<AtomicUsize>,
    is_released: watch::Sender<bool>,
}

impl Faults {
    /// Injects `fault` into the next `num_calls` calls of `method` whose path or query contains `path`, such
    /// as `watch=true`. Older rules take precedence.
    pub fn inject(&self, method: &'static str, path: &str, num_calls: usize, fault: Fault) {
        let rule = Rule { method, path: path.to_owned(), num_left: num_calls, fault };
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).push(rule);
    }

    /// Removes all faults that were injected.
    pub fn clear(&self) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Releases all calls that [`Fault::Hold`] holds, and later ones.
    pub fn release(&self) {
        self.is_released.send_replace(true);
    }

    /// The number of faults that are left.
    pub fn num_left(&self) -> usize {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|rule| rule.num_left).sum()
    }

    /// The number of answers that have fallen silent by [`Fault::Stall`] and whose connections are open.
    pub fn num_silent(&self) -> usize {
        self.num_silent.load(Ordering::SeqCst)
    }

    fn next(&self, request: &Request<Body>) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let is_met = |rule: &&mut Rule| {
            let path = request.uri().path_and_query().map_or("", http::uri::PathAndQuery::as_str);
            rule.num_left > 0 && request.method() == rule.method && path.contains(&rule.path)
        };
        let rule = rules.iter_mut().find(is_met)?;
        rule.num_left -= 1;
        Some(rule.fault)
    }
}

impl<S> Layer<S> for Faults {
    type Service = FaultyService<S>;

    fn layer(&self, inner: S) -> FaultyService<S> {
        FaultyService { inner, faults: self.clone() }
    }
}

/// The body of an answer, from the server or from the proxy.
pub(crate) type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

/// A client's service with [`Faults`] in front of it.
#[derive(Clone, Debug)]
pub struct FaultyService<S> {
    inner: S,
    faults: Faults,
}

impl<S, B> Service<Request<Body>> for FaultyService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnyBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<AnyBody>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let lost = || BoxError::from("the connection was broken on purpose");
        match self.faults.next(&request) {
            Some(Fault::Refuse(code)) => Box::pin(async move { refusal(code) }),
            Some(Fault::LoseRequest) => Box::pin(async move { Err(lost()) }),
            Some(Fault::Hang) => Box::pin(std::future::pending()),
            Some(Fault::LoseAnswer) => {
                let answer = self.inner.call(request);
                Box::pin(async move { answer.await.and_then(|_| Err(lost())) })
            }
            Some(Fault::Delay(duration)) => {
                let answer = self.inner.call(request);
                Box::pin(async move {
                    tokio::time::sleep(duration).await;
                    Ok(answer.await?.map(|body| body.map_err(Into::into).boxed_unsync()))
                })
            }
            Some(Fault::Hold) => {
                let answer = self.inner.call(request);
                let mut is_released = self.faults.is_released.subscribe();
                Box::pin(async move {
                    is_released.wait_for(|released| *released).await?;
                    Ok(answer.await?.map(|body| body.map_err(Into::into).boxed_unsync()))
                })
            }
            Some(Fault::Break(duration)) => {
                let answer = self.inner.call(request);
                let end = stream::once(async move { Err(lost()) });
                Box::pin(async move { Ok(answer.await?.map(|body| cut(body, duration, end))) })
            }
            Some(Fault::Stall(duration)) => {
                let answer = self.inner.call(request);
                let silence = silence(Arc::clone(&self.faults.num_silent));
                Box::pin(async move { Ok(answer.await?.map(|body| cut(body, duration, silence))) })
            }
            None => {
                let answer = self.inner.call(request);
                Box::pin(async move { Ok(answer.await?.map(|body| body.map_err(Into::into).boxed_unsync())) })
            }
        }
    }
}

/// Returns a body that is `body` for `duration`, and `rest` afterwards.
fn cut<B>(
    body: B,
    duration: Duration,
    rest: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
) -> AnyBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let end = async move {
        // Even a sleep of no time lets the first data pass.
        if !duration.is_zero() {
            tokio::time::sleep(duration).await;
        }
    };
    let begun = body.map_err(Into::into).into_data_stream().take_until(Box::pin(end));
    StreamBody::new(begun.chain(rest).map_ok(Frame::data)).boxed_unsync()
}

/// An answer that has fallen silent, counted until it is dropped together with its connection.
struct Silence(Arc<AtomicUsize>);

impl Silence {
    fn begin(num_silent: Arc<AtomicUsize>) -> Self {
        num_silent.fetch_add(1, Ordering::SeqCst);
        Self(num_silent)
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the rest of an answer that falls silent: a stream that has no item and no end.
fn silence(num_silent: Arc<AtomicUsize>) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static {
    stream::once(async move {
        let _counted = Silence::begin(num_silent);
        std::future::pending::<Result<Bytes, BoxError>>().await
    })
}

/// The answer of an API server that says no.
fn refusal(code: u16) -> Result<Response<AnyBody>, BoxError> {
    let reason = match code {
        409 => "Conflict",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": "refused on purpose",
    });
    let body = Full::from(serde_json::to_vec(&status)?).map_err(BoxError::from).boxed_unsync();
    Ok(Response::builder().status(code).header("content-type", "application/json").body(body)?)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Returns an endless answer of one byte a second, as a client receives it under `fault`.
    async fn slow_answer(fault: Fault) -> Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>> {
        let service = tower::service_fn(|_: Request<Body>| async {
            let bytes = stream::unfold(0, |idx| async move {
                tokio::time::sleep(Duration::from_secs(idx.min(1))).await;
                Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"."))), idx + 1))
            });
            Ok::<_, BoxError>(Response::new(StreamBody::new(bytes)))
        });
        let faults = Faults::default();
        faults.inject("GET", "/", 1, fault);
        let answer = faults.layer(service).call(Request::new(Body::empty())).await.unwrap();
        Box::pin(answer.into_body().into_data_stream())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_breaks_after_the_duration_of_its_fault() {
        let answer: Vec<_> = slow_answer(Fault::Break(Duration::from_millis(2500))).await.collect().await;
        let is_data: Vec<bool> = answer.iter().map(Result::is_ok).collect();
        assert_eq!(is_data, [true, true, true, false], "bytes after 0, 1 and 2 s, and an error");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_falls_silent_after_the_duration_of_its_fault_and_stays_open() {
        let mut answer = slow_answer(Fault::Stall(Duration::from_millis(2500))).await;
        for _ in 0..3 {
            assert!(answer.next().await.unwrap().is_ok());
        }
        let more = tokio::time::timeout(Duration::from_secs(24 * 3600), answer.next()).await;
        assert!(more.is_err(), "{more:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_data_passes_a_fault_that_begins_with_the_answer() {
        let mut broken = slow_answer(Fault::Break(Duration::ZERO)).await;
        assert!(broken.next().await.unwrap().is_err());
        let mut silent = slow_answer(Fault::Stall(Duration::ZERO)).await;
        let first = tokio::time::timeout(Duration::from_secs(3600), silent.next()).await;
        assert!(first.is_err(), "{first:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_held_does_not_begin_before_its_release() {
        let num_begun = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&num_begun);
        let service = tower::service_fn(move |_: Request<Body>| {
            let counter = Arc::clone(&counter);
            async move {
                counter.fetch_add(1, Ordering::SeqCst);
                Ok::<_, BoxError>(Response::new(Full::new(Bytes::new())))
            }
        });
        let faults = Faults::default();
        faults.inject("GET", "/", 1, Fault::Hold);
        let mut answer = faults.layer(service).call(Request::new(Body::empty()));
        let early = tokio::time::timeout(Duration::from_secs(3600), &mut answer).await;
        assert!(early.is_err() && num_begun.load(Ordering::SeqCst) == 0);
        faults.release();
        assert!(answer.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_delayed_answer_arrives_after_the_delay() {
        let asked = tokio::time::Instant::now();
        let _answer = slow_answer(Fault::Delay(Duration::from_secs(5))).await;
        let elapsed = asked.elapsed();
        assert!((5.0..5.1).contains(&elapsed.as_secs_f64()), "{elapsed:?}");
    }
}
