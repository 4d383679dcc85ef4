//! Greeting of a connection to the store, by which both ends prove that they have the key of the attempt.
//!
//! ```text
//! client  GREETING
//! server  hello: whether it has a key, its attempt, its challenge
//! client  its challenge, its proof
//! server  an answer: its own proof, or the reason of a refusal
//! ```
//! A proof covers both challenges, so it is useless in another connection. What follows is neither encrypted
//! nor authenticated.

use std::io::{self, Read, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use super::key::{PROOF_BYTES, Prover, Transcript, challenge};
use super::wire::{Answer, GREETING, GREETING_V1, Hello, array};
use super::{RendezvousKey, StoreError};

/// Largest number of bytes that a refused client may still send.
const MAX_DRAINED_BYTES: u64 = 64 << 10;

/// Attempt and key on which a client and a server must agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Admission {
    pub(super) attempt: u64,
    pub(super) key: Option<RendezvousKey>,
}

/// The server's proof for an admitted client, or the reason for a refused one.
type Greeted = Result<[u8; PROOF_BYTES], String>;

impl Admission {
    /// Greets a server and verifies its proof, as a client.
    pub(super) fn greet(&self, stream: &TcpStream) -> Result<(), StoreError> {
        let mut stream = stream;
        let hello = stream.write_all(&GREETING).and_then(|()| Hello::read(&mut stream));
        let hello = hello.map_err(StoreError::Closed)?;
        self.check(&hello)?;
        let of_client = challenge().map_err(StoreError::Lost)?;
        let transcript = Transcript { attempt: self.attempt, of_server: hello.challenge, of_client };
        let proof = transcript.proof(Prover::Client, self.key.as_ref());
        let sent = stream.write_all(&[of_client, proof].concat());
        match sent.and_then(|()| Answer::read(&mut stream)).map_err(StoreError::Closed)? {
            Answer::Value(proof) if transcript.is_proven(Prover::Server, self.key.as_ref(), &proof) => Ok(()),
            Answer::Refused(why) => Err(StoreError::TurnedAway(why)),
            _ => Err(StoreError::Unproven("it does not prove that it has the key of this attempt")),
        }
    }

    /// Checks the server's attempt, and whether it has a key, before the server has proven anything.
    fn check(&self, hello: &Hello) -> Result<(), StoreError> {
        if hello.attempt != self.attempt {
            return Err(StoreError::OtherAttempt { ours: self.attempt, theirs: hello.attempt });
        }
        match (hello.has_key, &self.key) {
            (true, None) => Err(StoreError::Unproven("it needs a key, and this rank was given none")),
            (false, Some(_)) => Err(StoreError::Unproven("it has no key, and this rank was given one")),
            _ => Ok(()),
        }
    }

    /// Receives the greeting of a client, as a server, until `deadline`. The caller sends the answer.
    pub(super) fn receive(&self, stream: &TcpStream, deadline: Instant) -> io::Result<Greeted> {
        let mut received = UntilDeadline { stream, deadline };
        let greeting: [u8; GREETING.len()] = array(&mut received)?;
        if greeting == GREETING_V1 {
            let why = "this rank is of an older release than the launcher of rank 0: all pods of an attempt need \
                       one image";
            return Ok(Err(why.to_owned()));
        }
        if greeting != GREETING {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let hello = Hello { has_key: self.key.is_some(), attempt: self.attempt, challenge: challenge()? };
        let mut sending = stream;
        hello.write(&mut sending)?;
        let (of_client, proof): ([u8; PROOF_BYTES], [u8; PROOF_BYTES]) =
            (array(&mut received)?, array(&mut received)?);
        let transcript = Transcript { attempt: self.attempt, of_server: hello.challenge, of_client };
        if !transcript.is_proven(Prover::Client, self.key.as_ref(), &proof) {
            return Ok(Err("this rank has another key than the launcher of rank 0".to_owned()));
        }
        Ok(Ok(transcript.proof(Prover::Server, self.key.as_ref())))
    }
}

/// Reads what a refused client still sends until it closes the connection. Otherwise the kernel would reset
/// the connection, and the client could lose the reason.
pub(super) fn drain(stream: &TcpStream, deadline: Instant) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let rest = UntilDeadline { stream, deadline };
    io::copy(&mut rest.take(MAX_DRAINED_BYTES), &mut io::sink()).map(drop)
}

/// Reads of a connection that all end at one deadline, however slowly bytes arrive.
struct UntilDeadline<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for UntilDeadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut stream = self.stream;
        stream.read(buffer)
    }
}
