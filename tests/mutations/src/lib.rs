//! Bytes that come from outside and are not as they should be: valid files with a few edits, which reach
//! deeper into a parser than random bytes. What must hold of a parser is in the tests of its crate; nothing
//! else lives here, so that every crate's tests can depend on this one.

use std::fmt;
use std::ops::{Deref, Range};

use proptest::prelude::*;
use proptest::sample::Index;

/// Numbers that lengths, offsets and counts should not be.
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "1e999",
    "255",
    "65536",
    "2147483648",
    "4294967295",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551615",
    "340282366920938463463374607431768211456",
    "0.5",
];
/// Pieces that end, nest or confuse the formats in use here.
const PIECES: [&[u8]; 16] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b",",
    b":",
    b"\n",
    b"null",
    b"\xff\xfe",
    b"\0",
    b"../",
    b"{{",
    b"{%",
    b"&a *a",
];
/// Longest run of bytes that one edit repeats.
const LONGEST_REPEAT: usize = 512;

/// One change of a file.
#[derive(Clone, Debug)]
enum Edit {
    Set(Index, u8),
    Flip(Index, u8),
    Insert(Index, usize),
    Remove(Index, Index),
    Repeat(Index, usize, usize),
    Cut(Index),
    /// Another number in the place of one in digits.
    Number(Index, usize),
    /// Eight bytes, as binary formats write lengths.
    Length(Index, u64),
    /// A stretch of any seed.
    Splice(Index, Index, Index),
}

/// A file's content, shown as text when a test fails.
#[derive(Clone)]
pub struct Content(pub Vec<u8>);

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// Each of `seeds`, which are not empty, with one to six edits.
pub fn mutated(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Content> {
    let choice = (any::<Index>(), any::<Index>(), prop::collection::vec(edit(), 1..6));
    choice.prop_map(move |(seed, other, edits)| {
        let start = seed.get(&seeds).clone();
        let other: &Vec<u8> = other.get(&seeds);
        Content(edits.iter().fold(start, |bytes, edit| apply(bytes, edit, other)))
    })
}

/// Configuration of a property test with `usually` cases, or as many as the variable `PROPTEST_CASES` says,
/// to fuzz for hours.
pub fn cases(usually: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { asked.cases } else { usually };
    // A case is a file that is shown when it fails: no folder of seeds beside the sources.
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (at(), 0u8..8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        (at(), 0..PIECES.len()).prop_map(|(at, piece)| Edit::Insert(at, piece)),
        (at(), at()).prop_map(|(from, to)| Edit::Remove(from, to)),
        (at(), 1..LONGEST_REPEAT, 1usize..20).prop_map(|(at, len, times)| Edit::Repeat(at, len, times)),
        at().prop_map(Edit::Cut),
        (at(), 0..NUMBERS.len()).prop_map(|(at, number)| Edit::Number(at, number)),
        (at(), any::<u64>()).prop_map(|(at, length)| Edit::Length(at, length >> (length % 64))),
        (at(), at(), at()).prop_map(|(from, to, at)| Edit::Splice(from, to, at)),
    ]
}

fn apply(mut bytes: Vec<u8>, edit: &Edit, other: &[u8]) -> Vec<u8> {
    let end = bytes.len();
    match edit {
        Edit::Set(at, byte) => bytes.get_mut(at.index(end + 1)).into_iter().for_each(|old| *old = *byte),
        Edit::Flip(at, bit) => bytes.get_mut(at.index(end + 1)).into_iter().for_each(|old| *old ^= 1 << bit),
        Edit::Insert(at, piece) => insert(&mut bytes, at.index(end + 1), PIECES[*piece]),
        Edit::Remove(from, to) => drop(bytes.drain(between(*from, *to, end))),
        Edit::Repeat(at, len, times) => {
            let start = at.index(end + 1);
            let piece = bytes[start..end.min(start + len)].repeat(*times);
            insert(&mut bytes, start, &piece);
        }
        Edit::Cut(at) => bytes.truncate(at.index(end + 1)),
        Edit::Number(at, number) => {
            if let Some(digits) = digits_from(&bytes, at.index(end + 1)) {
                bytes.splice(digits, NUMBERS[*number].bytes());
            }
        }
        Edit::Length(at, length) => {
            let start = at.index(end + 1);
            let old = start..end.min(start + size_of::<u64>());
            bytes.splice(old, length.to_le_bytes());
        }
        Edit::Splice(from, to, at) => {
            let piece = other[between(*from, *to, other.len())].to_vec();
            insert(&mut bytes, at.index(end + 1), &piece);
        }
    }
    bytes
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    bytes.splice(at..at, piece.iter().copied());
}

fn between(a: Index, b: Index, end: usize) -> Range<usize> {
    let (a, b) = (a.index(end + 1), b.index(end + 1));
    a.min(b)..a.max(b)
}

/// The first number at or behind `start`.
fn digits_from(bytes: &[u8], start: usize) -> Option<Range<usize>> {
    let first = start + bytes[start..].iter().position(u8::is_ascii_digit)?;
    let len = bytes[first..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some(first..first + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: &[u8] = br#"{"len": 17, "at": [0, 4]}"#;

    proptest! {
        #[test]
        fn an_edit_leaves_bytes_of_a_bounded_length(bytes in mutated(vec![SEED.to_vec()])) {
            prop_assert!(bytes.len() <= SEED.len() * 20usize.pow(5) + 5 * 39);
        }
    }

    #[test]
    fn a_number_takes_the_place_of_the_next_digits() {
        assert_eq!(digits_from(SEED, 0), Some(8..10));
        assert_eq!(digits_from(SEED, 11), Some(19..20));
        assert_eq!(digits_from(SEED, SEED.len()), None);
    }
}
