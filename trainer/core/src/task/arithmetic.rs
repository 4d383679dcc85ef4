//! Generated arithmetic problems: `12+34=` asks for `46`.
//!
//! A problem is an operator and an unordered pair of operands. All problems are put in one seeded order
//! ([`Permutation`]); the held-out problems come first and the training problems follow. So no problem is in
//! both splits, not even with its operands exchanged, and asking for more training problems never changes the
//! held-out ones.

use crate::permutation::{Permutation, splitmix64};

/// Largest operand that is allowed; products then still fit 64 bits.
const MAX_OPERAND: u64 = 999_999_999;

/// An arithmetic operator; operands are never negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `a+b`.
    Add,
    /// `a-b` with `a >= b`, so that no answer is negative.
    Subtract,
    /// `a*b`.
    Multiply,
}

impl Operator {
    /// The operator's character in prompts.
    pub fn symbol(self) -> char {
        match self {
            Self::Add => '+',
            Self::Subtract => '-',
            Self::Multiply => '*',
        }
    }

    fn apply(self, left: u64, right: u64) -> u64 {
        match self {
            Self::Add => left + right,
            Self::Subtract => left - right,
            Self::Multiply => left * right,
        }
    }
}

/// Form and number of the problems.
#[derive(Clone, Debug, PartialEq)]
pub struct ArithmeticOptions {
    /// Operators to draw from, with equal probability; at least one, no duplicates.
    pub operators: Vec<Operator>,
    /// Largest operand, `1..=999_999_999`; the smallest is 0.
    pub max_operand: u64,
    /// Whether operands and answers are padded with leading zeros to the width of the widest. Every digit
    /// then has a fixed position, which a small model learns several times sooner.
    pub zero_padded: bool,
    /// Whether answers are written from the lowest digit up, so that carries propagate in writing order.
    pub reversed_answers: bool,
    /// Fraction of demonstrations, in `[0, 1)`, that break off before the last character of the answer. An
    /// answer of one character is never shortened. Imitation learns the habit with the arithmetic, and only
    /// the reward unlearns it. Answers that rewards compare with are always complete.
    pub demonstration_error_rate: f64,
    /// Number of training problems.
    pub num_train: u64,
    /// Number of held-out problems.
    pub num_held_out: u64,
    /// Seed that determines the choice and order of problems.
    pub seed: u64,
}

/// The use of a problem: training or evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Problems to learn from.
    Train,
    /// Problems for evaluation; disjoint from `Train`.
    HeldOut,
}

/// One arithmetic problem with its right and wrong answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The question, such as `12+34=`.
    pub prompt: String,
    /// The only right answer, such as `46`.
    pub answer: String,
    /// Answer in a supervised example: right, or for some problems (`demonstration_error_rate`) only its
    /// beginning.
    pub demonstration: String,
    /// A wrong answer: the beginning of the right one, or another digit if that has only one.
    pub wrong_answer: String,
}

/// Options from which no task can be made.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum TaskError {
    /// An option is outside its range.
    #[error("generate problems: {field} is {value}, expected {expected}")]
    Option {
        /// Name of the option.
        field: &'static str,
        /// Value that was given.
        value: String,
        /// Allowed values, in words.
        expected: &'static str,
    },
    /// There are fewer different problems than requested.
    #[error(
        "generate {asked} different arithmetic problems: operands up to {max_operand} give only {available}"
    )]
    TooFewProblems {
        /// Number of training and held-out problems together.
        asked: u128,
        /// Largest operand of the options.
        max_operand: u64,
        /// Number of different problems that exist.
        available: u128,
    },
}

/// The arithmetic task: a seeded order of all problems.
#[derive(Clone, Debug)]
pub struct Arithmetic {
    options: ArithmeticOptions,
    order: Permutation,
    num_pairs: u64,
    operand_width: usize,
    answer_width: usize,
}

impl Arithmetic {
    /// All characters that prompts and answers can contain, whatever the options.
    pub const ALPHABET: &'static str = "0123456789+-*=";

