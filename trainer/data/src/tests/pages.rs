//! Parquet pages of every codec, and pages that hold more bytes than their file states.

use std::io::Write;

use ::parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, ZstdLevel};
use ::parquet::column::page::{CompressedPage, Page, PageWriter};
use ::parquet::column::writer::ColumnCloseResult;
use ::parquet::data_type::{ByteArrayType, Int32Type};
use ::parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaDataReader};
use ::parquet::file::properties::{WriterProperties, WriterVersion};
use ::parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use ::parquet::schema::parser::parse_message_type;
use ::parquet::schema::types::SchemaDescriptor;
use flate2::write::GzEncoder;

use super::*;

const NAME: &str = "rows.parquet";
const SCHEMA: &str = "message rows { optional binary prompt (UTF8); }";

fn codecs() -> [Compression; 7] {
    [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ]
}

/// A file with one row, a prompt.
fn file_of(codec: Compression, version: WriterVersion, prompt: &str) -> Files {
    let files = Files::new(NAME, "");
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_writer_version(version)
        .set_dictionary_enabled(false)
        .build();
    let schema = parse_message_type(SCHEMA).unwrap();
    let file = fs::File::create(files.path(NAME)).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.into(), properties.into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<ByteArrayType>().write_batch(&[prompt.into()], Some(&[1]), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    files
}

/// Writes the file again with the same pages, and with another size of its column in the metadata.
fn restate(files: &Files, num_bytes: i64) {
    let pages = fs::File::open(files.path(NAME)).unwrap();
    fs::remove_file(files.path(NAME)).unwrap();
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&pages).unwrap();
    let column = metadata.row_group(0).column(0).clone().into_builder();
    write_column(files, &pages, column.set_total_uncompressed_size(num_bytes).build().unwrap());
}

/// Writes the file with one row, from the pages of its column.
fn write_column(files: &Files, pages: &fs::File, column: ColumnChunkMetaData) {
    let close = ColumnCloseResult {
        bytes_written: column.compressed_size().unsigned_abs(),
        rows_written: 1,
        metadata: column,
        bloom_filter: None,
        column_index: None,
        offset_index: None,
    };
    let schema = parse_message_type(SCHEMA).unwrap();
    let file = fs::File::create(files.path(NAME)).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.into(), Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    group.append_column(pages, close).unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn pages_of_every_codec_are_read_and_refused_if_they_hold_more_than_the_file_states() {
    let prompt = "1+1=".repeat(100);
    for codec in codecs() {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let files = file_of(codec, version, &prompt);
            let read = files.prompts().unwrap_or_else(|error| panic!("{codec}: {error:?}"));
            assert_eq!(read.items()[0].text, prompt, "{codec}");
            restate(&files, 100);
            if codec == Compression::UNCOMPRESSED {
                assert_eq!(
                    files.prompts().unwrap().len(),
                    1,
                    "its pages are as long as they are in the file"
                );
                continue;
            }
            let error = files.prompts().unwrap_err();
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap();
            assert!(error.to_string().contains(NAME), "{error}");
            assert!(cause.contains("column \"prompt\""), "{codec}: {cause}");
            assert!(cause.contains("at most 100 bytes"), "{codec}: {cause}");
        }
    }
}

#[test]
fn a_list_of_too_many_values_is_refused_with_its_column() {
    let cause = |num_values: usize| {
        let files = Files::new(NAME, "");
        let schema = parse_message_type("message rows { repeated int32 ids; }").unwrap();
        let file = fs::File::create(files.path(NAME)).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema.into(), Default::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let mut repetitions = vec![1; num_values];
        repetitions[0] = 0;
        let (values, definitions) = (vec![7; num_values], vec![1; num_values]);
        let levels = (Some(&definitions[..]), Some(&repetitions[..]));
        column.typed::<Int32Type>().write_batch(&values, levels.0, levels.1).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        let error = files.prompts().unwrap_err();
        assert!(error.to_string().contains(NAME), "{error}");
        std::error::Error::source(&error).map(ToString::to_string)
    };
    assert_eq!(cause(1000), None, "the file is read, and lacks the prompt");
    let refused = cause((1 << 22) + 1).unwrap();
    assert!(refused.contains("column \"ids\"") && refused.contains("at most 4194304"), "{refused}");
}

#[test]
fn a_page_of_zeros_that_states_a_small_size_is_refused_with_its_column_and_bound() {
    let files = Files::new(NAME, "");
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&vec![0; 16 << 20]).unwrap();
    let page = Page::DataPage {
        buf: gzip.finish().unwrap().into(),
        num_values: 1,
        encoding: Encoding::PLAIN,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    };
    let mut chunk = TrackedWrite::new(Vec::new());
    SerializedPageWriter::new(&mut chunk).write_page(CompressedPage::new(page, 100)).unwrap();
    let chunk = chunk.into_inner().unwrap();
    fs::write(files.path("chunk"), &chunk).unwrap();
    let schema = SchemaDescriptor::new(parse_message_type(SCHEMA).unwrap().into());
    let column = ColumnChunkMetaData::builder(schema.column(0))
        .set_compression(Compression::GZIP(GzipLevel::default()))
        .set_encodings(vec![Encoding::PLAIN])
        .set_num_values(1)
        .set_total_compressed_size(i64::try_from(chunk.len()).unwrap())
        .set_total_uncompressed_size(100)
        .set_data_page_offset(0)
        .build()
        .unwrap();
    write_column(&files, &fs::File::open(files.path("chunk")).unwrap(), column);
    let error = files.prompts().unwrap_err();
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap();
    assert!(error.to_string().contains(NAME), "{error}");
    assert!(cause.contains("column \"prompt\"") && cause.contains("at most 100 bytes"), "{cause}");
}
