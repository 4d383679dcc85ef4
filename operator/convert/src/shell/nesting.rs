//! Limits of nesting, within which the grammar's parser takes bounded time.
//!
//! brush-parser backtracks without memoization. In scripts, it parses an arithmetic command again as
//! subshells, and the last item of a `case` twice, so each unclosed level doubles the work. In words, it
//! parses an unterminated substitution again as text; inside double quotes it does so once more while it
//! searches the text before the substitution for its end. It parses the subscript of an array once for each
//! kind of expansion. The scans in this module take linear time and never underestimate how often the parser
//! reads a text again: a closing bracket counts only where the parser accepts it as one.

use brush_parser::{ParserOptions, Token, uncached_tokenize_str};

use super::ShellError;

/// Deepest nesting of subshells, arithmetic commands, arrays and `case`. Public scripts have at most 4.
const MAX_COMMANDS: usize = 10;
/// Deepest nesting of substitutions in a word, in doublings of the parser's work. Public scripts have at most
/// 6.
const MAX_SUBSTITUTIONS: usize = 12;
/// Doublings that the subscript of an array causes: the parser reads it for each of about 20 expansions.
const SUBSCRIPT: usize = 5;
/// Deepest nesting of an arithmetic expression: each operator before an open bracket reads it once more.
const MAX_EXPRESSION: usize = 4;
/// Largest number of extended patterns such as `@(a|b)` in a pattern.
const MAX_PATTERNS: usize = 8;
/// Words before which a command begins, if no operator does.
const BEFORE_COMMANDS: [&str; 11] =
    ["then", "do", "else", "elif", "if", "while", "until", "{", "!", "time", "-p"];

/// Deepest point of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Deepest {
    pub(super) depth: usize,
    /// Line of a script, counted from 1, or offset in a word in bytes.
    pub(super) at: usize,
}

impl Deepest {
    /// Moves to this point if it is deeper.
    pub(super) fn reach(&mut self, depth: usize, at: usize) {
        if depth > self.depth {
            *self = Self { depth, at };
        }
    }
}

/// Checks commands and words of a script before the grammar parses them.
///
/// # Errors
/// When they are nested too deeply.
pub(super) fn check_script(script: &str) -> Result<(), ShellError> {
    // For a text that cannot be tokenized the parser reports an error before it parses anything.
    let Ok(tokens) = uncached_tokenize_str(script, &ParserOptions::default().tokenizer_options()) else {
        return Ok(());
    };
    let deepest = deepest_command(&tokens);
    if deepest.depth > MAX_COMMANDS {
        return Err(ShellError::Nested {
            kind: "subshells, arithmetic, arrays and `case`",
            line: deepest.at,
            depth: deepest.depth,
            allowed: MAX_COMMANDS,
        });
    }
    for (index, token) in tokens.iter().enumerate() {
        if let Token::Word(word, location) = token
            && !is_document(&tokens[..index])
        {
            check_word_at(word, location.start.line)?;
        }
    }
    Ok(())
}

/// Checks a word before its substitutions are parsed.
///
/// # Errors
/// When they are nested too deeply.
pub(super) fn check_word(word: &str) -> Result<(), ShellError> {
    check_word_at(word, 1)
}

/// Checks an arithmetic expression before it is parsed.
///
/// # Errors
/// When it is nested too deeply.
pub(super) fn check_expression(expression: &str) -> Result<(), ShellError> {
    let depth = depth_of_expression(expression);
    if depth > MAX_EXPRESSION {
        let kind = "brackets and conditions of an arithmetic expression";
        return Err(ShellError::Complex { kind, depth, allowed: MAX_EXPRESSION });
    }
    Ok(())
}

/// Checks a pattern before it is parsed.
///
/// # Errors
/// When it contains too many extended patterns, in which those that are left open count as nested.
pub(super) fn check_pattern(pattern: &str) -> Result<(), ShellError> {
    let openings = ["@(", "!(", "?(", "+(", "*("];
    let depth: usize = openings.iter().map(|opening| pattern.matches(opening).count()).sum();
    if depth > MAX_PATTERNS {
        return Err(ShellError::Complex { kind: "extended patterns", depth, allowed: MAX_PATTERNS });
    }
    Ok(())
}

