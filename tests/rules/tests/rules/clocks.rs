//! Rule of clocks in tests: a test waits for a condition that it can observe, with a timeout that a busy
//! machine keeps too. Benchmarks measure time, and files of tests with a paused clock may use any duration.

use std::collections::BTreeMap;

use rlt_rules::rust_sources;

/// This file contains what it forbids.
const THIS_FILE: &str = "tests/rules/tests/rules/clocks.rs";
/// Attribute of tests on tokio's paused clock.
const PAUSED: &str = "start_paused";
/// Shortest timeout in seconds that is long enough on a busy machine.
const SHORTEST_LIMIT: u64 = 60;
/// Pauses from this number of seconds on stand for endless ones.
const ENDLESS: u64 = 600;
/// Test files that pause outside of a loop, each with the reason. The list only gets shorter.
const PAUSES: [(&str, &str); 5] = [
    ("crds/channel/src/client/mailbox.rs", "two mailboxes begin at different times"),
    ("operator/src/metrics/watches.rs", "two watches have different ages"),
    ("operator/tests/cluster/test_namespace.rs", "all polls call the function that pauses"),
    ("operator/tests/real_node/chaos.rs", "a fault follows another one after a while"),
    ("trainer/src/observe/phases.rs", "a phase takes at least that long"),
];

/// Returns the lines of tests for which `is_wrong` is true, by file. It gets all lines of a file and the
/// index of one.
fn wrong_lines(is_wrong: fn(&[&str], usize) -> bool) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in rust_sources().unwrap() {
        let is_exempt = file.path.contains("/benches/") || file.text.contains(PAUSED);
        if is_exempt || file.path == THIS_FILE {
            continue;
        }
        let first = file.production_code().map_or(0, |code| code.lines().count());
        let lines: Vec<&str> = file.text.lines().collect();
        for idx in (first..lines.len()).filter(|idx| is_wrong(&lines, *idx)) {
            let line = format!("{}:{}: {}", file.path, idx + 1, lines[idx].trim());
            found.entry(file.path.clone()).or_default().push(line);
        }
    }
    found
}

fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// Whether a line pauses for some time outside of a loop that polls for a condition.
fn pauses(lines: &[&str], idx: usize) -> bool {
    let code = without_comment(lines[idx]);
    let is_endless = seconds(code).is_some_and(|seconds| seconds >= ENDLESS);
    code.contains("::sleep(") && !is_endless && !is_in_loop(lines, idx)
}

/// Whether a line compares real time with a limit that is neither a constant nor at least a minute.
fn is_hasty(lines: &[&str], idx: usize) -> bool {
    let Some((_, limit)) = without_comment(lines[idx]).split_once(".elapsed() <") else { return false };
    let limit = limit.trim_start_matches(['=', ' ']);
    let is_constant = limit.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').count() > 1;
    !is_constant && seconds(limit).is_none_or(|seconds| seconds < SHORTEST_LIMIT)
}

fn takes_free_port(lines: &[&str], idx: usize) -> bool {
    without_comment(lines[idx]).contains("free_port")
}

/// Parses the number of whole seconds in a line.
fn seconds(code: &str) -> Option<u64> {
    code.split_once("from_secs(")?.1.split(')').next()?.parse().ok()
}

/// Whether a line is inside a loop of its function, by indentation.
fn is_in_loop(lines: &[&str], idx: usize) -> bool {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut depth = indent(lines[idx]);
    for line in lines[..idx].iter().rev() {
        let code = line.trim_start();
        if code.is_empty() || code.starts_with("//") || indent(line) >= depth {
            continue;
        }
        depth = indent(line);
        if ["while ", "loop ", "for "].iter().any(|word| code.starts_with(word)) {
            return true;
        }
        if code.starts_with("fn ") || code.contains(" fn ") {
            return false;
        }
    }
    false
}

#[test]
fn tests_wait_for_conditions_and_pause_only_between_two_looks() {
    let found = wrong_lines(pauses);
    let others = found.iter().filter(|(path, _)| !PAUSES.iter().any(|(allowed, _)| allowed == path));
    let others: Vec<&String> = others.flat_map(|(_, lines)| lines).collect();
    assert!(others.is_empty(), "wait for a condition, or let the test set the clock: {others:#?}");
    for (path, reason) in PAUSES {
        assert!(found.contains_key(path), "{path} no longer pauses because {reason}: take it from the list");
    }
}

#[test]
fn limits_on_a_real_clock_are_kept_by_a_busy_machine() {
    let found: Vec<String> = wrong_lines(is_hasty).into_values().flatten().collect();
    assert!(
        found.is_empty(),
        "a limit only ends a failed test, at ten times what a quiet one needs: {found:#?}"
    );
}

#[test]
fn tests_hold_their_ports() {
    let found: Vec<String> = wrong_lines(takes_free_port).into_values().flatten().collect();
    assert!(found.is_empty(), "hold a port by rlt_skipped::HeldPort, or listen at port 0: {found:#?}");
}

#[test]
fn lines_are_told_apart() {
    let text = "
fn polls() {
    while is_absent() {
        assert!(started.elapsed() < PATIENCE, \"never\");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(5));
}
fn hangs() {
    std::thread::sleep(Duration::from_secs(3600));
    // std::thread::sleep(PAUSE);
    assert!(started.elapsed() <= Duration::from_secs(60));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(started.elapsed() < limit);
}
";
    let lines: Vec<&str> = text.lines().collect();
    let found = |is_wrong: fn(&[&str], usize) -> bool| -> Vec<usize> {
        (0..lines.len()).filter(|idx| is_wrong(&lines, *idx)).collect()
    };
    assert_eq!(found(pauses), [6]);
    assert_eq!(found(is_hasty), [12, 13]);
}
