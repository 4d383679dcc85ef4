//! Parquet pages of every codec, and pages that hold more bytes than their file states.

use ::parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use ::parquet::column::writer::ColumnCloseResult;
use ::parquet::data_type::{ByteArrayType, Int32Type};
use ::parquet::file::metadata::ParquetMetaDataReader;
use ::parquet::file::properties::{WriterProperties, WriterVersion};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;

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
    let column = column.set_total_uncompressed_size(num_bytes).build().unwrap();
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
    group.append_column(&pages, close).unwrap();
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
