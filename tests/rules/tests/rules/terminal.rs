//! The one writer of the command lines: what they print may be text of others, so it is written by
//! `rlt-terminal`, which escapes control sequences.

use rlt_rules::rust_sources;

/// Folders of the packages whose output people read.
const COMMAND_LINES: [&str; 2] = ["operator/cli/src/", "trainer/src/"];
/// Streams that are not escaped.
const STREAMS: [&str; 4] = ["io::stdout()", "io::stderr()", "stdout()", "stderr()"];
/// Uses that write no text of others: whether there is a terminal, and the target of progress bars.
const HARMLESS: [&str; 3] =
    ["io::stderr().is_terminal()", "ProgressDrawTarget::stderr()", "io::stdout().is_terminal()"];

/// The lines that write to a stream directly, with their numbers.
fn direct_writes(text: &str) -> Vec<(usize, &str)> {
    let is_direct = |line: &str| {
        let code = HARMLESS.iter().fold(line.to_owned(), |code, use_| code.replace(use_, ""));
        !code.trim_start().starts_with("//") && STREAMS.iter().any(|stream| code.contains(stream))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| is_direct(line));
    lines.map(|(idx, line)| (idx + 1, line.trim())).collect()
}

#[test]
fn command_lines_print_by_the_writer_that_escapes_control_sequences() {
    let mut found = Vec::new();
    let mut num_writers = 0;
    for file in rust_sources().unwrap() {
        if !COMMAND_LINES.iter().any(|folder| file.path.starts_with(folder)) {
            continue;
        }
        num_writers += file.text.matches("rlt_terminal::").count();
        for (number, line) in direct_writes(&file.text) {
            found.push(format!("{}:{number}: {line}", file.path));
        }
    }
    assert!(found.is_empty(), "use rlt_terminal::text, document or messages:\n{}", found.join("\n"));
    assert!(num_writers > 20, "writers are found: {num_writers}");
}

#[test]
fn a_direct_write_is_found_and_a_look_at_the_terminal_is_none() {
    let text = "let out = std::io::stdout().lock();\nif io::stderr().is_terminal() {\n// io::stdout()\nwriteln!(io::stderr())";
    let lines: Vec<_> = direct_writes(text).into_iter().map(|(number, _)| number).collect();
    assert_eq!(lines, [1, 4]);
}
