//! Conditions `[ ]` and `[[ ]]`, and the patterns of `case`. Every file counts as missing, because the
//! script's files are on another machine.

use brush_parser::ast::{BinaryPredicate, ExtendedTestExpr, TestExpr, UnaryPredicate, Word};
use brush_parser::test_command;
use fancy_regex::Regex;

use super::{Shell, ShellError, limits, nesting};

/// Largest number of words of a condition `[ ]` that is evaluated.
const MAX_OPERANDS: usize = 32;

/// A shell pattern; `None` if the regex engine does not support it, which matches nothing.
pub(super) struct Pattern(Option<Regex>);

impl Pattern {
    pub(super) fn of(pattern: &str) -> Result<Self, ShellError> {
        limits::check(pattern)?;
        nesting::check_pattern(pattern)?;
        let pattern = brush_parser::pattern::pattern_to_regex_str(pattern, true)?;
        Ok(Self(Regex::new(&format!("(?s)^(?:{pattern})$")).ok()))
    }

    /// Whether the full text matches.
    pub(super) fn matches(&self, text: &str) -> bool {
        self.0.as_ref().is_some_and(|regex| regex.is_match(text).unwrap_or(false))
    }
}

fn matches(text: &str, pattern: &str) -> Result<bool, ShellError> {
    Ok(Pattern::of(pattern)?.matches(text))
}

impl Shell {
    pub(super) fn matches_any(&mut self, value: &str, patterns: &[Word]) -> Result<bool, ShellError> {
        for pattern in patterns {
            let pattern = self.text(&pattern.value)?;
            if matches(value, &pattern)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Evaluates `[ ]`, whose words are expanded.
    pub(super) fn holds_test(&mut self, arguments: &[String]) -> Result<bool, ShellError> {
        let arguments = match arguments.split_last() {
            Some((last, rest)) if last == "]" => rest,
            _ => arguments,
        };
        // Bounds the depth of the tree, since `[ ! ! .. ]` is as deep as it is long, and the work of the
        // parser, which reads a bracket as an operand, too.
        let parsed = if arguments.len() > MAX_OPERANDS { None } else { test_command::parse(arguments).ok() };
        match parsed {
            Some(expression) => self.holds_plain(&expression),
            None => {
                self.scope.note(format!("a condition cannot be read: {}", arguments.join(" ")));
                Ok(false)
            }
        }
    }

    fn holds_plain(&mut self, expression: &TestExpr) -> Result<bool, ShellError> {
        match expression {
            TestExpr::False => Ok(false),
            TestExpr::Literal(text) => Ok(!text.is_empty()),
            TestExpr::And(left, right) => Ok(self.holds_plain(left)? && self.holds_plain(right)?),
            TestExpr::Or(left, right) => Ok(self.holds_plain(left)? || self.holds_plain(right)?),
            TestExpr::Not(inner) => Ok(!self.holds_plain(inner)?),
            TestExpr::Parenthesized(inner) => self.holds_plain(inner),
            TestExpr::UnaryTest(predicate, operand) => Ok(self.holds_unary(predicate, operand)),
            TestExpr::BinaryTest(predicate, left, right) => self.holds_binary(predicate, left, right),
        }
    }

    /// Evaluates `[[ ]]`.
    pub(super) fn holds(&mut self, expression: &ExtendedTestExpr) -> Result<bool, ShellError> {
        match expression {
            ExtendedTestExpr::And(left, right) => Ok(self.holds(left)? && self.holds(right)?),
            ExtendedTestExpr::Or(left, right) => Ok(self.holds(left)? || self.holds(right)?),
            ExtendedTestExpr::Not(inner) => Ok(!self.holds(inner)?),
            ExtendedTestExpr::Parenthesized(inner) => self.holds(inner),
            ExtendedTestExpr::UnaryTest(predicate, operand) => {
                let operand = self.text(&operand.value)?;
                Ok(self.holds_unary(predicate, &operand))
            }
            ExtendedTestExpr::BinaryTest(predicate, left, right) => {
                let (left, right) = (self.text(&left.value)?, self.text(&right.value)?);
                self.holds_binary(predicate, &left, &right)
            }
        }
    }

    fn holds_unary(&self, predicate: &UnaryPredicate, operand: &str) -> bool {
        match predicate {
            UnaryPredicate::StringHasZeroLength => operand.is_empty(),
            UnaryPredicate::StringHasNonZeroLength => !operand.is_empty(),
            UnaryPredicate::ShellVariableIsSetAndAssigned => self.scope.variables.contains_key(operand),
            _ => false,
        }
    }

    fn holds_binary(
        &mut self,
        predicate: &BinaryPredicate,
        left: &str,
        right: &str,
    ) -> Result<bool, ShellError> {
        Ok(match predicate {
            BinaryPredicate::StringExactlyMatchesPattern => matches(left, right)?,
            BinaryPredicate::StringDoesNotExactlyMatchPattern => !matches(left, right)?,
            BinaryPredicate::StringMatchesRegex => {
                Regex::new(right).is_ok_and(|regex| regex.is_match(left).unwrap_or(false))
            }
            BinaryPredicate::StringExactlyMatchesString => left == right,
            BinaryPredicate::StringDoesNotExactlyMatchString => left != right,
            BinaryPredicate::StringContainsSubstring => left.contains(right),
            BinaryPredicate::LeftSortsBeforeRight => left < right,
            BinaryPredicate::LeftSortsAfterRight => left > right,
            BinaryPredicate::ArithmeticEqualTo => self.compute(left)? == self.compute(right)?,
            BinaryPredicate::ArithmeticNotEqualTo => self.compute(left)? != self.compute(right)?,
            BinaryPredicate::ArithmeticLessThan => self.compute(left)? < self.compute(right)?,
            BinaryPredicate::ArithmeticLessThanOrEqualTo => self.compute(left)? <= self.compute(right)?,
            BinaryPredicate::ArithmeticGreaterThan => self.compute(left)? > self.compute(right)?,
            BinaryPredicate::ArithmeticGreaterThanOrEqualTo => self.compute(left)? >= self.compute(right)?,
            BinaryPredicate::FilesReferToSameDeviceAndInodeNumbers
            | BinaryPredicate::LeftFileIsNewerOrExistsWhenRightDoesNot
            | BinaryPredicate::LeftFileIsOlderOrDoesNotExistWhenRightDoes => false,
        })
    }
}