fn check_word_at(word: &str, first_line: usize) -> Result<(), ShellError> {
    let deepest = deepest_substitution(word);
    if deepest.depth <= MAX_SUBSTITUTIONS {
        return Ok(());
    }
    Err(ShellError::Nested {
        kind: "substitutions (one in double quotes counts as two, a subscript as five)",
        line: first_line + word[..deepest.at].matches('\n').count(),
        depth: deepest.depth,
        allowed: MAX_SUBSTITUTIONS,
    })
}

/// Whether the text of a here-document comes after these tokens: an operator, and the word at the text's end.
fn is_document(before: &[Token]) -> bool {
    let [.., Token::Operator(operator, _), Token::Word(..)] = before else { return false };
    operator == "<<" || operator == "<<-"
}

/// An unclosed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Bracket,
    Case,
}

/// Returns the line with the most open brackets and `case` commands.
fn deepest_command(tokens: &[Token]) -> Deepest {
    let mut deepest = Deepest::default();
    let mut open = Vec::new();
    let (mut num_brackets, mut num_cases) = (0usize, 0usize);
    for (index, token) in tokens.iter().enumerate() {
        let before = &tokens[..index];
        match token {
            Token::Operator(operator, _) if operator == "(" => {
                open.push(Command::Bracket);
                num_brackets += 1;
            }
            Token::Operator(operator, _) if operator == ")" => {
                // The bracket behind a pattern of `case` ends no command, but it does end an expression.
                open.pop_if(|command| *command == Command::Bracket);
                num_brackets = num_brackets.saturating_sub(1);
            }
            Token::Word(word, _) if word == "case" && may_begin_command(before) => {
                open.push(Command::Case);
                num_cases += 1;
            }
            Token::Word(word, _) if word == "esac" && begins_line_or_list(before) => {
                let closed = open.pop_if(|command| *command == Command::Case);
                num_cases -= usize::from(closed.is_some());
            }
            _ => {}
        }
        deepest.reach(num_brackets + num_cases, token.location().start.line);
    }
    deepest
}

/// Whether a command may begin after these tokens.
fn may_begin_command(before: &[Token]) -> bool {
    match before {
        [] | [.., Token::Operator(..)] => true,
        [.., Token::Word(function, _), Token::Word(_, _)] if function == "function" => true,
        [.., Token::Word(word, _)] => BEFORE_COMMANDS.contains(&word.as_str()),
    }
}

/// Whether the operator before ends a command for certain, so that a reserved word may follow.
fn begins_line_or_list(before: &[Token]) -> bool {
    let ends = [";", ";;", ";&", ";;&", "&", "\n"];
    matches!(before.last(), Some(Token::Operator(operator, _)) if ends.contains(&operator.as_str()))
}

/// An unclosed part of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Text in double quotes.
    Quote,
    /// Command substitution `$(`, or a bracket in one.
    Bracket,
    /// Parameter expansion `${`.
    Brace,
    /// Subscript of an array, `${name[`.
    Subscript,
}

/// An unclosed part, with the number of times that it doubles the parser's work.
struct Level {
    part: Part,
    doublings: usize,
}

/// Parts that are unclosed at an offset of a word.
#[derive(Default)]
struct WordScan {
    open: Vec<Level>,
    doublings: usize,
    deepest: Deepest,
}

/// Returns the doublings and the offset of the innermost substitution of a word.
fn deepest_substitution(word: &str) -> Deepest {
    let mut scan = WordScan::default();
    let mut at = 0;
    while at < word.len() {
        at += scan.step(word.as_bytes(), at);
    }
    scan.deepest
}

