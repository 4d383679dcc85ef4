//! Patterns of file names, as Python's `glob` has them: `*` and `?` match within one component of a path,
//! `**` any components, `[a-z]` and `[!a-z]` one character.

use regex::Regex;

/// A compiled pattern.
pub(super) struct Glob {
    regex: Regex,
    num_hidden: usize,
    num_special: usize,
}

impl Glob {
    /// Compiles a pattern; `None` if a bracket is not closed, or the pattern is too long.
    pub(super) fn new(pattern: &str) -> Option<Self> {
        let regex = Regex::new(&regex_of(pattern)?).ok()?;
        Some(Self { regex, num_hidden: num_hidden(pattern), num_special: num_special(pattern) })
    }

    pub(super) fn finds(&self, name: &str) -> bool {
        self.regex.is_match(name)
            && num_hidden(name) == self.num_hidden
            && num_special(name) == self.num_special
    }
}

/// Number of path components that begin with a dot, such as `.git`.
fn num_hidden(path: &str) -> usize {
    path.split('/').filter(|part| part.starts_with('.') && !part.chars().all(|c| c == '.')).count()
}

/// Number of folders that begin with two underscores, such as `__pycache__`.
fn num_special(path: &str) -> usize {
    path.rsplit('/').skip(1).filter(|part| part.starts_with("__")).count()
}

fn regex_of(pattern: &str) -> Option<String> {
    let mut regex = "^".to_owned();
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        if let Some(behind) = rest.strip_prefix("**/") {
            regex.push_str("(?:.*/)?");
            rest = behind;
            continue;
        }
        if let Some(behind) = rest.strip_prefix("**") {
            regex.push_str(".*");
            rest = behind;
            continue;
        }
        rest = &rest[first.len_utf8()..];
        match first {
            '*' => regex.push_str("[^/]*"),
            '?' => regex.push_str("[^/]"),
            '[' => {
                // A bracket right after the opening one belongs to the set.
                let close = rest.char_indices().skip(1).find(|(_, c)| *c == ']')?.0;
                let (set, behind) = rest.split_at(close);
                let (not, set) = set.strip_prefix('!').map_or(("", set), |set| ("^", set));
                let set =
                    set.replace('\\', r"\\").replace('[', r"\[").replace('&', r"\&").replace('~', r"\~");
                let set = set.replace(']', r"\]").replace('^', r"\^");
                regex.push_str(&format!("[{not}{set}]"));
                rest = &behind[1..];
            }
            other => regex.push_str(&regex::escape(other.encode_utf8(&mut [0; 4]))),
        }
    }
    regex.push('$');
    Some(regex)
}
