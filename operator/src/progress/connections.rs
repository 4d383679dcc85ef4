//! Limits of open connections, in total and from one address; the peers are not authenticated yet.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Largest number of open connections.
const MAX_CONNECTIONS: usize = 16_384;
/// Largest number of connections from one address: those of the ranks of all pods on the network of one node.
const MAX_FROM_ADDRESS: usize = 256;

/// Open connections. Clones count together.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// Connection that is counted until it is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    stream: TcpStream,
    _place: Place,
}

#[derive(Debug)]
struct Place {
    connections: Connections,
    address: IpAddr,
}

impl Connections {
    /// Counts a connection; returns `None`, which closes it, if there are too many.
    pub(super) fn admit(&self, stream: TcpStream) -> Option<Counted> {
        let address = stream.peer_addr().ok()?.ip();
        self.place(address).map(|place| Counted { stream, _place: place })
    }

    fn place(&self, address: IpAddr) -> Option<Place> {
        let mut open = self.lock();
        let from_address = open.by_address.get(&address).copied().unwrap_or(0);
        if open.total >= MAX_CONNECTIONS || from_address >= MAX_FROM_ADDRESS {
            return None;
        }
        open.total += 1;
        open.by_address.insert(address, from_address + 1);
        Some(Place { connections: self.clone(), address })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        open.total -= 1;
        if let Some(count) = open.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.by_address.remove(&self.address);
            }
        }
    }
}

impl Connected for Counted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
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
    use super::*;

    #[test]
    fn connections_are_limited_per_address_and_released_when_closed() {
        let connections = Connections::default();
        let [noisy, quiet] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        let mut places: Vec<_> = (0..1000).filter_map(|_| connections.place(noisy)).collect();
        assert_eq!(places.len(), MAX_FROM_ADDRESS);
        assert!(connections.place(quiet).is_some());
        places.truncate(1);
        assert!(connections.place(noisy).is_some());
        drop(places);
        let open = connections.lock();
        assert_eq!((open.total, open.by_address.len()), (0, 0));
    }

    #[test]
    fn all_addresses_together_are_bounded() {
        let connections = Connections::default();
        let address = |idx: u32| IpAddr::from((0x0a00_0000 + idx).to_be_bytes());
        let places: Vec<_> = (0..20_000).filter_map(|idx| connections.place(address(idx))).collect();
        assert_eq!(places.len(), MAX_CONNECTIONS);
    }
}
