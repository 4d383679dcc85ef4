//! Evaluation of launch scripts up to their launches: variables, arrays, conditions, loops, functions.
//!
//! No program is started and no file is read. A command that is not a shell builtin is recorded. As a
//! condition it counts as failed, and its output is empty. In a list with only `&&`, the commands after it
//! are run. The grammar is that of brush-parser.

mod arithmetic;
mod condition;
mod documents;
mod expansion;
pub(crate) mod limits;
mod nesting;
mod scope;

use std::collections::BTreeMap;
use std::io::Cursor;

use brush_parser::ast::{
    AndOr, AndOrList, Command, CommandPrefixOrSuffixItem, CompoundCommand, CompoundList, Pipeline,
    SimpleCommand,
};
use brush_parser::{ParseError, Parser, ParserOptions, SourceInfo, WordParseError};

use limits::{Budget, MAX_COMMANDS, MAX_DIGITS};
use scope::Scope;

/// Deepest nesting of functions, substitutions and compound commands.
const MAX_DEPTH: usize = 64;
/// Stack size of the evaluating thread, in bytes: parsers and trees recurse as deep as [`limits`] allows.
const STACK_BYTES: usize = 256 << 20;

/// A script that cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum ShellError {
    /// The text is not a shell script.
    #[error("not a shell script: {0}")]
    Script(#[from] ParseError),
    /// A redirection or a tilde has a number that no shell supports.
    #[error("a file descriptor or directory number of at most {MAX_DIGITS} digits is expected, got {0}")]
    Number(String),
    /// A word, a condition or an expression is malformed.
    #[error("malformed: {0}")]
    Word(#[from] WordParseError),
    /// The script, or what its variables expand to, is too long.
    #[error("a script and what it expands to may have at most {0} bytes")]
    Large(usize),
    /// Brackets, substitutions or compound commands are nested too deeply for the grammar's parser.
    #[error("line {line}: {depth} levels of {kind} within each other, at most {allowed} are read")]
    Nested {
        /// Kind of what is nested.
        kind: &'static str,
        /// Line of the script, counted from 1, in which the deepest level begins.
        line: usize,
        /// Number of levels.
        depth: usize,
        /// Largest number of levels that are read.
        allowed: usize,
    },
    /// An expression or a pattern that the script computes is nested too deeply.
    #[error("{depth} levels of {kind} within each other, at most {allowed} are read")]
    Complex {
        /// Kind of what is nested.
        kind: &'static str,
        /// Number of levels.
        depth: usize,
        /// Largest number of levels that are read.
        allowed: usize,
    },
    /// There are too many conditions.
    #[error("{count} `&&`, `||` and `!`, at most {allowed} are read")]
    Conditions {
        /// Number of operators.
        count: usize,
        /// Largest number of operators that are read.
        allowed: usize,
    },
    /// The thread that evaluates the script could not be started, or panicked.
    #[error("no thread to evaluate the script: {0}")]
    Thread(String),
    /// The script runs for too long, or recurses too deeply.
    #[error("more than {MAX_COMMANDS} commands, or more than {MAX_DEPTH} within each other")]
    Endless,
}

/// Result of the evaluation of a script.
#[derive(Debug, Default)]
pub struct Evaluation {
    /// Programs that the script starts, with their arguments.
    pub commands: Vec<Vec<String>>,
    /// Texts of the files that the script writes from here-documents, by path.
    pub files: BTreeMap<String, String>,
    /// Notes on what is unknown: variables without a value, the output of programs.
    pub notes: Vec<String>,
}

/// Evaluates a script with the given environment variables and arguments.
///
/// # Errors
/// When the text is not a script, or does not end.
pub fn evaluate(
    script: &str,
    environment: &BTreeMap<String, String>,
    arguments: &[String],
) -> Result<Evaluation, ShellError> {
    evaluate_within(&mut Budget::default(), script, environment, arguments)
}

/// Evaluates one of several scripts as [`evaluate`] does; all share the limits of `budget`.
pub(crate) fn evaluate_within(
    budget: &mut Budget,
    script: &str,
    environment: &BTreeMap<String, String>,
    arguments: &[String],
) -> Result<Evaluation, ShellError> {
    limits::check(script)?;
    std::thread::scope(|threads| {
        let evaluated = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(threads, || {
            let scope = Scope::new(environment, arguments);
            let mut shell = Shell { scope, budget: *budget, ..Shell::default() };
            let evaluated = shell.run_text(script);
            *budget = shell.budget;
            evaluated?;
            Ok(Evaluation { commands: shell.commands, files: shell.files, notes: shell.scope.notes })
        });
        let joined = evaluated.map_err(|error| ShellError::Thread(error.to_string()))?.join();
        joined.unwrap_or_else(|_| Err(ShellError::Thread("it panicked".to_owned())))
    })
}

/// State of the shell between two commands.
#[derive(Debug, Default)]
struct Shell {
    scope: Scope,
    commands: Vec<Vec<String>>,
    files: BTreeMap<String, String>,
    depth: usize,
    budget: Budget,
    /// Output of `echo`, collected during a command substitution; `None` outside of one.
    output: Option<String>,
    /// Whether a condition of `if` is evaluated.
    is_condition: bool,
}

impl Shell {
    fn run_text(&mut self, text: &str) -> Result<bool, ShellError> {
        limits::check(text)?;
        nesting::check_script(text)?;
        let options = ParserOptions::default();
        let mut parser = Parser::new(Cursor::new(text), &options, &SourceInfo::default());
        let program = parser.parse_program()?;
        let mut succeeded = true;
        for list in &program.complete_commands {
            succeeded = self.run_list(list)?;
        }
        Ok(succeeded)
    }

    fn run_list(&mut self, list: &CompoundList) -> Result<bool, ShellError> {
        let mut succeeded = true;
        for item in &list.0 {
            succeeded = self.run_and_or(&item.0)?;
        }
        Ok(succeeded)
    }

    fn run_condition(&mut self, list: &CompoundList) -> Result<bool, ShellError> {
        let outer = std::mem::replace(&mut self.is_condition, true);
        let holds = self.run_list(list);
        self.is_condition = outer;
        holds
    }

    fn run_and_or(&mut self, list: &AndOrList) -> Result<bool, ShellError> {
        // In a chain such as `pip install .. && train`, programs count as successful. Elsewhere a result
        // depends on how they end, which is unknown.
        let is_chain = list.additional.iter().all(|next| matches!(next, AndOr::And(_)));
        let goes_on = is_chain && !self.is_condition && self.output.is_none();
        let mut num_commands = self.commands.len();
        let mut succeeded = self.run_pipeline(&list.first)?;
        for next in &list.additional {
            let is_program = self.commands.len() > num_commands;
            num_commands = self.commands.len();
            succeeded = match next {
                AndOr::And(pipeline) if succeeded || (goes_on && is_program) => {
                    self.run_pipeline(pipeline)?
                }
                AndOr::Or(pipeline) if !succeeded => self.run_pipeline(pipeline)?,
                AndOr::And(_) | AndOr::Or(_) => succeeded,
            };
        }
        Ok(succeeded)
    }

    fn run_pipeline(&mut self, pipeline: &Pipeline) -> Result<bool, ShellError> {
        let mut succeeded = true;
        for command in &pipeline.seq {
            succeeded = self.run_command(command)?;
        }
        Ok(succeeded != pipeline.bang)
    }

    fn run_command(&mut self, command: &Command) -> Result<bool, ShellError> {
        self.budget.count_command()?;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ShellError::Endless);
        }
        let succeeded = match command {
            Command::Simple(simple) => self.run_simple(simple)?,
            Command::Compound(compound, _) => self.run_compound(compound)?,
            Command::ExtendedTest(test) => self.holds(&test.expr)?,
            Command::Function(function) => {
                let name = function.fname.value.clone();
                self.scope.functions.insert(name, function.body.0.clone());
                true
            }
        };
        self.depth -= 1;
        Ok(succeeded)
    }

    fn run_compound(&mut self, command: &CompoundCommand) -> Result<bool, ShellError> {
        match command {
            CompoundCommand::Arithmetic(command) => Ok(self.compute(&command.expr.value)? != 0),
            CompoundCommand::BraceGroup(group) => self.run_list(&group.list),
            CompoundCommand::Subshell(subshell) => self.run_list(&subshell.list),
            CompoundCommand::ForClause(clause) => {
                let words = clause.values.iter().flatten();
                let mut values = Vec::new();
                for word in words {
                    values.extend(self.fields(&word.value)?);
                }
                for value in values {
                    self.scope.set(&clause.variable_name, value);
                    self.run_list(&clause.body.list)?;
                }
                Ok(true)
            }
            CompoundCommand::CaseClause(clause) => {
                let value = self.text(&clause.value.value)?;
                for case in &clause.cases {
                    if self.matches_any(&value, &case.patterns)? {
                        return case.cmd.as_ref().map_or(Ok(true), |list| self.run_list(list));
                    }
                }
                Ok(true)
            }
            CompoundCommand::IfClause(clause) => {
                if self.run_condition(&clause.condition)? {
                    return self.run_list(&clause.then);
                }
                for other in clause.elses.iter().flatten() {
                    let condition = other.condition.as_ref();
                    let is_taken = condition.map_or(Ok(true), |list| self.run_condition(list))?;
                    if is_taken {
                        return self.run_list(&other.body);
                    }
                }
                Ok(true)
            }
            CompoundCommand::ArithmeticForClause(_)
            | CompoundCommand::WhileClause(_)
            | CompoundCommand::UntilClause(_) => {
                self.scope.note("a loop is left out".to_owned());
                Ok(true)
            }
        }
    }

    fn run_simple(&mut self, command: &SimpleCommand) -> Result<bool, ShellError> {
        let prefix = command.prefix.iter().flat_map(|prefix| &prefix.0);
        let suffix = command.suffix.iter().flat_map(|suffix| &suffix.0);
        for item in prefix {
            if let CommandPrefixOrSuffixItem::AssignmentWord(assignment, _) = item {
                self.assign(assignment)?;
            }
        }
        let Some(name) = &command.word_or_name else { return Ok(true) };
        let mut words = self.fields(&name.value)?;
        let declares =
            matches!(words.first().map(String::as_str), Some("export" | "local" | "declare" | "readonly"));
        for item in suffix {
            match item {
                CommandPrefixOrSuffixItem::AssignmentWord(assignment, _) if declares => {
                    self.assign(assignment)?
                }
                CommandPrefixOrSuffixItem::AssignmentWord(_, word)
                | CommandPrefixOrSuffixItem::Word(word) => {
                    words.extend(self.fields(&word.value)?);
                }
                CommandPrefixOrSuffixItem::IoRedirect(_)
                | CommandPrefixOrSuffixItem::ProcessSubstitution(..) => {}
            }
        }
        if self.use_document(command, &words)? {
            return Ok(true);
        }
        self.start(words)
    }

    /// Runs a command: a builtin, a function, or a program, which is recorded.
    fn start(&mut self, words: Vec<String>) -> Result<bool, ShellError> {
        let Some((name, arguments)) = words.split_first() else { return Ok(true) };
        match name.as_str() {
            "[" | "test" => self.holds_test(arguments),
            "echo" | "printf" => {
                let text = arguments.join(" ");
                self.budget.spend(text.len())?;
                if let Some(output) = &mut self.output {
                    output.push_str(&text);
                }
                Ok(true)
            }
            "eval" => self.run_text(&arguments.join(" ")),
            "shift" => {
                let count = arguments.first().and_then(|count| count.parse().ok()).unwrap_or(1);
                self.scope.shift(count);
                Ok(true)
            }
            "false" => Ok(false),
            ":" | "true" | "set" | "shopt" | "export" | "local" | "declare" | "readonly" | "unset" | "cd"
            | "source" | "." | "ulimit" | "trap" | "exit" | "return" | "wait" | "sleep" | "mkdir" => Ok(true),
            _ => match self.scope.functions.get(name).cloned() {
                Some(body) => {
                    let callers = self.scope.replace_arguments(arguments.to_vec());
                    let succeeded = self.run_compound(&body);
                    self.scope.replace_arguments(callers);
                    succeeded
                }
                None => self.start_program(words),
            },
        }
    }

    /// Records a program, or runs the text of `bash -c text`.
    fn start_program(&mut self, words: Vec<String>) -> Result<bool, ShellError> {
        match text_of_shell(&words) {
            Some(text) => self.run_embedded(&words[0], text),
            None => {
                self.commands.push(words);
                Ok(false)
            }
        }
    }

    /// Runs a script within a script, for the command that contains it. A text that is not a script is noted.
    fn run_embedded(&mut self, command: &str, text: &str) -> Result<bool, ShellError> {
        self.budget.spend(text.len())?;
        match self.run_text(text) {
            Err(ShellError::Script(error)) => {
                self.scope.note(format!("the script of `{command}` is left out: {error}"));
                Ok(false)
            }
            succeeded => succeeded,
        }
    }
}

