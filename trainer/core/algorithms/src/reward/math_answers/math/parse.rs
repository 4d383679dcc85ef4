//! A recursive-descent parser of answers.
//!
//! ```text
//! list = relation {"," relation} [","]
//! relation = ["="] union {("=" | "<" | ..) union}
//! union = sum {"cup" sum}
//! sum = terms [("over" | "choose") terms]
//! terms = ["-"] term {("+" | "-") term}
//! term = power {["*" | "/"] power}
//! power = primary {"^" argument | "!" | "%"}
//! ```
//! Every rule returns an [`Answer`]; arithmetic accepts those that are expressions.

mod primary;

use num_traits::ToPrimitive;

use super::expression::{Answer, Expression, Relation};
use super::token::{Token, tokens};

/// Deepest nesting of brackets and arguments.
const MAX_DEPTH: usize = 30;
/// Largest number of operators that nest one expression in another without brackets.
const MAX_NESTING: usize = 60;
/// Largest argument of a factorial or a binomial coefficient that is computed.
const MAX_FACTORIAL: u32 = 500;
/// Largest k for which a binomial coefficient (n over k) of a symbolic n is expanded to a product.
const MAX_CHOSEN: u32 = 10;

/// Reads an answer. Returns `None` for a text that is not mathematics.
pub(super) fn parse(text: &str) -> Option<Answer> {
    let tokens = tokens(text)?;
    let nests = |token: &&Token| matches!(token, Token::Sign("^" | "/" | ":" | "!" | "%"));
    if tokens.iter().filter(nests).count() > MAX_NESTING {
        return None;
    }
    if !tokens.iter().any(|token| matches!(token, Token::Sign("+-" | "-+"))) {
        return Parser::new(tokens).answer();
    }
    // The sign stands for both values, such as those of `1 \pm \sqrt{2}`.
    let with = |sign: &'static str, opposite: &'static str| {
        let exchange = |token: &Token| match token {
            Token::Sign("+-") => Token::Sign(sign),
            Token::Sign("-+") => Token::Sign(opposite),
            other => other.clone(),
        };
        Parser::new(tokens.iter().map(exchange).collect()).answer()
    };
    Some(match (with("+", "-")?, with("-", "+")?) {
        (Answer::List(plus), Answer::List(minus)) => Answer::List([plus, minus].concat()),
        (Answer::Set(plus), Answer::Set(minus)) => Answer::Set([plus, minus].concat()),
        (plus, minus) => Answer::List(vec![plus, minus]),
    })
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    depth: usize,
    /// Number of open `|`, inside of which a `|` closes.
    num_bars: usize,
}

