//! A key-value store on the network, shared by all ranks, and used by c10d to connect groups. Its keys are
//! defined in `rendezvous` and `pulse`.
//!
//! It is our own, and not c10d's `TCPStore`, because that resolves the name of every peer it connects to, and
//! without a resolver ranks would wait for seconds at every connection.

mod handle;
mod server;
mod wire;

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use server::Server;
use wire::{Answer, GREETING, Operation, Question};

pub(super) use handle::StoreHandle;

/// Timeout of an answer, and of opening a connection.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A failed act on the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The port is taken, or there is no network.
    #[error("failed to serve a store at port {port}")]
    Serve {
        /// The port; 0 for any.
        port: u16,
        /// Why not.
        source: io::Error,
    },
    /// A value that is not what this rank expects under that name.
    #[error("the store holds {got:?} under {name}, expected {expected}")]
    Value {
        /// The name.
        name: String,
        /// What was expected.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// What was requested can not be done.
    #[error("the store refuses {act} {name}: {why}")]
    Refused {
        /// What was tried.
        act: &'static str,
        /// The name.
        name: String,
        /// Why not.
        why: String,
    },
    /// The connection failed, or there was no answer in time.
    #[error("the store does not answer")]
    Lost(#[source] io::Error),
}

/// A connection to the store, with one request in flight at a time; see [`Store::try_clone`].
/// The process that serves the store holds the server with its connection.
#[derive(Debug)]
pub struct Store {
    connection: Arc<Connection>,
    /// Ends with this value.
    _server: Option<Server>,
}

/// Shared with the handles that c10d uses.
#[derive(Debug)]
struct Connection {
    address: SocketAddr,
    /// `None` once an answer was missed: the next one would belong to an earlier request.
    stream: Mutex<Option<TcpStream>>,
}

impl Store {
    /// Serves a store on all addresses at `port` (0 for any free one) until it is dropped, and connects to
    /// it.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn serve(port: u16) -> Result<Self, StoreError> {
        let server = Server::start(port).map_err(|source| StoreError::Serve { port, source })?;
        let connection = Connection::open((Ipv4Addr::LOCALHOST, server.port()).into())?;
        Ok(Self { connection: Arc::new(connection), _server: Some(server) })
    }

    /// Connects to the store at `address`.
    ///
    /// # Errors
    /// When no server answers.
    pub fn connect(address: SocketAddr) -> Result<Self, StoreError> {
        Ok(Self { connection: Arc::new(Connection::open(address)?), _server: None })
    }

    /// A connection of its own for another thread.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn try_clone(&self) -> Result<Self, StoreError> {
        Self::connect(self.connection.address)
    }

    /// The port it is served at.
    pub fn port(&self) -> u16 {
        self.connection.address.port()
    }

    /// Puts `value` under `name`.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn set(&self, name: &str, value: &str) -> Result<(), StoreError> {
        self.ask(Operation::Set, name, value).map(drop)
    }

    /// Sets `name` to `value` unless it is set already; returns its value afterwards.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn set_first(&self, name: &str, value: &str) -> Result<String, StoreError> {
        self.ask(Operation::SetFirst, name, value).map(Option::unwrap_or_default)
    }

    /// Adds `amount` to the number under `name`, which begins at 0; the sum.
    ///
    /// # Errors
    /// When the store does not answer, or what is under `name` is no number.
    pub fn add(&self, name: &str, amount: i64) -> Result<i64, StoreError> {
        let sum = self.ask(Operation::Add, name, &amount.to_string())?.unwrap_or_default();
        sum.parse().map_err(|_| StoreError::Value { name: name.to_owned(), expected: "a number", got: sum })
    }

    /// What is under `name` now.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn get(&self, name: &str) -> Result<Option<String>, StoreError> {
        self.ask(Operation::Get, name, "")
    }

    fn ask(&self, operation: Operation, name: &str, value: &str) -> Result<Option<String>, StoreError> {
        let answer = self.connection.ask(operation, name.as_bytes(), value.as_bytes(), Duration::ZERO)?;
        Ok(answer.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// A share of this connection for c10d.
    pub(super) fn handle(&self) -> StoreHandle {
        StoreHandle::new(&self.connection)
    }
}

impl Connection {
    fn open(address: SocketAddr) -> Result<Self, StoreError> {
        let connect = || {
            let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.write_all(&GREETING)?;
            Ok(stream)
        };
        let stream = connect().map_err(StoreError::Lost)?;
        Ok(Self { address, stream: Mutex::new(Some(stream)) })
    }

    /// The answer to one question; `None` if `name` was not set within `wait`.
    fn ask(
        &self,
        operation: Operation,
        name: &[u8],
        value: &[u8],
        wait: Duration,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let question = Question { operation, wait_ms, name: name.to_vec(), value: value.to_vec() };
        let mut kept = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stream = kept.take().ok_or_else(|| StoreError::Lost(io::ErrorKind::NotConnected.into()))?;
        let answer = stream
            .set_read_timeout(Some(wait.saturating_add(TIMEOUT)))
            .and_then(|()| question.write(&mut stream))
            .and_then(|()| Answer::read(&mut stream))
            .map_err(StoreError::Lost)?;
        *kept = Some(stream);
        match answer {
            Answer::Value(value) => Ok(Some(value)),
            Answer::Nothing => Ok(None),
            Answer::Refused(why) => {
                let (act, name) = (operation.act(), String::from_utf8_lossy(name).into_owned());
                Err(StoreError::Refused { act, name, why })
            }
        }
    }
}

#[cfg(test)]
mod tests;
