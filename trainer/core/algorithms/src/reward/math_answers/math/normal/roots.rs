//! Powers of a term with rational exponents.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_rational::{BigRational, Ratio};
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::polynomial::{Atom, Exponent, Fuel, Monomial, Polynomial, bounded, integer_power};

/// Largest prime factor that is searched for in a radicand.
const MAX_PRIME: u32 = 1000;
/// Largest power that is searched for in the rest of a radicand.
const MAX_DEGREE: u32 = 6;

/// Returns the power of `coefficient * monomial`; `None` if it cannot be expressed as a term, which is then
/// opaque.
///
/// Odd roots of negative numbers are real: the cube root of -8 is -2.
pub(super) fn power_of_term(
    monomial: &Monomial,
    coefficient: &BigRational,
    exponent: &BigRational,
    fuel: &mut Fuel,
) -> Option<Polynomial> {
    let exponent = bounded(Ratio::new(exponent.numer().to_i32()?.into(), exponent.denom().to_i32()?.into()))?;
    if exponent.is_integer() {
        let coefficient = integer_power(coefficient, exponent.to_integer())?;
        let power = Polynomial::term(monomial.power(&exponent)?, coefficient);
        return power.times(&Polynomial::one(), fuel);
    }
    let is_even_root = exponent.denom() % 2 == 0;
    // The square root of `x^2` is `|x|`, and other roots of the imaginary unit have several values.
    let has_one_root = |(atom, power): (&Atom, &Exponent)| match atom {
        Atom::Prime(_) => true,
        Atom::Imaginary => false,
        _ => !(is_even_root && power.is_integer() && power.to_integer() % 2 == 0),
    };
    if !monomial.0.iter().all(has_one_root) {
        return None;
    }
    let mut root = Polynomial::term(monomial.power(&exponent)?, BigRational::one());
    if coefficient.is_negative() {
        let sign = match (*exponent.denom(), exponent.numer() % 2 == 0) {
            (2, _) => Polynomial::term(imaginary(*exponent.numer()), BigRational::one()),
            (denominator, is_even) if denominator % 2 == 1 => {
                Polynomial::constant(BigRational::from_integer(if is_even { 1.into() } else { (-1).into() }))
            }
            _ => return None,
        };
        root = root.times(&sign, fuel)?;
    }
    let magnitude = coefficient.abs();
    let factors = primes(magnitude.numer(), fuel)?.into_iter().map(|(prime, power)| (prime, power, exponent));
    let divisors =
        primes(magnitude.denom(), fuel)?.into_iter().map(|(prime, power)| (prime, power, -exponent));
    for (prime, power, exponent) in factors.chain(divisors) {
        let power = bounded(exponent * Ratio::from_integer(power))?;
        root = root.times(
            &Polynomial::term(Monomial(BTreeMap::from([(Atom::Prime(prime), power)])), BigRational::one()),
            fuel,
        )?;
    }
    Some(root)
}

fn imaginary(power: i64) -> Monomial {
    Monomial(BTreeMap::from([(Atom::Imaginary, Ratio::from_integer(power))]))
}

/// Factors a positive number into primes with their powers. A factor without small primes is not split; it is
/// the power of its root if it has one.
fn primes(number: &BigInt, fuel: &mut Fuel) -> Option<Vec<(BigInt, i64)>> {
    let (mut rest, mut factors) = (number.clone(), Vec::new());
    for candidate in 2..=MAX_PRIME {
        if rest.is_one() {
            break;
        }
        let mut power = 0;
        while (&rest % candidate).is_zero() {
            fuel.spend(1)?;
            rest /= candidate;
            power += 1;
        }
        if power > 0 {
            factors.push((BigInt::from(candidate), power));
        }
    }
    if !rest.is_one() {
        let degrees = (2..=MAX_DEGREE).rev();
        let mut roots = degrees.map(|degree| (rest.nth_root(degree), degree));
        let root = roots.find(|(root, degree)| root.pow(*degree) == rest);
        factors.push(match root {
            Some((root, degree)) => (root, i64::from(degree)),
            None => (rest, 1),
        });
    }
    Some(factors)
}
