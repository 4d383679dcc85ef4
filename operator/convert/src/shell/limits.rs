//! Limits of scripts: a text that is too long, too deeply nested or grows without end is rejected before the
//! grammar's parser, which recurses, or this process's memory reaches its own limit.

use super::ShellError;
use super::nesting::Deepest;

/// Largest size of a script, a page or a settings file, in bytes.
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting of brackets and compound commands, for the stack. See `nesting` for what takes time.
const MAX_NESTING: usize = 60;
/// Largest number of `&&`, `||` and `!` in one text: each is a level of a condition's tree.
const MAX_OPERATORS: usize = 4000;
/// Largest size of an arithmetic expression, in bytes: each operator may read the rest of it once more.
pub(super) const MAX_EXPRESSION_BYTES: usize = 256;
/// Largest number of commands and loops that are evaluated; a script that does not end is an error.
pub(super) const MAX_COMMANDS: usize = 100_000;
/// Largest number of bytes that all expansions of a script, or of the scripts of a page, produce together.
const MAX_EXPANDED_BYTES: usize = 8 << 20;
/// Largest number of digits before a redirection or after a tilde: the grammar's parser panics on more.
pub(super) const MAX_DIGITS: usize = 9;

/// Work of a script, or of all scripts of a page: bytes that expansions have produced, and commands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Budget {
    expanded: usize,
    num_commands: usize,
}

impl Budget {
    /// Counts a command.
    ///
    /// # Errors
    /// When there were too many.
    pub(super) fn count_command(&mut self) -> Result<(), ShellError> {
        self.num_commands += 1;
        if self.num_commands > MAX_COMMANDS { Err(ShellError::Endless) } else { Ok(()) }
    }

    /// Adds bytes that an expansion produces, copies or compares.
    ///
    /// # Errors
    /// When all expansions together exceed the limit.
    pub(super) fn spend(&mut self, bytes: usize) -> Result<(), ShellError> {
        self.expanded = self.expanded.saturating_add(bytes);
        if self.expanded > MAX_EXPANDED_BYTES { Err(ShellError::Large(MAX_EXPANDED_BYTES)) } else { Ok(()) }
    }
}

/// Checks a text before the grammar parses it.
///
/// # Errors
/// When the text is too long or too deeply nested, or has a number that the grammar cannot represent.
pub(super) fn check(text: &str) -> Result<(), ShellError> {
    if text.len() > MAX_BYTES {
        return Err(ShellError::Large(MAX_BYTES));
    }
    if let Some(number) = number_too_long(text) {
        return Err(ShellError::Number(number.to_owned()));
    }
    let operators = ["&&", "||", "!"].iter().map(|operator| text.matches(operator).count()).sum::<usize>();
    if operators > MAX_OPERATORS {
        return Err(ShellError::Conditions { count: operators, allowed: MAX_OPERATORS });
    }
    let Deepest { depth, at: line } = nesting(text);
    if depth > MAX_NESTING {
        let kind = "brackets and compound commands";
        return Err(ShellError::Nested { kind, line, depth, allowed: MAX_NESTING });
    }
    Ok(())
}

/// Returns the line with the most brackets and compound commands that are open at once, by an upper estimate.
/// Quotes are ignored, so it is hardly ever too small; closing more than is open has no effect.
fn nesting(text: &str) -> Deepest {
    let (mut brackets, mut compounds, mut deepest) = (0usize, 0usize, Deepest::default());
    for (index, line) in text.lines().enumerate() {
        // A keyword counts only where a command begins, so that the words of comments do not count.
        let mut is_command = true;
        for word in line.split_inclusive([' ', '\t', ';', '|', '&']) {
            let bare = word.trim_end_matches([' ', '\t', ';', '|', '&']);
            let bare = bare.trim_start_matches(['(', '{', '!', '`', '"']);
            match bare {
                "if" | "for" | "while" | "until" | "case" | "select" if is_command => compounds += 1,
                "fi" | "done" | "esac" if is_command => compounds = compounds.saturating_sub(1),
                _ => {}
            }
            for byte in word.bytes() {
                match byte {
                    b'(' | b'{' | b'[' => brackets += 1,
                    b')' | b'}' | b']' => brackets = brackets.saturating_sub(1),
                    _ => {}
                }
                deepest.reach(brackets + compounds, index + 1);
            }
            let is_keyword = matches!(
                bare,
                "" | "if"
                    | "then"
                    | "do"
                    | "else"
                    | "elif"
                    | "while"
                    | "until"
                    | "time"
                    | "in"
                    | "done"
                    | "fi"
                    | "esac"
            );
            is_command = (is_command && is_keyword) || word.ends_with([';', '|', '&']) || bare.ends_with(')');
        }
    }
    deepest
}

/// Returns the first number with too many digits where the grammar expects a small one.
fn number_too_long(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut start = 0;
    while start < bytes.len() {
        let len = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let end = start + len;
        let is_counted = matches!(bytes.get(end), Some(b'<' | b'>'))
            || bytes[..start].ends_with(b"~")
            || bytes[..start].ends_with(b"~+")
            || bytes[..start].ends_with(b"~-");
        if len > MAX_DIGITS && is_counted {
            return text.get(start..end);
        }
        start = end + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_counts_what_is_open_at_once() {
        let depth = |text: &str| nesting(text).depth;
        assert_eq!(depth("a=$((1 + (2))) b=${c:-${d}} e=[]"), 3);
        assert_eq!(depth("if true; then\n for x in y; do\n run; done; fi; if true; then run; fi"), 2);
        assert_eq!(depth(")))(("), 2);
        assert_eq!(depth("case $x in\n a) run ;;\n b) run ;;\nesac\nfor x in y; do run; done\n"), 1);
        assert_eq!(depth(&"# if this for that\necho if for\n".repeat(100)), 0);
        assert_eq!(depth(&"if ".repeat(10)), 10);
        assert_eq!(depth(&"if true; then ".repeat(10)), 10);
        assert_eq!(nesting("a\nb $(( ${c}\n"), Deepest { depth: 3, at: 2 });
    }

    #[test]
    fn long_and_nested_texts_are_refused_and_common_ones_are_not() {
        assert!(check(&"x".repeat(MAX_BYTES + 1)).is_err());
        assert!(check(&"$(".repeat(100)).is_err());
        assert!(check(&"if ! ".repeat(1000)).is_err());
        assert!(check(&"while if ".repeat(100)).is_err());
        assert!(check(&"[[ a && ".repeat(10_000)).is_err());
        assert!(check(&"run ${a} $((1 + 1)) && next || other; if true; then run; fi\n".repeat(1000)).is_ok());
    }
}
