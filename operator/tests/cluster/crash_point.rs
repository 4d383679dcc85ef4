//! A crash of an operator at a certain call: right before the API server receives it, or right after it was
//! carried out. Lists and watches are not counted, for they change nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use rlt_cluster::{FaultProxy, Faults};
use rlt_operator::client::{Call, Verb};
use tokio::sync::watch;
use tower::{BoxError, Layer, Service};

use crate::test_namespace::TestNamespace;

/// The client of an operator whose calls pass `faults`, and then `crash_point`.
pub(crate) async fn client(test: &TestNamespace, faults: &Faults, crash_point: &CrashPoint) -> Client {
    let builder = ClientBuilder::try_from(config(test, None).await).unwrap();
    builder.with_layer(faults).with_layer(crash_point).build()
}

/// A client that speaks to the API server by way of a proxy, and takes a connection for dead that is silent
/// for so long.
pub(crate) async fn client_through(test: &TestNamespace, proxy: &FaultProxy, silence: Duration) -> Client {
    let mut config = config(test, Some(proxy.url())).await;
    config.read_timeout = Some(silence);
    Client::try_from(config).unwrap()
}

async fn config(test: &TestNamespace, server: Option<String>) -> Config {
    let mut kubeconfig = Kubeconfig::read_from(test.cluster.kubeconfig()).unwrap();
    if let Some(server) = server {
        kubeconfig.clusters[0].cluster.as_mut().unwrap().server = Some(server);
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    // As the operator's own.
    config.default_retry = false;
    config.proxy_url = None;
    config
}

/// Side of a call on which the operator ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Before,
    After,
}

/// Clones share the counts.
#[derive(Clone, Debug)]
pub(crate) struct CrashPoint {
    at: Option<(usize, Side)>,
    num_calls: Arc<AtomicUsize>,
    num_statuses: Arc<AtomicUsize>,
    crashed: watch::Sender<bool>,
}

impl CrashPoint {
    /// One that only counts.
    pub(crate) fn never() -> Self {
        let (crashed, _) = watch::channel(false);
        Self { at: None, num_calls: Arc::default(), num_statuses: Arc::default(), crashed }
    }

    /// One at this call, counted from 1.
    pub(crate) fn at(call: usize, side: Side) -> Self {
        Self { at: Some((call, side)), ..Self::never() }
    }

    /// Waits until it has crashed.
    pub(crate) async fn crashed(&self) {
        self.crashed.subscribe().wait_for(|crashed| *crashed).await.unwrap();
    }

    pub(crate) fn num_calls(&self) -> usize {
        self.num_calls.load(Ordering::SeqCst)
    }

    /// Statuses that the API server took.
    pub(crate) fn num_statuses(&self) -> usize {
        self.num_statuses.load(Ordering::SeqCst)
    }

    async fn end<T>(&self) -> T {
        self.crashed.send_replace(true);
        std::future::pending().await
    }
}

impl<S> Layer<S> for CrashPoint {
    type Service = CrashingService<S>;

    fn layer(&self, inner: S) -> CrashingService<S> {
        CrashingService { inner, crash_point: self.clone() }
    }
}

/// A client's service with a [`CrashPoint`] above it.
#[derive(Clone, Debug)]
pub(crate) struct CrashingService<S> {
    inner: S,
    crash_point: CrashPoint,
}

impl<S, B> Service<Request<Body>> for CrashingService<S>
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
        let is_dry_run = request.uri().query().is_some_and(|query| query.contains("dryRun"));
        let crash_point = self.crash_point.clone();
        if matches!(call.verb, Verb::List | Verb::Watch) {
            return Box::pin(self.inner.call(request));
        }
        let count = crash_point.num_calls.fetch_add(1, Ordering::SeqCst) + 1;
        // Calls that start after the crash are dropped.
        let is_dead =
            crash_point.at.is_some_and(|(at, side)| count > at || count == at && side == Side::Before);
        if is_dead {
            return Box::pin(async move { crash_point.end().await });
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let is_taken = answer.as_ref().is_ok_and(|answer| answer.status().is_success());
            let is_status = call.resource.ends_with("/status") && !is_dry_run;
            crash_point.num_statuses.fetch_add(usize::from(is_taken && is_status), Ordering::SeqCst);
            if crash_point.at.is_some_and(|(at, _)| count == at) { crash_point.end().await } else { answer }
        })
    }
}
