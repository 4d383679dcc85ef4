//! Clocks in tests: a test waits for a condition that it can observe, within a limit that a busy machine
//! keeps too. Benchmarks measure time, and a file of tests on a paused clock may name any time.

use std::collections::BTreeMap;

use rlt_rules::rust_sources;

/// This file names what it forbids.
const THIS_FILE: &str = "tests/rules/tests/rules/clocks.rs";
/// Attribute of tests on tokio's paused clock.
const PAUSED: &str = "start_paused";
/// Number of seconds below which a limit is too short for a busy machine.
const SHORTEST_LIMIT: u64 = 60;
/// Number of seconds from which on a pause stands for one without end.
const ENDLESS: u64 = 600;
/// Files of tests that pause outside of a loop, each with its reason. The list only gets shorter.
const PAUSES: [(&str, &str); 5] = [
    ("crds/channel/src/client/mailbox.rs", "two mailboxes begin at different times"),
    ("operator/src/metrics/watches.rs", "two watches have different ages"),
    ("operator/tests/cluster/test_namespace.rs", "all polls call the function that pauses"),
    ("operator/tests/real_node/chaos.rs", "a fault follows another one after a while"),
    ("trainer/src/observe/phases.rs", "a phase takes at least that long"),
];

/// Finds lines of tests, by file, that `is_wrong` refuses, given all lines of a file and the index of one.
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

/// Whether a line pauses for a time, and not in a loop that looks for a condition each time.
fn pauses(lines: &[&str], idx: usize) -> bool {
    let code = without_comment(lines[idx]);
    let is_endless = seconds(code).is_some_and(|seconds| seconds >= ENDLESS);
    code.contains("::sleep(") && !is_endless && !is_in_loop(lines, idx)
}

/// Whether a line gives a real clock a limit that is neither a constant nor a minute or more.
fn is_hasty(lines: &[&str], idx: usize) -> bool {
    let Some((_, limit)) = without_comment(lines[idx]).split_once(".elapsed() <") else { return false };
    let limit = limit.trim_start_matches(['=', ' ']);
    let is_constant = limit.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').count() > 1;
    !is_constant && seconds(limit).is_none_or(|seconds| seconds < SHORTEST_LIMIT)
}

fn takes_free_port(lines: &[&str], idx: usize) -> bool {
    without_comment(lines[idx]).contains("free_port")
}

/// Number of whole seconds that a line names.
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
