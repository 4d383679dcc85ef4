//! Tokens of an answer in LaTeX or plain notation.

use super::names::{CHARACTERS, FUNCTIONS, LAYOUT, LETTERS, SIGNS, TEXT, UNITS};

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Digits with at most one decimal point, without separators of thousands.
    Number(String),
    /// A letter, a Greek letter or a constant.
    Name(String),
    /// A LaTeX command without its backslash, such as `frac`, or a function.
    Command(&'static str),
    /// The content of `\text{..}` and its kin, trimmed; also a unit after a number.
    Word(String),
    /// A sign, such as `+`, `(`, `<=`, or `\\` between the rows of a matrix.
    Sign(&'static str),
    /// The begin of a matrix.
    Begin,
    /// The end of a matrix.
    End,
}

/// Largest length of an answer that is parsed, in bytes.
const MAX_BYTES: usize = 2000;
/// Separators of thousands in numbers.
const THOUSANDS: [&str; 6] = ["{,}", ",\\!", "\\!", "\\,", "\\ ", ","];

/// Splits an answer into tokens. Returns `None` for unknown characters and commands.
pub(super) fn tokens(text: &str) -> Option<Vec<Token>> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let mut reader = Reader { rest: text, tokens: Vec::new(), num_open: 0 };
    while !reader.rest.is_empty() {
        reader.read()?;
    }
    Some(reader.tokens)
}

struct Reader<'a> {
    rest: &'a str,
    tokens: Vec<Token>,
    /// Number of open brackets, in which a comma separates values.
    num_open: usize,
}

impl<'a> Reader<'a> {
    fn read(&mut self) -> Option<()> {
        let first = self.rest.chars().next()?;
        let is_decimal = first == '.' && self.rest[1..].starts_with(|c: char| c.is_ascii_digit());
        if first.is_ascii_digit() || is_decimal {
            self.read_number();
        } else if first == '\\' {
            return self.read_command();
        } else if first.is_ascii_alphabetic() {
            self.read_letters();
        } else {
            self.rest = &self.rest[first.len_utf8()..];
            // A full stop ends the answer; degrees and currencies are units.
            if first.is_whitespace() || matches!(first, '~' | '$' | '€' | '£' | '°' | '"' | '\'' | '.') {
                return Some(());
            }
            let sign = CHARACTERS.iter().find(|(character, _)| *character == first)?.1;
            self.push_sign(sign);
        }
        Some(())
    }

    fn push_sign(&mut self, sign: &'static str) {
        let sign = match (sign, self.tokens.last()) {
            ("=", Some(Token::Sign("<"))) => "<=",
            ("=", Some(Token::Sign(">"))) => ">=",
            ("=", Some(Token::Sign("!"))) => "!=",
            _ => sign,
        };
        if matches!(sign, "<=" | ">=" | "!=")
            && matches!(self.tokens.last(), Some(Token::Sign("<" | ">" | "!")))
        {
            self.tokens.pop();
        }
        match sign {
            "(" | "[" | "\\{" => self.num_open += 1,
            ")" | "]" | "\\}" => self.num_open = self.num_open.saturating_sub(1),
            _ => {}
        }
        let token = if sign == "oo" { Token::Name(sign.to_owned()) } else { Token::Sign(sign) };
        self.tokens.push(token);
    }

    /// Reads a number's digits. A separator between one to three digits and exactly three digits belongs to
    /// the number.
    fn read_number(&mut self) {
        let mut digits = self.take(|byte| byte.is_ascii_digit()).to_owned();
        if (1..=3).contains(&digits.len()) && !digits.starts_with('0') {
            while let Some(group) = self.group_of_thousands() {
                digits += &group[..3];
                self.rest = &group[3..];
            }
        }
        let decimals =
            self.rest.strip_prefix('.').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        if let Some(decimals) = decimals {
            self.rest = decimals;
            digits = format!("{digits}.{}", self.take(|byte| byte.is_ascii_digit()));
        }
        self.tokens.push(Token::Number(digits));
    }

