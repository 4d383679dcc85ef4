//! Reasons for which engines refuse regular expressions, in the words of the engine.

use std::error::Error;

use fancy_regex::CompileError;

/// Reason for which an engine refuses a regular expression, or gives up on a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PatternError(String);

impl PatternError {
    /// Reason of the engine with look-around. The user's pattern begins at byte `start` of the text that was
    /// compiled, so positions are counted from there.
    pub fn with_look_around(error: &fancy_regex::Error, start: usize) -> Self {
        match error {
            // This engine gives parts without look-around to the linear one, whose error is not its source.
            fancy_regex::Error::CompileError(CompileError::InnerError(inner)) => {
                Self(reason(&innermost(inner).to_string()).to_owned())
            }
            fancy_regex::Error::ParseError(position, problem) => {
                let position = position.saturating_sub(start);
                Self(fancy_regex::Error::ParseError(position, problem.clone()).to_string())
            }
            other => Self(other.to_string()),
        }
    }

    /// Reason of the linear engine.
    pub fn linear(error: &regex::Error) -> Self {
        Self(reason(&error.to_string()).to_owned())
    }
}

fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    error.source().map_or(error, innermost)
}

/// Returns the last line of a message that quotes the compiled text and marks a place in it.
fn reason(message: &str) -> &str {
    message.rsplit_once("\nerror: ").map_or(message, |(_, reason)| reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(pattern: &str, start: usize) -> String {
        PatternError::with_look_around(&fancy_regex::Regex::new(pattern).unwrap_err(), start).to_string()
    }

    #[test]
    fn the_reason_of_the_inner_engine_is_kept() {
        for pattern in ["a{2,1}", "(?=x)a{2,1}"] {
            assert_eq!(refusal(pattern, 0), "invalid repetition count range, the start must be <= the end");
        }
        assert!(refusal("(?=x)[b-a]", 0).contains("character class range"));
        assert!(refusal("(?=x)((a{1000}){1000}){1000}", 0).contains("limit"));
        let linear =
            |pattern: &str| PatternError::linear(&regex::Regex::new(pattern).unwrap_err()).to_string();
        assert_eq!(linear("a{2,1}"), refusal("a{2,1}", 0));
        assert!(linear("((a{1000}){1000}){1000}").contains("size limit"));
    }

    #[test]
    fn positions_are_those_of_the_users_pattern() {
        let alone = refusal(r"ab\", 0);
        assert!(alone.contains("position 2"), "{alone}");
        assert_eq!(refusal(r"^(?:ab\", 4), alone);
    }
}