impl WordScan {
    /// Processes the characters at an offset, and returns their number of bytes.
    fn step(&mut self, word: &[u8], at: usize) -> usize {
        let is_quoted = self.open.last().is_some_and(|level| level.part == Part::Quote);
        match &word[at..] {
            [b'\\', ..] => return 2,
            [b'$', b'(', ..] => {
                self.begin(Part::Bracket, 1 + usize::from(is_quoted), at);
                return 2;
            }
            [b'$', b'{', rest @ ..] => {
                self.begin(Part::Brace, 1 + usize::from(is_quoted), at);
                return 2 + self.subscript(rest);
            }
            [b'"', ..] if is_quoted => self.end(Part::Quote),
            // The parser reads an unterminated `$"` again as a dollar sign and a quote.
            [b'"', ..] => self.begin(Part::Quote, usize::from(word[..at].ends_with(b"$")), at),
            _ if is_quoted => {}
            [b'\'', rest @ ..] => return 1 + self.single_quotes(rest),
            [b'(', ..] => {
                let is_pattern = word[..at].last().is_some_and(|letter| b"@!?+*".contains(letter));
                self.begin(Part::Bracket, 1 + usize::from(is_pattern), at);
            }
            [b')', ..] => self.end(Part::Bracket),
            [b'}', ..] => self.end(Part::Brace),
            [b']', ..] => self.end(Part::Subscript),
            _ => {}
        }
        1
    }

    /// Opens the subscript that follows the name of an array, and returns the number of bytes of both.
    fn subscript(&mut self, rest: &[u8]) -> usize {
        let is_name = |letter: &&u8| letter.is_ascii_alphanumeric() || b"_!#".contains(*letter);
        let num_letters = rest.iter().take_while(is_name).count();
        if rest.get(num_letters) != Some(&b'[') {
            return 0;
        }
        // A subscript increases only the work of what is nested in it, so it does not count as the deepest
        // point itself.
        self.open.push(Level { part: Part::Subscript, doublings: SUBSCRIPT });
        self.doublings += SUBSCRIPT;
        num_letters + 1
    }

    /// Returns the number of bytes of a text up to the single quote that ends it. A substitution that the
    /// text leaves open stays open, since quotes of this kind are letters within double quotes.
    fn single_quotes(&mut self, rest: &[u8]) -> usize {
        let Some(len) = rest.iter().position(|letter| *letter == b'\'') else { return 0 };
        let text = &rest[..len];
        let num_open = text.windows(2).filter(|pair| matches!(pair, [b'$', b'(' | b'{'])).count();
        let num_ends = text.iter().filter(|letter| matches!(letter, b')' | b'}')).count();
        self.doublings += 2 * num_open.saturating_sub(num_ends);
        len + 1
    }

    fn begin(&mut self, part: Part, doublings: usize, at: usize) {
        self.open.push(Level { part, doublings });
        self.doublings += doublings;
        self.deepest.reach(self.doublings, at);
    }

    /// Closes a part if it is the innermost one.
    fn end(&mut self, part: Part) {
        if let Some(level) = self.open.pop_if(|level| level.part == part) {
            self.doublings -= level.doublings;
        }
    }
}

