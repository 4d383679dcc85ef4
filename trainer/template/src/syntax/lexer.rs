//! Tokens of a template, with jinja2's rules of white space under `trim_blocks` and `lstrip_blocks`.

use std::sync::{Arc, LazyLock};

use regex::Regex;

use crate::characters::is_space;
use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Text(String),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(Arc<str>),
    Str(Arc<str>),
    Int(i128),
    Float(f64),
    Symbol(&'static str),
}

#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) line: usize,
    pub(crate) token: Token,
}

/// Symbols of expressions, longest first because one symbol may be a prefix of another.
const SYMBOLS: [&str; 25] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",",
];

#[expect(clippy::unwrap_used, reason = "a constant pattern that every test compiles")]
static FLOAT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(?:(?:\d+_)*\d+)(?:(?:\.(?:\d+_)*\d+)?[eE][+-]?(?:\d+_)*\d+|\.(?:\d+_)*\d+)").unwrap()
});
#[expect(clippy::unwrap_used, reason = "a constant pattern that every test compiles")]
static INTEGER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(?:0[bB](?:_?[01])+|0[oO](?:_?[0-7])+|0[xX](?:_?[0-9a-fA-F])+|[1-9](?:_?\d)*|0(?:_?0)*)")
        .unwrap()
});
#[expect(clippy::unwrap_used, reason = "a constant pattern that every test compiles")]
static RAW: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^\{%([-+]?)[\s\x1c-\x1f]*raw[\s\x1c-\x1f]*(?:-%\}[\s\x1c-\x1f]*|%\})").unwrap()
});
#[expect(clippy::unwrap_used, reason = "a constant pattern that every test compiles")]
static END_RAW: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\{%([-+]?)[\s\x1c-\x1f]*endraw[\s\x1c-\x1f]*(?:\+%\}|-%\}[\s\x1c-\x1f]*|%\}\n?)").unwrap()
});

/// Splits a template into tokens. CRLF and CR are line feeds, and one line feed at the end is dropped.
pub(crate) fn tokenize(source: &str) -> Result<Vec<Located>> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { source: &source, position: 0, line: 1, line_starting: true, tokens: Vec::new() };
    while lexer.position < source.len() {
        lexer.text()?;
    }
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    position: usize,
    line: usize,
    /// Whether the last match ended with a line feed, or nothing was matched yet.
    line_starting: bool,
    tokens: Vec<Located>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.position..]
    }

    fn push(&mut self, token: Token) {
        self.tokens.push(Located { line: self.line, token });
    }

    /// Advances by `length` bytes and counts their lines.
    fn skip(&mut self, length: usize) {
        let skipped = &self.source[self.position..self.position + length];
        self.line += skipped.matches('\n').count();
        self.line_starting = skipped.ends_with('\n');
        self.position += length;
    }

    fn push_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Text(text.to_owned()));
        }
    }

    /// Reads text up to the next tag, and the tag.
    fn text(&mut self) -> Result<()> {
        let rest = self.rest();
        let Some(start) = next_tag(rest) else {
            self.push_text(rest);
            self.skip(rest.len());
            return Ok(());
        };
        let tag = &rest[start..];
        let sign = tag[2..].chars().next().filter(|sign| matches!(sign, '-' | '+'));
        let raw = RAW.find(tag);
        let is_variable = raw.is_none() && tag.starts_with("{{");
        let text = stripped(&rest[..start], sign, !is_variable, self.line_starting);
        self.push_text(text);
        self.skip(start);
        if let Some(raw) = raw {
            self.skip(raw.end());
            return self.raw();
        }
        let width = 2 + usize::from(sign.is_some());
        match &tag[..2] {
            "{#" => {
                self.skip(width);
                self.comment()
            }
            "{{" => {
                self.push(Token::VariableBegin);
                self.skip(width);
                self.tag(variable_end, Token::VariableEnd)
            }
            _ => {
                self.push(Token::BlockBegin);
                self.skip(width);
                self.tag(block_end, Token::BlockEnd)
            }
        }
    }

    fn raw(&mut self) -> Result<()> {
        let rest = self.rest();
        let Some(found) = END_RAW.captures(rest) else {
            return Err(Error::syntax(self.line, "Missing end of raw directive"));
        };
        let (Some(whole), sign) = (found.get(0), found.get(1).and_then(|sign| sign.as_str().chars().next()))
        else {
            return Err(Error::syntax(self.line, "Missing end of raw directive"));
        };
        self.push_text(stripped(&rest[..whole.start()], sign, true, self.line_starting));
        self.skip(whole.end());
        Ok(())
    }

    fn comment(&mut self) -> Result<()> {
        let rest = self.rest();
        let Some(start) = rest.find("#}") else {
            return Err(Error::syntax(self.line, "Missing end of comment tag"));
        };
        let end = start + 2;
        let trimmed = match rest[..start].chars().last() {
            Some('-') => spaces(&rest[end..]),
            Some('+') => 0,
            _ => usize::from(rest[end..].starts_with('\n')),
        };
        self.skip(end + trimmed);
        Ok(())
    }

    /// Reads the expression tokens of a tag and its end.
    fn tag(&mut self, end: fn(&str) -> Option<usize>, closing: Token) -> Result<()> {
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            let rest = self.rest();
            if open.is_empty()
                && let Some(length) = end(rest)
            {
                self.push(closing);
                self.skip(length);
                return Ok(());
            }
            let Some(first) = rest.chars().next() else {
                return Err(Error::syntax(self.line, "unexpected end of template"));
            };
            if is_space(first) {
                self.skip(spaces(rest));
            } else if first.is_ascii_digit() {
                self.number(rest)?;
            } else if first == '\'' || first == '"' {
                self.string(rest, first)?;
            } else if first.is_alphanumeric() || first == '_' {
                let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
                self.push(Token::Name(rest[..length].into()));
                self.skip(length);
            } else {
                self.symbol(rest, &mut open)?;
            }
        }
    }

    fn number(&mut self, rest: &str) -> Result<()> {
        let follows_dot = self.source[..self.position].ends_with('.');
        if !follows_dot && let Some(found) = FLOAT.find(rest) {
            let digits = found.as_str().replace('_', "");
            let value = digits.parse().map_err(|_| Error::syntax(self.line, "invalid number"))?;
            self.push(Token::Float(value));
            self.skip(found.end());
            return Ok(());
        }
        let found = INTEGER.find(rest).map_or("0", |found| found.as_str());
        let digits = found.replace('_', "").to_lowercase();
        let parsed = match digits.get(..2) {
            Some("0x") => i128::from_str_radix(&digits[2..], 16),
            Some("0o") => i128::from_str_radix(&digits[2..], 8),
            Some("0b") => i128::from_str_radix(&digits[2..], 2),
            _ => digits.parse(),
        };
        self.push(Token::Int(parsed.map_err(|_| Error::syntax(self.line, "the integer is too large"))?));
        self.skip(found.len());
        Ok(())
    }

    fn string(&mut self, rest: &str, quote: char) -> Result<()> {
        let mut escaped = false;
        let end = rest.char_indices().skip(1).find(|(_, character)| {
            let ends = !escaped && *character == quote;
            escaped = !escaped && *character == '\\';
            ends
        });
        let Some((end, _)) = end else {
            return Err(Error::syntax(self.line, format!("unexpected char {:?}", quote)));
        };
        let text = unescape(&rest[1..end]).map_err(|message| Error::syntax(self.line, message))?;
        self.push(Token::Str(text.into()));
        self.skip(end + 1);
        Ok(())
    }

    fn symbol(&mut self, rest: &str, open: &mut Vec<&'static str>) -> Result<()> {
        let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) else {
            let character = rest.chars().next().unwrap_or_default();
            return Err(Error::syntax(self.line, format!("unexpected char {character:?}")));
        };
        match symbol {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" if open.pop() != Some(symbol) => {
                return Err(Error::syntax(self.line, format!("unexpected '{symbol}'")));
            }
            _ => {}
        }
        self.push(Token::Symbol(symbol));
        self.skip(symbol.len());
        Ok(())
    }
}