    /// Returns the text from three digits on, if a separator and exactly three digits follow. A comma
    /// inside of brackets separates values.
    fn group_of_thousands(&self) -> Option<&'a str> {
        let mut separators = THOUSANDS.iter().filter(|separator| **separator != "," || self.num_open == 0);
        let rest = separators.find_map(|separator| self.rest.strip_prefix(*separator))?;
        (rest.bytes().take_while(u8::is_ascii_digit).count() == 3).then_some(rest)
    }

    fn take(&mut self, belongs: impl Fn(&u8) -> bool) -> &'a str {
        let (taken, rest) = self.rest.split_at(self.rest.bytes().take_while(belongs).count());
        self.rest = rest;
        taken
    }

    fn read_letters(&mut self) {
        let word = self.take(u8::is_ascii_alphabetic);
        let is_after_value = matches!(self.tokens.last(), Some(Token::Number(_) | Token::Sign("}")));
        if self.read_known(word) {
            return;
        }
        if is_after_value && UNITS.contains(&word) {
            self.tokens.push(Token::Word(word.to_owned()));
        } else {
            self.tokens.extend(word.chars().map(|letter| Token::Name(letter.to_string())));
        }
    }

    /// Reads a word that means the same in plain text, in `\text{..}` and as a command.
    fn read_known(&mut self, word: &str) -> bool {
        let command = FUNCTIONS.iter().chain(&["sqrt"]).find(|known| **known == word).copied();
        match word {
            "and" | "or" => self.push_sign(","),
            "percent" | "percentage" | "pct" => self.push_sign("%"),
            "pi" => self.tokens.push(Token::Name("pi".to_owned())),
            "inf" | "infty" | "infinity" => self.push_sign("oo"),
            _ => match command {
                Some(command) => self.tokens.push(Token::Command(command)),
                None => return false,
            },
        }
        true
    }

    fn read_command(&mut self) -> Option<()> {
        self.rest = &self.rest[1..];
        if self.rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
            self.read_name()
        } else {
            self.read_escaped()
        }
    }

    fn is_in_matrix(&self) -> bool {
        self.tokens.iter().rev().find(|token| matches!(token, Token::Begin | Token::End))
            == Some(&Token::Begin)
    }

    fn read_name(&mut self) -> Option<()> {
        let name = self.take(u8::is_ascii_alphabetic);
        if TEXT.contains(&name) {
            let content = self.braced()?;
            if (name, content.trim()) == ("mathbb", "R") {
                // The real numbers are an interval.
                ["(", "-", "oo", ",", "oo", ")"].into_iter().for_each(|sign| self.push_sign(sign));
                return Some(());
            }
            self.read_text(
                content.trim_matches(|c: char| c.is_whitespace() || matches!(c, '~' | '\\' | '.' | ',')),
            );
        } else if let Some((_, sign)) = SIGNS.iter().find(|(command, _)| *command == name) {
            self.push_sign(sign);
        } else if LETTERS.contains(&name) {
            self.tokens.push(Token::Name(name.to_owned()));
        } else if !LAYOUT.contains(&name) && !self.read_known(name) {
            self.read_structure(name)?;
        }
        Some(())
    }

    fn read_structure(&mut self, name: &str) -> Option<()> {
        match name {
            "frac" | "dfrac" | "tfrac" | "cfrac" => self.tokens.push(Token::Command("frac")),
            "binom" | "dbinom" | "tbinom" => self.tokens.push(Token::Command("binom")),
            "emptyset" | "varnothing" => self.tokens.push(Token::Name("emptyset".to_owned())),
            "circ" | "degree" => self.read_degree(),
            // An argument in braces, or a letter, follows.
            "boxed" | "fbox" | "vec" | "overline" | "overrightarrow" | "bar" | "hat" | "tilde" => {}
            "begin" if self.braced()?.ends_with("matrix") => self.tokens.push(Token::Begin),
            "end" if self.braced()?.ends_with("matrix") => self.tokens.push(Token::End),
            _ => return None,
        }
        Some(())
    }

    /// Drops `^\circ` and `^{\circ}`: degrees are a unit.
    fn read_degree(&mut self) {
        if self.tokens.ends_with(&[Token::Sign("^"), Token::Sign("{")]) {
            self.tokens.truncate(self.tokens.len() - 2);
            self.rest = self.rest.trim_start().strip_prefix('}').unwrap_or(self.rest);
        } else if self.tokens.last() == Some(&Token::Sign("^")) {
            self.tokens.pop();
        }
    }

    fn read_text(&mut self, content: &str) {
        let is_letter = content.len() == 1 && content.bytes().all(|byte| byte.is_ascii_alphabetic());
        let is_unit = matches!(self.tokens.last(), Some(Token::Number(_))) && !matches!(content, "e" | "i");
        if is_letter && !is_unit {
            self.tokens.push(Token::Name(content.to_owned()));
        } else if !content.is_empty() && !self.read_known(content) {
            self.tokens.push(Token::Word(content.to_owned()));
        }
    }

    /// The content of the braces that follow, without braces inside.
    fn braced(&mut self) -> Option<&'a str> {
        let (content, rest) = self.rest.trim_start().strip_prefix('{')?.split_once('}')?;
        self.rest = rest;
        (!content.contains('{')).then_some(content)
    }

    /// Reads a backslash before a sign.
    fn read_escaped(&mut self) -> Option<()> {
        let sign = self.rest.chars().next()?;
        self.rest = &self.rest[sign.len_utf8()..];
        match sign {
            '{' => self.push_sign("\\{"),
            '}' => self.push_sign("\\}"),
            '%' => self.push_sign("%"),
            '|' => self.push_sign("|"),
            // A second backslash before a letter escapes the first, except between the rows of a matrix.
            '\\' if self.is_in_matrix() => self.tokens.push(Token::Sign("\\\\")),
            '\\' if self.rest.starts_with(|c: char| c.is_ascii_alphabetic()) => return self.read_name(),
            ',' | '!' | ';' | ':' | '$' | '(' | ')' | '[' | ']' => {}
            space if space.is_whitespace() => {}
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_with_their_separators() {
        for text in ["1234567.5", "1,234,567.5", "1{,}234{,}567.5", "1\\,234\\,567.5", "1,\\!234,\\!567.5"] {
            assert_eq!(tokens(text).unwrap(), [Token::Number("1234567.5".into())], "{text}");
        }
        assert_eq!(tokens(".5").unwrap(), [Token::Number(".5".into())]);
        for text in ["(1,234)", "1,23", "1234,567", "1,2345", "0,123"] {
            assert!(tokens(text).unwrap().contains(&Token::Sign(",")), "{text}");
        }
    }

    #[test]
    fn unknown_commands_and_long_texts_are_not_read() {
        assert_eq!(tokens("\\foo{1}"), None);
        assert_eq!(tokens("\\"), None);
        assert_eq!(tokens(&"1".repeat(MAX_BYTES + 1)), None);
    }
}
