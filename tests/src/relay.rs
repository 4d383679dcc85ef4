//! A relay on loopback between a client and a server, which limits what the client sends: not at all, to a
//! rate, or to a number of bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The limit of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Carries bytes without a limit.
    #[default]
    Free,
    /// Forwards at most this number of bytes per second on each connection.
    PerSecond(u64),
    /// Forwards this number of further bytes, over all connections, and then none until the flow is changed.
    Only(u64),
}

/// Bytes that are carried at a time.
const CHUNK: usize = 16 << 10;

/// A relay between a client and a server; it runs until the process ends.
#[derive(Clone, Debug)]
pub struct Relay {
    address: String,
    flow: Arc<Mutex<Flow>>,
}

impl Relay {
    /// Starts a relay between a free port and the server at `upstream`.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn to(upstream: &str) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let relay = Self { address: listener.local_addr()?.to_string(), flow: Arc::default() };
        let (upstream, flow) = (upstream.to_owned(), relay.flow.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (upstream, flow) = (upstream.clone(), flow.clone());
                // The relay does not care which side closes the connection.
                std::thread::spawn(move || drop(carry(client, &upstream, flow)));
            }
        });
        Ok(relay)
    }

    /// Address of the relay, for clients.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Changes the limit from now on.
    pub fn set(&self, flow: Flow) {
        *lock(&self.flow) = flow;
    }

    /// Whether the limit of bytes is used up, so that the relay forwards nothing any more.
    pub fn is_dry(&self) -> bool {
        *lock(&self.flow) == Flow::Only(0)
    }
}

fn carry(mut client: TcpStream, upstream: &str, flow: Arc<Mutex<Flow>>) -> io::Result<()> {
    let mut server = TcpStream::connect(upstream)?;
    let (mut answers, mut back) = (server.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || {
        let _ = io::copy(&mut answers, &mut back);
        let _ = back.shutdown(Shutdown::Both);
    });
    let mut chunk = vec![0; CHUNK];
    loop {
        let num_bytes = client.read(&mut chunk)?;
        if num_bytes == 0 {
            return server.shutdown(Shutdown::Both);
        }
        let mut at = 0;
        while at < num_bytes {
            let allowed = admit(&flow, num_bytes - at);
            server.write_all(&chunk[at..at + allowed])?;
            at += allowed;
        }
    }
}

/// Returns how many of `num_bytes` may be forwarded now; waits while none may.
fn admit(flow: &Mutex<Flow>, num_bytes: usize) -> usize {
    loop {
        match &mut *lock(flow) {
            Flow::Free => return num_bytes,
            Flow::Only(left) if *left > 0 => {
                let allowed = (*left).min(num_bytes as u64);
                *left -= allowed;
                return allowed as usize;
            }
            Flow::Only(_) => {}
            Flow::PerSecond(rate) => {
                let pause = Duration::from_secs_f64(num_bytes as f64 / (*rate).max(1) as f64);
                std::thread::sleep(pause);
                return num_bytes;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn lock(flow: &Mutex<Flow>) -> std::sync::MutexGuard<'_, Flow> {
    flow.lock().unwrap_or_else(PoisonError::into_inner)
}