impl Parser {
    fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, next: 0, depth: 0, num_bars: 0 }
    }

    fn answer(mut self) -> Option<Answer> {
        let answer = self.list()?;
        (self.next == self.tokens.len()).then_some(answer)
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    fn sign(&self) -> Option<&'static str> {
        match self.peek() {
            Some(Token::Sign(sign)) => Some(*sign),
            _ => None,
        }
    }

    /// Consumes `sign` if it is next.
    fn accept(&mut self, sign: &str) -> bool {
        let is_next = self.sign() == Some(sign);
        self.next += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, sign: &str) -> Option<()> {
        self.accept(sign).then_some(())
    }

    fn list(&mut self) -> Option<Answer> {
        let first = self.relation()?;
        let mut items = vec![first];
        while self.accept(",") {
            // `1, 2, and 3` has two separators in a row.
            while self.accept(",") {}
            if self.next == self.tokens.len() {
                break;
            }
            items.push(self.relation()?);
        }
        if items.len() > 1 { Some(Answer::List(items)) } else { items.pop() }
    }

    fn relation(&mut self) -> Option<Answer> {
        // `\approx 5` states a value alone.
        self.accept("=");
        let (mut sides, mut relations) = (vec![self.union()?], Vec::new());
        if self.accept("in") {
            return self.union();
        }
        while let Some(relation) = self.sign().and_then(relation) {
            self.next += 1;
            relations.push(relation);
            sides.push(self.union()?);
        }
        if relations.is_empty() { sides.pop() } else { Some(Answer::Relation(sides, relations)) }
    }

    fn union(&mut self) -> Option<Answer> {
        let mut members = vec![self.sum()?];
        while self.accept("cup") {
            members.push(self.sum()?);
        }
        if members.len() > 1 && members.iter().all(|member| matches!(member, Answer::Set(_))) {
            let items = members.into_iter().flat_map(|member| match member {
                Answer::Set(items) => items,
                other => vec![other],
            });
            return Some(Answer::Set(items.collect()));
        }
        if members.len() > 1 { Some(Answer::Union(members)) } else { members.pop() }
    }

    fn sum(&mut self) -> Option<Answer> {
        let above = self.terms()?;
        let is_fraction = self.accept("over");
        if !is_fraction && !self.accept("choose") {
            return Some(above);
        }
        let (above, below) = (expression(above)?, expression(self.terms()?)?);
        Some(Answer::Expression(if is_fraction {
            Expression::Quotient(Box::new(above), Box::new(below))
        } else {
            binomial(above, below)
        }))
    }

    fn terms(&mut self) -> Option<Answer> {
        let mut terms = Vec::new();
        loop {
            let is_negative = if self.accept("-") {
                true
            } else if self.accept("+") || terms.is_empty() {
                false
            } else {
                break;
            };
            let term = self.term()?;
            if terms.is_empty() && !is_negative && !matches!(self.sign(), Some("+" | "-")) {
                return Some(term);
            }
            let term = expression(term)?;
            terms.push(if is_negative { term.negated() } else { term });
        }
        let sum = if terms.len() > 1 { Expression::Sum(terms) } else { terms.pop()? };
        Some(Answer::Expression(sum))
    }

    fn term(&mut self) -> Option<Answer> {
        let first = self.power()?;
        if !self.continues_term() {
            return Some(first);
        }
        let mut product = expression(first)?;
        while self.continues_term() {
            product = self.factor(product)?;
        }
        Some(Answer::Expression(product))
    }

    fn continues_term(&self) -> bool {
        matches!(self.sign(), Some("*" | "/" | ":"))
            || matches!(self.peek(), Some(Token::Word(_)))
            || self.starts_primary()
    }

    /// Multiplies or divides `product` by the next factor, or drops the unit that follows it.
    fn factor(&mut self, product: Expression) -> Option<Expression> {
        if let Some(Token::Word(_)) = self.peek() {
            self.next += 1;
            if self.accept("^") {
                self.argument()?;
            }
            return Some(product);
        }
        if self.accept("/") || self.accept(":") {
            let divisor = self.signed_power()?;
            return Some(Expression::Quotient(Box::new(product), Box::new(divisor)));
        }
        if self.accept("*") {
            let factor = self.signed_power()?;
            return Some(times(product, factor));
        }
        let is_number = matches!(self.tokens[self.next - 1..], [Token::Number(_), Token::Number(_), ..]);
        let is_fraction = self.peek() == Some(&Token::Command("frac"));
        let factor = expression(self.power()?)?;
        match (&product, &factor) {
            // A mixed number: `3\frac{1}{2}` or `3 1/2`.
            (Expression::Number { places: 0, .. }, Expression::Quotient(above, below))
                if is_fraction && is_whole(above) && is_whole(below) =>
            {
                Some(Expression::Sum(vec![product, factor]))
            }
            (Expression::Number { places: 0, .. }, Expression::Percent(fraction)) if is_fraction => {
                let value = Expression::Sum(vec![product, (**fraction).clone()]);
                Some(Expression::Percent(Box::new(value)))
            }
            (Expression::Number { places: 0, .. }, _)
                if is_number && is_whole(&factor) && self.accept("/") =>
            {
                let divisor = expression(self.power()?)?;
                let fraction = Expression::Quotient(Box::new(factor), Box::new(divisor));
                Some(Expression::Sum(vec![product, fraction]))
            }
            _ if is_number => None,
            _ => Some(times(product, factor)),
        }
    }

    fn signed_power(&mut self) -> Option<Expression> {
        let is_negative = self.accept("-");
        let power = expression(self.power()?)?;
        Some(if is_negative { power.negated() } else { power })
    }

    fn power(&mut self) -> Option<Answer> {
        let mut base = self.primary()?;
        loop {
            if self.accept("^") {
                let exponent = self.exponent()?;
                base = Answer::Expression(Expression::Power(Box::new(expression(base)?), Box::new(exponent)));
            } else if self.accept("!") {
                base = Answer::Expression(factorial(expression(base)?));
            } else if self.accept("%") {
                base = Answer::Expression(Expression::Percent(Box::new(expression(base)?)));
            } else {
                return Some(base);
            }
        }
    }
}

fn relation(sign: &str) -> Option<Relation> {
    Some(match sign {
        "=" => Relation::Equal,
        "!=" => Relation::NotEqual,
        "<" => Relation::Less,
        "<=" => Relation::LessOrEqual,
        ">" => Relation::Greater,
        ">=" => Relation::GreaterOrEqual,
        _ => return None,
    })
}

fn expression(answer: Answer) -> Option<Expression> {
    match answer {
        Answer::Expression(expression) => Some(expression),
        _ => None,
    }
}

fn is_whole(expression: &Expression) -> bool {
    matches!(expression, Expression::Number { places: 0, .. })
}

fn times(left: Expression, right: Expression) -> Expression {
    match left {
        Expression::Product(mut factors) => {
            factors.push(right);
            Expression::Product(factors)
        }
        left => Expression::Product(vec![left, right]),
    }
}

/// Returns the value of a small integer.
fn small(expression: &Expression) -> Option<u32> {
    match expression {
        Expression::Number { value, places: 0 } => {
            value.to_integer().to_u32().filter(|value| *value <= MAX_FACTORIAL)
        }
        _ => None,
    }
}

fn factorial(of: Expression) -> Expression {
    match small(&of) {
        Some(num) => product_of(1, num),
        None => Expression::Function("factorial", vec![of]),
    }
}

fn binomial(above: Expression, below: Expression) -> Expression {
    match (small(&above), small(&below)) {
        (Some(num), Some(chosen)) if chosen <= num => {
            Expression::Quotient(Box::new(product_of(num - chosen + 1, num)), Box::new(product_of(1, chosen)))
        }
        (Some(_), Some(_)) => Expression::integer(0),
        (None, Some(chosen)) if chosen <= MAX_CHOSEN => {
            let factors = (0..chosen).map(|num| above.minus(&Expression::integer(num.into())));
            Expression::Quotient(
                Box::new(Expression::Product(factors.collect())),
                Box::new(product_of(1, chosen)),
            )
        }
        _ => {
            let others = factorial(above.minus(&below));
            Expression::Quotient(
                Box::new(factorial(above)),
                Box::new(Expression::Product(vec![factorial(below), others])),
            )
        }
    }
}

/// Returns the product of the integers from `first` to `last`.
fn product_of(first: u32, last: u32) -> Expression {
    let product = (first.max(1)..=last).fold(num_bigint::BigInt::from(1), |product, factor| product * factor);
    Expression::Number { value: product.into(), places: 0 }
}
