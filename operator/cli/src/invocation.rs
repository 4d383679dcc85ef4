//! The name by which the program was called: `rlctl`, kubectl's plug-in, or kubectl's completion of a command
//! line. The file name decides.

use std::ffi::OsStr;
use std::path::Path;

use clap::{Arg, Command, CommandFactory as _, ValueHint};

use crate::args::Args;

/// Way in which the program was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invocation {
    /// Called as `rlctl`.
    Itself,
    /// Called as `kubectl rlt`, by the file name `kubectl-rlt`.
    Plugin,
    /// Called by kubectl to complete the arguments of its plug-in, by the file name `kubectl_complete-rlt`.
    Completer,
}

/// Last line of kubectl's completions, which leaves the completion of file names to the shell.
const FILES: &str = ":0";
/// Last line of kubectl's completions, which disables the completion of file names.
const NO_FILES: &str = ":4";

impl Invocation {
    /// Determines the way from the first argument of the process.
    pub(crate) fn of(program: Option<&OsStr>) -> Self {
        match program.map(Path::new).and_then(Path::file_stem).and_then(OsStr::to_str) {
            Some("kubectl-rlt") => Self::Plugin,
            Some("kubectl_complete-rlt") => Self::Completer,
            _ => Self::Itself,
        }
    }

    /// Returns the command line, named as it was called.
    pub(crate) fn command(self) -> Command {
        match self {
            Self::Itself => Args::command(),
            Self::Plugin | Self::Completer => Args::command().name("kubectl-rlt").bin_name("kubectl rlt"),
        }
    }
}

/// Returns the candidates for the last of these words, in kubectl's format.
pub(crate) fn completions(words: &[String]) -> String {
    let (before, last) = match words.split_last() {
        Some((last, before)) => (before, last.as_str()),
        None => (words, ""),
    };
    let mut command = &Args::command();
    for word in before {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    let subcommands = command.get_subcommands().filter(|_| !last.starts_with('-'));
    let subcommands = subcommands.map(|sub| (sub.get_name().to_owned(), sub.get_about()));
    let options = command.get_arguments().filter(|_| last.starts_with('-'));
    let options = options.filter_map(|option| Some((format!("--{}", option.get_long()?), option.get_help())));
    let lines = subcommands.chain(options).filter(|(name, _)| name.starts_with(last));
    let mut text: String = lines
        .map(|(name, about)| format!("{name}\t{}\n", about.map(ToString::to_string).unwrap_or_default()))
        .collect();
    text.push_str(if takes_file(command, before.last(), last) { FILES } else { NO_FILES });
    text.push('\n');
    text
}

/// Whether the next word of a command line may be a path: that of an argument without a flag, or the value of
/// the flag before it.
fn takes_file(command: &Command, before: Option<&String>, last: &str) -> bool {
    let is_path =
        |argument: &Arg| matches!(argument.get_value_hint(), ValueHint::AnyPath | ValueHint::FilePath);
    let is_named = |argument: &&Arg| {
        let long = argument.get_long().map(|long| format!("--{long}"));
        let short = argument.get_short().map(|short| format!("-{short}"));
        before.is_some_and(|before| [long, short].iter().flatten().any(|flag| flag == before))
    };
    match command.get_arguments().find(is_named) {
        Some(flag) if flag.get_action().takes_values() => is_path(flag),
        _ => !last.starts_with('-') && command.get_positionals().any(is_path),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::{Invocation, completions};

    #[test]
    fn the_name_of_the_file_decides() {
        let of = |program: &str| Invocation::of(Some(OsStr::new(program)));
        assert_eq!(of("/usr/bin/rlctl"), Invocation::Itself);
        assert_eq!(of("/usr/bin/kubectl-rlt"), Invocation::Plugin);
        assert_eq!(of("kubectl_complete-rlt"), Invocation::Completer);
    }

    #[test]
    fn kubectl_completes_subcommands_and_options_with_descriptions() {
        let completed =
            |words: &[&str]| completions(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        let commands = completed(&["st"]);
        assert!(
            commands.starts_with("status\tShow the state of jobs") && commands.ends_with("\n:4\n"),
            "{commands}"
        );
        assert_eq!(commands.lines().count(), 2);
        let options = completed(&["logs", "quickstart", "--f"]);
        assert!(options.starts_with("--follow\tFollow the log"), "{options}");
        assert_eq!(completed(&["why", ""]), ":4\n");
        for words in [&["plan", "jo"][..], &["validate", "-f", ""], &["plan", "a.yaml", "--model-config", ""]]
        {
            assert_eq!(completed(words), ":0\n", "the shell completes files: {words:?}");
        }
        assert_eq!(completed(&["plan", "--gpu", ""]), ":4\n");
    }
}
