//! Rule of the command lines' output: it may contain untrusted text, so it is written by `rlt-terminal`,
//! which escapes control sequences.

use rlt_rules::rust_sources;

/// Folders of code that no command line runs, and the writer itself. The operator logs for programs, and unit
/// tests run in no command line either.
const EXEMPT: [&str; 4] = ["crds/terminal/src/", "operator/src/", "tests/", "examples/"];
/// Expressions that give access to an unescaped stream. Lints find `println` and the like, unless these are
/// allowed.
const STREAMS: [&str; 6] =
    ["io::stdout", "io::stderr", "stdout()", "stderr()", "clippy::print_stdout", "clippy::print_stderr"];
/// Uses that write no untrusted text: the check for a terminal, and the target of progress bars.
const HARMLESS: [&str; 3] =
    ["io::stderr().is_terminal()", "ProgressDrawTarget::stderr()", "io::stdout().is_terminal()"];

/// Files with the entry points of command lines, which first install the panic hook.
const STARTS: [&str; 2] = ["operator/cli/src/main.rs", "trainer/src/commands.rs"];

/// Whether the code of a file runs in a command line.
fn is_of_command_line(path: &str) -> bool {
    path.contains("/src/") && !EXEMPT.iter().any(|folder| path.starts_with(folder))
}

/// Returns the lines that write to a stream directly, with their numbers.
fn direct_writes(text: &str) -> Vec<(usize, &str)> {
    let is_direct = |line: &str| {
        let code = HARMLESS.iter().fold(line.to_owned(), |code, harmless| code.replace(harmless, ""));
        !code.trim_start().starts_with("//") && STREAMS.iter().any(|stream| code.contains(stream))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| is_direct(line));
    lines.map(|(idx, line)| (idx + 1, line.trim())).collect()
}

#[test]
fn command_lines_print_by_the_writer_that_escapes_control_sequences() {
    let mut found = Vec::new();
    let mut num_writers = 0;
    for file in rust_sources().unwrap().iter().filter(|file| is_of_command_line(&file.path)) {
        let Some(code) = file.production_code() else { continue };
        num_writers += code.matches("rlt_terminal::").count();
        for (number, line) in direct_writes(code) {
            found.push(format!("{}:{number}: {line}", file.path));
        }
    }
    assert!(found.is_empty(), "use rlt_terminal::text, document or messages:\n{}", found.join("\n"));
    assert!(num_writers > 20, "writers are found: {num_writers}");
}

/// The runtime writes panics to standard error, unless the command line installs another hook.
#[test]
fn command_lines_show_panics_by_the_writer_that_escapes_control_sequences() {
    let files = rust_sources().unwrap();
    for start in STARTS {
        let file = files.iter().find(|file| file.path == start).unwrap();
        let (_, main) = file.text.split_once("fn main(").unwrap();
        let first = main.lines().nth(1).unwrap_or_default().trim();
        assert_eq!(first, "rlt_terminal::escape_panics();", "{start}");
    }
    let is_other = |path: &str| is_of_command_line(path) && !STARTS.contains(&path);
    let mains = files.iter().filter(|file| is_other(&file.path) && file.text.contains("\nfn main("));
    let others: Vec<_> = mains.map(|file| file.path.as_str()).collect();
    assert_eq!(
        others,
        ["crds/src/bin/crdgen.rs", "trainer/src/main.rs"],
        "the second calls `commands::main`"
    );
}

#[test]
fn a_direct_write_is_found_and_a_look_at_the_terminal_is_none() {
    let text = "let out = std::io::stdout().lock();\nif io::stderr().is_terminal() {\n// io::stdout()\n\
                writeln!(io::stderr())\nlayer.with_writer(std::io::stderr)\n#[expect(clippy::print_stdout)]\n\
                command.stdout(Stdio::piped())";
    let lines: Vec<_> = direct_writes(text).into_iter().map(|(number, _)| number).collect();
    assert_eq!(lines, [1, 4, 5, 6]);
    for (path, expected) in [
        ("operator/cli/src/plan.rs", true),
        ("trainer/torch/src/lib.rs", true),
        ("operator/src/main.rs", false),
        ("operator/cli/tests/cli.rs", false),
        ("crds/terminal/src/lib.rs", false),
    ] {
        assert_eq!(is_of_command_line(path), expected, "{path}");
    }
}
