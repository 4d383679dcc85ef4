//! Codecs of parquet pages. None returns or allocates more bytes than its caller allows.

use std::io::{self, Read};

use flate2::read::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use parquet::basic::Compression;
use parquet::errors::ParquetError;

/// Size of the input buffer of brotli, in bytes.
const BROTLI_BUFFER_BYTES: usize = 4096;
/// Largest ratio of the sizes of output and input of a block of LZ4.
const MAX_LZ4_RATIO: usize = 256;
/// Size of the header of a Hadoop frame: two big-endian lengths, of the output and of the input.
const HADOOP_HEADER_BYTES: usize = 8;

/// Decompresses `input` to at most `max_bytes`.
pub(super) fn decompress(
    codec: Compression,
    input: &[u8],
    max_bytes: usize,
) -> Result<Vec<u8>, ParquetError> {
    if input.is_empty() {
        // A page that has only nulls stores no values, so it has no compressed data either.
        return Ok(Vec::new());
    }
    match codec {
        Compression::UNCOMPRESSED => read(input, max_bytes),
        Compression::SNAPPY => {
            check_len(snap::raw::decompress_len(input)?, max_bytes)?;
            Ok(snap::raw::Decoder::new().decompress_vec(input)?)
        }
        Compression::GZIP(_) => read(MultiGzDecoder::new(input), max_bytes),
        Compression::BROTLI(_) => read(brotli::Decompressor::new(input, BROTLI_BUFFER_BYTES), max_bytes),
        Compression::ZSTD(_) => Ok(zstd::bulk::Decompressor::new()?.decompress(input, max_bytes)?),
        Compression::LZ4_RAW => lz4_block(input, max_bytes),
        // Old writers call three formats by this name.
        Compression::LZ4 => lz4_hadoop(input, max_bytes)
            .or_else(|_| read(FrameDecoder::new(input), max_bytes))
            .or_else(|_| lz4_block(input, max_bytes)),
        Compression::LZO => Err(ParquetError::NYI("the codec LZO; write the file with zstd".into())),
    }
}

fn check_len(num_bytes: usize, max_bytes: usize) -> Result<(), ParquetError> {
    if num_bytes > max_bytes {
        return Err(ParquetError::General(format!("{num_bytes} bytes")));
    }
    Ok(())
}

fn read(reader: impl Read, max_bytes: usize) -> Result<Vec<u8>, ParquetError> {
    let mut output = Vec::new();
    // Reading one byte more than allowed shows whether the output is too long.
    reader.take(max_bytes as u64 + 1).read_to_end(&mut output)?;
    if output.len() > max_bytes {
        return Err(ParquetError::General(format!("more than {max_bytes} bytes")));
    }
    Ok(output)
}

fn lz4_block(input: &[u8], max_bytes: usize) -> Result<Vec<u8>, ParquetError> {
    let mut output = vec![0; max_bytes.min(input.len().saturating_mul(MAX_LZ4_RATIO))];
    let num_bytes = lz4_flex::block::decompress_into(input, &mut output).map_err(io::Error::other)?;
    output.truncate(num_bytes);
    Ok(output)
}

/// Decompresses frames of Hadoop's codec, each a header and a block.
fn lz4_hadoop(mut input: &[u8], max_bytes: usize) -> Result<Vec<u8>, ParquetError> {
    let mut output = Vec::new();
    while !input.is_empty() {
        let cut_off = || ParquetError::EOF("a frame of LZ4 is cut off".into());
        let (header, rest) = input.split_at_checked(HADOOP_HEADER_BYTES).ok_or_else(cut_off)?;
        let lengths = header.iter().fold(0, |lengths: u64, byte| (lengths << 8) | u64::from(*byte));
        let (num_output, num_input) = (lengths >> 32, lengths & u64::from(u32::MAX));
        let (block, rest) = rest.split_at_checked(usize::try_from(num_input)?).ok_or_else(cut_off)?;
        let num_output = usize::try_from(num_output)?;
        check_len(num_output, max_bytes - output.len())?;
        let bytes = lz4_block(block, num_output)?;
        if bytes.len() != num_output {
            return Err(cut_off());
        }
        output.extend_from_slice(&bytes);
        input = rest;
    }
    Ok(output)
}
