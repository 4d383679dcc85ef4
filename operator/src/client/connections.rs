//! Several connections to one API server. A server limits the streams of an HTTP/2 connection
//! (kube-apiserver: 100 by default), and a watch holds its stream for minutes; beyond the limit requests wait
//! unsent. So watches have as many connections as they need, and share none with calls or the renewal of the
//! lease.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::{Frame, SizeHint};
use kube::client::Body;
use tower::Service;

/// Number of watches that share a connection: half of the streams that kube-apiserver allows by default, and
/// that RFC 9113 recommends as a minimum.
const WATCHES_PER_CONNECTION: usize = 50;

/// Connections that a request may use, set as an extension of the request; [`Lane::Calls`] if absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Calls with an immediate answer, at most [`MAX_IN_FLIGHT`](super::MAX_IN_FLIGHT) at a time.
    Calls,
    /// Calls of the leader election.
    Leases,
    /// Watches, each for as long as its response is read.
    Watches,
}

/// Sends each request over a connection of its [`Lane`]. `C` is a client with one connection, which it opens
/// with its first request.
#[derive(Clone)]
pub(super) struct Connections<C> {
    calls: C,
    leases: C,
    watches: Arc<Mutex<Vec<Shared<C>>>>,
    open: Arc<dyn Fn() -> C + Send + Sync>,
}

/// Connection that watches share.
struct Shared<C> {
    client: C,
    /// Reference count: each watch on the connection holds a clone.
    place: Arc<()>,
}

impl<C: Clone> Connections<C> {
    /// Returns connections that `open` opens.
    pub(super) fn new(open: impl Fn() -> C + Send + Sync + 'static) -> Self {
        Self { calls: open(), leases: open(), watches: Arc::default(), open: Arc::new(open) }
    }

    /// Returns a connection for one more watch, and its reference-count token.
    fn for_watch(&self) -> (C, Arc<()>) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        let num_watches = |shared: &Shared<C>| Arc::strong_count(&shared.place) - 1;
        if let Some(shared) = watches.iter().find(|shared| num_watches(shared) < WATCHES_PER_CONNECTION) {
            return (shared.client.clone(), shared.place.clone());
        }
        let (client, place) = ((self.open)(), Arc::new(()));
        watches.push(Shared { client: client.clone(), place: place.clone() });
        (client, place)
    }
}

impl<C, B> Service<Request<Body>> for Connections<C>
where
    C: Service<Request<Body>, Response = Response<B>> + Clone,
    C::Future: Send + 'static,
{
    type Response = Response<Held<B>>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Held<B>>, C::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.calls.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let lane = request.extensions().get().copied().unwrap_or(Lane::Calls);
        let (answer, place) = match lane {
            Lane::Calls => (self.calls.call(request), None),
            Lane::Leases => (self.leases.call(request), None),
            Lane::Watches => {
                let (mut client, place) = self.for_watch();
                (client.call(request), Some(place))
            }
        };
        Box::pin(async move { Ok(answer.await?.map(|body| Held { body, _place: place })) })
    }
}

/// Body of a response, which holds a watch's slot on its connection until it is dropped.
pub(super) struct Held<B> {
    body: B,
    _place: Option<Arc<()>>,
}

impl<B: http_body::Body + Unpin> http_body::Body for Held<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::Ready;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A client that answers with the number of its connection.
    #[derive(Clone)]
    struct Numbered(usize);

    impl Service<Request<Body>> for Numbered {
        type Response = Response<usize>;
        type Error = Infallible;
        type Future = Ready<Result<Response<usize>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            std::future::ready(Ok(Response::new(self.0)))
        }
    }

    async fn send(connections: &mut Connections<Numbered>, lane: Lane) -> Held<usize> {
        let request = Request::builder().extension(lane).body(Body::empty()).unwrap();
        connections.call(request).await.unwrap().into_body()
    }

    #[tokio::test]
    async fn watches_share_connections_up_to_the_limit_and_none_with_calls_or_leases() {
        let num_open = AtomicUsize::new(0);
        let mut connections = Connections::new(move || Numbered(num_open.fetch_add(1, Ordering::SeqCst)));
        let mut watches = Vec::new();
        for _ in 0..2 * WATCHES_PER_CONNECTION + 1 {
            watches.push(send(&mut connections, Lane::Watches).await);
        }
        let on = |number: usize| watches.iter().filter(|watch| watch.body == number).count();
        assert_eq!([on(2), on(3), on(4)], [WATCHES_PER_CONNECTION, WATCHES_PER_CONNECTION, 1]);
        assert_eq!(send(&mut connections, Lane::Calls).await.body, 0);
        assert_eq!(send(&mut connections, Lane::Leases).await.body, 1);
        // The next watch takes the slot of one that has ended.
        watches.remove(0);
        assert_eq!(send(&mut connections, Lane::Watches).await.body, 2);
    }
}
