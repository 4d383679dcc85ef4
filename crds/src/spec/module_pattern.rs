//! Regular expressions for names of modules, with PEFT's meaning.

use fancy_regex::Regex;
pub use rlt_algorithms::pattern_error::PatternError;

/// A compiled regular expression for names of modules.
#[derive(Clone, Debug)]
pub struct ModulePattern(Regex);

impl ModulePattern {
    /// Compiles a pattern for full names, such as `targetPattern`.
    ///
    /// # Errors
    /// The engine's reason, with positions in `pattern`.
    pub fn for_full_names(pattern: &str) -> Result<Self, PatternError> {
        Self::after("^(?:", pattern)
    }

    /// Compiles a pattern for full names and for their ends after a dot, such as those of `rankPattern`.
    ///
    /// # Errors
    /// Those of [`Self::for_full_names`].
    pub fn for_ends_of_names(pattern: &str) -> Result<Self, PatternError> {
        Self::after(r"^(?:.*\.)?(?:", pattern)
    }

    fn after(start: &str, pattern: &str) -> Result<Self, PatternError> {
        // Compiled alone first: `a)|(?:b` must not become valid by the text around it, and an unclosed
        // bracket is reported at the end of the pattern.
        Regex::new(pattern).map_err(|error| PatternError::with_look_around(&error, 0))?;
        let regex = Regex::new(&format!("{start}{pattern})$"));
        regex.map(Self).map_err(|error| PatternError::with_look_around(&error, start.len()))
    }

    /// Whether the pattern matches `name`.
    ///
    /// # Errors
    /// The error of an engine that gives up after too many steps.
    pub fn is_match(&self, name: &str) -> Result<bool, PatternError> {
        self.0.is_match(name).map_err(|error| PatternError::with_look_around(&error, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_full_names_or_ends_after_a_dot() {
        let [full, ends] = [ModulePattern::for_full_names, ModulePattern::for_ends_of_names].map(|compile| {
            let pattern = compile("q_proj|mlp.*").unwrap();
            ["q_proj", "attn.q_proj", "mlp.up", "x.mlp.up", "xq_proj"]
                .map(|name| pattern.is_match(name).unwrap())
        });
        assert_eq!(full, [true, false, true, false, false]);
        assert_eq!(ends, [true, true, true, true, false]);
    }

    #[test]
    fn refusals_are_those_of_the_pattern_alone() {
        let alone = |pattern: &str| PatternError::with_look_around(&Regex::new(pattern).unwrap_err(), 0);
        for compile in [ModulePattern::for_full_names, ModulePattern::for_ends_of_names] {
            for pattern in ["(q", "q)", "a)|(?:b", r"q\", "q{2,1}", "(?<=q+)"] {
                assert_eq!(compile(pattern).unwrap_err(), alone(pattern), "{pattern}");
            }
            // Here the comment hides the closing bracket.
            assert!(compile("(?x)q # query").is_err());
        }
    }
}
