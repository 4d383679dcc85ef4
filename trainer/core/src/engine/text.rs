//! Incremental detokenization of a growing sequence, and the search for stop strings in its text.
//!
//! A token does not always decode to a fixed text: a character may span several tokens, and some tokenizers
//! decode a token differently after another. So only text that later tokens cannot change is appended, by
//! decoding a short window twice, with and without the new tokens (the scheme of vLLM's incremental
//! detokenizer).

use std::error::Error;

use crate::types::TokenId;

/// Decodes tokens to text.
pub trait Detokenizer {
    /// Returns the text of `tokens` without special tokens; bytes of an incomplete character become U+FFFD.
    ///
    /// # Errors
    /// When the tokenizer fails.
    fn decode(&self, tokens: &[TokenId]) -> Result<String, DetokenizeError>;
}

/// An error of the tokenizer.
pub type DetokenizeError = Box<dyn Error + Send + Sync>;

/// Text decoded so far from a sequence to which tokens are appended.
#[derive(Clone, Debug, Default)]
pub struct IncrementalText {
    text: String,
    /// Index of the first token that is decoded again, as context of the next tokens.
    window_start: usize,
    /// Number of tokens whose text is in `text`.
    read_end: usize,
}

impl IncrementalText {
    /// Decodes the tokens appended since the last call and searches the new text for `stop` strings. Returns
    /// the byte offset at which the earliest match begins.
    ///
    /// `tokens` is the full sequence; earlier calls had a prefix of it.
    ///
    /// # Errors
    /// When the detokenizer fails.
    pub fn extend(
        &mut self,
        tokens: &[TokenId],
        detokenizer: &dyn Detokenizer,
        stop: &[String],
    ) -> Result<Option<usize>, DetokenizeError> {
        let known = detokenizer.decode(&tokens[self.window_start..self.read_end])?;
        let window = detokenizer.decode(&tokens[self.window_start..])?;
        let is_whole = !window.ends_with('\u{FFFD}');
        let Some(added) = window.get(known.len()..).filter(|added| is_whole && !added.is_empty()) else {
            return Ok(None);
        };
        let old_len = self.text.len();
        self.text.push_str(added);
        self.window_start = self.read_end;
        self.read_end = tokens.len();
        Ok(stop.iter().filter_map(|stop| find_from(&self.text, stop, old_len)).min())
    }

    /// The decoded text, without trailing tokens that end inside a character.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// Returns the offset of the first match of `stop` that ends after byte `old_len`.
fn find_from(text: &str, stop: &str, old_len: usize) -> Option<usize> {
    let mut start = (old_len + 1).saturating_sub(stop.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    text[start..].find(stop).map(|at| start + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte a token.
    struct Bytes;

    impl Detokenizer for Bytes {
        fn decode(&self, tokens: &[TokenId]) -> Result<String, DetokenizeError> {
            let bytes: Vec<u8> = tokens.iter().map(|&token| token as u8).collect();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
    }

    fn stops_at(text: &str, stop: &[&str]) -> Option<(usize, String)> {
        let stop: Vec<String> = stop.iter().map(|s| (*s).to_owned()).collect();
        let tokens: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
        let mut incremental = IncrementalText::default();
        for len in 1..=tokens.len() {
            if let Some(at) = incremental.extend(&tokens[..len], &Bytes, &stop).unwrap() {
                return Some((len, incremental.as_str()[..at].to_owned()));
            }
        }
        assert_eq!(incremental.as_str(), text);
        None
    }

    #[test]
    fn a_stop_string_across_tokens_is_found_with_its_last_token() {
        assert_eq!(stops_at("one\n\ntwo", &["\n\n"]), Some((5, "one".to_owned())));
        assert_eq!(stops_at("aaab", &["aab", "x"]), Some((4, "a".to_owned())));
        assert_eq!(stops_at("one two", &["three"]), None);
    }

    #[test]
    fn the_stop_string_that_is_complete_first_wins() {
        assert_eq!(stops_at("abcdef", &["def", "cd"]), Some((4, "ab".to_owned())));
        assert_eq!(stops_at("abcdef", &["cde", "bcde"]), Some((5, "a".to_owned())), "the earlier start");
    }

    #[test]
    fn characters_of_several_tokens_appear_when_they_are_whole() {
        assert_eq!(stops_at("naïve – ja", &["–"]), Some((10, "naïve ".to_owned())));
        let mut incremental = IncrementalText::default();
        let tokens: Vec<TokenId> = "é".bytes().map(TokenId::from).collect();
        incremental.extend(&tokens[..1], &Bytes, &[]).unwrap();
        assert_eq!(incremental.as_str(), "");
        incremental.extend(&tokens, &Bytes, &[]).unwrap();
        assert_eq!(incremental.as_str(), "é");
    }
}
