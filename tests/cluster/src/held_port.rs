//! A TCP port that is reserved for a program which a test starts, stops and starts again.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpSocket;

/// A bound TCP port that the kernel assigns to no other program until this value is dropped.
///
/// Its socket is bound but does not listen: connections are refused, and a program whose listener sets
/// `SO_REUSEADDR`, as those of Rust and Go do, can listen on the port.
#[derive(Debug)]
pub struct HeldPort {
    _socket: TcpSocket,
    number: u16,
}

impl HeldPort {
    /// Reserves a free port of an IPv4 address, such as `[127, 0, 0, 1]`.
    ///
    /// # Errors
    /// When the system has no free port.
    pub fn on(address: [u8; 4]) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((address, 0)))?;
        let number = socket.local_addr()?.port();
        Ok(Self { _socket: socket, number })
    }

    /// The number of the port.
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_held_port_refuses_connections_until_a_program_listens_on_it() {
        let port = HeldPort::on([127, 0, 0, 1]).unwrap();
        let address = ("127.0.0.1", port.number());
        for _ in 0..2 {
            let refused = TcpStream::connect(address).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            let listener = TcpListener::bind(address).unwrap();
            TcpStream::connect(address).unwrap();
            listener.accept().unwrap();
        }
    }
}
