//! The store's server: values under names, in memory, with one thread per connection. Clients define the
//! meaning of values.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use super::wire::{Answer, GREETING, Operation, Question};

/// Pause after a connection could not be accepted, for example for lack of file handles.
const PAUSE: Duration = Duration::from_millis(50);
/// Stack size of a connection's thread, which handles one request at a time.
const STACK_BYTES: usize = 256 << 10;
/// Longest wait, in milliseconds, so that adding it to a time does not overflow.
const MAX_WAIT_MS: u64 = 7 * 24 * 3600 * 1000;

/// A store's server, which runs until it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    shared: Arc<Shared>,
    port: u16,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    content: Mutex<Content>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Content {
    values: HashMap<Vec<u8>, Vec<u8>>,
    /// Open connections by their number, to be closed at the end.
    connections: HashMap<u64, TcpStream>,
    num_connections: u64,
    is_over: bool,
}

impl Server {
    /// Serves an empty store on all addresses at `port`, or at any free one if it is 0.
    pub(super) fn start(port: u16) -> io::Result<Self> {
        // IPv4 alone, if the port cannot be bound over IPv6.
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let taking = Arc::clone(&shared);
        let thread = spawn("store", move || take_connections(&listener, &taking))?;
        Ok(Self { shared, port, thread: Some(thread) })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        {
            let mut content = self.shared.lock();
            content.is_over = true;
            for connection in content.connections.values() {
                // A connection that has already ended needs no shutdown.
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
        self.shared.changed.notify_all();
        // A connection wakes the thread that accepts connections.
        let loopback =
            [SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)), (Ipv6Addr::LOCALHOST, self.port).into()];
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
    fn admit(&self, stream: &TcpStream) -> Option<u64> {
        let kept = stream.try_clone().ok()?;
        let mut content = self.lock();
        if content.is_over {
            return None;
        }
        content.num_connections += 1;
        let number = content.num_connections;
        content.connections.insert(number, kept);
        Some(number)
    }

    fn answer(&self, question: Question) -> Answer {
        let Question { operation, wait_ms, name, value } = question;
        if operation == Operation::Get {
            return self.wait_for(&name, Duration::from_millis(wait_ms.min(MAX_WAIT_MS)));
        }
        let answer = self.lock().change(operation, name, value);
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
            let waited = self.changed.wait_timeout(content, left).unwrap_or_else(PoisonError::into_inner);
            content = waited.0;
        }
    }
}

impl Content {
    fn change(&mut self, operation: Operation, name: Vec<u8>, value: Vec<u8>) -> Answer {
        let there = self.values.get(&name);
        let next = match (operation, there) {
            (Operation::SetFirst, Some(there)) => there.clone(),
            (Operation::Add, there) => match sum(there.map_or(b"0".as_slice(), Vec::as_slice), &value) {
                Some(sum) => sum.to_string().into_bytes(),
                None => {
                    return Answer::Refused("the sum of what is there and what is added is no number".into());
                }
            },
            _ => value,
        };
        self.values.insert(name, next.clone());
        Answer::Value(next)
    }
}

fn sum(there: &[u8], added: &[u8]) -> Option<i64> {
    let number = |bytes| std::str::from_utf8(bytes).ok()?.parse::<i64>().ok();
    number(there)?.checked_add(number(added)?)
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
        let Some(number) = shared.admit(&stream) else { continue };
        let serving = Arc::clone(shared);
        let serve = move || {
            // Whatever the error, there is no client left to report it to.
            let _ = serve(stream, &serving);
            serving.lock().connections.remove(&number);
        };
        if spawn("store connection", serve).is_err() {
            shared.lock().connections.remove(&number);
        }
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut greeting = [0; GREETING.len()];
    io::Read::read_exact(&mut stream, &mut greeting)?;
    if greeting != GREETING {
        return Ok(());
    }
    let mut questions = io::BufReader::new(stream.try_clone()?);
    loop {
        shared.answer(Question::read(&mut questions)?).write(&mut stream)?;
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body)
}
