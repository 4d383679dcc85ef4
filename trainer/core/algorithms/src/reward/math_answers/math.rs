//! MATH-style rewards: the last boxed answer has the value of the ground truth.
//!
//! ```text
//! text -> token::tokens -> parse::parse -> Answer -> compare::are_equal -> normal::normal (exact)
//!                                                                       -> numeric::value (functions)
//! ```
//! The size of answers, numbers and polynomials is bounded, and so is the work of a comparison. Answers that
//! are not mathematics are compared as text.

mod compare;
mod expression;
mod names;
mod normal;
mod numeric;
mod parse;
mod token;

use std::borrow::Cow;
use std::sync::Arc;

use super::boxed::listed_answers;
use super::truth::{after_mark, any_stated_truth, stated_answer, without_delimiters};
use crate::reward::{DeclaredReward, Given, RewardError, RewardFunction, Sample, one_if};
use expression::{Answer, Expression};
use normal::{Fuel, normal};
use parse::parse;

/// 1 when the last `\boxed{..}` (or `\boxed ..`, `\fbox{..}`) has the value of a ground truth; else 0.
///
/// Boxes that are listed, such as `\boxed{1}` and `\boxed{2}`, are one answer ([`listed_answers`]). The
/// ground truth is read by [`stated_answer`], with the boxes that it lists. [`are_equal`] has the rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Math;

impl DeclaredReward for Math {
    const NAME: &'static str = "Math";
    const DOC: &'static str = "1 when the last `\\boxed{}` has the value of the ground truth: numbers, sets, tuples, intervals, \
         equations and expressions (docs/rewards.md).";

    fn build(_: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Self))
    }
}

impl RewardFunction for Math {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let answer = listed_answers(sample.completion);
        let equals = |truth: &str| answer.as_ref().is_some_and(|answer| are_equal(&stated(truth), answer));
        any_stated_truth(sample.ground_truth, equals).map(one_if)
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn answer<'a>(&self, completion: &'a str) -> Option<Cow<'a, str>> {
        listed_answers(completion).map(|answer| canonical(&answer).into())
    }
}

/// Returns the answer that a ground truth states, with all boxes that are listed with the last one.
fn stated(truth: &str) -> Cow<'_, str> {
    listed_answers(after_mark(truth)).unwrap_or_else(|| stated_answer(truth).into())
}

/// Whether an answer has the value of a ground truth. Both are LaTeX or plain notation.
///
/// - Numbers are exact: fractions, roots, decimals, repeating decimals, powers of ten, thousands separators,
///   mixed numbers. A decimal number of at least six places equals what rounds to it, and any decimal number
///   equals what differs from it by less than half of the sixth place.
/// - Units, currencies, degrees and the base of a number do not count. A percentage equals the number before
///   its sign, and a hundredth of it.
/// - Neither order nor repetition counts in sets and in lists without brackets, order counts in tuples.
///   Brackets of intervals count. `1 < x` is the interval `(1, \infty)`.
/// - Equations are equal if they are multiples of each other; `x = 5` equals 5.
/// - Expressions are compared as quotients of polynomials, and those with functions at four points.
pub fn are_equal(truth: &str, answer: &str) -> bool {
    let (truth, answer) = (without_delimiters(truth), without_delimiters(answer));
    let texts = (plain(truth), plain(answer));
    // The letter of a choice may be in lower case.
    let is_letter = texts.0.len() == 1 && texts.0.eq_ignore_ascii_case(&texts.1);
    if is_letter || !texts.0.is_empty() && texts.0 == texts.1 {
        return true;
    }
    matches!((parse(truth), parse(answer)), (Some(truth), Some(answer)) if compare::are_equal(&truth, &answer))
}

/// Returns a text that is equal for most equal answers, for votes.
fn canonical(answer: &str) -> String {
    let answer = without_delimiters(answer);
    parse(answer).and_then(|answer| key(&answer, &mut Fuel::new(10_000))).unwrap_or_else(|| plain(answer))
}

fn key(answer: &Answer, fuel: &mut Fuel) -> Option<String> {
    let mut keys =
        |answers: &[Answer]| answers.iter().map(|answer| key(answer, fuel)).collect::<Option<Vec<_>>>();
    Some(match answer {
        Answer::Expression(Expression::Percent(value)) => normal(value, fuel)?.key(),
        Answer::Expression(value) => normal(value, fuel)?.key(),
        Answer::Text(text) => text.clone(),
        Answer::List(answers) | Answer::Set(answers) => {
            let mut keys = keys(answers)?;
            keys.sort_unstable();
            keys.dedup();
            format!("{{{}}}", keys.join(","))
        }
        Answer::Union(answers) => {
            let mut keys = keys(answers)?;
            keys.sort_unstable();
            keys.join(" cup ")
        }
        Answer::Tuple(open, answers, close) => format!("{open:?}({}){close:?}", keys(answers)?.join(",")),
        Answer::Relation(sides, _) => {
            let is_assignment = matches!(&sides[0], Answer::Expression(side) if side.is_name());
            if is_assignment { key(sides.last()?, fuel)? } else { return None }
        }
        Answer::Matrix(rows) => {
            let rows = rows.iter().map(|row| Some(keys(row)?.join("&"))).collect::<Option<Vec<_>>>()?;
            rows.join(";")
        }
    })
}

/// Returns the letters and digits of a text, in lower case.
fn letters(text: &str) -> String {
    text.chars().filter(|character| character.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Converts an answer to plain text, without white space and the commands of text. Words of letters are in
/// lower case, and a letter in brackets becomes the letter: `\text{(A)}` becomes `A`.
fn plain(answer: &str) -> String {
    let mut text = answer.replace("\\ ", "");
    for command in ["\\text{", "\\textbf{", "\\textrm{", "\\mathrm{", "\\mbox{", "\\mathbf{"] {
        while let Some((before, rest)) = text.split_once(command) {
            let Some((inside, after)) = rest.split_once('}') else { break };
            text = [before, inside, after].concat();
        }
    }
    text.retain(|character| !character.is_whitespace());
    let text = text.trim_end_matches('.');
    let inside = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let letter = inside.or_else(|| text.strip_suffix(')'));
    let text = letter.filter(|letter| letter.len() == 1 && letters(letter).len() == 1).unwrap_or(text);
    let is_word = text.len() > 1 && text.chars().all(char::is_alphabetic);
    if is_word { text.to_lowercase() } else { text.to_owned() }
}

#[cfg(test)]
mod tests;
