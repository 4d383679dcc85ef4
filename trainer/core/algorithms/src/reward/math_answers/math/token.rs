//! Tokens of an answer in LaTeX or plain notation.

mod characters;
mod units;

use super::super::boxed::braced;
use super::names::{FUNCTIONS, LAYOUT, LETTERS, SIGNS, TEXT};

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Digits with at most one decimal point, without separators of thousands. The digits after `(` repeat.
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
            return self.read_character(first);
        }
        Some(())
    }

    fn push_sign(&mut self, sign: &'static str) {
        let sign = match (sign, self.tokens.last()) {
            ("=", Some(Token::Sign("<"))) => "<=",
            ("=", Some(Token::Sign(">"))) => ">=",
            ("=", Some(Token::Sign("!"))) => "!=",
            ("*", Some(Token::Sign("*"))) => "^",
            _ => sign,
        };
        if let ("<=" | ">=" | "!=", Some(Token::Sign("<" | ">" | "!"))) | ("^", Some(Token::Sign("*"))) =
            (sign, self.tokens.last())
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
    /// the number, and so do repeating decimals and an exponent.
    fn read_number(&mut self) {
        let mut digits = self.take(|byte| byte.is_ascii_digit()).to_owned();
        if (1..=3).contains(&digits.len()) && !digits.starts_with('0') {
            while let Some(group) = self.group_of_thousands() {
                digits += &group[..3];
                self.rest = &group[3..];
            }
        }
        let is_decimal =
            |rest: &&str| rest.starts_with(|c: char| c.is_ascii_digit()) || repetend(rest).is_some();
        if let Some(decimals) = self.rest.strip_prefix('.').filter(is_decimal) {
            self.rest = decimals;
            digits = format!("{digits}.{}", self.take(|byte| byte.is_ascii_digit()));
            if let Some((repeated, rest)) = repetend(self.rest) {
                digits = format!("{digits}({repeated}");
                self.rest = rest;
            }
        }
        self.tokens.push(Token::Number(digits));
        self.read_exponent();
    }

    /// Reads `E8`, `e8` or `e-08` after a number as a power of ten. `2e-8` is not one: it is two times
    /// Euler's number, minus 8.
    fn read_exponent(&mut self) {
        let Some(after) = self.rest.strip_prefix(['e', 'E']) else { return };
        let unsigned = after.strip_prefix(['+', '-']).unwrap_or(after);
        let num_digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = unsigned.split_at(num_digits);
        let is_euler = self.rest.starts_with('e') && unsigned.len() < after.len() && !digits.starts_with('0');
        if digits.is_empty() || is_euler || rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return;
        }
        let is_negative = after.starts_with('-');
        self.rest = rest;
        self.tokens.extend([Token::Sign("*"), Token::Number("10".to_owned()), Token::Sign("^")]);
        self.tokens.push(Token::Sign("{"));
        self.tokens.extend(is_negative.then_some(Token::Sign("-")));
        self.tokens.extend([Token::Number(digits.to_owned()), Token::Sign("}")]);
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
        if self.read_known(word) || self.read_unit(word) {
            return;
        }
        // `1.5 x 10^8` is in scientific notation.
        let is_times = word == "x" && matches!(self.tokens.last(), Some(Token::Number(_)));
        if is_times && self.rest.trim_start().starts_with("10^") {
            self.push_sign("*");
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
            self.read_text_argument(name)?;
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
            "frac" | "dfrac" | "tfrac" | "cfrac" | "nicefrac" | "sfrac" | "flatfrac" => {
                self.tokens.push(Token::Command("frac"));
            }
            "binom" | "dbinom" | "tbinom" => self.tokens.push(Token::Command("binom")),
            "emptyset" | "varnothing" => self.tokens.push(Token::Name("emptyset".to_owned())),
            "circ" | "degree" | "deg" => self.read_degree(),
            "lg" => self.tokens.push(Token::Command("log")),
            "tg" => self.tokens.push(Token::Command("tan")),
            "ctg" | "cotg" => self.tokens.push(Token::Command("cot")),
            "arctg" => self.tokens.push(Token::Command("arctan")),
            // An argument in braces, or a letter, follows.
            "boxed" | "fbox" | "vec" | "overline" | "overrightarrow" | "bar" | "hat" | "tilde" | "ang"
            // A currency.
            | "pounds" | "euro" | "yen" => {}
            "phantom" | "hspace" | "vspace" | "color" | "textcolor" => {
                self.braced()?;
            }
            "begin" => self.read_environment(Token::Begin)?,
            "end" => self.read_environment(Token::End)?,
            _ => return None,
        }
        Some(())
    }

    /// Reads the begin or the end of a matrix. The determinant of a matrix is another value.
    fn read_environment(&mut self, token: Token) -> Option<()> {
        let name = self.braced()?;
        let is_determinant = matches!(name, "vmatrix" | "Vmatrix");
        if is_determinant || !(name == "array" || name.ends_with("matrix")) {
            return None;
        }
        if name == "array" && token == Token::Begin {
            self.braced()?;
        }
        self.tokens.push(token);
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

    fn read_text_argument(&mut self, command: &str) -> Option<()> {
        let content = self.braced()?;
        if (command, content.trim()) == ("mathbb", "R") {
            // The real numbers are an interval.
            ["(", "-", "oo", ",", "oo", ")"].into_iter().for_each(|sign| self.push_sign(sign));
            return Some(());
        }
        let is_margin = |c: char| c.is_whitespace() || matches!(c, '~' | '\\' | '.' | ',');
        // A unit may have signs of formulas, too: `\mathrm{m/s^2}`.
        let is_unit = matches!(self.tokens.last(), Some(Token::Number(_) | Token::Sign("}")))
            && content.trim_start_matches(['~', ' ']).starts_with(char::is_alphabetic);
        if is_unit || !is_formula(content) {
            self.read_text(content.trim_matches(is_margin));
            return Some(());
        }
        self.tokens.push(Token::Sign("{"));
        let rest = std::mem::replace(&mut self.rest, content);
        while !self.rest.is_empty() {
            self.read()?;
        }
        self.rest = rest;
        self.tokens.push(Token::Sign("}"));
        Some(())
    }

    fn read_text(&mut self, content: &str) {
        let is_letter = content.len() == 1 && content.bytes().all(|byte| byte.is_ascii_alphabetic());
        let is_unit = matches!(self.tokens.last(), Some(Token::Number(_))) && !matches!(content, "e" | "i");
        if is_letter && !is_unit {
            self.tokens.push(Token::Name(content.to_owned()));
        } else if !content.is_empty() && !self.read_known(content) && !units::is_currency(content) {
            self.tokens.push(Token::Word(content.to_owned()));
        }
    }

    /// Reads the content of the braces that follow.
    fn braced(&mut self) -> Option<&'a str> {
        let text = self.rest.trim_start();
        let content = braced(text)?;
        self.rest = &text[content.len() + 2..];
        Some(content)
    }

    /// Reads a backslash before a sign.
    fn read_escaped(&mut self) -> Option<()> {
        // A backslash at the end is a space whose blank was trimmed.
        let Some(sign) = self.rest.chars().next() else { return Some(()) };
        self.rest = &self.rest[sign.len_utf8()..];
        match sign {
            '{' => self.push_sign("\\{"),
            '}' => self.push_sign("\\}"),
            '%' => self.push_sign("%"),
            '|' => self.push_sign("|"),
            // A second backslash before a letter escapes the first, except between the rows of a matrix.
            '\\' if self.is_in_matrix() => {
                self.skip_row_distance();
                self.tokens.push(Token::Sign("\\\\"));
            }
            '\\' if self.rest.trim_start().is_empty() => {}
            '\\' if self.rest.starts_with(|c: char| c.is_ascii_alphabetic()) => return self.read_name(),
            ',' | '!' | ';' | ':' | '$' | '(' | ')' | '[' | ']' => {}
            space if space.is_whitespace() => {}
            _ => return None,
        }
        Some(())
    }

    /// Skips `[1ex]` after the end of a row.
    fn skip_row_distance(&mut self) {
        let distance = self.rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        if let Some((distance, rest)) = distance
            && distance.ends_with(|c: char| c.is_ascii_alphabetic())
        {
            self.rest = rest;
        }
    }
}

/// Returns the repeating decimals with which a text begins, such as those of `\overline{63}`, and the rest.
fn repetend(text: &str) -> Option<(&str, &str)> {
    let inside =
        ["\\overline{", "\\bar{", "\\dot{"].iter().find_map(|command| text.strip_prefix(*command))?;
    let (repeated, rest) = inside.split_once('}')?;
    let is_number = !repeated.is_empty() && repeated.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some((repeated, rest))
}

/// Whether the argument of a text command is a formula: `\text{-5}`, `\mathbf{\frac12}`, `\mathrm{x+1}`.
fn is_formula(content: &str) -> bool {
    let unsigned =
        content.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '−' | '(' | '.'));
    let has_command =
        || content.split('\\').skip(1).any(|after| after.starts_with(|c: char| c.is_ascii_alphabetic()));
    unsigned.starts_with(|c: char| c.is_ascii_digit())
        || content.contains(['$', '=', '+', '^', '<', '>'])
        || has_command()
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
        assert_eq!(tokens(&"1".repeat(MAX_BYTES + 1)), None);
    }
}
