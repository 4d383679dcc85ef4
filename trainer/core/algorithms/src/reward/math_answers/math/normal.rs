//! The normal form of expressions: quotients of polynomials with rational coefficients.
//!
//! The generators are names, the imaginary unit, roots of primes, and opaque terms. Roots of different primes
//! are linearly independent over the rational numbers, so two expressions without opaque terms are equal
//! exactly if the difference of their normal forms is zero.

mod polynomial;
mod roots;

use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::expression::Expression;
pub(super) use polynomial::Fuel;
use polynomial::{Atom, Exponent, Polynomial};

/// Largest exponent for which the power of a sum is expanded.
const MAX_EXPANDED: u64 = 40;

/// A quotient of polynomials. A denominator of one term is 1, since it is multiplied into the numerator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Normal {
    pub(super) above: Polynomial,
    below: Polynomial,
}

impl Normal {
    fn of(above: Polynomial) -> Self {
        Self { above, below: Polynomial::one() }
    }

    fn new(above: Polynomial, below: Polynomial, fuel: &mut Fuel) -> Option<Self> {
        match below.single_term() {
            Some((monomial, coefficient)) => {
                let inverse = Polynomial::term(monomial.power(&-Exponent::one())?, coefficient.recip());
                Some(Self::of(above.times(&inverse, fuel)?))
            }
            None if below.is_zero() => None,
            None => Some(Self { above, below }),
        }
    }

    /// Whether two normal forms are equal.
    pub(super) fn equals(&self, other: &Self, fuel: &mut Fuel) -> Option<bool> {
        Some(self.above.times(&other.below, fuel)? == other.above.times(&self.below, fuel)?)
    }

    /// Whether the normal form has an opaque term, so that unequal normal forms may have equal values.
    pub(super) fn is_opaque(&self) -> bool {
        self.above.is_opaque() || self.below.is_opaque()
    }

    pub(super) fn is_zero(&self) -> bool {
        self.above.is_zero()
    }

    /// Returns the value if it is a rational number.
    pub(super) fn rational(&self) -> Option<BigRational> {
        if self.is_zero() {
            return Some(BigRational::zero());
        }
        let (monomial, coefficient) = self.above.single_term()?;
        (self.below == Polynomial::one() && monomial.is_one()).then(|| coefficient.clone())
    }

    /// Returns a text that is the same for equal numerators and equal denominators.
    pub(super) fn key(&self) -> String {
        if self.below == Polynomial::one() {
            self.above.key()
        } else {
            format!("({})/({})", self.above.key(), self.below.key())
        }
    }

    fn plus(&self, other: &Self, fuel: &mut Fuel) -> Option<Self> {
        if self.below == other.below {
            return Some(Self { above: self.above.plus(&other.above), below: self.below.clone() });
        }
        let above = self.above.times(&other.below, fuel)?.plus(&other.above.times(&self.below, fuel)?);
        Self::new(above, self.below.times(&other.below, fuel)?, fuel)
    }

    fn times(&self, other: &Self, fuel: &mut Fuel) -> Option<Self> {
        Self::new(self.above.times(&other.above, fuel)?, self.below.times(&other.below, fuel)?, fuel)
    }

    fn over(&self, other: &Self, fuel: &mut Fuel) -> Option<Self> {
        Self::new(self.above.times(&other.below, fuel)?, self.below.times(&other.above, fuel)?, fuel)
    }

    /// Returns the power with a rational exponent.
    fn power(&self, exponent: &BigRational, fuel: &mut Fuel) -> Option<Self> {
        let opaque = |base: &Self| {
            Some(Self::of(Polynomial::atom(Atom::Opaque(format!("({})^({exponent})", base.key())))))
        };
        if self.is_zero() {
            return exponent.is_positive().then(|| self.clone());
        }
        if self.below == Polynomial::one()
            && let Some((monomial, coefficient)) = self.above.single_term()
        {
            let power = roots::power_of_term(monomial, coefficient, exponent, fuel);
            return power.map_or_else(|| opaque(self), |power| Some(Self::of(power)));
        }
        let times = exponent
            .abs()
            .to_integer()
            .to_u64()
            .filter(|times| exponent.is_integer() && *times <= MAX_EXPANDED);
        let Some(times) = times else { return opaque(self) };
        let mut power = Self::of(Polynomial::one());
        for _ in 0..times {
            power = power.times(self, fuel)?;
        }
        if exponent.is_negative() { Self::of(Polynomial::one()).over(&power, fuel) } else { Some(power) }
    }
}

/// Returns the normal form of an expression; `None` if it has none (a division by 0) or exceeds the fuel.
pub(super) fn normal(expression: &Expression, fuel: &mut Fuel) -> Option<Normal> {
    fuel.spend(1)?;
    Some(match expression {
        Expression::Number { value, .. } => Normal::of(Polynomial::constant(value.clone())),
        Expression::Name(name) if name == "i" => Normal::of(Polynomial::atom(Atom::Imaginary)),
        Expression::Name(name) => Normal::of(Polynomial::atom(Atom::Name(name.clone()))),
        Expression::Sum(terms) => {
            let mut sum = Normal::of(Polynomial::zero());
            for term in terms {
                sum = sum.plus(&normal(term, fuel)?, fuel)?;
            }
            sum
        }
        Expression::Product(factors) => {
            let mut product = Normal::of(Polynomial::one());
            for factor in factors {
                product = product.times(&normal(factor, fuel)?, fuel)?;
            }
            product
        }
        Expression::Quotient(above, below) => normal(above, fuel)?.over(&normal(below, fuel)?, fuel)?,
        Expression::Percent(value) => {
            let hundredth = BigRational::new(1.into(), 100.into());
            normal(value, fuel)?.times(&Normal::of(Polynomial::constant(hundredth)), fuel)?
        }
        Expression::Root(radicand, degree) => {
            let exponent = BigRational::new(1.into(), (*degree).into());
            normal(radicand, fuel)?.power(&exponent, fuel)?
        }
        Expression::Power(base, exponent) => {
            let (base, exponent) = (normal(base, fuel)?, normal(exponent, fuel)?);
            match exponent.rational() {
                Some(exponent) => base.power(&exponent, fuel)?,
                None => Normal::of(Polynomial::atom(Atom::Opaque(format!(
                    "({})^({})",
                    base.key(),
                    exponent.key()
                )))),
            }
        }
        Expression::Function(name, arguments) => {
            let mut key = (*name).to_owned();
            for argument in arguments {
                let argument = normal(argument, fuel)?;
                if let Some(value) = argument.rational().and_then(|value| rounded(name, &value)) {
                    return Some(Normal::of(Polynomial::constant(value)));
                }
                key += &format!("({})", argument.key());
            }
            Normal::of(Polynomial::atom(Atom::Opaque(key)))
        }
    })
}

/// Returns the absolute value, the floor or the ceiling of a number.
fn rounded(function: &str, value: &BigRational) -> Option<BigRational> {
    match function {
        "abs" => Some(value.abs()),
        "floor" => Some(value.floor()),
        "ceil" => Some(value.ceil()),
        _ => None,
    }
}
