//! A TCP port that no other process is given while a test uses it.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

/// A TCP port that is bound, without a listener, for as long as this value lives.
///
/// Connections are refused until a server listens there, and again after it has ended. The kernel gives the
/// port to nobody who asks for any free one. A server can still bind it by its number if it sets
/// `SO_REUSEADDR`, as the standard libraries of Rust, Go and Python do, because a bound socket that does not
/// listen is no conflict then.
#[derive(Debug)]
pub struct HeldPort {
    port: u16,
    _bound: Socket,
}

impl HeldPort {
    /// Binds a free port of the loopback address.
    ///
    /// # Errors
    /// When there is none.
    pub fn new() -> io::Result<Self> {
        Self::on([127, 0, 0, 1])
    }

    /// Binds a free port of an IPv4 address, such as `[0, 0, 0, 0]`.
    ///
    /// # Errors
    /// When there is none.
    pub fn on(address: [u8; 4]) -> io::Result<Self> {
        let bound = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        bound.set_reuse_address(true)?;
        bound.bind(&SocketAddr::from((address, 0)).into())?;
        let port = bound.local_addr()?.as_socket().map_or(0, |address| address.port());
        Ok(Self { port, _bound: bound })
    }

    /// The number of the port.
    pub fn number(&self) -> u16 {
        self.port
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_held_port_refuses_connections_until_a_server_listens_and_after_it_has_ended() {
        let held = HeldPort::new().unwrap();
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, held.number()));
        for address in
            [Ipv4Addr::LOCALHOST.into(), Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
        {
            assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
            let server = TcpListener::bind(SocketAddr::new(address, held.number())).unwrap();
            connect().unwrap();
            drop(server);
        }
        assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
