//! Checks of `tokenizer.json` before the `tokenizers` library reads it.
//!
//! Definitions come with models, so they may be hostile. A sequence of small steps may lengthen a text until
//! it fills the memory, and the library panics on some files that are not JSON, such as a truncated one.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

/// Maximum size of `tokenizer.json` in bytes; that of a large vocabulary has 34 MB.
pub(super) const MAX_BYTES: u64 = 128 << 20;
/// Kinds of steps, with the maximum factor by which they may lengthen a text. Common normalizers have a
/// factor of at most 132, which is that of a SentencePiece table followed by a replacement.
const MAX_GROWTH: [(&str, f64); 3] = [("normalizer", 256.0), ("pre_tokenizer", 256.0), ("decoder", 16.0)];
/// Maximum length of a normalized text in bytes, for each of which the library keeps 16 bytes more.
const MAX_NORMALIZED_BYTES: usize = 128 << 20;
/// Maximum number of entries of the vocabulary, and of merges. Large vocabularies have a million.
const MAX_ENTRIES: usize = 1 << 22;
/// Maximum number of tokens beyond the vocabulary, which are all searched for in each text.
const MAX_ADDED_TOKENS: usize = 1 << 18;
/// Maximum length of a token in bytes; runs of spaces are the longest.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Checks a definition, and returns the maximum length of a text that may be encoded by it, in bytes.
///
/// # Errors
/// A message that completes "build the tokenizer".
pub(super) fn check(bytes: &[u8]) -> Result<usize, String> {
    // Deep nesting is refused by the parser.
    let definition: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let model = &definition["model"];
    check_number("entries in its vocabulary", num_items(&model["vocab"]), MAX_ENTRIES)?;
    check_number("merges", num_items(&model["merges"]), MAX_ENTRIES)?;
    let added = &definition["added_tokens"];
    check_added(num_items(added), longest(added).max(longest(&model["vocab"])))?;
    for (step, max) in MAX_GROWTH {
        let growth = growth(&definition[step]);
        if growth > max {
            return Err(format!(
                "its {step} may make a text {growth:.0} times as long, expected at most {max} times"
            ));
        }
    }
    let growth = growth(&definition["normalizer"]) * growth(&definition["pre_tokenizer"]);
    Ok((MAX_NORMALIZED_BYTES as f64 / growth) as usize)
}

/// Checks the number of tokens beyond the vocabulary, and the length of the longest token in bytes.
///
/// # Errors
/// As [`check`].
pub(super) fn check_added(num_tokens: usize, longest: usize) -> Result<(), String> {
    check_number("added tokens", num_tokens, MAX_ADDED_TOKENS)?;
    check_number("bytes in its longest token", longest, MAX_TOKEN_BYTES)
}

/// Length of the longest token of a vocabulary or of a list of added tokens, in bytes.
fn longest(tokens: &Value) -> usize {
    let length = |token: &Value| match token {
        // A token with its score.
        Value::Array(pair) => pair.first().and_then(Value::as_str).map_or(0, str::len),
        token => token["content"].as_str().map_or(0, str::len),
    };
    match tokens {
        Value::Array(tokens) => tokens.iter().map(length).max().unwrap_or(0),
        Value::Object(tokens) => tokens.keys().map(String::len).max().unwrap_or(0),
        _ => 0,
    }
}

fn check_number(things: &str, number: usize, max: usize) -> Result<(), String> {
    if number > max { Err(format!("it has {number} {things}, expected at most {max}")) } else { Ok(()) }
}

/// Number of items of an array or object; 0 for any other value.
fn num_items(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    }
}

/// Returns the factor by which a normalizer, pre-tokenizer or decoder may lengthen a text. The fields decide,
/// because the library also accepts steps without a type.
fn growth(step: &Value) -> f64 {
    let length = |field: &str| step[field].as_str().map_or(0, str::len) as f64;
    let steps = ["normalizers", "pretokenizers", "decoders"].map(|field| step[field].as_array());
    let inner: f64 = steps.into_iter().flatten().flatten().map(growth).product();
    let replaced = match step["pattern"]["String"].as_str().map_or(0, str::len) {
        _ if step["pattern"].is_null() || !step["content"].is_string() => 1.0,
        // A regex may match before every character.
        0 => 1.0 + length("content"),
        pattern => (length("content") / pattern as f64).max(1.0),
    };
    // The prefix is added to every part of a text, and special tokens may split a text into single
    // characters.
    let prefixed = 1.0 + length("prepend");
    let table = step["precompiled_charsmap"].as_str().map_or(1.0, longest_replacement);
    // A byte beyond ASCII becomes a character of two.
    let is_bytes = step.is_object() && step["type"].as_str().is_none_or(|kind| kind == "ByteLevel");
    inner * replaced * prefixed * table * if is_bytes { 2.0 } else { 1.0 }
}

/// Returns the length of the longest text in a table of SentencePiece, by which a character may be replaced.
/// The table is the length of a trie, the trie, and texts that end with a zero byte. Infinite for a trie that
/// is longer than the table, for which the library would allocate memory all the same.
fn longest_replacement(table: &str) -> f64 {
    // The library refuses a table that cannot be decoded.
    let table = BASE64_STANDARD.decode(table).unwrap_or_default();
    let Some((length, rest)) = table.split_first_chunk() else { return 1.0 };
    match rest.get(u32::from_le_bytes(*length) as usize..) {
        Some(texts) => texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0).max(1) as f64,
        None => f64::INFINITY,
    }
}