/// Returns the offset of the first tag. A search for each kind of tag would read the whole rest at each tag,
/// so this is one scan for all.
fn next_tag(text: &str) -> Option<usize> {
    let opens = |at: &usize| matches!(text.as_bytes().get(at + 1), Some(b'%' | b'{' | b'#'));
    text.match_indices('{').map(|(at, _)| at).find(opens)
}

/// Strips the text before a tag as the sign of the tag requests.
fn stripped(text: &str, sign: Option<char>, lstrip: bool, line_starting: bool) -> &str {
    match sign {
        Some('-') => text.trim_end_matches(is_space),
        Some(_) => text,
        None => {
            let line = text.rfind('\n').map_or(0, |at| at + 1);
            let blank = line < text.len() && text[line..].chars().all(is_space);
            if lstrip && blank && (line > 0 || line_starting) { &text[..line] } else { text }
        }
    }
}

/// Returns the number of bytes of white space at the start of a text.
fn spaces(text: &str) -> usize {
    text.len() - text.trim_start_matches(is_space).len()
}

fn variable_end(rest: &str) -> Option<usize> {
    match rest.strip_prefix("-}}") {
        Some(behind) => Some(3 + spaces(behind)),
        None => rest.starts_with("}}").then_some(2),
    }
}

fn block_end(rest: &str) -> Option<usize> {
    if rest.starts_with("+%}") {
        return Some(3);
    }
    if let Some(behind) = rest.strip_prefix("-%}") {
        return Some(3 + spaces(behind));
    }
    rest.strip_prefix("%}").map(|behind| 2 + usize::from(behind.starts_with('\n')))
}

/// Resolves the escapes of a string literal as Python's `unicode-escape` does; unknown escapes stay as they
/// are.
fn unescape(text: &str) -> std::result::Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        let Some(escape) = characters.next() else { return Err("\\ at end of string".to_owned()) };
        match escape {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(escape),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            'N' => return Err("characters by name, as in \\N{DASH}, are not supported".to_owned()),
            'x' => out.push(code(&mut characters, 2)?),
            'u' => out.push(code(&mut characters, 4)?),
            'U' => out.push(code(&mut characters, 8)?),
            '0'..='7' => {
                let mut value = escape.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(digit) = characters.peek().and_then(|digit| digit.to_digit(8)) else { break };
                    value = value * 8 + digit;
                    characters.next();
                }
                out.push(char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            other => out.extend(['\\', other]),
        }
    }
    Ok(out)
}

fn code(characters: &mut impl Iterator<Item = char>, digits: usize) -> std::result::Result<char, String> {
    let mut value = 0u32;
    for _ in 0..digits {
        let digit = characters.next().and_then(|digit| digit.to_digit(16));
        let digit = digit.ok_or_else(|| format!("truncated escape, expected {digits} hexadecimal digits"))?;
        value = value.saturating_mul(16).saturating_add(digit);
    }
    char::from_u32(value).ok_or_else(|| format!("{value:#x} is no Unicode character"))
}
