//! Primaries: numbers, names, brackets, fractions, roots, functions, matrices.

use num_bigint::BigInt;
use num_rational::BigRational;

use super::super::expression::{Answer, Bracket, Expression};
use super::super::token::Token;
use super::{MAX_DEPTH, Parser, binomial, expression, times};

impl Parser {
    pub(super) fn starts_primary(&self) -> bool {
        match self.peek() {
            Some(Token::Number(_) | Token::Name(_) | Token::Command(_) | Token::Begin) => true,
            Some(Token::Sign(sign)) => {
                matches!(*sign, "(" | "[" | "{" | "\\{" | "lfloor" | "lceil")
                    || (*sign == "|" && self.num_bars == 0)
            }
            _ => false,
        }
    }

    pub(super) fn primary(&mut self) -> Option<Answer> {
        self.depth += 1;
        let primary = if self.depth <= MAX_DEPTH { self.primary_at_depth() } else { None };
        self.depth -= 1;
        primary
    }

    fn primary_at_depth(&mut self) -> Option<Answer> {
        let token = self.peek()?.clone();
        self.next += 1;
        let value = match token {
            Token::Number(digits) => {
                // The base of a number, as in `52_8`, is ignored.
                if self.accept("_") {
                    self.subscript()?;
                }
                number(&digits)?
            }
            Token::Name(name) if name == "emptyset" => return Some(Answer::Set(Vec::new())),
            Token::Name(name) => {
                let subscript =
                    if self.accept("_") { format!("_{}", self.subscript()?) } else { String::new() };
                Expression::Name(name + &subscript)
            }
            Token::Command(command) => self.command(command)?,
            Token::Word(word) => return Some(Answer::Text(super::super::letters(&word))),
            Token::Begin => return self.matrix(),
            Token::End => return None,
            Token::Sign(sign) => return self.bracketed(sign),
        };
        Some(Answer::Expression(value))
    }

    fn bracketed(&mut self, open: &str) -> Option<Answer> {
        match open {
            "{" => {
                let inside = self.list()?;
                self.expect("}")?;
                Some(inside)
            }
            "\\{" if self.accept("\\}") => Some(Answer::Set(Vec::new())),
            "\\{" => {
                let inside = self.list()?;
                self.expect("\\}")?;
                Some(Answer::Set(if let Answer::List(items) = inside { items } else { vec![inside] }))
            }
            "|" if self.num_bars == 0 => {
                self.num_bars += 1;
                let inside = expression(self.sum()?)?;
                self.expect("|")?;
                self.num_bars -= 1;
                Some(Answer::Expression(Expression::Function("abs", vec![inside])))
            }
            "lfloor" | "lceil" => {
                let inside = expression(self.sum()?)?;
                let (close, name) = if open == "lfloor" { ("rfloor", "floor") } else { ("rceil", "ceil") };
                self.expect(close)?;
                Some(Answer::Expression(Expression::Function(name, vec![inside])))
            }
            "(" | "[" => self.tuple(if open == "(" { Bracket::Round } else { Bracket::Square }),
            _ => None,
        }
    }

    fn tuple(&mut self, open: Bracket) -> Option<Answer> {
        // A bar that was open outside cannot be closed inside.
        let num_bars = std::mem::take(&mut self.num_bars);
        let inside = self.list()?;
        self.num_bars = num_bars;
        let close = if self.accept(")") {
            Bracket::Round
        } else {
            self.expect("]")?;
            Bracket::Square
        };
        match inside {
            Answer::List(items) => Some(Answer::Tuple(open, items, close)),
            single if open == close => Some(single),
            _ => None,
        }
    }

    fn command(&mut self, command: &'static str) -> Option<Expression> {
        match command {
            "frac" => {
                let (above, below) = (self.argument()?, self.argument()?);
                Some(Expression::Quotient(Box::new(above), Box::new(below)))
            }
            "binom" => {
                let (above, below) = (self.argument()?, self.argument()?);
                Some(binomial(above, below))
            }
            "sqrt" => {
                let degree = if self.accept("[") {
                    let degree = super::small(&expression(self.sum()?)?).filter(|degree| *degree >= 2)?;
                    self.expect("]")?;
                    degree
                } else {
                    2
                };
                Some(Expression::Root(Box::new(self.argument()?), degree))
            }
            function => self.function(function),
        }
    }