    /// Checks the options and fixes the order of problems.
    ///
    /// # Errors
    /// [`TaskError`] if an option is outside its range or too many problems are requested.
    pub fn new(options: ArithmeticOptions) -> Result<Self, TaskError> {
        check_ranges(&options)?;
        let num_values = options.max_operand + 1;
        let num_pairs = (u128::from(num_values) * u128::from(num_values + 1) / 2) as u64;
        let available = u128::from(num_pairs) * options.operators.len() as u128;
        let asked = u128::from(options.num_train) + u128::from(options.num_held_out);
        if asked > available {
            return Err(TaskError::TooFewProblems { asked, max_operand: options.max_operand, available });
        }
        let order = Permutation::new(num_pairs * options.operators.len() as u64, options.seed, 0);
        let answers = options.operators.iter().map(|operator| match operator {
            Operator::Subtract => options.max_operand,
            Operator::Add | Operator::Multiply => operator.apply(options.max_operand, options.max_operand),
        });
        let answer_width = answers.max().map_or(0, num_digits);
        let operand_width = num_digits(options.max_operand);
        Ok(Self { options, order, num_pairs, operand_width, answer_width })
    }

    /// Number of problems in a split.
    pub fn num_problems(&self, split: Split) -> u64 {
        match split {
            Split::Train => self.options.num_train,
            Split::HeldOut => self.options.num_held_out,
        }
    }

    /// Number of characters of the longest answer.
    pub fn max_answer_len(&self) -> usize {
        self.answer_width
    }

    /// Number of characters of the longest prompt.
    pub fn max_prompt_len(&self) -> usize {
        2 * self.operand_width + 2
    }

    /// Returns problem `idx` of a split; `None` past its end.
    pub fn problem(&self, split: Split, idx: u64) -> Option<Problem> {
        if idx >= self.num_problems(split) {
            return None;
        }
        let offset = if split == Split::Train { self.options.num_held_out } else { 0 };
        self.order.get(offset + idx).map(|number| self.numbered(number))
    }

    /// Iterates over all problems of a split, in order.
    pub fn problems(&self, split: Split) -> impl Iterator<Item = Problem> + '_ {
        (0..self.num_problems(split)).filter_map(move |idx| self.problem(split, idx))
    }

    fn numbered(&self, number: u64) -> Problem {
        let operator = self.options.operators[(number / self.num_pairs) as usize];
        let (larger, smaller) = unordered_pair(number % self.num_pairs);
        let random = |idx| splitmix64(splitmix64(self.options.seed, 1).wrapping_add(number), idx);
        let exchanged = operator != Operator::Subtract && random(0) & 1 == 1;
        let (left, right) = if exchanged { (smaller, larger) } else { (larger, smaller) };
        let answer = self.written(operator.apply(left, right), self.answer_width);
        let answer = if self.options.reversed_answers { answer.chars().rev().collect() } else { answer };
        let breaks_off = unit_interval(random(1)) < self.options.demonstration_error_rate;
        let begun = beginning(&answer, random(2));
        let demonstration = if breaks_off { begun.clone() } else { answer.clone() };
        let wrong_answer = if begun == answer { next_digits(&answer) } else { begun };
        let (left, right) = (self.written(left, self.operand_width), self.written(right, self.operand_width));
        let prompt = format!("{left}{}{right}=", operator.symbol());
        Problem { prompt, answer, demonstration, wrong_answer }
    }

    fn written(&self, number: u64, width: usize) -> String {
        if self.options.zero_padded { format!("{number:0width$}") } else { number.to_string() }
    }
}

fn check_ranges(options: &ArithmeticOptions) -> Result<(), TaskError> {
    let refused = |field, value, expected| Err(TaskError::Option { field, value, expected });
    let operators = &options.operators;
    let is_repeated = |idx: usize| operators[..idx].contains(&operators[idx]);
    if operators.is_empty() || (0..operators.len()).any(is_repeated) {
        return refused("operators", format!("{operators:?}"), "at least one and none twice");
    }
    if !(1..=MAX_OPERAND).contains(&options.max_operand) {
        return refused("maxOperand", options.max_operand.to_string(), "between 1 and 999999999");
    }
    if !(0.0..1.0).contains(&options.demonstration_error_rate) {
        let value = options.demonstration_error_rate.to_string();
        return refused("demonstrationErrorRate", value, "at least 0 and below 1");
    }
    Ok(())
}

