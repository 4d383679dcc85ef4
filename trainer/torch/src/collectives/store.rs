//! A key-value store on the network, shared by all ranks, by which c10d connects groups. Its keys are defined
//! in `rendezvous` and `pulse`.
//!
//! c10d's `TCPStore` is not used because it resolves the name of every peer that it connects to; without a
//! resolver, ranks would wait for seconds at every connection.

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

/// A failed operation on the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The port is in use, or there is no network.
    #[error("failed to serve a store at port {port}")]
    Serve {
        /// Port of the server; 0 for any.
        port: u16,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The value under a name is not what this rank expects.
    #[error("the store holds {got:?} under {name}, expected {expected}")]
    Value {
        /// Name of the value.
        name: String,
        /// Description of the expected value.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The server cannot do what was requested.
    #[error("the store refuses {act} {name}: {why}")]
    Refused {
        /// Verb of the request, such as "to set".
        act: &'static str,
        /// Name of the value.
        name: String,
        /// Reason that the server gave.
        why: String,
    },
    /// The connection failed, or there was no answer in time.
    #[error("the store does not answer")]
    Lost(#[source] io::Error),
}

/// A connection to the store, with one request in flight at a time; see [`Store::try_clone`]. The process
/// that serves the store keeps the server together with its connection.
#[derive(Debug)]
pub struct Store {
    connection: Arc<Connection>,
    /// The server, stopped when this value is dropped.
    _server: Option<Server>,
}

/// A client's TCP connection, shared with the handles that c10d uses.
#[derive(Debug)]
struct Connection {
    address: SocketAddr,
    /// `None` after an answer was missed: the next answer would belong to an earlier request.
    stream: Mutex<Option<TcpStream>>,
}

impl Store {
    /// Serves a store on all addresses at `port` (0 for any free one) until it is dropped, and connects to
    /// it.
    ///
    /// # Errors
    /// When the port is in use.
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

    /// Opens another connection to the same store, for another thread.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn try_clone(&self) -> Result<Self, StoreError> {
        Self::connect(self.connection.address)
    }

    /// Port at which the store is served.
    pub fn port(&self) -> u16 {
        self.connection.address.port()
    }

    /// Stores `value` under `name`.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn set(&self, name: &str, value: &str) -> Result<(), StoreError> {
        self.ask(Operation::Set, name, value).map(drop)
    }

    /// Stores `value` under `name` unless it has a value, and returns the value afterwards.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn set_first(&self, name: &str, value: &str) -> Result<String, StoreError> {
        self.ask(Operation::SetFirst, name, value).map(Option::unwrap_or_default)
    }

    /// Adds `amount` to the number under `name`, which starts at 0, and returns the sum.
    ///
    /// # Errors
    /// When the store does not answer, or the value under `name` is not a number.
    pub fn add(&self, name: &str, amount: i64) -> Result<i64, StoreError> {
        let sum = self.ask(Operation::Add, name, &amount.to_string())?.unwrap_or_default();
        sum.parse().map_err(|_| StoreError::Value { name: name.to_owned(), expected: "a number", got: sum })
    }

    /// Returns the present value of `name`; `None` if it has none.
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

    /// Makes a handle by which c10d shares this connection.
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

    /// Sends one request and returns its answer; `None` if `name` was not set within `wait`.
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
