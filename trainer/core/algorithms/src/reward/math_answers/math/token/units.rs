//! Units after numbers and currencies before them.

use super::super::names::{CURRENCIES, LETTER_UNITS, UNITS};
use super::{Reader, Token};

impl Reader<'_> {
    /// Reads a word that is a unit after a value, or a currency before one. Returns `false` for other words.
    pub(super) fn read_unit(&mut self, word: &str) -> bool {
        if is_currency(word) && self.is_before_amount() {
            return true;
        }
        let is_after_value =
            matches!(self.tokens.last(), Some(Token::Number(_) | Token::Sign("}") | Token::Word(_)));
        let num_bytes = self
            .rest
            .strip_prefix('/')
            .map_or(0, |divisor| divisor.bytes().take_while(u8::is_ascii_alphabetic).count());
        let divisor = self.rest.get(1..=num_bytes).unwrap_or_default();
        let is_known = |word: &str| UNITS.contains(&word) || LETTER_UNITS.contains(&word);
        let is_quotient = is_known(word) && is_known(divisor);
        if !is_after_value || !(is_quotient || UNITS.contains(&word)) {
            return false;
        }
        if is_quotient {
            self.rest = &self.rest[1 + num_bytes..];
        }
        self.tokens.push(Token::Word(word.to_owned()));
        true
    }

    fn is_before_amount(&self) -> bool {
        let amount = self.rest.trim_start_matches(['.', ' ', '~', '\\', '$']);
        amount.starts_with(|c: char| c.is_ascii_digit())
    }
}

/// Whether a word is a currency, such as `USD` or `Rs.`.
pub(super) fn is_currency(word: &str) -> bool {
    CURRENCIES.contains(&word.trim_end_matches('.'))
}