/// Returns pair number `idx` of `(0,0), (1,0), (1,1), (2,0), ..`, larger operand first.
fn unordered_pair(idx: u64) -> (u64, u64) {
    let triangle = |n: u64| (u128::from(n) * u128::from(n + 1) / 2) as u64;
    let mut larger = (((8.0 * idx as f64 + 1.0).sqrt() - 1.0) / 2.0) as u64;
    // The square root is rounded, so integer arithmetic corrects it.
    while triangle(larger) > idx {
        larger -= 1;
    }
    while triangle(larger + 1) <= idx {
        larger += 1;
    }
    (larger, idx - triangle(larger))
}

fn num_digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Maps the upper 53 bits to a number in `[0, 1)`.
fn unit_interval(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

/// Replaces every digit by the next one, 9 by 0.
fn next_digits(answer: &str) -> String {
    let next = |digit: char| digit.to_digit(10).and_then(|digit| char::from_digit((digit + 1) % 10, 10));
    answer.chars().filter_map(next).collect()
}

/// Returns a random proper prefix of the answer, at least its first character.
fn beginning(answer: &str, random: u64) -> String {
    let num_cut = (answer.len() as u64).saturating_sub(1).max(1);
    let num_kept = 1 + random % num_cut;
    answer.chars().take(num_kept as usize).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn options() -> ArithmeticOptions {
        ArithmeticOptions {
            operators: vec![Operator::Add, Operator::Subtract, Operator::Multiply],
            max_operand: 30,
            zero_padded: false,
            reversed_answers: false,
            demonstration_error_rate: 0.0,
            num_train: 1000,
            num_held_out: 200,
            seed: 7,
        }
    }

    fn solved(problem: &Problem) -> (u64, char, u64, u64) {
        let (left, rest) = problem.prompt.split_at(problem.prompt.find(['+', '-', '*']).unwrap());
        let symbol = rest.chars().next().unwrap();
        let (left, right) = (left.parse().unwrap(), rest[1..].strip_suffix('=').unwrap().parse().unwrap());
        let value = match symbol {
            '+' => left + right,
            '-' => left - right,
            _ => left * right,
        };
        (left, symbol, right, value)
    }

    fn unordered(problem: &Problem) -> (u64, char, u64) {
        let (left, symbol, right, _) = solved(problem);
        (left.max(right), symbol, left.min(right))
    }

    #[test]
    fn every_answer_is_right_and_inside_the_alphabet() {
        let task = Arithmetic::new(options()).unwrap();
        for problem in task.problems(Split::Train) {
            assert_eq!(problem.answer, solved(&problem).3.to_string());
            assert_eq!(problem.demonstration, problem.answer);
            assert!(problem.prompt.len() <= task.max_prompt_len());
            assert!(problem.answer.len() <= task.max_answer_len());
            let mut text = problem.prompt.chars().chain(problem.answer.chars());
            assert!(text.all(|character| Arithmetic::ALPHABET.contains(character)));
        }
    }

    #[test]
    fn no_problem_appears_twice_not_even_with_exchanged_operands() {
        let exhaustive = ArithmeticOptions { num_train: 1200, num_held_out: 288, ..options() };
        let task = Arithmetic::new(exhaustive).unwrap();
        let all: Vec<Problem> = task.problems(Split::Train).chain(task.problems(Split::HeldOut)).collect();
        let different: BTreeSet<_> = all.iter().map(unordered).collect();
        assert_eq!((all.len(), different.len()), (1488, 1488), "31 x 32 / 2 pairs x 3 operators");
    }

    #[test]
    fn held_out_problems_do_not_depend_on_the_number_of_training_problems() {
        let few = Arithmetic::new(ArithmeticOptions { num_train: 1, ..options() }).unwrap();
        let many = Arithmetic::new(options()).unwrap();
        assert!(few.problems(Split::HeldOut).eq(many.problems(Split::HeldOut)));
        let other = Arithmetic::new(ArithmeticOptions { seed: 8, ..options() }).unwrap();
        assert!(!other.problems(Split::HeldOut).eq(many.problems(Split::HeldOut)));
    }

    #[test]
    fn operands_are_exchanged_about_half_the_time() {
        let only_add = ArithmeticOptions { operators: vec![Operator::Add], num_train: 290, ..options() };
        let task = Arithmetic::new(only_add).unwrap();
        let ascending =
            task.problems(Split::Train).map(|problem| solved(&problem)).filter(|p| p.0 < p.2).count();
        // 290 fair coins: mean 145 less the few equal pairs, standard deviation 8.5; five of them on each
        // side.
        assert!((100..190).contains(&ascending), "{ascending}");
    }

    #[test]
    fn padding_gives_one_length_and_reversing_turns_the_answer() {
        let padded = ArithmeticOptions { zero_padded: true, reversed_answers: true, ..options() };
        let task = Arithmetic::new(padded).unwrap();
        for problem in task.problems(Split::HeldOut) {
            assert_eq!((problem.prompt.len(), problem.answer.len()), (6, 3));
            let answer: String = problem.answer.chars().rev().collect();
            assert_eq!(answer.parse::<u64>().unwrap(), solved(&problem).3);
        }
    }

    #[test]
    fn the_asked_share_of_demonstrations_breaks_off() {
        let options = ArithmeticOptions { zero_padded: true, demonstration_error_rate: 0.25, ..options() };
        let task = Arithmetic::new(options).unwrap();
        let short: Vec<Problem> =
            task.problems(Split::Train).filter(|p| p.demonstration != p.answer).collect();
        // Binomial(1000, 0.25): standard deviation 13.7, five of them on each side.
        assert!((180..320).contains(&short.len()), "{}", short.len());
        let lengths: BTreeSet<usize> = short.iter().map(|problem| problem.demonstration.len()).collect();
        assert_eq!(lengths, BTreeSet::from([1, 2]));
        for problem in &short {
            assert!(problem.answer.starts_with(&problem.demonstration), "{problem:?}");
            assert_eq!(problem.answer.parse::<u64>().unwrap(), solved(problem).3);
        }
    }

    #[test]
    fn an_answer_of_one_character_cannot_break_off() {
        assert_eq!([0, 1, 2, 3].map(|random| beginning("7", random)), ["7"; 4]);
        assert_eq!([0, 1, 2].map(|random| beginning("123", random)), ["1", "12", "1"]);
    }

    #[test]
    fn pairs_are_numbered_without_gaps() {
        let expected = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0)];
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(unordered_pair), expected);
        let last = (MAX_OPERAND + 1) * (MAX_OPERAND + 2) / 2 - 1;
        assert_eq!(unordered_pair(last), (MAX_OPERAND, MAX_OPERAND));
        assert_eq!(unordered_pair(last - MAX_OPERAND), (MAX_OPERAND, 0));
    }

    #[test]
    fn the_problems_never_change_between_releases() {
        let task = Arithmetic::new(options()).unwrap();
        let prompts: Vec<String> = task.problems(Split::Train).take(4).map(|p| p.prompt).collect();
        assert_eq!(prompts, GOLDEN_PROMPTS);
    }

    const GOLDEN_PROMPTS: [&str; 4] = ["27*13=", "4+23=", "7*29=", "12+6="];

    #[test]
    fn impossible_options_are_refused_by_name() {
        let refused = |options: ArithmeticOptions| match Arithmetic::new(options).unwrap_err() {
            TaskError::Option { field, .. } => field,
            TaskError::TooFewProblems { .. } => "problems",
        };
        assert_eq!(refused(ArithmeticOptions { operators: vec![], ..options() }), "operators");
        assert_eq!(
            refused(ArithmeticOptions { operators: vec![Operator::Add; 2], ..options() }),
            "operators"
        );
        assert_eq!(refused(ArithmeticOptions { max_operand: 0, ..options() }), "maxOperand");
        assert_eq!(refused(ArithmeticOptions { max_operand: MAX_OPERAND + 1, ..options() }), "maxOperand");
        let rate = |rate| ArithmeticOptions { demonstration_error_rate: rate, ..options() };
        assert_eq!(refused(rate(1.0)), "demonstrationErrorRate");
        assert_eq!(refused(rate(f64::NAN)), "demonstrationErrorRate");
        assert_eq!(refused(ArithmeticOptions { num_train: 1289, ..options() }), "problems");
    }
}
