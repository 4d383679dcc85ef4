//! Expressions of a template.

use std::sync::Arc;

use super::Parser;
use crate::ast::{Arguments, Comparison, Expr, Operator};
use crate::error::Result;
use crate::lexer::Token;

impl Parser {
    pub(super) fn expression(&mut self) -> Result<Expr> {
        self.nested(Self::condition)
    }

    /// Reads comma-separated expressions as a tuple; a single expression without a comma is not wrapped.
    pub(super) fn tuple(&mut self, with_condition: bool, ends: &[&str]) -> Result<Expr> {
        let (mut items, is_tuple) = self.tuple_items(with_condition, ends)?;
        match items.pop() {
            None => self.unexpected("an expression"),
            Some(only) if items.is_empty() && !is_tuple => Ok(only),
            Some(last) => {
                items.push(last);
                Ok(Expr::Tuple(items))
            }
        }
    }

    fn tuple_items(&mut self, with_condition: bool, ends: &[&str]) -> Result<(Vec<Expr>, bool)> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            let is_end = match self.peek() {
                Some(Token::VariableEnd | Token::BlockEnd | Token::Symbol(")")) => true,
                Some(Token::Name(name)) => ends.contains(&&**name),
                _ => false,
            };
            if is_end {
                break;
            }
            items.push(if with_condition { self.expression()? } else { self.nested(Self::or)? });
            if !self.skip_symbol(",") {
                break;
            }
            is_tuple = true;
        }
        Ok((items, is_tuple))
    }

    fn condition(&mut self) -> Result<Expr> {
        let mut expr = self.or()?;
        while self.skip_name("if") {
            self.chain()?;
            let test = Box::new(self.or()?);
            let otherwise =
                if self.skip_name("else") { Some(Box::new(self.nested(Self::condition)?)) } else { None };
            expr = Expr::Condition { test, then: Box::new(expr), otherwise };
        }
        Ok(expr)
    }

    fn or(&mut self) -> Result<Expr> {
        let mut left = self.and()?;
        while self.skip_name("or") {
            self.chain()?;
            left = Expr::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr> {
        let mut left = self.not()?;
        while self.skip_name("and") {
            self.chain()?;
            left = Expr::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr> {
        if self.skip_name("not") {
            return Ok(Expr::Not(Box::new(self.nested(Self::not)?)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut others = Vec::new();
        loop {
            let comparison = match self.peek() {
                Some(Token::Symbol("==")) => Comparison::Equal,
                Some(Token::Symbol("!=")) => Comparison::NotEqual,
                Some(Token::Symbol("<")) => Comparison::Less,
                Some(Token::Symbol("<=")) => Comparison::LessEqual,
                Some(Token::Symbol(">")) => Comparison::Greater,
                Some(Token::Symbol(">=")) => Comparison::GreaterEqual,
                Some(Token::Name(name)) if &**name == "in" => Comparison::In,
                Some(Token::Name(name))
                    if &**name == "not"
                        && matches!(self.peek_second(), Some(Token::Name(next)) if &**next == "in") =>
                {
                    self.position += 1;
                    Comparison::NotIn
                }
                _ => break,
            };
            self.position += 1;
            others.push((comparison, self.sum()?));
        }
        Ok(if others.is_empty() { first } else { Expr::Compare(Box::new(first), others) })
    }

    fn sum(&mut self) -> Result<Expr> {
        let mut left = self.concat()?;
        loop {
            let operator = match self.peek() {
                Some(Token::Symbol("+")) => Operator::Add,
                Some(Token::Symbol("-")) => Operator::Subtract,
                _ => return Ok(left),
            };
            self.position += 1;
            self.chain()?;
            left = Expr::Binary(operator, Box::new(left), Box::new(self.concat()?));
        }
    }

    fn concat(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_symbol("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_symbol("~") {
            parts.push(self.product()?);
        }
        Ok(Expr::Concat(parts))
    }

    fn product(&mut self) -> Result<Expr> {
        let mut left = self.power()?;
        loop {
            let operator = match self.peek() {
                Some(Token::Symbol("*")) => Operator::Multiply,
                Some(Token::Symbol("/")) => Operator::Divide,
                Some(Token::Symbol("//")) => Operator::FloorDivide,
                Some(Token::Symbol("%")) => Operator::Modulo,
                _ => return Ok(left),
            };
            self.position += 1;
            self.chain()?;
            left = Expr::Binary(operator, Box::new(left), Box::new(self.power()?));
        }
    }

    fn power(&mut self) -> Result<Expr> {
        let mut left = self.unary(true)?;
        while self.skip_symbol("**") {
            self.chain()?;
            left = Expr::Binary(Operator::Power, Box::new(left), Box::new(self.unary(true)?));
        }
        Ok(left)
    }

    fn unary(&mut self, with_filter: bool) -> Result<Expr> {
        let expr = if self.skip_symbol("-") {
            Expr::Negative(Box::new(self.nested(|parser| parser.unary(false))?))
        } else if self.skip_symbol("+") {
            Expr::Positive(Box::new(self.nested(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        let expr = self.postfix(expr)?;
        if with_filter { self.filter_expr(expr) } else { Ok(expr) }
    }

    fn primary(&mut self) -> Result<Expr> {
        let Some(token) = self.peek().cloned() else { return self.unexpected("an expression") };
        let expr = match token {
            Token::Name(name) => match &*name {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => Expr::Name(name),
            },
            Token::Int(value) => Expr::Int(value),
            Token::Float(value) => Expr::Float(value),
            Token::Str(text) => return self.strings(text),
            Token::Symbol("(") => return self.nested(Self::parentheses),
            Token::Symbol("[") => return self.nested(Self::list),
            Token::Symbol("{") => return self.nested(Self::dict),
            _ => return self.unexpected("an expression"),
        };
        self.position += 1;
        Ok(expr)
    }

    /// Reads adjacent string literals, which form one string.
    fn strings(&mut self, first: Arc<str>) -> Result<Expr> {
        self.position += 1;
        if !matches!(self.peek(), Some(Token::Str(_))) {
            return Ok(Expr::Str(first));
        }
        let mut text = first.to_string();
        while let Some(Token::Str(more)) = self.peek() {
            text.push_str(more);
            self.position += 1;
        }
        Ok(Expr::Str(text.into()))
    }

    fn parentheses(&mut self) -> Result<Expr> {
        self.expect_symbol("(")?;
        let (mut items, is_tuple) = self.tuple_items(true, &[])?;
        self.expect_symbol(")")?;
        match items.pop() {
            Some(only) if items.is_empty() && !is_tuple => Ok(only),
            last => {
                items.extend(last);
                Ok(Expr::Tuple(items))
            }
        }
    }

    fn list(&mut self) -> Result<Expr> {
        self.expect_symbol("[")?;
        let mut items = Vec::new();
        while !self.is_symbol("]") {
            if !items.is_empty() {
                self.expect_symbol(",")?;
            }
            if self.is_symbol("]") {
                break;
            }
            items.push(self.expression()?);
        }
        self.expect_symbol("]")?;
        Ok(Expr::List(items))
    }

    fn dict(&mut self) -> Result<Expr> {
        self.expect_symbol("{")?;
        let mut entries = Vec::new();
        while !self.is_symbol("}") {
            if !entries.is_empty() {
                self.expect_symbol(",")?;
            }
            if self.is_symbol("}") {
                break;
            }
            let key = self.expression()?;
            self.expect_symbol(":")?;
            entries.push((key, self.expression()?));
        }
        self.expect_symbol("}")?;
        Ok(Expr::Dict(entries))
    }

    fn postfix(&mut self, mut expr: Expr) -> Result<Expr> {
        loop {
            if self.skip_symbol(".") {
                self.chain()?;
                expr = match self.next() {
                    Some(Token::Name(name)) => Expr::Attribute(Box::new(expr), name),
                    Some(Token::Int(index)) => Expr::Item(Box::new(expr), Box::new(Expr::Int(index))),
                    _ => return self.fail("expected name or number"),
                };
            } else if self.is_symbol("[") {
                self.chain()?;
                expr = self.nested(|parser| parser.subscript(expr))?;
            } else if self.is_symbol("(") {
                self.chain()?;
                expr = Expr::Call(Box::new(expr), self.arguments()?);
            } else {
                return Ok(expr);
            }
        }
    }

    fn filter_expr(&mut self, mut expr: Expr) -> Result<Expr> {
        loop {
            if self.is_symbol("|") {
                expr = self.filters(expr, false)?;
            } else if self.skip_name("is") {
                self.chain()?;
                expr = self.test(expr)?;
            } else if self.is_symbol("(") {
                self.chain()?;
                expr = Expr::Call(Box::new(expr), self.arguments()?);
            } else {
                return Ok(expr);
            }
        }
    }

    /// Reads any number of `|filter`; with `inline`, the first filter begins with its name and has no bar.
    pub(super) fn filters(&mut self, mut expr: Expr, mut inline: bool) -> Result<Expr> {
        while inline || self.skip_symbol("|") {
            inline = false;
            self.chain()?;
            let name = self.dotted_name()?;
            let arguments = if self.is_symbol("(") { self.arguments()? } else { Arguments::default() };
            expr = Expr::Filter(Box::new(expr), name, arguments);
        }
        Ok(expr)
    }

    fn dotted_name(&mut self) -> Result<Arc<str>> {
        let mut name = self.expect_name()?;
        while self.skip_symbol(".") {
            name = format!("{name}.{}", self.expect_name()?).into();
        }
        Ok(name)
    }

    fn test(&mut self, expr: Expr) -> Result<Expr> {
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let takes_value = match self.peek() {
            Some(Token::Name(next)) => !matches!(&**next, "else" | "or" | "and"),
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Symbol("[" | "{")) => true,
            _ => false,
        };
        let arguments = if self.is_symbol("(") {
            self.arguments()?
        } else if takes_value {
            if self.is_name("is") {
                return self.fail("You cannot chain multiple tests with is");
            }
            let value = self.primary()?;
            Arguments { positional: vec![self.postfix(value)?], ..Arguments::default() }
        } else {
            Arguments::default()
        };
        let test = Expr::Test(Box::new(expr), name, arguments);
        Ok(if negated { Expr::Not(Box::new(test)) } else { test })
    }

    fn subscript(&mut self, expr: Expr) -> Result<Expr> {
        self.expect_symbol("[")?;
        let mut bounds = [None, None, None];
        let mut colons = 0;
        let mut items = Vec::new();
        let mut is_tuple = false;
        while !self.is_symbol("]") {
            if self.skip_symbol(":") {
                colons += 1;
                if colons > 2 {
                    return self.unexpected("']'");
                }
            } else if colons == 0 && self.skip_symbol(",") {
                is_tuple = true;
            } else {
                let bound = self.expression()?;
                if self.is_symbol(":") || colons > 0 {
                    bounds[colons] = Some(bound);
                } else {
                    items.push(bound);
                }
            }
        }
        self.expect_symbol("]")?;
        if colons > 0 {
            return Ok(Expr::Slice(Box::new(expr), Box::new(bounds)));
        }
        match items.pop() {
            None => self.fail("expected subscript expression"),
            Some(only) if items.is_empty() && !is_tuple => Ok(Expr::Item(Box::new(expr), Box::new(only))),
            Some(last) => {
                items.push(last);
                Ok(Expr::Item(Box::new(expr), Box::new(Expr::Tuple(items))))
            }
        }
    }

    fn arguments(&mut self) -> Result<Arguments> {
        self.nested(Self::call_arguments)
    }

    fn call_arguments(&mut self) -> Result<Arguments> {
        self.expect_symbol("(")?;
        let mut arguments = Arguments::default();
        let mut is_first = true;
        while !self.is_symbol(")") {
            if !is_first {
                self.expect_symbol(",")?;
                if self.is_symbol(")") {
                    break;
                }
            }
            is_first = false;
            let is_named = matches!(self.peek(), Some(Token::Name(_)))
                && matches!(self.peek_second(), Some(Token::Symbol("=")));
            if self.skip_symbol("**") {
                arguments.more_named = Some(Box::new(self.expression()?));
            } else if self.skip_symbol("*") {
                arguments.more = Some(Box::new(self.expression()?));
            } else if is_named {
                let name = self.expect_name()?;
                self.position += 1;
                arguments.named.push((name, self.expression()?));
            } else if arguments.named.is_empty() && arguments.more_named.is_none() {
                arguments.positional.push(self.expression()?);
            } else {
                return self.fail("invalid syntax for function call expression");
            }
        }
        self.expect_symbol(")")?;
        Ok(arguments)
    }
}
