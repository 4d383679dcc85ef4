//! Open connections of a server, each of which counts to a share (`shares.rs`) and can be closed.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::server::Connected;

use super::shares::{Authenticated, Limits, Shares};

/// Open connections of a server; clones share one count.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    open: Arc<Mutex<Shares<Arc<Closing>>>>,
}

/// Flag that closes a connection to make room for another one.
#[derive(Debug, Default)]
struct Closing {
    is_closed: AtomicBool,
    reader: AtomicWaker,
}

/// Connection that is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    stream: TcpStream,
    place: Place,
}

#[derive(Debug)]
struct Place {
    connections: Connections,
    number: u64,
    address: IpAddr,
    closing: Arc<Closing>,
}

/// The peer of a connection, as a request's extension.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    connections: Connections,
    number: u64,
    address: IpAddr,
}

impl Connections {
    /// Returns the connections of a server with these limits.
    pub(crate) fn within(limits: Limits) -> Self {
        Self { open: Arc::new(Mutex::new(Shares::new(limits))) }
    }

    /// Counts a connection; returns `None`, which closes it, if there are too many from its address.
    pub(crate) fn admit(&self, stream: TcpStream) -> Option<Counted> {
        let address = stream.peer_addr().ok()?.ip();
        let closing = Arc::new(Closing::default());
        let (number, evicted) = self.lock().enter(address, Arc::clone(&closing))?;
        if let Some(other) = evicted {
            other.close();
        }
        let place = Place { connections: self.clone(), number, address, closing };
        Some(Counted { stream, place })
    }

    fn lock(&self) -> MutexGuard<'_, Shares<Arc<Closing>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Closing {
    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.reader.wake();
    }

    /// Whether the connection was closed. If not, the reader is registered to be woken when it is closed.
    fn is_closed(&self, context: &Context<'_>) -> bool {
        self.reader.register(context.waker());
        self.is_closed.load(Ordering::Acquire)
    }
}

impl Peer {
    /// Address of the peer.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Counts the connection to the share of `namespace`, that of its authenticated pod. Returns false and
    /// closes the connection if the namespace has used up its share.
    pub(super) fn authenticate(&self, namespace: &str) -> bool {
        let authenticated = self.connections.lock().authenticate(self.number, namespace);
        let (stays, closed) = match authenticated {
            Authenticated::Stays(other) => (true, other),
            Authenticated::Closes(this) => (false, this),
        };
        if let Some(closing) = closed {
            closing.close();
        }
        stays
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().leave(self.number);
    }
}

impl Connected for Counted {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        let Place { connections, number, address, .. } = &self.place;
        Peer { connections: connections.clone(), number: *number, address: *address }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.place.closing.is_closed(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_is_closed_for_another_ends_a_read_that_waits() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let mut counted = Connections::within(Limits::of_channel()).admit(accepted).unwrap();
        let closing = Arc::clone(&counted.place.closing);
        let mut byte = [0];
        let (read, ()) = tokio::join!(counted.read(&mut byte), async { closing.close() });
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
