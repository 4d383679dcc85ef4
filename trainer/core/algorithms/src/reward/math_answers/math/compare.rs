//! Equality of answers.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Signed;

use super::expression::{Answer, Bracket, Expression, Relation};
use super::names::LETTER_UNITS;
use super::normal::{Fuel, normal};
use super::numeric;

/// Largest number of term multiplications in one comparison.
const FUEL: u64 = 20_000;
/// Largest number of values in a list whose order does not count.
const MAX_UNORDERED: usize = 32;
/// Smallest number of decimal places of a rounded value.
const MIN_PLACES: usize = 6;

/// Whether an answer has the value of a ground truth.
pub(super) fn are_equal(truth: &Answer, answer: &Answer) -> bool {
    Comparison { fuel: Fuel::new(FUEL) }.answers(truth, answer)
}

struct Comparison {
    fuel: Fuel,
}

impl Comparison {
    fn answers(&mut self, truth: &Answer, answer: &Answer) -> bool {
        let (truth, answer) = assigned(truth, answer);
        if let (Answer::Relation(..), Answer::Tuple(..)) | (Answer::Tuple(..), Answer::Relation(..)) =
            (truth, answer)
        {
            let (truth, answer) = (interval(truth), interval(answer));
            return matches!((&truth, &answer), (Some(truth), Some(answer)) if self.answers(truth, answer));
        }
        match (truth, answer) {
            (Answer::Expression(truth), Answer::Expression(answer)) => self.values(truth, answer),
            (Answer::Text(truth), Answer::Text(answer)) => truth == answer,
            (Answer::List(left) | Answer::Set(left), Answer::List(right) | Answer::Set(right))
            | (Answer::Union(left), Answer::Union(right)) => self.in_any_order(left, right),
            (Answer::Tuple(left_open, left, left_close), Answer::Tuple(right_open, right, right_close)) => {
                (left_open, left_close) == (right_open, right_close) && self.in_order(left, right)
            }
            (Answer::Tuple(_, left, _), Answer::List(right) | Answer::Set(right))
            | (Answer::List(left) | Answer::Set(left), Answer::Tuple(_, right, _)) => {
                self.in_order(left, right)
            }
            (Answer::Set(values) | Answer::List(values), single)
            | (single, Answer::Set(values) | Answer::List(values))
                if !values.is_empty() =>
            {
                values.iter().all(|value| self.answers(value, single))
            }
            (Answer::Relation(left, left_signs), Answer::Relation(right, right_signs)) => {
                self.relations(Chain::shortened(left, left_signs), Chain::shortened(right, right_signs))
            }
            (Answer::Matrix(left), Answer::Matrix(right)) => {
                left.len() == right.len()
                    && left.iter().zip(right).all(|(left, right)| self.in_order(left, right))
            }
            _ => false,
        }
    }

    fn in_order(&mut self, left: &[Answer], right: &[Answer]) -> bool {
        left.len() == right.len() && left.iter().zip(right).all(|(left, right)| self.answers(left, right))
    }

    /// Whether every value is in the other list as well. Repeated values do not count.
    fn in_any_order(&mut self, left: &[Answer], right: &[Answer]) -> bool {
        if left.len().max(right.len()) > MAX_UNORDERED {
            return false;
        }
        let mut is_matched = vec![false; right.len()];
        for truth in left {
            let mut idxs: Vec<usize> = (0..right.len()).collect();
            idxs.sort_by_key(|idx| is_matched[*idx]);
            match idxs.into_iter().find(|idx| self.answers(truth, &right[*idx])) {
                Some(idx) => is_matched[idx] = true,
                None => return false,
            }
        }
        (0..right.len())
            .all(|idx| is_matched[idx] || left.iter().any(|truth| self.answers(truth, &right[idx])))
    }

    fn values(&mut self, truth: &Expression, answer: &Expression) -> bool {
        // 50% is 50 and 1/2: whether an answer is in percent is a matter of the question.
        match (truth, answer) {
            (Expression::Percent(left), Expression::Percent(right)) => return self.values(left, right),
            (Expression::Percent(value), other) | (other, Expression::Percent(value))
                if self.values(value, other) =>
            {
                return true;
            }
            _ => {}
        }
        let (Some(left), Some(right)) = (normal(truth, &mut self.fuel), normal(answer, &mut self.fuel))
        else {
            return false;
        };
        match left.equals(&right, &mut self.fuel) {
            Some(true) => true,
            None => false,
            Some(false) if is_rounded(truth, answer) || is_rounded(answer, truth) => true,
            Some(false) if (left.is_opaque() || right.is_opaque()) && numeric::are_equal(truth, answer) => {
                true
            }
            Some(false) => match (without_letter_unit(truth), without_letter_unit(answer)) {
                (Some(truth), None) if !answer.has_names() => self.values(&truth, answer),
                (None, Some(answer)) if !truth.has_names() => self.values(truth, &answer),
                _ => false,
            },
        }
    }

    fn relations(&mut self, left: Chain<'_>, right: Chain<'_>) -> bool {
        let reversed = right.reversed();
        [right, reversed].iter().any(|right| {
            if left.signs != right.signs {
                return false;
            }
            let sides = left.sides.iter().zip(&right.sides);
            sides.clone().all(|(left, right)| self.answers(left, right))
                || matches!((&left.sides[..], &right.sides[..]), ([a, b], [c, d]) if self.differences([*a, *b], [*c, *d], left.signs[0]))
        })
    }

