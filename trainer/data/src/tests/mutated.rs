//! Data files, tokenizer folders and chat templates whose bytes are not as they should be: each is
//! read or refused, by its file. Nothing panics.

use std::path::Path;

use ::parquet::data_type::Int32Type;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use rlt_mutations::{cases, mutated};
use serde_json::json;

use super::*;
use crate::tokenizer::ChatRequest;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Returns the contents of all files whose names end with `ending`, from the folder `name` of the fixtures.
fn files(name: &str, ending: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder(name)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Reads `bytes` as prompts and as demonstrations; a refusal names the file.
fn check_rows(name: &str, bytes: &[u8]) -> Result<(), TestCaseError> {
    let rows = Files::new(name, "");
    fs::write(rows.path(name), bytes).unwrap();
    for error in [rows.prompts().err(), rows.demonstrations(64).err()].into_iter().flatten() {
        // A file of no rows is no fault of a row.
        let (said, is_empty) = (error.to_string(), matches!(error, DataError::Empty { .. }));
        prop_assert!(is_empty || said.contains(name), "{said}");
    }
    Ok(())
}

#[test]
fn a_parquet_file_whose_decoder_panics_is_refused_by_its_name() {
    let whole = fs::read(folder("data").join("sums.parquet")).unwrap();
    let (name, rows) = ("rows.parquet", Files::new("rows.parquet", ""));
    // Metadata of the columns, such as their offsets: Thrift, followed by its length and `PAR1`.
    let metadata_len = u32::from_le_bytes(whole[whole.len() - 8..][..4].try_into().unwrap()) as usize;
    let metadata = whole.len() - 8 - metadata_len;
    let refused = (metadata..metadata + 300).filter_map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        fs::write(rows.path(name), bytes).unwrap();
        rows.prompts().err()
    });
    let causes = refused.filter_map(|error| {
        assert!(error.to_string().contains(name), "{error}");
        std::error::Error::source(&error).map(ToString::to_string)
    });
    assert!(causes.filter(|cause| cause.contains("the decoder panicked: column start")).count() > 0);
}

#[test]
fn a_date_that_no_calendar_has_is_refused_by_its_row() {
    let (name, rows) = ("rows.parquet", Files::new("rows.parquet", ""));
    let schema = parse_message_type("message rows { required int32 day (DATE); }").unwrap();
    let file = fs::File::create(rows.path(name)).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.into(), Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int32Type>().write_batch(&[i32::MAX], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let error = rows.prompts().unwrap_err();
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap();
    assert!(error.to_string().contains(name) && cause.contains("the decoder panicked"), "{error}: {cause}");
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn rows_of_any_text_are_read_or_refused_by_their_file(bytes in mutated(files("data", ".jsonl"))) {
        check_rows("rows.jsonl", &bytes)?;
    }

    #[test]
    fn a_json_list_of_any_text_is_read_or_refused_by_its_file(bytes in mutated(files("data", ".json"))) {
        check_rows("rows.json", &bytes)?;
    }

    #[test]
    fn a_parquet_file_of_any_bytes_is_read_or_refused_by_its_name(bytes in mutated(files("data", ".parquet"))) {
        check_rows("rows.parquet", &bytes)?;
    }

    #[test]
    fn a_tokenizer_of_any_bytes_is_loaded_or_refused(
        definition in mutated(files("tokenizer/byte_pairs", "tokenizer.json")),
        config in mutated(files("tokenizer/byte_pairs", "tokenizer_config.json")),
        which in 0..3,
    ) {
        let own = folder("tokenizer/byte_pairs");
        let copy = TempDir::new().unwrap();
        let whole = |name: &str| fs::read(own.join(name)).unwrap();
        let written = [
            ("tokenizer.json", if which == 0 { whole("tokenizer.json") } else { definition.to_vec() }),
            ("tokenizer_config.json", if which == 1 { whole("tokenizer_config.json") } else { config.to_vec() }),
        ];
        for (name, bytes) in written {
            fs::write(copy.path().join(name), bytes).unwrap();
        }
        match Tokenizer::load(copy.path()) {
            Ok(tokenizer) => {
                let _ = tokenizer.encode("1 + 1 =").map(|tokens| tokenizer.decode(&tokens));
            }
            Err(error) => prop_assert!(error.to_string().len() > 10, "{error}"),
        }
    }

    #[test]
    fn a_chat_template_of_any_text_renders_or_is_refused_in_time(
        bytes in mutated(files("chat/templates", ".jinja")),
    ) {
        let plain = Tokenizer::characters("ab").unwrap();
        if let Ok(tokenizer) = plain.with_chat_template(&String::from_utf8_lossy(&bytes)) {
            let messages = [json!({"role": "system", "content": "a"}), json!({"role": "user", "content": "b"})];
            let request = ChatRequest {
                messages: &messages,
                tools: None,
                add_generation_prompt: true,
                variables: None,
            };
            let _ = tokenizer.render_chat(&request);
        }
    }
}