/// Names of shells that run a text.
const SHELLS: [&str; 4] = ["bash", "sh", "zsh", "dash"];

/// Whether a word is the name or path of a shell.
fn is_shell(word: &str) -> bool {
    word.rsplit('/').next().is_some_and(|name| SHELLS.contains(&name))
}

/// Returns the text that a command gives to a shell to run: `srun bash -lc text`.
fn text_of_shell(words: &[String]) -> Option<&str> {
    let options = &words[words.iter().position(|word| is_shell(word))? + 1..];
    let is_option = |word: &&String| word.starts_with('-');
    let num_options = options.iter().take_while(is_option).count();
    let runs_text = |word: &String| !word.starts_with("--") && word.contains('c');
    let has_text = options[..num_options].iter().any(runs_text);
    options.get(num_options).filter(|_| has_text).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(script: &str) -> Vec<String> {
        let environment = BTreeMap::from([("HOME".to_owned(), "/home/me".to_owned())]);
        let evaluation = evaluate(script, &environment, &[]).unwrap();
        evaluation.commands.iter().map(|words| words.join("|")).collect()
    }

    #[test]
    fn words_are_split_and_quoted_as_bash_does() {
        let script = "c=d; d=1; a=${!c}; b='x  y'; list=(one \"two $a\"); list+=(three)\nrun $b \"$b\" \"${list[@]}\" k=\"$HOME/v\" e= \\\n  last";
        assert_eq!(commands(script), ["run|x|y|x  y|one|two 1|three|k=/home/me/v|e=|last"]);
    }

    #[test]
    fn numbers_that_the_grammar_cannot_hold_are_refused() {
        let refused = |script: &str| evaluate(script, &BTreeMap::new(), &[]).unwrap_err().to_string();
        assert!(refused("run a=1 99999999999>x").ends_with("got 99999999999"));
        assert!(refused("run ~+99999999999999999999").ends_with("got 99999999999999999999"));
        assert_eq!(commands("run 12345678901 2>x"), ["run|12345678901"]);
    }

    #[test]
    fn maps_elements_and_parts_of_lists_are_those_of_bash() {
        let script = "declare -A rate=([small]=1e-6 [big]=5e-7); size=big; rate[huge]=1e-7\n\
                      list[0]=one; list[1]=two; list+=(three); list[1]+=s\n\
                      run ${rate[$size]} ${rate[huge]} ${list[1]} ${list[-1]} ${list[@]:1} ${size:0:1} ${size: -2}";
        assert_eq!(commands(script), ["run|5e-7|1e-7|twos|three|twos|three|b|ig"]);
        let evaluation = evaluate("run \"${@:2}\"", &BTreeMap::new(), &["a", "b", "c"].map(str::to_owned));
        assert_eq!(evaluation.unwrap().commands, [["run", "b", "c"]]);
    }

    #[test]
    fn texts_that_a_shell_runs_are_scripts() {
        let script = "run='train a=1'; eval \"$run b=2\"; srun -N 2 bash -lc 'train c=3 && other'; bash script.sh -c x";
        assert_eq!(commands(script), ["train|a=1|b=2", "train|c=3", "other", "bash|script.sh|-c|x"]);
        assert!(matches!(evaluate("f() { eval f; }; f", &BTreeMap::new(), &[]), Err(ShellError::Endless)));
        let comment = "x".repeat(1 << 19);
        let times = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17";
        let script = format!("for n in {times}; do\nbash <<EOF\n# {comment}\nEOF\ndone\n");
        assert!(matches!(evaluate(&script, &BTreeMap::new(), &[]), Err(ShellError::Large(_))));
    }

    #[test]
    fn here_documents_are_scripts_files_and_values() {
        let script = "rate=2; cat > ./a.yaml <<EOF\nrate: ${rate}\nname: \"it's\"\nEOF\ncat <<'X' > b.yaml\nc: $rate\nX\n\
                      read -r -d '' more <<'Y' || true\na=1\nY\nsbatch --nodes=2 <<Z\ntrain $rate $more\nZ\npython <<P\nprint()\nP\n";
        let evaluation = evaluate(script, &BTreeMap::new(), &[]).unwrap();
        let files: Vec<_> =
            evaluation.files.iter().map(|(path, text)| (path.as_str(), text.trim_end())).collect();
        assert_eq!(files, [("a.yaml", "rate: 2\nname: \"it's\""), ("b.yaml", "c: $rate")]);
        assert_eq!(evaluation.commands, [&["train", "2", "a=1"][..], &["python"][..]]);
        assert_eq!(evaluation.notes, ["the here-document of `python` is left out"]);
    }

    #[test]
    fn defaults_conditions_and_cases_choose_what_is_launched() {
        let script = "\
            DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}\n\
            tp=${TP:-}; EXTRA=()\n\
            case \"$DEVICE\" in\n  gpu | cuda) tp=${tp:-2} ;;\n  *) tp=8 ;;\nesac\n\
            if [ \"$tp\" -gt 1 ] && [[ $DEVICE == g* ]]; then EXTRA+=(x.tp=$((tp * 2 + 1))); else EXTRA=(no); fi\n\
            launch \"${EXTRA[@]}\" \"$@\"\n";
        assert_eq!(commands(script), ["python3|-c|import torch_npu", "launch|x.tp=5"]);
    }

    #[test]
    fn what_follows_a_program_by_and_is_run_outside_of_conditions() {
        let script = "cd /a && pip install b && train c=1\n[ a = b ] && other\n\
                      if probe && [ a = a ]; then no; fi\nprobe && x=1 || x=2; run $x";
        assert_eq!(commands(script), ["pip|install|b", "train|c=1", "probe", "probe", "run|2"]);
    }

    #[test]
    fn functions_loops_and_names_cut_by_patterns() {
        let script = "\
            path=/models/qwen/base.tar.gz\n\
            run() { start $1 ${2%.*} ${path##*/} ${path%%.*}; }\n\
            for n in 1 2; do run $n file.txt; done\n";
        assert_eq!(
            commands(script),
            ["start|1|file|base.tar.gz|/models/qwen/base", "start|2|file|base.tar.gz|/models/qwen/base"]
        );
    }

    #[test]
    fn case_is_changed_and_other_expansions_are_noted_by_name() {
        assert_eq!(
            commands("n=Qwen; run ${n,} ${n,,} ${n^^}; n=a; run ${n^}"),
            ["run|qwen|qwen|QWEN", "run|A"]
        );
        let evaluation = evaluate("n=a; run ${n@Q} ${!n*}", &BTreeMap::new(), &[]).unwrap();
        let notes =
            ["an expansion of n is left out", "an expansion to names of variables or keys is left out"];
        assert_eq!(evaluation.notes, notes);
    }

    #[test]
    fn unknown_values_are_reported_and_endless_loops_are_errors() {
        let evaluation = evaluate("run ${MODEL:?set it} $(nproc) $SEED", &BTreeMap::new(), &[]).unwrap();
        assert_eq!(
            evaluation.notes,
            ["MODEL is not set: set it", "the output of `nproc` is not known", "SEED is not set"]
        );
        assert!(matches!(evaluate("f() { f; }; f", &BTreeMap::new(), &[]), Err(ShellError::Endless)));
        assert!(matches!(evaluate("if true; then", &BTreeMap::new(), &[]), Err(ShellError::Script(_))));
    }
}