    /// Whether the differences of both sides are multiples of each other, by a positive factor in an
    /// inequality.
    fn differences(&mut self, left: [&Answer; 2], right: [&Answer; 2], sign: Relation) -> bool {
        let mut difference = |sides: [&Answer; 2]| match sides {
            [Answer::Expression(left), Answer::Expression(right)] => {
                normal(&left.minus(right), &mut self.fuel)
            }
            _ => None,
        };
        let (Some(left), Some(right)) = (difference(left), difference(right)) else { return false };
        let ratio = left.above.ratio(&right.above);
        ratio.is_some_and(|ratio| ratio.is_positive() || matches!(sign, Relation::Equal | Relation::NotEqual))
    }
}

/// Replaces an assignment by its value if the other answer is not an equation: `x = 5` by 5.
fn assigned<'a>(truth: &'a Answer, answer: &'a Answer) -> (&'a Answer, &'a Answer) {
    let value = |answer: &'a Answer| match answer {
        Answer::Relation(sides, signs) if signs.iter().all(|sign| *sign == Relation::Equal) => {
            Some((sides.last()?, is_left_side(&sides[0])))
        }
        _ => None,
    };
    match (value(truth), value(answer)) {
        (None, Some((answer, _))) => (truth, answer),
        (Some((truth, true)), None) => (truth, answer),
        _ => (truth, answer),
    }
}

/// Whether an answer only names what an equation states: `x`, `f(x)`, `(x,y)` or a text.
fn is_left_side(answer: &Answer) -> bool {
    match answer {
        Answer::Expression(side) => side.is_name(),
        Answer::Text(_) => true,
        Answer::Tuple(_, items, _) => items.iter().all(is_left_side),
        _ => false,
    }
}

/// Drops a unit of one letter after a number: the `m` of `12 m`. Returns `None` for other expressions.
fn without_letter_unit(expression: &Expression) -> Option<Expression> {
    let Expression::Product(factors) = expression else { return None };
    let (Expression::Name(unit), numbers) = factors.split_last()? else { return None };
    let is_unit = LETTER_UNITS.contains(&unit.as_str()) && !numbers.iter().any(Expression::has_names);
    is_unit.then(|| Expression::Product(numbers.to_vec()))
}

/// A chain of relations, such as `1 < x <= 2`.
struct Chain<'a> {
    sides: Vec<&'a Answer>,
    /// Relation of each side to the next.
    signs: Vec<Relation>,
}

impl<'a> Chain<'a> {
    /// Makes a chain, of equations from their ends alone: of `y = 2 + 3 = 5` the chain `y = 5`.
    fn shortened(sides: &'a [Answer], signs: &[Relation]) -> Self {
        match sides {
            [first, .., last] if signs.iter().all(|sign| *sign == Relation::Equal) => {
                Self { sides: vec![first, last], signs: vec![Relation::Equal] }
            }
            _ => Self { sides: sides.iter().collect(), signs: signs.to_vec() },
        }
    }

    /// Returns the equivalent chain in reverse order, from the last side to the first.
    fn reversed(&self) -> Self {
        Self {
            sides: self.sides.iter().rev().copied().collect(),
            signs: self.signs.iter().rev().map(|sign| sign.flipped()).collect(),
        }
    }
}

/// Converts an inequality of one variable to an interval: `1 < x <= 2` to `(1, 2]`.
fn interval(answer: &Answer) -> Option<Answer> {
    let Answer::Relation(sides, signs) = answer else { return Some(answer.clone()) };
    let is_variable = |side: &Answer| matches!(side, Answer::Expression(Expression::Name(_)));
    let rises = |sign: &Relation| matches!(sign, Relation::Less | Relation::LessOrEqual);
    let falls = |sign: &Relation| matches!(sign, Relation::Greater | Relation::GreaterOrEqual);
    if signs.iter().all(falls) {
        let sides = sides.iter().rev().cloned().collect();
        return interval(&Answer::Relation(sides, signs.iter().rev().map(|sign| sign.flipped()).collect()));
    }
    if !signs.iter().all(rises) {
        return None;
    }
    let bracket = |sign: Relation| if sign.is_strict() { Bracket::Round } else { Bracket::Square };
    let infinity = || Expression::Name("oo".to_owned());
    match (&sides[..], &signs[..]) {
        ([low, variable, high], [from, to]) if is_variable(variable) => {
            Some(Answer::Tuple(bracket(*from), vec![low.clone(), high.clone()], bracket(*to)))
        }
        ([variable, high], [to]) if is_variable(variable) => {
            let low = Answer::Expression(infinity().negated());
            Some(Answer::Tuple(Bracket::Round, vec![low, high.clone()], bracket(*to)))
        }
        ([low, variable], [from]) if is_variable(variable) => {
            let high = Answer::Expression(infinity());
            Some(Answer::Tuple(bracket(*from), vec![low.clone(), high], Bracket::Round))
        }
        _ => None,
    }
}

/// Whether `decimal` is a decimal number of at least six places to which `exact` rounds, or one that differs
/// from `exact` by less than half of the sixth place.
fn is_rounded(decimal: &Expression, exact: &Expression) -> bool {
    let Expression::Number { value, places: places @ 1.. } = decimal else { return false };
    let rational = normal(exact, &mut Fuel::new(FUEL)).and_then(|exact| exact.rational());
    // f64 has 15 digits, enough for the places that are compared.
    let is_constant = numeric::value(exact, 0) == numeric::value(exact, 1);
    let real =
        || numeric::value(exact, 0).filter(|exact| is_constant && exact.im == 0.0).map(|exact| exact.re);
    let Some(exact) = rational.or_else(|| BigRational::from_float(real()?)) else { return false };
    let half =
        |places: usize| BigRational::new(1.into(), BigInt::from(2) * BigInt::from(10).pow(places as u32));
    let difference = (value - &exact).abs();
    // Small values are compared by their own size.
    let size = exact.abs().min(BigRational::from_integer(1.into()));
    (*places >= MIN_PLACES && difference <= half(*places)) || difference <= half(MIN_PLACES) * size
}
