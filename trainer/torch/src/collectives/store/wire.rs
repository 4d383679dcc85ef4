//! The protocol between the store and its clients: one question, one answer, on a connection that opens with
//! a greeting (`greeting.rs`). Numbers are little-endian. The server decides what is stored and for how long.
//!
//! ```text
//! hello     whether there is a key: u8, attempt: u64, challenge: 32 bytes
//! question  operation: u8, milliseconds to wait: u64, name: u32 and bytes, value: u32 and bytes
//! answer    kind: u8, u32 and bytes
//! ```

use std::io::{self, Read, Write};

use super::key::PROOF_BYTES;

/// First bytes that a client sends, which contain the version of the protocol. A client that sends unknown
/// bytes is disconnected.
pub(super) const GREETING: [u8; 8] = *b"rltstor2";
/// First bytes of a client of the first version, which had no keys. Its requests have the same form.
pub(super) const GREETING_V1: [u8; 8] = *b"rltstor1";
/// Largest length of a name. The longest in use are those of groups.
pub(super) const MAX_NAME_BYTES: usize = 4 << 10;
/// Largest length of a value. The longest in use are the addresses of a group's ranks, some hundred bytes
/// each.
pub(super) const MAX_VALUE_BYTES: usize = 4 << 20;

/// First message of a server. Nothing of it is proven yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Whether clients must have a key.
    pub(super) has_key: bool,
    /// Attempt whose ranks the store serves.
    pub(super) attempt: u64,
    /// Bytes that the client's proof must cover.
    pub(super) challenge: [u8; PROOF_BYTES],
}

impl Hello {
    pub(super) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let mut bytes = vec![u8::from(self.has_key)];
        bytes.extend(self.attempt.to_le_bytes());
        bytes.extend(self.challenge);
        stream.write_all(&bytes)
    }

    pub(super) fn read(stream: &mut impl Read) -> io::Result<Self> {
        let [kind] = array(stream)?;
        let has_key = match kind {
            0 => false,
            1 => true,
            other => return Err(malformed("kind of greeting", other.into())),
        };
        Ok(Self { has_key, attempt: u64::from_le_bytes(array(stream)?), challenge: array(stream)? })
    }
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Operation {
    /// Stores the value under the name.
    Set = 1,
    /// Stores the value under the name unless it is set already; answers with the value afterwards.
    SetFirst = 2,
    /// Adds the value, a decimal number, to that under the name; answers with the sum.
    Add = 3,
    /// Answers with the value under the name, waiting until it is set.
    Get = 4,
}

impl Operation {
    /// Verb of the operation on a name, for errors.
    pub(super) fn act(self) -> &'static str {
        match self {
            Self::Set | Self::SetFirst => "to set",
            Self::Add => "to add to",
            Self::Get => "to read",
        }
    }

    /// Decodes the number of an operation; `None` for any other number.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        [Self::Set, Self::SetFirst, Self::Add, Self::Get].into_iter().find(|one| *one as u8 == number)
    }
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) operation: Operation,
    pub(super) wait_ms: u64,
    pub(super) name: Vec<u8>,
    pub(super) value: Vec<u8>,
}

/// An answer of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The value under the name.
    Value(Vec<u8>),
    /// The name was not set within the wait.
    Nothing,
    /// The request cannot be done, for this reason.
    Refused(String),
}

impl Question {
    pub(super) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let mut bytes = vec![self.operation as u8];
        bytes.extend(self.wait_ms.to_le_bytes());
        push(&mut bytes, &self.name);
        push(&mut bytes, &self.value);
        stream.write_all(&bytes)
    }

    pub(super) fn read(stream: &mut impl Read) -> io::Result<Self> {
        let [number] = array(stream)?;
        let operation =
            Operation::from_number(number).ok_or_else(|| malformed("operation", number.into()))?;
        let wait_ms = u64::from_le_bytes(array(stream)?);
        let (name, value) = (pull(stream, MAX_NAME_BYTES)?, pull(stream, MAX_VALUE_BYTES)?);
        Ok(Self { operation, wait_ms, name, value })
    }
}

