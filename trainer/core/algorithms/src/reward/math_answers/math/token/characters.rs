//! Signs, letters, fractions and exponents of one character.

use super::super::names::{CHARACTERS, FRACTIONS, SUPERSCRIPTS, SYMBOLS};
use super::{Reader, Token};

impl Reader<'_> {
    /// Reads a character that is neither an ASCII letter nor a digit nor a backslash.
    pub(super) fn read_character(&mut self, character: char) -> Option<()> {
        let number = |digits: &str| Token::Number(digits.to_owned());
        // A full stop ends the answer; degrees and currencies are units.
        if character.is_whitespace()
            || matches!(character, '~' | '$' | '€' | '£' | '¥' | '₹' | '°' | '"' | '\'' | '.')
        {
            return Some(());
        }
        if let Some((_, name)) = SYMBOLS.iter().find(|(symbol, _)| *symbol == character) {
            self.tokens.push(Token::Name((*name).to_owned()));
        } else if let Some((_, above, below)) = FRACTIONS.iter().find(|(symbol, ..)| *symbol == character) {
            self.tokens.extend([Token::Command("frac"), number(above), number(below)]);
        } else if let Some(first) = superscript(character) {
            let mut digits = first.to_string();
            while let Some(next) = self.rest.chars().next()
                && let Some(digit) = superscript(next)
            {
                digits += &digit.to_string();
                self.rest = &self.rest[next.len_utf8()..];
            }
            self.tokens.extend([Token::Sign("^"), Token::Number(digits)]);
        } else if matches!(character, '√' | '∛') {
            self.read_root(character);
        } else {
            let sign = CHARACTERS.iter().find(|(other, _)| *other == character)?.1;
            self.push_sign(sign);
        }
        Some(())
    }

    /// Reads `√` or `∛`. The radicand is the full number that follows: `√12` is the root of 12.
    fn read_root(&mut self, sign: char) {
        self.tokens.push(Token::Command("sqrt"));
        if sign == '∛' {
            self.tokens.extend([Token::Sign("["), Token::Number("3".to_owned()), Token::Sign("]")]);
        }
        self.rest = self.rest.trim_start();
        if self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            self.tokens.push(Token::Sign("{"));
            self.read_number();
            self.tokens.push(Token::Sign("}"));
        }
    }
}

fn superscript(character: char) -> Option<usize> {
    SUPERSCRIPTS.chars().position(|digit| digit == character)
}
