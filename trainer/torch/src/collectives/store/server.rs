//! The store's server: values under names, in memory, with one thread per connection. Clients define the
//! meaning of values.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use super::StoreSettings;
use super::clients::Clients;
use super::greeting::{Admission, drain};
use super::limits::{Limits, Values};
use super::wire::{Answer, Operation, Question};

/// Pause after a connection could not be accepted, for example for lack of file handles.
const PAUSE: Duration = Duration::from_millis(50);
/// Time in which a client must have greeted. A rank needs one round trip.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// Stack size of a connection's thread, which handles one request at a time.
const STACK_BYTES: usize = 256 << 10;
/// Longest wait, in milliseconds, so that adding it to a time does not overflow.
const MAX_WAIT_MS: u64 = 7 * 24 * 3600 * 1000;

/// A store's server, which runs until it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    shared: Arc<Shared>,
    listening: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    admission: Admission,
    content: Mutex<Content>,
    changed: Condvar,
}

#[derive(Debug)]
struct Content {
    values: Values,
    /// Open connections, to be closed at the end.
    clients: Clients<TcpStream>,
    is_over: bool,
    /// Number of questions that wait for a value.
    #[cfg(test)]
    num_waiting: usize,
}

impl Server {
    /// Serves an empty store.
    pub(super) fn start(settings: &StoreSettings) -> io::Result<Self> {
        let listener = listen(settings)?;
        let listening = listener.local_addr()?;
        let limits = Limits::of(settings.world_size);
        let content = Content {
            values: Values::new(limits),
            clients: Clients::new(limits),
            is_over: false,
            #[cfg(test)]
            num_waiting: 0,
        };
        let shared = Arc::new(Shared {
            admission: settings.admission(),
            content: Mutex::new(content),
            changed: Condvar::new(),
        });
        let taking = Arc::clone(&shared);
        let thread = spawn("store", move || take_connections(&listener, &taking))?;
        Ok(Self { shared, listening, thread: Some(thread) })
    }

    /// Address on which the server listens.
    pub(super) fn listening(&self) -> SocketAddr {
        self.listening
    }

    /// Address at which this machine reaches the server.
    pub(super) fn local_address(&self) -> SocketAddr {
        let mut address = self.listening();
        if !address.ip().is_loopback() {
            address = (Ipv4Addr::LOCALHOST, address.port()).into();
        }
        address
    }

    /// Number of questions that wait for a value.
    #[cfg(test)]
    pub(super) fn num_waiting(&self) -> usize {
        self.shared.lock().num_waiting
    }
}

/// Listens on loopback, or on all addresses if other machines need the store.
fn listen(settings: &StoreSettings) -> io::Result<TcpListener> {
    let bind = |ip: IpAddr| TcpListener::bind((ip, settings.port));
    if !settings.is_local {
        // IPv4 alone, if the port cannot be bound over IPv6.
        return bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| bind(Ipv4Addr::UNSPECIFIED.into()));
    }
    bind(Ipv4Addr::LOCALHOST.into()).or_else(|error| match error.kind() {
        // A machine may have IPv6 alone.
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported => bind(Ipv6Addr::LOCALHOST.into()),
        _ => Err(error),
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        {
            let mut content = self.shared.lock();
            content.is_over = true;
            for connection in content.clients.handles() {
                // A connection that has already ended needs no shutdown.
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
        self.shared.changed.notify_all();
        // A connection wakes the thread that accepts connections.
        let port = self.listening.port();
        let loopback = [self.local_address(), (Ipv6Addr::LOCALHOST, port).into()];
        let is_awake = loopback.iter().any(|address| TcpStream::connect_timeout(address, PAUSE).is_ok());
        if let Some(thread) = self.thread.take().filter(|_| is_awake) {
            drop(thread.join());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection to be closed at the end; `None` if the server has ended.
    fn enter(&self, stream: &TcpStream) -> Option<u64> {
        let (address, kept) = (stream.peer_addr().ok()?.ip(), stream.try_clone().ok()?);
        let mut content = self.lock();
        if content.is_over {
            return None;
        }
        let (number, evicted) = content.clients.enter(address, kept);
        drop(content);
        if let Some(evicted) = evicted {
            // A connection that has already ended needs no shutdown.
            let _ = evicted.shutdown(Shutdown::Both);
        }
        Some(number)
    }

    fn answer(&self, question: Question) -> Answer {
        let Question { operation, wait_ms, name, value } = question;
        if operation == Operation::Get {
            return self.wait_for(&name, Duration::from_millis(wait_ms.min(MAX_WAIT_MS)));
        }
        let answer = self.lock().values.change(operation, name, value);
        self.changed.notify_all();
        answer
    }

    fn wait_for(&self, name: &[u8], wait: Duration) -> Answer {
        let deadline = Instant::now() + wait;
        let mut content = self.lock();
        loop {
            if let Some(value) = content.values.get(name) {
                return Answer::Value(value.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || content.is_over {
                return Answer::Nothing;
            }
            #[cfg(test)]
            {
                content.num_waiting += 1;
            }
            let waited = self.changed.wait_timeout(content, left).unwrap_or_else(PoisonError::into_inner);
            content = waited.0;
            #[cfg(test)]
            {
                content.num_waiting -= 1;
            }
        }
    }
}

fn take_connections(listener: &TcpListener, shared: &Arc<Shared>) {
    for taken in listener.incoming() {
        if shared.lock().is_over {
            return;
        }
        let Ok(stream) = taken else {
            sleep(PAUSE);
            continue;
        };
        let Some(number) = shared.enter(&stream) else { continue };
        let serving = Arc::clone(shared);
        let serve = move || {
            // Whatever the error, there is no client left to report it to.
            let _ = serve(&stream, number, &serving);
            serving.lock().clients.leave(number);
        };
        if spawn("store connection", serve).is_err() {
            shared.lock().clients.leave(number);
        }
    }
}

fn serve(stream: &TcpStream, number: u64, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let deadline = Instant::now() + GREETING_TIMEOUT;
    let greeted = shared.admission.receive(stream, deadline)?;
    let admitted = greeted.and_then(|proof| shared.lock().clients.admit(number).map(|()| proof));
    let mut answers = stream;
    match admitted {
        Ok(proof) => Answer::Value(proof.to_vec()).write(&mut answers)?,
        Err(why) => {
            Answer::Refused(why).write(&mut answers)?;
            return drain(stream, deadline);
        }
    }
    stream.set_read_timeout(None)?;
    let mut questions = io::BufReader::new(stream);
    loop {
        shared.answer(Question::read(&mut questions)?).write(&mut answers)?;
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body)
}
