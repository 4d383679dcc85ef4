//! Files as editors on Windows, Python's `json` and pandas write them.

use ::parquet::data_type::ByteArrayType;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;

use super::*;

fn first(files: &Files) -> Prompt {
    Prompt::clone(&files.prompts().unwrap().items()[0])
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_row() {
    let row = r#"{"prompt": "1+1=", "answer": "2"}"#;
    for (name, text) in [
        ("rows.jsonl", format!("\u{feff}{row}\r\n{row}\r\n")),
        ("rows.json", format!("\u{feff}[{row}, {row}]")),
        ("rows.json", format!("\u{feff}{row}\n{row}")),
    ] {
        let files = Files::new(name, &text);
        let prompts = files.prompts().unwrap();
        assert_eq!((prompts.len(), prompts.items()[0].text.as_str()), (2, "1+1="), "{text:?}");
    }
}

#[test]
fn numbers_that_json_lacks_are_null_and_texts_keep_their_names() {
    let files = Files::new(
        "rows.jsonl",
        r#"{"prompt": "is NaN \"Infinity\"?", "answer": NaN, "score": -Infinity, "solution": "Infinity"}"#,
    );
    let prompt = first(&files);
    assert_eq!((prompt.text.as_str(), &prompt.ground_truth), ("is NaN \"Infinity\"?", &json!("Infinity")));
    let broken = Files::new("rows.jsonl", r#"{"prompt": Nan}"#);
    assert!(matches!(broken.prompts(), Err(DataError::Json { .. })));
}

#[test]
fn integers_beyond_64_bits_are_refused_with_their_row_column_and_range() {
    let large = "123456789012345678901234567890";
    let range = "an integer from -9223372036854775808 to 18446744073709551615";
    for (name, text, place) in [
        ("rows.jsonl", r#"{"prompt": "a"}NEXT{"prompt": "b", "answer": LARGE}"#, "row 2: column \"answer\""),
        ("rows.jsonl", r#"{"prompt": "a", "score": NaN, "answer": -LARGE}"#, "row 1: column \"answer\""),
        (
            "rows.jsonl",
            r#"{"prompt": "a", "reward_model": {"ground_truth": [0.5, LARGE]}}"#,
            "row 1: column \"reward_model.ground_truth\"",
        ),
        ("rows.json", r#"[{"prompt": "a"}, {"prompt": "b", "extra_info": {"index": LARGE}}]"#, "row 2"),
        ("rows.jsonl", r#"{"prompt": "a", "answer": 18446744073709551616}"#, "row 1"),
        ("rows.jsonl", r#"{"prompt": "a", "answer": -9223372036854775809}"#, "row 1"),
    ] {
        let text = text.replace("LARGE", large).replace("NEXT", "\n");
        let error = Files::new(name, &text).prompts().unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(place) && error.contains(range), "{text}: {error}");
    }
    let tools =
        json!({"prompt": [{"role": "user", "content": "a"}], "tools": format!("[{{\"maximum\": {large}}}]")});
    let error = Files::rows(&[tools]).prompts().unwrap_err().to_string();
    assert!(error.contains("column \"tools.maximum\"") && error.contains(large), "{error}");
}

#[test]
fn numbers_of_64_bits_floats_and_digits_of_a_text_are_kept() {
    for (literal, kept) in [
        ("18446744073709551615", json!(u64::MAX)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("1e30", json!(1e30)),
        ("100000000000000000000.0", json!(1e20)),
        ("\"123456789012345678901234567890\"", json!("123456789012345678901234567890")),
    ] {
        let row = format!("{{\"prompt\": \"9\\\" 99999999999999999999\", \"answer\": {literal}}}");
        for (name, text) in [("rows.jsonl", row.clone()), ("rows.json", format!("[{row}]"))] {
            assert_eq!(first(&Files::new(name, &text)).ground_truth, kept, "{text}");
        }
    }
}

#[test]
fn messages_of_sharegpt_are_refused_with_the_names_to_write() {
    let messages = json!([{"from": "human", "value": "1"}, {"from": "gpt", "value": "2"}]);
    for column in ["prompt", "messages"] {
        let error = Files::rows(&[json!({ column: messages })]).prompts().unwrap_err().to_string();
        assert!(error.contains("row 1") && error.contains("`from` and `value`"), "{error}");
    }
}

#[test]
fn a_column_that_is_null_is_called_so() {
    let files = Files::rows(&[json!({"prompt": "a"}), json!({"prompt": null})]);
    let error = files.prompts().unwrap_err().to_string();
    assert!(error.contains("row 2: column \"prompt\" is null"), "{error}");
    for (row, column) in [
        (json!({"prompt": "a", "response": null}), "response"),
        (json!({"prompt": "a", "completion": null}), "completion"),
        (json!({"messages": null}), "messages"),
    ] {
        let error = Files::rows(&[row]).demonstrations(100).unwrap_err().to_string();
        assert!(error.contains(&format!("column \"{column}\" is null")), "{error}");
    }
}

/// A file of one row whose columns are byte arrays without an annotation.
fn bytes(columns: &[(&str, &[u8])]) -> Files {
    let files = Files::new("rows.parquet", "");
    let fields: String = columns.iter().map(|(name, _)| format!("required binary {name}; ")).collect();
    let schema = parse_message_type(&format!("message rows {{ {fields} }}")).unwrap();
    let file = fs::File::create(files.path("rows.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.into(), Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (_, value) in columns {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&[value.to_vec().into()], None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    files
}

#[test]
fn bytes_of_a_parquet_file_are_text_or_refused() {
    let prompt = first(&bytes(&[("prompt", b"1+1="), ("answer", b"2"), ("other", &[0xff, 0xfe])]));
    assert_eq!((prompt.text.as_str(), &prompt.ground_truth), ("1+1=", &json!("2")));
    let error = bytes(&[("prompt", &[0xff, 0xfe])]).prompts().unwrap_err();
    assert!(matches!(error, DataError::WrongType { .. }), "{error}");
}
