//! Checks of `tokenizer.json` before the `tokenizers` library reads it.
//!
//! Whoever wrote a model also wrote its definition. Small steps in a row may multiply a text until it fills
//! the memory, and the library panics on some files that are no JSON, such as one that was cut off.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

/// Maximum size of `tokenizer.json` in bytes; that of a large vocabulary has 34 MB.
pub(super) const MAX_BYTES: u64 = 128 << 20;
/// Largest factor by which the steps of one kind may lengthen a text; usual ones have at most 132.
const MAX_GROWTH: f64 = 256.0;
/// Maximum number of entries of the vocabulary, and of merges. Large vocabularies have a million.
const MAX_ENTRIES: usize = 1 << 22;
/// Maximum number of tokens beyond the vocabulary, which are all searched for in each text.
const MAX_ADDED_TOKENS: usize = 1 << 18;

/// Checks a definition.
///
/// # Errors
/// A message that completes "build the tokenizer".
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    // Deep nesting is refused by the parser.
    let definition: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let model = &definition["model"];
    check_number("entries in its vocabulary", num_items(&model["vocab"]), MAX_ENTRIES)?;
    check_number("merges", num_items(&model["merges"]), MAX_ENTRIES)?;
    check_added(num_items(&definition["added_tokens"]))?;
    for step in ["normalizer", "pre_tokenizer", "decoder"] {
        let growth = growth(&definition[step]);
        if growth > MAX_GROWTH {
            return Err(format!(
                "its {step} may make a text {growth:.0} times as long, expected at most {MAX_GROWTH} times"
            ));
        }
    }
    Ok(())
}

/// Checks the number of tokens beyond the vocabulary.
///
/// # Errors
/// As [`check`].
pub(super) fn check_added(num_tokens: usize) -> Result<(), String> {
    check_number("added tokens", num_tokens, MAX_ADDED_TOKENS)
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

/// Returns the factor by which a normalizer, pre-tokenizer or decoder may lengthen a text.
fn growth(step: &Value) -> f64 {
    let length = |field: &str| step[field].as_str().map_or(0, str::len) as f64;
    match step["type"].as_str() {
        Some("Sequence") => {
            let steps = ["normalizers", "pretokenizers", "decoders"].map(|field| step[field].as_array());
            steps.into_iter().flatten().flatten().map(growth).product()
        }
        Some("Replace") => match step["pattern"]["String"].as_str().map_or(0, str::len) {
            // A regex may match before every character.
            0 => 1.0 + length("content"),
            pattern => (length("content") / pattern as f64).max(1.0),
        },
        // Written before every part of a text, which may be single characters between special tokens.
        Some("Prepend") => 1.0 + length("prepend"),
        // A byte beyond ASCII becomes a character of two.
        Some("ByteLevel") => 2.0,
        Some("Precompiled") => longest_replacement(step["precompiled_charsmap"].as_str().unwrap_or_default()),
        _ => 1.0,
    }
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
