//! Rule of HTTP clients: the code that builds a client decides whether it follows redirects, and answers are
//! read within bounds. Otherwise a redirect could send credentials to another server, and an endless answer
//! could fill the memory.

use rlt_rules::rust_sources;

/// Files that build their own client, each with the reason.
const BUILDERS: [(&str, &str); 4] = [
    ("crds/traces/src/export.rs", "OpenTelemetry, which reads at most 4 MiB of an answer"),
    ("trainer/src/roles/reward/external/endpoint.rs", "asynchronous requests to reward servers"),
    ("trainer/src/roles/reward/external/module.rs", "modules without credentials, released behind redirects"),
    ("trainer/tracking/src/http.rs", "all other requests"),
];
/// File whose client follows redirects, because it sends no credentials.
const FOLLOWS_REDIRECTS: &str = "trainer/src/roles/reward/external/module.rs";
/// Calls that build a client, or send a request by a client that the library builds.
const BUILDS: [&str; 5] =
    ["Client::builder()", "Client::new()", "ClientBuilder::new()", "reqwest::get(", "blocking::get("];
/// Calls that read an answer of any length to its end.
const UNBOUNDED: [&str; 5] = [".text()", ".json()", ".json::<", ".bytes()", ".copy_to("];

/// Returns the lines of code with one of these calls, with their numbers.
fn lines_with<'a>(code: &'a str, calls: &[&str]) -> Vec<(usize, &'a str)> {
    let has =
        |line: &str| !line.trim_start().starts_with("//") && calls.iter().any(|call| line.contains(call));
    let lines = code.lines().enumerate().filter(|(_, line)| has(line));
    lines.map(|(idx, line)| (idx + 1, line.trim())).collect()
}

#[test]
fn clients_are_built_in_few_places_and_follow_no_redirects() {
    let (mut found, mut built) = (Vec::new(), Vec::new());
    for file in rust_sources().unwrap() {
        let Some(code) = file.production_code().filter(|_| file.path.contains("/src/")) else { continue };
        let builds = lines_with(code, &BUILDS);
        match BUILDERS.iter().find(|(path, _)| file.path == *path) {
            Some((path, _)) if !builds.is_empty() => {
                let is_bound = code.contains("redirect(Policy::none())");
                assert_eq!(is_bound, *path != FOLLOWS_REDIRECTS, "redirects of {path}");
                built.push(*path);
            }
            Some(_) => {}
            None => found.extend(builds.iter().map(|(at, line)| format!("{}:{at}: {line}", file.path))),
        }
    }
    assert!(found.is_empty(), "use rlt_tracking::http::client:\n{}", found.join("\n"));
    for (path, what) in BUILDERS {
        assert!(built.contains(&path), "{path} no longer builds a client for {what}: take it from the list");
    }
}

#[test]
fn answers_are_read_within_bounds() {
    let (mut found, mut num_files) = (Vec::new(), 0);
    for file in rust_sources().unwrap() {
        let Some(code) = file.production_code().filter(|_| file.path.contains("/src/")) else { continue };
        if !code.contains("reqwest") {
            continue;
        }
        num_files += 1;
        let reads = lines_with(code, &UNBOUNDED).into_iter();
        found.extend(reads.map(|(at, line)| format!("{}:{at}: {line}", file.path)));
    }
    assert!(found.is_empty(), "use rlt_tracking::http::text_of or text_within:\n{}", found.join("\n"));
    assert!(num_files > 8, "files with requests are found: {num_files}");
}

#[test]
fn a_client_and_a_read_are_found_and_mentions_are_not() {
    let code = "let client = Client::builder().build();\n// Client::builder()\nlet client = Client::new(url);\n\
                reqwest::blocking::get(url)?.text()?;\nlet bytes = name.as_bytes();\n";
    let lines = |calls: &[&str]| lines_with(code, calls).into_iter().map(|(at, _)| at).collect::<Vec<_>>();
    assert_eq!(lines(&BUILDS), [1, 4]);
    assert_eq!(lines(&UNBOUNDED), [4]);
}
