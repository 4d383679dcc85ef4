//! Statements of a template. The grammar is that of `jinja2/parser.py`.

mod expression;

use std::sync::Arc;

use crate::ast::{Body, CAPTURED, Expr, For, Macro, Node, Parameter, Statement, Target};
use crate::error::{Error, Result};
use crate::lexer::{Located, Token};

/// Maximum depth of nested blocks and expressions.
const MAX_DEPTH: usize = 80;
/// Maximum number of chained operators in one expression; a longer chain could not be evaluated.
const MAX_CHAIN: usize = 250;

/// Parses the tokens of a template.
pub(crate) fn parse(tokens: Vec<Located>) -> Result<Body> {
    let mut parser = Parser { tokens, position: 0, depth: 0, chained: 0 };
    let (body, _) = parser.body(&[])?;
    Ok(body)
}

pub(crate) struct Parser {
    tokens: Vec<Located>,
    position: usize,
    depth: usize,
    /// Number of operators whose left operand is an expression, in the expressions that are being parsed.
    chained: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.position).map(|located| &located.token)
    }

    fn peek_second(&self) -> Option<&Token> {
        self.tokens.get(self.position + 1).map(|located| &located.token)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.position).or(self.tokens.last()).map_or(1, |located| located.line)
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Error::syntax(self.line(), message))
    }

    fn unexpected<T>(&self, expected: &str) -> Result<T> {
        match self.peek() {
            Some(token) => self.fail(format!("expected {expected}, got {}", describe(token))),
            None => self.fail(format!("expected {expected}, got the end of the template")),
        }
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.position).map(|located| located.token.clone());
        self.position += 1;
        token
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), Some(Token::Symbol(found)) if *found == symbol)
    }

    fn skip_symbol(&mut self, symbol: &str) -> bool {
        let found = self.is_symbol(symbol);
        self.position += usize::from(found);
        found
    }

    fn expect_symbol(&mut self, symbol: &str) -> Result<()> {
        if self.skip_symbol(symbol) { Ok(()) } else { self.unexpected(&format!("'{symbol}'")) }
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if **found == *name)
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.position += usize::from(found);
        found
    }

    fn expect_name(&mut self) -> Result<Arc<str>> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = name.clone();
                self.position += 1;
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn expect(&mut self, token: &Token) -> Result<()> {
        if self.peek() == Some(token) {
            self.position += 1;
            return Ok(());
        }
        self.unexpected(&describe(token))
    }

    /// Runs `parse` one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail(format!("blocks and expressions are nested more than {MAX_DEPTH} deep"));
        }
        let chained = self.chained;
        let parsed = parse(self);
        self.depth -= 1;
        self.chained = chained;
        parsed
    }

    /// Counts an operator whose left operand is an expression. The limit keeps trees shallow enough to be
    /// freed.
    fn chain(&mut self) -> Result<()> {
        self.chained += 1;
        if self.chained > MAX_CHAIN {
            return self.fail(format!("an expression has more than {MAX_CHAIN} operators"));
        }
        Ok(())
    }

    /// Reads statements up to a tag whose name is one of `ends`, and that name. Without `ends`, reads up to
    /// the end of the template.
    fn body(&mut self, ends: &[&str]) -> Result<(Body, Arc<str>)> {
        self.nested(|parser| parser.statements(ends))
    }

    fn statements(&mut self, ends: &[&str]) -> Result<(Body, Arc<str>)> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.next() {
                None if ends.is_empty() => return Ok((body, "".into())),
                None => {
                    return self.fail(format!("unexpected end of template, expected {}", ends.join(" or ")));
                }
                Some(Token::Text(text)) => body.push(Statement { line, node: Node::Text(text) }),
                Some(Token::VariableBegin) => {
                    let value = self.tuple(true, &[])?;
                    self.expect(&Token::VariableEnd)?;
                    body.push(Statement { line, node: Node::Print(value) });
                }
                Some(_) => {
                    let name = self.expect_name()?;
                    if ends.contains(&&*name) {
                        return Ok((body, name));
                    }
                    let node = self.statement(&name)?;
                    body.push(Statement { line, node });
                }
            }
        }
    }

    /// Reads the body of a block and the rest of the tag that ends it.
    fn block(&mut self, end: &str) -> Result<Body> {
        self.expect(&Token::BlockEnd)?;
        let (body, _) = self.body(&[end])?;
        self.expect(&Token::BlockEnd)?;
        Ok(body)
    }

    fn statement(&mut self, name: &str) -> Result<Node> {
        match name {
            "if" => self.if_block(),
            "for" => self.for_block(),
            "set" => self.set(),
            "macro" => {
                let name = self.expect_name()?;
                let parameters = self.parameters()?;
                Ok(Node::Macro(Arc::new(self.macro_body(name, parameters, "endmacro")?)))
            }
            "call" => self.call_block(),
            "filter" => {
                let value = self.nested(|parser| parser.filters(Expr::Name(CAPTURED.into()), true))?;
                Ok(Node::Filter { value, body: self.block("endfilter")? })
            }
            "with" => self.with_block(),
            "generation" => {
                let body = self.macro_body("generation".into(), Vec::new(), "endgeneration")?;
                Ok(Node::Generation(Arc::new(body)))
            }
            "block" => {
                self.expect_name()?;
                let is_scoped = self.skip_name("scoped");
                self.expect(&Token::BlockEnd)?;
                let (body, _) = self.body(&["endblock"])?;
                if matches!(self.peek(), Some(Token::Name(_))) {
                    self.position += 1;
                }
                self.end_of(Node::Block { body, is_scoped })
            }
            "print" => self.print(),
            "autoescape" => match self.expression()? {
                Expr::Bool(false) => Ok(Node::Block { body: self.block("endautoescape")?, is_scoped: true }),
                _ => self.fail("autoescape is supported with false alone, as text is not escaped here"),
            },
            "break" => self.end_of(Node::Break),
            "continue" => self.end_of(Node::Continue),
            _ => self.fail(format!("Encountered unknown tag '{name}'.")),
        }
    }

    fn end_of(&mut self, node: Node) -> Result<Node> {
        self.expect(&Token::BlockEnd)?;
        Ok(node)
    }

    fn if_block(&mut self) -> Result<Node> {
        let mut arms = Vec::new();
        loop {
            let test = self.tuple(false, &[])?;
            self.expect(&Token::BlockEnd)?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            arms.push((test, body));
            match &*end {
                "elif" => {}
                "else" => return Ok(Node::If { arms, otherwise: self.block("endif")? }),
                _ => return self.end_of(Node::If { arms, otherwise: Vec::new() }),
            }
        }
    }

    fn for_block(&mut self) -> Result<Node> {
        let target = self.target(&["in"])?;
        if !self.skip_name("in") {
            return self.unexpected("'in'");
        }
        let items = self.tuple(false, &["recursive"])?;
        let filter = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.expect(&Token::BlockEnd)?;
        let (body, end) = self.body(&["endfor", "else"])?;
        let otherwise = if &*end == "else" {
            self.block("endfor")?
        } else {
            self.expect(&Token::BlockEnd)?;
            Vec::new()
        };
        Ok(Node::For(Arc::new(For { target, items, filter, recursive, body, otherwise })))
    }

    fn set(&mut self) -> Result<Node> {
        let target = self.target(&[])?;
        if self.skip_symbol("=") {
            let value = self.tuple(true, &[])?;
            return self.end_of(Node::Set { target, value });
        }
        let value = self.nested(|parser| parser.filters(Expr::Name(CAPTURED.into()), false))?;
        Ok(Node::SetBlock { target, value, body: self.block("endset")? })
    }

    /// Reads `{% print a, b %}`, which prints one value after the other.
    fn print(&mut self) -> Result<Node> {
        let mut values = Vec::new();
        while !matches!(self.peek(), Some(Token::BlockEnd) | None) {
            if !values.is_empty() {
                self.expect_symbol(",")?;
            }
            values.push(self.expression()?);
        }
        let value = match values.pop() {
            Some(only) if values.is_empty() => only,
            last => {
                values.extend(last);
                Expr::Concat(values)
            }
        };
        self.end_of(Node::Print(value))
    }

    fn with_block(&mut self) -> Result<Node> {
        let mut pairs = Vec::new();
        while !matches!(self.peek(), Some(Token::BlockEnd) | None) {
            if !pairs.is_empty() {
                self.expect_symbol(",")?;
            }
            let target = self.single_target()?;
            self.expect_symbol("=")?;
            pairs.push((target, self.expression()?));
        }
        Ok(Node::With { pairs, body: self.block("endwith")? })
    }

    fn call_block(&mut self) -> Result<Node> {
        let parameters = if self.is_symbol("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(call, Expr::Call(..)) {
            return self.fail("expected call");
        }
        let caller = self.macro_body("caller".into(), parameters, "endcall")?;
        Ok(Node::Call { call, caller: Arc::new(caller) })
    }

    fn macro_body(&mut self, name: Arc<str>, parameters: Vec<Parameter>, end: &str) -> Result<Macro> {
        let start = self.position;
        let body = self.block(end)?;
        let read = |name: &str| {
            let tokens = &self.tokens[start..self.position];
            tokens.iter().any(|located| matches!(&located.token, Token::Name(found) if **found == *name))
        };
        let reads = [read("varargs"), read("kwargs"), read("caller")];
        Ok(Macro { name, parameters, body, reads })
    }

    fn parameters(&mut self) -> Result<Vec<Parameter>> {
        self.expect_symbol("(")?;
        let mut parameters: Vec<Parameter> = Vec::new();
        while !self.is_symbol(")") {
            if !parameters.is_empty() {
                self.expect_symbol(",")?;
            }
            let name = self.expect_name()?;
            let default = if self.skip_symbol("=") { Some(self.expression()?) } else { None };
            if default.is_none() && parameters.iter().any(|parameter| parameter.default.is_some()) {
                return self.fail("non-default argument follows default argument");
            }
            parameters.push(Parameter { name, default });
        }
        self.expect_symbol(")")?;
        Ok(parameters)
    }

    /// Reads the target of an assignment: names, tuples of names, or attributes of namespaces.
    fn target(&mut self, ends: &[&str]) -> Result<Target> {
        let mut targets = vec![self.single_target()?];
        let mut is_tuple = false;
        while self.skip_symbol(",") {
            is_tuple = true;
            let is_end = match self.peek() {
                Some(Token::Name(name)) => ends.contains(&&**name),
                Some(Token::Symbol("(")) => false,
                _ => true,
            };
            if is_end {
                break;
            }
            targets.push(self.single_target()?);
        }
        match targets.pop() {
            Some(only) if targets.is_empty() && !is_tuple => Ok(only),
            last => {
                targets.extend(last);
                Ok(Target::Tuple(targets))
            }
        }
    }

    fn single_target(&mut self) -> Result<Target> {
        if self.skip_symbol("(") {
            let target = self.nested(|parser| parser.target(&[]))?;
            self.expect_symbol(")")?;
            return Ok(target);
        }
        let name = self.expect_name()?;
        if self.skip_symbol(".") {
            return Ok(Target::Attribute(name, self.expect_name()?));
        }
        if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
            return self.fail(format!("can't assign to '{name}'"));
        }
        Ok(Target::Name(name))
    }
}

fn describe(token: &Token) -> String {
    match token {
        Token::Text(_) => "text".to_owned(),
        Token::VariableBegin => "'{{'".to_owned(),
        Token::VariableEnd => "'}}'".to_owned(),
        Token::BlockBegin => "'{%'".to_owned(),
        Token::BlockEnd => "'%}'".to_owned(),
        Token::Name(name) => format!("'{name}'"),
        Token::Str(_) => "a string".to_owned(),
        Token::Int(_) | Token::Float(_) => "a number".to_owned(),
        Token::Symbol(symbol) => format!("'{symbol}'"),
    }
}