    /// Reads `\sin^2 x`, `\log_2 (x)` and the like.
    fn function(&mut self, name: &'static str) -> Option<Expression> {
        let base = if self.accept("_") { Some(self.exponent()?) } else { None };
        let exponent = if self.accept("^") { Some(self.exponent()?) } else { None };
        let inverse = if exponent == Some(Expression::integer(-1)) { inverse(name) } else { None };
        let (name, exponent) = inverse.map_or((name, exponent), |inverse| (inverse, None));
        let argument = if matches!(self.sign(), Some("(" | "{" | "[" | "|")) {
            expression(self.primary()?)?
        } else {
            self.bare_argument()?
        };
        let ln = |of| Expression::Function("ln", vec![of]);
        let value = match base {
            Some(base) => Expression::Quotient(Box::new(ln(argument)), Box::new(ln(base))),
            None if name == "exp" => {
                Expression::Power(Box::new(Expression::Name("e".to_owned())), Box::new(argument))
            }
            None => Expression::Function(name, vec![argument]),
        };
        Some(match exponent {
            Some(exponent) => Expression::Power(Box::new(value), Box::new(exponent)),
            None => value,
        })
    }

    /// Reads the factors behind a function's name up to the next sign or function: `2x` of `\sin 2x \cos y`.
    fn bare_argument(&mut self) -> Option<Expression> {
        let is_negative = self.accept("-");
        let mut argument = expression(self.power()?)?;
        while self.starts_primary()
            && !matches!(self.peek(), Some(Token::Command(name)) if !matches!(*name, "frac" | "sqrt"))
        {
            argument = times(argument, expression(self.power()?)?);
        }
        Some(if is_negative { argument.negated() } else { argument })
    }

    /// Reads the argument of a command. Without braces it is a single digit, as in TeX (`\frac12` is one
    /// half), or a full decimal number.
    pub(super) fn argument(&mut self) -> Option<Expression> {
        let Some(Token::Number(digits)) = self.peek() else { return expression(self.primary()?) };
        let num_digits = if digits.contains('.') { digits.len() } else { 1 };
        let (first, rest) = digits.split_at(num_digits);
        let (first, rest) = (number(first)?, rest.to_owned());
        if rest.is_empty() {
            self.next += 1;
        } else {
            self.tokens[self.next] = Token::Number(rest);
        }
        Some(first)
    }

    /// Reads an exponent or a base. Without braces it is the full number: `x^10` means `x^{10}`.
    pub(super) fn exponent(&mut self) -> Option<Expression> {
        let is_negative = self.accept("-");
        let exponent = expression(self.primary()?)?;
        Some(if is_negative { exponent.negated() } else { exponent })
    }

    /// Reads an index as text.
    fn subscript(&mut self) -> Option<String> {
        if !self.accept("{") {
            self.next += 1;
            return self.tokens.get(self.next - 1).map(|token| format!("{token:?}"));
        }
        let mut text = String::new();
        while !self.accept("}") {
            text += &format!("{:?}", self.peek()?);
            self.next += 1;
        }
        // One token is written with or without braces.
        Some(text)
    }

    fn matrix(&mut self) -> Option<Answer> {
        let (mut rows, mut row) = (Vec::new(), Vec::new());
        loop {
            row.push(self.sum()?);
            if self.accept("&") {
                continue;
            }
            rows.push(std::mem::take(&mut row));
            let is_row = self.accept("\\\\");
            if self.peek() == Some(&Token::End) {
                self.next += 1;
                return Some(Answer::Matrix(rows));
            }
            is_row.then_some(())?;
        }
    }
}

/// Returns the name of the inverse function, which an exponent of -1 means.
fn inverse(name: &str) -> Option<&'static str> {
    match name {
        "sin" => Some("arcsin"),
        "cos" => Some("arccos"),
        "tan" => Some("arctan"),
        _ => None,
    }
}

/// Returns the exact value of decimal digits; the digits after `(` repeat.
fn number(digits: &str) -> Option<Expression> {
    let (digits, repeated) = digits.split_once('(').unwrap_or((digits, ""));
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
    let power_of_ten = |exponent: usize| Some(BigInt::from(10).pow(u32::try_from(exponent).ok()?));
    let all: BigInt = format!("0{whole}{decimals}").parse().ok()?;
    let scale = power_of_ten(decimals.len())?;
    let mut value = BigRational::new(all, scale.clone());
    if !repeated.is_empty() {
        // The digits 63 in `0.1\overline{63}` are worth 63/99 of a tenth.
        let nines = power_of_ten(repeated.len())? - BigInt::from(1);
        value += BigRational::new(repeated.parse().ok()?, nines * scale);
    }
    Some(Expression::Number { value, places: decimals.len() + repeated.len() })
}
