//! Polynomials with rational coefficients and rational exponents.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_rational::{BigRational, Ratio};
use num_traits::{CheckedAdd, CheckedMul, One, Zero};

/// Exponent of a generator.
pub(in super::super) type Exponent = Ratio<i64>;

/// Largest numerator and denominator of an exponent.
const MAX_EXPONENT: i64 = 100_000;
/// Largest number of bits of a numerator or denominator.
const MAX_BITS: u64 = 4096;

/// Remaining work of a comparison, in multiplications of terms.
#[derive(Debug)]
pub(in super::super) struct Fuel(u64);

impl Fuel {
    pub(in super::super) fn new(steps: u64) -> Self {
        Self(steps)
    }

    pub(in super::super) fn spend(&mut self, steps: usize) -> Option<()> {
        self.0 = self.0.checked_sub(steps as u64)?;
        Some(())
    }
}

/// A generator of polynomials.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Atom {
    /// The imaginary unit, whose exponent is 0 or 1.
    Imaginary,
    /// A prime, or a large number that was not factored, with an exponent between 0 and 1.
    Prime(BigInt),
    /// A variable or a transcendental constant.
    Name(String),
    /// A term that is not expanded, identified by its text.
    Opaque(String),
}

/// A product of generators with exponents other than 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Monomial(pub(super) BTreeMap<Atom, Exponent>);

impl Monomial {
    pub(super) fn is_one(&self) -> bool {
        self.0.is_empty()
    }

    /// Raises every generator to `exponent`.
    pub(super) fn power(&self, exponent: &Exponent) -> Option<Self> {
        let raised =
            self.0.iter().map(|(atom, power)| Some((atom.clone(), bounded(power.checked_mul(exponent)?)?)));
        raised.collect::<Option<_>>().map(Self)
    }

    fn times(&self, other: &Self) -> Option<Self> {
        let mut product = self.0.clone();
        for (atom, exponent) in &other.0 {
            let sum =
                product.get(atom).map_or(Some(*exponent), |power| bounded(power.checked_add(exponent)?))?;
            if sum.is_zero() {
                product.remove(atom)
            } else {
                product.insert(atom.clone(), sum)
            };
        }
        Some(Self(product))
    }

    /// Moves whole powers of primes and of the imaginary unit into a factor.
    fn reduced(mut self) -> Option<(Self, BigRational)> {
        let mut factor = BigRational::one();
        for (atom, exponent) in &mut self.0 {
            let whole = exponent.floor().to_integer();
            match atom {
                Atom::Prime(prime) if whole != 0 => {
                    factor *= integer_power(&BigRational::from_integer(prime.clone()), whole)?;
                    *exponent -= Ratio::from_integer(whole);
                }
                Atom::Imaginary if whole != 0 && exponent.is_integer() => {
                    let quarter = whole.rem_euclid(4);
                    if quarter >= 2 {
                        factor = -factor;
                    }
                    *exponent = Ratio::from_integer(quarter % 2);
                }
                _ => {}
            }
        }
        self.0.retain(|_, exponent| !exponent.is_zero());
        Some((self, factor))
    }
}

pub(super) fn bounded(exponent: Exponent) -> Option<Exponent> {
    (exponent.numer().abs() <= MAX_EXPONENT && *exponent.denom() <= MAX_EXPONENT).then_some(exponent)
}

/// The power of a rational number, unless it has too many bits.
pub(super) fn integer_power(base: &BigRational, exponent: i64) -> Option<BigRational> {
    let times = u32::try_from(exponent.unsigned_abs()).ok()?;
    let bits = base.numer().bits().max(base.denom().bits());
    // The powers of 0, 1 and -1 have one bit.
    if bits > 1 && bits.checked_mul(u64::from(times))? > MAX_BITS {
        return None;
    }
    let power = BigRational::new(base.numer().pow(times), base.denom().pow(times));
    if exponent >= 0 {
        return Some(power);
    }
    (!power.is_zero()).then(|| power.recip())
}

/// A sum of terms with coefficients other than 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct Polynomial(BTreeMap<Monomial, BigRational>);

impl Polynomial {
    pub(super) fn zero() -> Self {
        Self::default()
    }

    pub(super) fn one() -> Self {
        Self::constant(BigRational::one())
    }

    pub(super) fn constant(value: BigRational) -> Self {
        Self::term(Monomial::default(), value)
    }

    pub(super) fn atom(atom: Atom) -> Self {
        Self::term(Monomial(BTreeMap::from([(atom, Exponent::one())])), BigRational::one())
    }

    pub(super) fn term(monomial: Monomial, coefficient: BigRational) -> Self {
        Self(if coefficient.is_zero() { BTreeMap::new() } else { BTreeMap::from([(monomial, coefficient)]) })
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn single_term(&self) -> Option<(&Monomial, &BigRational)> {
        self.0.first_key_value().filter(|_| self.0.len() == 1)
    }

    pub(super) fn is_opaque(&self) -> bool {
        self.0.keys().flat_map(|monomial| monomial.0.keys()).any(|atom| matches!(atom, Atom::Opaque(_)))
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        other.0.iter().for_each(|(monomial, coefficient)| sum.add(monomial.clone(), coefficient.clone()));
        sum
    }

    fn add(&mut self, monomial: Monomial, coefficient: BigRational) {
        let sum = self.0.get(&monomial).map_or(coefficient.clone(), |present| present + coefficient);
        if sum.is_zero() {
            self.0.remove(&monomial)
        } else {
            self.0.insert(monomial, sum)
        };
    }

    pub(super) fn times(&self, other: &Self, fuel: &mut Fuel) -> Option<Self> {
        fuel.spend(self.0.len() * other.0.len())?;
        let mut product = Self::zero();
        for (left, left_coefficient) in &self.0 {
            for (right, right_coefficient) in &other.0 {
                let (monomial, factor) = left.times(right)?.reduced()?;
                let coefficient = left_coefficient * right_coefficient * factor;
                if coefficient.numer().bits().max(coefficient.denom().bits()) > MAX_BITS {
                    return None;
                }
                product.add(monomial, coefficient);
            }
        }
        Some(product)
    }

    /// The ratio of this polynomial to `other`, if it is a rational number.
    pub(in super::super) fn ratio(&self, other: &Self) -> Option<BigRational> {
        if self.0.len() != other.0.len() {
            return None;
        }
        let ratio =
            |((left, above), (right, below)): ((&Monomial, &BigRational), (&Monomial, &BigRational))| {
                (left == right).then(|| above / below)
            };
        let ratios: Vec<BigRational> = self.0.iter().zip(&other.0).map(ratio).collect::<Option<_>>()?;
        let first = ratios.first()?.clone();
        ratios.iter().all(|ratio| *ratio == first).then_some(first)
    }

    pub(super) fn key(&self) -> String {
        let atom = |(atom, exponent): (&Atom, &Exponent)| match atom {
            Atom::Imaginary => "*i".to_owned(),
            Atom::Prime(prime) => format!("*{prime}^{exponent}"),
            Atom::Name(name) if exponent.is_one() => format!("*{name}"),
            Atom::Name(text) | Atom::Opaque(text) => format!("*{text}^{exponent}"),
        };
        let term = |(monomial, coefficient): (&Monomial, &BigRational)| {
            coefficient.to_string() + &monomial.0.iter().map(atom).collect::<String>()
        };
        let terms: Vec<String> = self.0.iter().map(term).collect();
        if terms.is_empty() { "0".to_owned() } else { terms.join("+") }
    }
}
