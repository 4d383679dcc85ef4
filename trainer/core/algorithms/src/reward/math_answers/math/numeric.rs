//! Values of expressions in floating point, for expressions with terms that the normal form does not expand.

use num_complex::Complex64;
use num_traits::ToPrimitive;

use super::expression::Expression;

/// Number of points at which expressions with variables are compared. The last has negative coordinates.
pub(super) const NUM_POINTS: u64 = 4;
/// Largest relative difference of equal values.
const TOLERANCE: f64 = 1e-10;

/// Whether two expressions have equal values at every point.
pub(super) fn are_equal(left: &Expression, right: &Expression) -> bool {
    (0..NUM_POINTS).all(|point| match (value(left, point), value(right, point)) {
        (Some(left), Some(right)) => {
            let size = left.norm().max(right.norm()).max(1e-6);
            (left - right).norm() <= TOLERANCE * size
        }
        _ => false,
    })
}

/// The value of an expression at a point. Returns `None` if it is undefined or not finite there.
pub(super) fn value(expression: &Expression, point: u64) -> Option<Complex64> {
    let real = |value: f64| Complex64::new(value, 0.0);
    let value = match expression {
        Expression::Number { value, .. } => real(value.to_f64()?),
        Expression::Name(name) => match name.as_str() {
            "pi" => real(std::f64::consts::PI),
            "e" => real(std::f64::consts::E),
            "i" => Complex64::i(),
            "oo" => return None,
            name => real(coordinate(name, point)),
        },
        Expression::Sum(terms) => {
            terms.iter().try_fold(real(0.0), |sum, term| Some(sum + self::value(term, point)?))?
        }
        Expression::Product(factors) => factors
            .iter()
            .try_fold(real(1.0), |product, factor| Some(product * self::value(factor, point)?))?,
        Expression::Quotient(above, below) => self::value(above, point)? / self::value(below, point)?,
        Expression::Percent(value) => self::value(value, point)? / 100.0,
        Expression::Power(base, exponent) => {
            let (base, exponent) = (self::value(base, point)?, self::value(exponent, point)?);
            if exponent.im == 0.0 && exponent.re.fract() == 0.0 && exponent.re.abs() <= 1e4 {
                base.powi(exponent.re as i32)
            } else {
                base.powc(exponent)
            }
        }
        Expression::Root(radicand, degree) => {
            let radicand = self::value(radicand, point)?;
            if degree % 2 == 1 && radicand.im == 0.0 && radicand.re < 0.0 {
                real(-(-radicand.re).powf(1.0 / f64::from(*degree)))
            } else {
                radicand.powf(1.0 / f64::from(*degree))
            }
        }
        Expression::Function(name, arguments) => {
            let [argument] = &arguments[..] else { return None };
            function(name, self::value(argument, point)?)?
        }
    };
    (value.re.is_finite() && value.im.is_finite()).then_some(value)
}

fn function(name: &str, argument: Complex64) -> Option<Complex64> {
    Some(match name {
        "sin" => argument.sin(),
        "cos" => argument.cos(),
        "tan" => argument.tan(),
        "cot" => argument.tan().inv(),
        "sec" => argument.cos().inv(),
        "csc" => argument.sin().inv(),
        "arcsin" => argument.asin(),
        "arccos" => argument.acos(),
        "arctan" => argument.atan(),
        "sinh" => argument.sinh(),
        "cosh" => argument.cosh(),
        "tanh" => argument.tanh(),
        "ln" => argument.ln(),
        "log" => argument.log(10.0),
        "abs" => Complex64::new(argument.norm(), 0.0),
        _ => return None,
    })
}

/// A coordinate between 0.3 and 2.3 that follows from name and point, negative at the last point.
fn coordinate(name: &str, point: u64) -> f64 {
    // FNV-1a, whose upper bits depend on every byte.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ point.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in name.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash ^= hash >> 29;
    hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let magnitude = 0.3 + 2.0 * (hash >> 11) as f64 / (1u64 << 53) as f64;
    if point + 1 == NUM_POINTS { -magnitude } else { magnitude }
}
