//! The syntax trees of answers.

use num_rational::BigRational;

/// An expression with one value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    /// A number literal.
    Number {
        /// Exact value of the literal.
        value: BigRational,
        /// Number of digits after the decimal point; 0 for integers.
        places: usize,
    },
    /// A variable or a named constant (`pi`, `e`, `i`, `oo`).
    Name(String),
    /// A sum of terms.
    Sum(Vec<Expression>),
    /// A product of factors.
    Product(Vec<Expression>),
    /// Numerator and denominator.
    Quotient(Box<Expression>, Box<Expression>),
    /// Base and exponent.
    Power(Box<Expression>, Box<Expression>),
    /// Radicand and degree of a root.
    Root(Box<Expression>, u32),
    /// An application of a function with a known name.
    Function(&'static str, Vec<Expression>),
    /// A value with a percent sign.
    Percent(Box<Expression>),
}

impl Expression {
    pub(super) fn integer(value: i64) -> Self {
        Self::Number { value: BigRational::from_integer(value.into()), places: 0 }
    }

    pub(super) fn negated(self) -> Self {
        match self {
            Self::Number { value, places } => Self::Number { value: -value, places },
            other => Self::Product(vec![Self::integer(-1), other]),
        }
    }

    /// Returns `self - other`.
    pub(super) fn minus(&self, other: &Self) -> Self {
        Self::Sum(vec![self.clone(), other.clone().negated()])
    }

    /// Whether the expression has a variable or a named constant.
    pub(super) fn has_names(&self) -> bool {
        match self {
            Self::Number { .. } => false,
            Self::Name(_) => true,
            Self::Sum(parts) | Self::Product(parts) | Self::Function(_, parts) => {
                parts.iter().any(Self::has_names)
            }
            Self::Quotient(left, right) | Self::Power(left, right) => left.has_names() || right.has_names(),
            Self::Root(part, _) | Self::Percent(part) => part.has_names(),
        }
    }

    /// Whether the expression consists of names only, like the left side of `x = 5` or `f(x) = 5`.
    pub(super) fn is_name(&self) -> bool {
        match self {
            Self::Name(_) => true,
            Self::Product(factors) => factors.iter().all(Self::is_name),
            _ => false,
        }
    }
}

/// An equality or inequality sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Relation {
    /// Returns the sign after both sides are exchanged.
    pub(super) fn flipped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            same => same,
        }
    }

    /// Whether the sign is `<` or `>`.
    pub(super) fn is_strict(self) -> bool {
        matches!(self, Self::Less | Self::Greater)
    }
}

/// The kind of a bracket of an interval or a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bracket {
    /// A round bracket: the end is excluded.
    Round,
    /// A square bracket: the end is included.
    Square,
}

/// A parsed answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// A single value.
    Expression(Expression),
    /// Lower-case letters and digits of a text.
    Text(String),
    /// Values with commas between them and without brackets; their order does not count.
    List(Vec<Answer>),
    /// Values in braces; their order does not count.
    Set(Vec<Answer>),
    /// Values in brackets: a tuple, a point, or an interval of two ends.
    Tuple(Bracket, Vec<Answer>, Bracket),
    /// A union of sets and intervals; their order does not count.
    Union(Vec<Answer>),
    /// Sides of equations and inequalities, and the signs between them.
    Relation(Vec<Answer>, Vec<Relation>),
    /// Rows of a matrix.
    Matrix(Vec<Vec<Answer>>),
}