impl Answer {
    pub(super) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let (kind, content) = match self {
            Self::Value(value) => (0, value.as_slice()),
            Self::Nothing => (1, [].as_slice()),
            Self::Refused(why) => (2, why.as_bytes()),
        };
        let mut bytes = vec![kind];
        push(&mut bytes, content);
        stream.write_all(&bytes)
    }

    pub(super) fn read(stream: &mut impl Read) -> io::Result<Self> {
        let [kind] = array(stream)?;
        let content = pull(stream, MAX_VALUE_BYTES)?;
        match kind {
            0 => Ok(Self::Value(content)),
            1 => Ok(Self::Nothing),
            2 => Ok(Self::Refused(String::from_utf8_lossy(&content).into_owned())),
            other => Err(malformed("kind of answer", other.into())),
        }
    }
}

fn push(bytes: &mut Vec<u8>, content: &[u8]) {
    bytes.extend((content.len() as u32).to_le_bytes());
    bytes.extend(content);
}

fn pull(stream: &mut impl Read, max_bytes: usize) -> io::Result<Vec<u8>> {
    let len = u32::from_le_bytes(array(stream)?) as usize;
    if len > max_bytes {
        return Err(malformed("length", len));
    }
    // Memory grows with the received bytes, not with the announced length.
    let mut content = Vec::new();
    stream.take(len as u64).read_to_end(&mut content)?;
    if content.len() == len { Ok(content) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

pub(super) fn array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn malformed(what: &str, got: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} {got} is none of the store's"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rlt_mutations::{cases, mutated};

    use super::*;

    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        for operation in [Operation::Set, Operation::Add, Operation::Get] {
            let question =
                Question { operation, wait_ms: 300, name: b"joined/3".to_vec(), value: b"12".to_vec() };
            question.write(&mut bytes).unwrap();
        }
        bytes
    }

    proptest! {
        #![proptest_config(cases(1000))]

        #[test]
        fn a_connection_of_any_bytes_is_read_as_questions_until_it_is_refused(bytes in mutated(vec![written()])) {
            let mut stream = &*bytes;
            while let Ok(question) = Question::read(&mut stream) {
                prop_assert!(question.name.len() + question.value.len() <= bytes.len());
            }
            let _ = Answer::read(&mut &*bytes);
            let _ = Hello::read(&mut &*bytes);
        }
    }

    #[test]
    fn written_rows_are_read_back_unchanged() {
        let hello = Hello { has_key: true, attempt: 3, challenge: [7; PROOF_BYTES] };
        let mut bytes = Vec::new();
        hello.write(&mut bytes).unwrap();
        assert_eq!(Hello::read(&mut bytes.as_slice()).unwrap(), hello);
        let operations = [Operation::Set, Operation::SetFirst, Operation::Add, Operation::Get];
        for (operation, wait_ms) in operations.into_iter().zip([0, 1, 300, u64::MAX]) {
            let question = Question { operation, wait_ms, name: b"joined/3".to_vec(), value: vec![0, 255] };
            let mut bytes = Vec::new();
            question.write(&mut bytes).unwrap();
            assert_eq!(Question::read(&mut bytes.as_slice()).unwrap(), question);
        }
        for answer in [Answer::Value(vec![1, 0, 2]), Answer::Nothing, Answer::Refused("no number".into())] {
            let mut bytes = Vec::new();
            answer.write(&mut bytes).unwrap();
            assert_eq!(Answer::read(&mut bytes.as_slice()).unwrap(), answer);
        }
    }

    #[test]
    fn a_malformed_question_is_an_error() {
        let question = |operation: u8, len: u32| {
            let mut bytes = vec![operation];
            bytes.extend([0; 8]);
            bytes.extend(len.to_le_bytes());
            Question::read(&mut bytes.as_slice()).unwrap_err().to_string()
        };
        assert_eq!(question(9, 0), "operation 9 is none of the store's");
        assert_eq!(question(4, u32::MAX), "length 4294967295 is none of the store's");
        assert_eq!(
            Answer::read(&mut [7, 0, 0, 0, 0].as_slice()).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        assert_eq!(
            Answer::read(&mut [0, 9, 0, 0, 0].as_slice()).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
