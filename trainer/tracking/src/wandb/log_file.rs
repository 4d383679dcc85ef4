//! The container of a `.wandb` file: LevelDB's log format with W&B's header and checksum.
//!
//! ```text
//! ":W&B" | u16 0xBEE1 | u8 0                                                  7 bytes
//! u32 crc32(type, data) | u16 length | u8 type | data                         for each part of a record
//! ```
//! All little-endian. No part crosses a block of 32 KiB (the file's header counts): a record that does not
//! fit is split. The checksum is zlib's crc32, where LevelDB has a masked crc32c.

use prost::Message as _;

use super::messages::Record;
use crate::TrackingError;
use crate::append_file::RecordSink;

const BLOCK_LEN: usize = 32 * 1024;
const HEADER: [u8; 7] = *b":W&B\xe1\xbe\x00";
const PART_HEADER_LEN: usize = 7;

/// Type of a part: all of a record, or its first, a middle or its last part.
#[derive(Clone, Copy)]
enum Part {
    Full = 1,
    First = 2,
    Middle = 3,
    Last = 4,
}

/// Begins an empty log.
pub(super) fn begin(log: &mut dyn RecordSink) -> Result<(), TrackingError> {
    log.append(&HEADER)
}

/// Appends one record to a log.
pub(super) fn append(log: &mut dyn RecordSink, record: &Record) -> Result<(), TrackingError> {
    let framed = framed(log.len(), &record.encode_to_vec());
    log.append(&framed)
}

/// A record framed for a file of `len` bytes.
fn framed(len: u64, mut data: &[u8]) -> Vec<u8> {
    let mut offset = (len % BLOCK_LEN as u64) as usize;
    let mut framed = Vec::with_capacity(data.len() + PART_HEADER_LEN);
    let mut is_first = true;
    loop {
        let left = BLOCK_LEN - offset;
        if left < PART_HEADER_LEN {
            framed.resize(framed.len() + left, 0);
            offset = 0;
            continue;
        }
        let (part, rest) = data.split_at(data.len().min(left - PART_HEADER_LEN));
        let kind = match (is_first, rest.is_empty()) {
            (true, true) => Part::Full,
            (true, false) => Part::First,
            (false, false) => Part::Middle,
            (false, true) => Part::Last,
        };
        put(&mut framed, kind, part);
        if rest.is_empty() {
            return framed;
        }
        (data, offset, is_first) = (rest, 0, false);
    }
}

fn put(framed: &mut Vec<u8>, kind: Part, data: &[u8]) {
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&[kind as u8]);
    checksum.update(data);
    framed.extend(checksum.finalize().to_le_bytes());
    // Less than a block, which is 2^15.
    framed.extend((data.len() as u16).to_le_bytes());
    framed.push(kind as u8);
    framed.extend(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_split_at_blocks_and_a_rest_without_room_for_a_header_is_padded() {
        let kinds = |framed: &[u8], at: &[usize]| at.iter().map(|at| framed[at + 6]).collect::<Vec<_>>();
        assert_eq!(framed(7, b"abc").len(), 10);
        let long = vec![1; 2 * BLOCK_LEN];
        let split = framed(7, &long);
        let ends = [0, BLOCK_LEN - 7, 2 * BLOCK_LEN - 7];
        assert_eq!(kinds(&split, &ends), [2, 3, 4]);
        assert_eq!(split.len(), long.len() + 3 * PART_HEADER_LEN);
        let padded = framed(BLOCK_LEN as u64 - 6, b"abc");
        assert_eq!((&padded[..6], padded.len()), (&[0; 6][..], 6 + 7 + 3));
        // The block has space for a header only, so it gets an empty first part, as LevelDB writes it.
        let tight = framed(BLOCK_LEN as u64 - 7, b"abc");
        assert_eq!(kinds(&tight, &[0, 7]), [2, 4]);
    }
}
