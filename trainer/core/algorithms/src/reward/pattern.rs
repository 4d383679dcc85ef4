//! Regular expressions: whether one matches, and whether a capture equals the ground truth.

use std::borrow::Cow;
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use fancy_regex::Regex as Backtracking;
use regex::{Regex, RegexBuilder};

use super::{
    DeclaredReward, Given, RewardError, RewardFunction, Sample, Setting, Values, any_ground_truth, one_if,
};
use crate::pattern_error::PatternError;

/// Largest size of a compiled pattern in bytes; larger ones, such as nested counted repetitions, are
/// rejected.
const MAX_COMPILED_BYTES: usize = 4 << 20;

/// 1 when the **last** match of the pattern captured a ground truth, both trimmed; else 0. Compared is its
/// group `answer`, else its first group, else the whole match.
///
/// `^` and `$` are the ends of the text unless the pattern says `(?m)`. [`Compiled`] says which patterns run.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Compiled,
    group_idx: usize,
}

/// Number of backtracking steps after which a pattern with look-around or back-references gives up on a text.
const MAX_STEPS: usize = 1_000_000;

/// A compiled pattern.
///
/// The `regex` crate runs it, in time linear in the text, unless the pattern has look-around or
/// back-references, such as `(?!.*<think>)`. Those run by backtracking, for at most a million steps.
#[derive(Clone, Debug)]
pub enum Compiled {
    /// A pattern that runs in linear time.
    Linear(Regex),
    /// A pattern with look-around or back-references.
    Backtracking(Box<Backtracking>),
}

impl Compiled {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// [`RewardError::Pattern`].
    pub fn new(pattern: &str) -> Result<Self, RewardError> {
        Self::between("", pattern, "")
    }

    /// Compiles a pattern with other text around it. Errors quote the pattern alone.
    pub(super) fn between(before: &str, pattern: &str, after: &str) -> Result<Self, RewardError> {
        let text = format!("{before}{pattern}{after}");
        let error = match linear(&text) {
            Ok(regex) => return Ok(Self::Linear(regex)),
            Err(error) => error,
        };
        let refused = |source: Box<dyn Error + Send + Sync>| RewardError::Pattern {
            pattern: pattern.to_owned(),
            source,
        };
        if !matches!(*error, regex::Error::Syntax(_)) {
            return Err(refused(error));
        }
        let mut builder = fancy_regex::RegexBuilder::new(&text);
        let built = builder.backtrack_limit(MAX_STEPS).delegate_size_limit(MAX_COMPILED_BYTES).build();
        let reason = |error| refused(Box::new(PatternError::with_look_around(&error, before.len())));
        built.map(|regex| Self::Backtracking(Box::new(regex))).map_err(reason)
    }

    /// Whether the pattern matches somewhere in `text`.
    ///
    /// # Errors
    /// [`RewardError::Backtracking`].
    pub fn is_match(&self, text: &str) -> Result<bool, RewardError> {
        match self {
            Self::Linear(regex) => Ok(regex.is_match(text)),
            Self::Backtracking(regex) => regex.is_match(text).map_err(|error| gave_up(&error)),
        }
    }

    /// Returns the ranges of the last match in `text`, if it has the group `group_idx`.
    fn last(&self, group_idx: usize, text: &str) -> Result<Option<Match>, RewardError> {
        Ok(match self {
            Self::Linear(regex) => regex.captures_iter(text).last().and_then(|last| {
                Some(Match { group: last.get(group_idx)?.range(), whole: last.get(0)?.range() })
            }),
            Self::Backtracking(regex) => {
                let mut last = None;
                for captures in regex.captures_iter(text) {
                    last = Some(captures.map_err(|error| gave_up(&error))?);
                }
                last.and_then(|last| {
                    Some(Match { group: last.get(group_idx)?.range(), whole: last.get(0)?.range() })
                })
            }
        })
    }

    fn group_names(&self) -> Vec<Option<&str>> {
        match self {
            Self::Linear(regex) => regex.capture_names().collect(),
            Self::Backtracking(regex) => regex.capture_names().collect(),
        }
    }
}

/// Byte ranges of a match and of one of its groups.
struct Match {
    group: Range<usize>,
    whole: Range<usize>,
}

fn gave_up(error: &fancy_regex::Error) -> RewardError {
    RewardError::Backtracking { message: error.to_string() }
}

/// Compiles a pattern without look-around and back-references.
///
/// # Errors
/// The error of the parser, or that the compiled pattern is too large.
pub fn linear(pattern: &str) -> Result<Regex, Box<regex::Error>> {
    RegexBuilder::new(pattern).size_limit(MAX_COMPILED_BYTES).build().map_err(Box::new)
}

impl Pattern {
    /// Compiles the pattern.
    ///
    /// # Errors
    /// [`RewardError::Pattern`].
    pub fn new(pattern: &str) -> Result<Self, RewardError> {
        let regex = Compiled::new(pattern)?;
        let names = regex.group_names();
        let named = names.iter().position(|name| *name == Some("answer"));
        let group_idx = named.unwrap_or(usize::from(names.len() > 1));
        Ok(Self { regex, group_idx })
    }

