//! A proxy on loopback that injects [`Faults`] into calls: for a program whose client cannot get a tower
//! layer.
//!
//! ```text
//! operator --http--> FaultProxy --https--> API server     the caller's own token passes, so its roles hold
//! ```

use std::io;
use std::net::SocketAddr;

use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tower::{BoxError, Layer as _, Service as _};

use crate::faults::{AnyBody, Faults};

/// Proxy of an API server that injects faults. It runs in the runtime that started it, and ends when it is
/// dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl FaultProxy {
    /// Starts to forward calls through `upstream`, a client without credentials.
    pub(crate) async fn start(upstream: kube::Client, faults: Faults) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        Ok(Self { address, server: tokio::spawn(serve(listener, upstream, faults)) })
    }

    /// URL of the proxy, to be used in place of the API server's.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, upstream: kube::Client, faults: Faults) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (upstream, faults) = (upstream.clone(), faults.clone());
        let answer = service_fn(move |request| forward(request, upstream.clone(), faults.clone()));
        connections.spawn(async move {
            // An error here is a connection that a fault has broken.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn forward(
    request: Request<Incoming>,
    upstream: kube::Client,
    faults: Faults,
) -> Result<Response<AnyBody>, BoxError> {
    // Boxed here, where its lifetime is known.
    let send = tower::service_fn(move |request: Request<Body>| -> BoxFuture<'static, Result<_, BoxError>> {
        let upstream = upstream.clone();
        Box::pin(async move { upstream.send(request).await.map_err(|error| -> BoxError { Box::new(error) }) })
    });
    let request = upstream_request(request).await?;
    faults.layer(send).call(request).await
}

async fn upstream_request(request: Request<Incoming>) -> hyper::Result<Request<Body>> {
    let (mut head, body) = request.into_parts();
    // These are between two neighbours; the client that forwards writes its own.
    for name in [http::header::HOST, http::header::CONNECTION, http::header::CONTENT_LENGTH] {
        head.headers.remove(name);
    }
    let bytes = body.collect().await?.to_bytes();
    Ok(Request::from_parts(head, Body::from(bytes)))
}