/// Returns the largest number of unclosed brackets, where a subscript counts twice, plus the number of all
/// `?`, which need not be closed.
fn depth_of_expression(expression: &str) -> usize {
    let (mut open, mut num_conditions, mut deepest) = (0usize, 0usize, 0usize);
    for letter in expression.bytes() {
        match letter {
            b'(' => open += 1,
            b'[' => open += 2,
            b')' => open = open.saturating_sub(1),
            b']' => open = open.saturating_sub(2),
            b'?' => num_conditions += 1,
            _ => {}
        }
        deepest = deepest.max(open + num_conditions);
    }
    deepest
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::shell::evaluate;

    /// Beginning and end of a level, and the depth that it adds.
    struct Kind {
        begin: &'static str,
        end: &'static str,
        depth: usize,
    }

    const fn kind(begin: &'static str, end: &'static str, depth: usize) -> Kind {
        Kind { begin, end, depth }
    }

    impl Kind {
        fn script(&self, num_levels: usize) -> String {
            format!("\necho {}x{}\n", self.begin.repeat(num_levels), self.end.repeat(num_levels))
        }

        fn commands(&self, num_levels: usize) -> String {
            format!("\n{}echo x{}\n", self.begin.repeat(num_levels), self.end.repeat(num_levels))
        }
    }

    /// Checks that as many levels as are allowed are evaluated, and one more is refused.
    fn check(script: impl Fn(usize) -> String, num_levels: usize, allowed: usize) {
        let longest = script(num_levels);
        assert!(check_script(&longest).is_ok(), "{longest}");
        let evaluated = evaluate(&longest, &BTreeMap::new(), &[]);
        assert!(!matches!(evaluated, Err(ShellError::Nested { .. })), "{longest}: {evaluated:?}");
        for too_many in [num_levels + 1, num_levels + 12] {
            let deeper = script(too_many);
            match check_script(&deeper) {
                Err(ShellError::Nested { line: 2, depth, allowed: stated, .. }) => {
                    assert!(depth > allowed && stated == allowed, "{deeper}: {depth}");
                }
                other => panic!("{deeper}: {other:?}"),
            }
            assert!(evaluate(&deeper, &BTreeMap::new(), &[]).is_err());
        }
    }

    #[test]
    fn commands_are_read_up_to_the_deepest_level_and_refused_beyond_it() {
        let kinds = [
            kind("( : ; ", " )", 1),
            kind("( ( : ; ", " ) ; : )", 2),
            kind("case x in x) ", "\nesac", 1),
            kind("case x in x) ", " ;; esac", 1),
            kind("f() ( : ; ", " )", 1),
            kind("! ( : && ", " )", 1),
        ];
        for kind in &kinds {
            check(|num_levels| kind.commands(num_levels), MAX_COMMANDS / kind.depth, MAX_COMMANDS);
        }
    }

    #[test]
    fn substitutions_are_read_up_to_the_deepest_level_and_refused_beyond_it() {
        let kinds = [
            kind("$(", ")", 1),
            kind("$(( ", " ))", 2),
            kind("\"a$(echo ", ")\"", 2),
            kind("${a:-", "}", 1),
            kind("\"${a:-", "}\"", 2),
            kind("$(@(", "))", 3),
            kind("${a[${b[", "]}]}", 12),
        ];
        for kind in &kinds {
            check(|num_levels| kind.script(num_levels), MAX_SUBSTITUTIONS / kind.depth, MAX_SUBSTITUTIONS);
        }
    }

    #[test]
    fn a_bracket_that_closes_nothing_hides_no_level() {
        let hidden = ["$( ')' ", "$( \")\" ", "${a:-')}' ", "\"$( '\"' "];
        for text in hidden {
            assert!(deepest_substitution(&text.repeat(20)).depth > MAX_SUBSTITUTIONS, "{text}");
        }
        let options = ParserOptions::default().tokenizer_options();
        for text in ["case x in a) echo esac\n", "case x in a) b=(\nesac\n)\n", "( ')' \n", "(( ')' \n"] {
            let deepest = deepest_command(&uncached_tokenize_str(&text.repeat(20), &options).unwrap());
            assert!(deepest.depth > MAX_COMMANDS, "{text}: {deepest:?}");
        }
    }

    #[test]
    fn consecutive_constructs_do_not_count_as_nested() {
        let lines = "a=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd); b=${b:-$(( (a + 1) * 2 ))}\n\
                     f() { run \"${list[@]}\" '$(' \"it's ${b}\"; }\n\
                     case $x in a | b) c=(1 2) ;; *) ( : ) ;; esac\n\
                     echo case; cat <<'EOF'\n((((((((((((((((((((\nEOF\n";
        assert!(check_script(&lines.repeat(500)).is_ok());
        let quoted = "echo '$(a)' '${b}' \"(\" \\$\\( \\\"$(a)\\\"\n";
        assert!(check_script(&quoted.repeat(500)).is_ok());
    }

    #[test]
    fn expressions_and_patterns_are_bounded() {
        assert_eq!(depth_of_expression("((a + b) * c[1]) / (d ? 2 : 3)"), 3);
        assert!(check_expression("(((( a ))))").is_ok() && check_expression("((((( a )))))").is_err());
        assert!(check_expression(&"a=b?".repeat(5)).is_err() && check_expression("a[b[c[1]]]").is_err());
        assert!(check_pattern("@(a|b)*").is_ok() && check_pattern(&"@(a|".repeat(9)).is_err());
    }
}