    fn captured<'a>(&self, completion: &'a str) -> Result<Option<&'a str>, RewardError> {
        let last = self.regex.last(self.group_idx, completion)?;
        Ok(last.map(|found| completion[found.group].trim()))
    }

    /// Returns the answer that a ground truth states: what the pattern captures, if other text marks the
    /// capture (`#### (\d+)` in a full solution), else all of it.
    fn stated<'a>(&self, truth: &'a str) -> Result<&'a str, RewardError> {
        let marked = self.regex.last(self.group_idx, truth)?.filter(|found| found.group != found.whole);
        Ok(marked.map_or(truth, |found| &truth[found.group]).trim())
    }
}

/// Setting `pattern` of manifests.
pub(super) const PATTERN: Setting = Setting {
    name: "pattern",
    doc: "A regular expression, for `Regex` and `Format`.",
    values: Values::Text { max_length: 4096 },
};

impl DeclaredReward for Pattern {
    const NAME: &'static str = "Regex";
    const DOC: &'static str = "1 when what `pattern` captures last (its group `answer`, else its first group, else the \
         match) equals the ground truth.";
    const SETTINGS: &'static [&'static Setting] = &[&PATTERN];

    fn build(given: &Given<'_>) -> Result<Arc<dyn RewardFunction>, RewardError> {
        Ok(Arc::new(Self::new(given.settings.text(&PATTERN)?)?))
    }
}

impl RewardFunction for Pattern {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, RewardError> {
        let captured = self.captured(sample.completion)?;
        let mut failure = None;
        let found = any_ground_truth(sample.ground_truth, |truth| match self.stated(truth) {
            Ok(stated) => captured == Some(stated) || captured == Some(truth.trim()),
            Err(error) => {
                failure = Some(error);
                false
            }
        })?;
        failure.map_or(Ok(one_if(found)), Err)
    }

    fn range(&self) -> (f64, f64) {
        (0.0, 1.0)
    }

    fn answer<'a>(&self, completion: &'a str) -> Option<Cow<'a, str>> {
        self.captured(completion).ok()?.map(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    #[test]
    fn the_last_match_is_compared() {
        let pattern = Pattern::new("<answer>(?<answer>[^<]*)</answer>").unwrap();
        let text = "<answer>1</answer><answer> 2 </answer>";
        let score = |truth| pattern.score(&sample(text, &json!(truth))).unwrap();
        assert_eq!((score("2"), score("1")), (1.0, 0.0));
        assert_eq!(pattern.score(&sample("2", &json!("2"))).unwrap(), 0.0);
    }

    #[test]
    fn the_answer_is_a_named_group_else_the_first_else_the_match() {
        for pattern in ["(x)(?<answer>[0-9])", "x([0-9])(y?)", "[0-9]"] {
            let score =
                |truth| Pattern::new(pattern).unwrap().score(&sample("x1y x2y", &json!(truth))).unwrap();
            assert_eq!((score("2"), score("1")), (1.0, 0.0), "{pattern}");
        }
    }

    #[test]
    fn patterns_that_cannot_be_bounded_are_refused() {
        for pattern in ["(", "((a{1000}){1000}){1000}", "(?=("] {
            assert!(matches!(Pattern::new(pattern), Err(RewardError::Pattern { .. })), "{pattern}");
        }
    }

    #[test]
    fn a_refusal_has_the_reason_of_the_engine() {
        for (pattern, reason) in [
            ("a{2,1}", "invalid repetition count range, the start must be <= the end"),
            ("(?=a)a{2,1}", "invalid repetition count range, the start must be <= the end"),
            ("[b-a]", "invalid character class range, the start must be <= the end"),
            ("ab(", "position 3: Opening parenthesis without closing parenthesis"),
        ] {
            let error = Pattern::new(pattern).unwrap_err();
            let source = error.source().unwrap().to_string();
            assert!(source.ends_with(reason), "{pattern}: {source}");
        }
    }

    #[test]
    fn look_around_and_back_references_run() {
        let pattern = Pattern::new(r"(?<tag>[a-z])=(?<answer>\d+)(?!\d|.*\k<tag>=)").unwrap();
        let score = |truth| pattern.score(&sample("x=1 y=3 x=2", &json!(truth))).unwrap();
        assert_eq!((score("2"), score("1"), score("3")), (1.0, 0.0, 0.0));
    }

    #[test]
    fn endless_backtracking_is_no_verdict() {
        let pattern = Pattern::new("^(a|aa|(?=b)b)+$").unwrap();
        let text = format!("{}c", "a".repeat(200));
        let error = pattern.score(&sample(&text, &json!("a"))).unwrap_err();
        assert!(matches!(error, RewardError::Backtracking { .. }), "{error}");
    }

    #[test]
    fn a_truth_in_the_form_of_an_answer_is_read_as_one() {
        let pattern = Pattern::new("#### (-?[0-9]+)").unwrap();
        let score = |truth| pattern.score(&sample("So #### 72", &json!(truth))).unwrap();
        assert_eq!((score("72"), score("48+24=72\n#### 72"), score("72\n#### 7")), (1.0, 1.0, 0.0));
        // Without a mark, a number inside of the truth is not the truth.
        let bare = Pattern::new("([0-9]+)").unwrap();
        assert_eq!(bare.score(&sample("14", &json!("3.14"))).unwrap(), 0.0);
    }

    #[test]
    fn the_classic_exponential_pattern_is_answered_at_once() {
        let pattern = Pattern::new("^(a+)+$").unwrap();
        let text = format!("{}b", "a".repeat(100_000));
        assert_eq!(pattern.score(&sample(&text, &json!("a"))).unwrap(), 0.0);
    }
}
