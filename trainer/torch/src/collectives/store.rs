//! A key-value store on the network, shared by all ranks, by which c10d connects groups. The names of its
//! values are defined in `rendezvous` and `heartbeat`.
//!
//! Ranks of one machine reach it over loopback only. Both ends of a connection prove that they have the key
//! of the attempt, if there is one (`greeting`). Values and connections are bounded (`limits`, `clients`).
//!
//! c10d's `TCPStore` is not used because it resolves the name of every peer that it connects to; without a
//! resolver, ranks would wait for seconds at every connection.

mod clients;
mod error;
mod greeting;
mod handle;
mod key;
mod limits;
mod server;
mod wire;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use greeting::Admission;
use server::Server;
use wire::{Answer, Operation, Question};

pub use error::StoreError;
pub(super) use handle::StoreHandle;
pub use key::RendezvousKey;

/// Timeout of an answer, and of opening a connection.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Number of attempts to open a further connection. Unknown clients can evict it before it has greeted.
const OPEN_TRIES: u32 = 10;
/// Pause between two attempts to open a further connection.
const OPEN_PAUSE: Duration = Duration::from_millis(100);

/// Settings of a served store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// Port of the server; 0 for any free one.
    pub port: u16,
    /// Whether the store is served on loopback only, because all ranks are on this machine.
    pub is_local: bool,
    /// Number of the attempt whose ranks the store serves.
    pub attempt: u64,
    /// Number of ranks, which determines the limits of values and connections.
    pub world_size: usize,
    /// Key that clients must have; `None` admits every client of this attempt.
    pub key: Option<RendezvousKey>,
}

impl StoreSettings {
    fn admission(&self) -> Admission {
        Admission { attempt: self.attempt, key: self.key.clone() }
    }
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
    admission: Admission,
    /// Stream to the server; `None` after a failed request, since the next answer could belong to that
    /// request.
    stream: Mutex<Option<TcpStream>>,
}

impl Store {
    /// Serves a store until it is dropped, and connects to it.
    ///
    /// # Errors
    /// When the port is in use.
    pub fn serve(settings: &StoreSettings) -> Result<Self, StoreError> {
        let port = settings.port;
        let server = Server::start(settings).map_err(|source| StoreError::Serve { port, source })?;
        let connection = Connection::open(server.local_address(), settings.admission())?;
        Ok(Self { connection: Arc::new(connection), _server: Some(server) })
    }

    /// Connects to the store of `attempt` at `address`, with the key of that attempt.
    ///
    /// # Errors
    /// When no server answers, it is that of another attempt, or one end does not have the other's key.
    pub fn connect(
        address: SocketAddr,
        attempt: u64,
        key: Option<&RendezvousKey>,
    ) -> Result<Self, StoreError> {
        let connection = Connection::open(address, Admission { attempt, key: key.cloned() })?;
        Ok(Self { connection: Arc::new(connection), _server: None })
    }

    /// Opens another connection to the same store, for another thread.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn try_clone(&self) -> Result<Self, StoreError> {
        let Connection { address, admission, .. } = &*self.connection;
        for _ in 1..OPEN_TRIES {
            match Self::connect(*address, admission.attempt, admission.key.as_ref()) {
                Err(StoreError::Closed(_)) => sleep(OPEN_PAUSE),
                opened => return opened,
            }
        }
        Self::connect(*address, admission.attempt, admission.key.as_ref())
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
    fn open(address: SocketAddr, admission: Admission) -> Result<Self, StoreError> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            Ok(stream)
        };
        let stream = connect().map_err(StoreError::Lost)?;
        admission.greet(&stream)?;
        Ok(Self { address, admission, stream: Mutex::new(Some(stream)) })
    }

    /// Sends one request and returns its answer; `None` if `name` was not set within `wait`.
    fn ask(
        &self,
        operation: Operation,
        name: &[u8],
        value: &[u8],
        wait: Duration,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let refused = |why| {
            let (act, name) = (operation.act(), String::from_utf8_lossy(name).into_owned());
            StoreError::Refused { act, name, why }
        };
        if let Some(why) = limits::excess(name, value) {
            return Err(refused(why));
        }
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
            Answer::Refused(why) => Err(refused(why)),
        }
    }
}

#[cfg(test)]
mod tests;
