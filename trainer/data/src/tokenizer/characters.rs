//! Character-level tokenizer of an alphabet, with one token per character, for models built from their
//! configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use rlt_core::types::TokenId;
use rlt_models::VISION_TOKENS;
use serde_json::{Map, Value, json};

use super::{Origin, SpecialTokens, Tokenizer, TokenizerError};

/// Special tokens in the order of their ids, from 0.
const PAD: &str = "<pad>";
const BOS: &str = "<bos>";
const EOS: &str = "<eos>";
const UNK: &str = "<unk>";
const SPECIAL: [&str; 4] = [PAD, BOS, EOS, UNK];
/// Chat template: concatenates the messages, with each image between its borders, and ends each message of
/// the assistant with an end-of-sequence token.
const CHAT_TEMPLATE: &str = "{%- for message in messages -%}\
    {%- if message.content is string -%}{{ message.content }}\
    {%- else -%}{%- for part in message.content -%}\
    {%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>\
    {%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}{%- endif -%}\
    {%- if message.role == 'assistant' -%}{{ eos_token }}{%- endif -%}{%- endfor -%}";

impl Tokenizer {
    /// Builds a tokenizer with the tokens `<pad>` 0, `<bos>` 1, `<eos>` 2, `<unk>` 3, then the characters of
    /// `alphabet` in their order from 4.
    ///
    /// [`Tokenizer::encode`] prepends `<bos>`. A character outside the alphabet becomes `<unk>`. The saved
    /// folder loads in transformers with equal tokens.
    ///
    /// # Errors
    /// [`TokenizerError::Alphabet`] if the alphabet is empty or repeats a character.
    pub fn characters(alphabet: &str) -> Result<Self, TokenizerError> {
        Self::of_alphabet(alphabet, &[])
    }

    /// Builds the tokenizer of [`Tokenizer::characters`] with [`VISION_TOKENS`] after the alphabet, and with
    /// a chat template that writes those of images.
    ///
    /// # Errors
    /// The same as [`Tokenizer::characters`].
    pub fn characters_and_images(alphabet: &str) -> Result<Self, TokenizerError> {
        Self::of_alphabet(alphabet, &VISION_TOKENS)?.with_chat_template(CHAT_TEMPLATE)
    }

    fn of_alphabet(alphabet: &str, behind: &[&str]) -> Result<Self, TokenizerError> {
        check(alphabet)?;
        let definition = definition(alphabet, behind).to_string();
        let built = tokenizers::Tokenizer::from_bytes(definition.as_bytes());
        let inner = built.map_err(|error| TokenizerError::Definition {
            path: PathBuf::from("alphabet"),
            message: error.to_string(),
        })?;
        let special = SpecialTokens {
            bos: Some(BOS.into()),
            eos: Some(EOS.into()),
            pad: Some(PAD.into()),
            unk: Some(UNK.into()),
            named: BTreeMap::new(),
        };
        Ok(Self {
            inner: Arc::new(inner),
            max_text_bytes: usize::MAX,
            special,
            eos_ids: vec![2],
            chat: None,
            conversations: Arc::default(),
            images: None,
            origin: Origin::Memory,
        })
    }

    /// Refuses `text`, whose tokens are `tokens`, if a character of it became `<unk>`, which is a mistake in
    /// data. Tokenizers that were not built from an alphabet accept any text.
    ///
    /// # Errors
    /// [`TokenizerError::OutsideAlphabet`] with the first such character.
    pub fn check_alphabet(&self, text: &str, tokens: &[TokenId]) -> Result<(), TokenizerError> {
        let unknown = self.inner.token_to_id(UNK);
        let is_unknown = |token: &TokenId| Some(*token) == unknown;
        if !matches!(self.origin, Origin::Memory) || !tokens.iter().any(is_unknown) {
            return Ok(());
        }
        let encoded = self.encode_with_offsets(text)?;
        let range = encoded.into_iter().find(|(token, _)| is_unknown(token)).map(|(_, range)| range);
        let character = range.and_then(|range| text.get(range)).unwrap_or(UNK).to_owned();
        Err(TokenizerError::OutsideAlphabet { character })
    }
}

fn check(alphabet: &str) -> Result<(), TokenizerError> {
    let refused = |message: String| Err(TokenizerError::Alphabet { message });
    let mut seen = BTreeSet::new();
    match alphabet.chars().find(|character| !seen.insert(*character)) {
        Some(character) => refused(format!("character {character:?} appears twice")),
        None if seen.is_empty() => refused("the alphabet is empty".to_owned()),
        None => Ok(()),
    }
}

/// Content of `tokenizer.json`. Byte-pair encoding without merges splits text into characters, spaces
/// included, and needs no pre-tokenizer; `Fuse` joins them again without gaps.
fn definition(alphabet: &str, behind: &[&str]) -> Value {
    let behind = behind.iter().map(|token| (*token).to_owned());
    let characters = alphabet.chars().map(String::from);
    let tokens: Vec<String> = SPECIAL.map(String::from).into_iter().chain(characters).chain(behind).collect();
    let vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    // Every token longer than a character is special.
    let special = tokens.iter().enumerate().filter(|(_, token)| token.chars().count() > 1);
    let added: Vec<Value> = special.map(|(id, token)| added_token(id, token)).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                {"SpecialToken": {"id": BOS, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}},
            ],
            "special_tokens": {BOS: {"id": BOS, "ids": [1], "tokens": [BOS]}},
        },
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": UNK,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": [],
        },
    })
}

fn added_token(id: usize, token: &str) -> Value {
    json!({
        "id": id,
        "content": token,
        "single_word": false,
        "lstrip": false,
        "rstrip": false,
        "normalized": false,
        "special": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_is_one_token_and_decodes_to_itself() {
        let tokenizer = Tokenizer::characters("0123456789+= é").unwrap();
        assert_eq!(tokenizer.encode("1+2 =").unwrap(), [1, 5, 14, 6, 16, 15]);
        assert_eq!(tokenizer.encode_rendered("").unwrap(), [0u32; 0]);
        let text = "12 + 34 = é 00";
        let tokens = tokenizer.encode(text).unwrap();
        assert_eq!(tokens.len(), 1 + text.chars().count());
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
        assert_eq!(tokenizer.vocab_len(), 18);
        assert_eq!(tokenizer.eos_ids(), [2]);
        assert_eq!((tokenizer.bos_id(), tokenizer.pad_id()), (Some(1), Some(0)));
    }

    #[test]
    fn foreign_characters_become_unknown_one_by_one() {
        let tokenizer = Tokenizer::characters("ab").unwrap();
        assert_eq!(tokenizer.encode_rendered("axyb").unwrap(), [4, 3, 3, 5]);
        assert_eq!(tokenizer.decode(&[4, 3, 5, 2]).unwrap(), "ab");
        assert_eq!(tokenizer.decode_verbatim(&[4, 3, 5, 2]).unwrap(), "a<unk>b<eos>");
    }

    #[test]
    fn an_alphabet_is_not_empty_and_repeats_nothing() {
        for alphabet in ["", "abca"] {
            assert!(matches!(Tokenizer::characters(alphabet), Err(TokenizerError::Alphabet { .. })));
        }
    }
}
