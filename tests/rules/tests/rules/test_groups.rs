//! Rule of the groups of the test runner in `.config/nextest.toml`. A filter is valid even if it names a
//! module that no longer exists, or misses one. Its tests would then run beside tests that disturb them.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;
use rlt_rules::{rust_sources, workspace_root};

/// Folder of the tests that start full runs; they are modules of one executable.
const LOCAL_RUNS: &str = "tests/tests/local_run/";

/// Settings of the runner for a group of tests.
struct Override {
    /// Modules that the filter of the group names.
    modules: Vec<String>,
    /// Whether at most one of its tests that have several ranks runs at a time.
    is_serial: bool,
}

/// Reads a file of the workspace.
fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(workspace_root().join(path)).unwrap()
}

/// Settings of the test runner.
fn config() -> toml::Table {
    read(".config/nextest.toml").parse().unwrap()
}

fn overrides() -> Vec<Override> {
    let config = config();
    let names = Regex::new(r"test\(/\^\(?([a-z_|]+)\)?::/\)").unwrap();
    let parse = |settings: &toml::Value| {
        let mut modules = Vec::new();
        for found in names.captures_iter(settings["filter"].as_str().unwrap()) {
            modules.extend(found[1].split('|').map(str::to_owned));
        }
        let group = settings.get("test-group").and_then(toml::Value::as_str);
        let is_serial = group == Some("ranks") || settings.get("threads-required").is_some();
        Override { modules, is_serial }
    };
    config["profile"]["default"]["overrides"].as_array().unwrap().iter().map(parse).collect()
}

#[test]
fn every_module_that_a_filter_names_exists() {
    let sources = rust_sources().unwrap();
    let exists = |module: &String| {
        let name = format!("/{module}.rs");
        sources.iter().any(|file| file.path.contains("tests/") && file.path.ends_with(&name))
    };
    let named: Vec<String> = overrides().into_iter().flat_map(|settings| settings.modules).collect();
    assert!(named.len() > 10, "{named:?}");
    let gone: Vec<&String> = named.iter().filter(|module| !exists(module)).collect();
    assert!(gone.is_empty(), "filters of .config/nextest.toml name no tests by {gone:?}");
}

#[test]
fn local_runs_with_several_ranks_run_one_at_a_time() {
    let several =
        Regex::new(r#""mesh"|"ranksPerWorker"|"workers": \{ "count"|\["workers"\]\["count"\]"#).unwrap();
    let serial = overrides().into_iter().filter(|settings| settings.is_serial);
    let serial: Vec<String> = serial.flat_map(|settings| settings.modules).collect();
    let sources = rust_sources().unwrap();
    let modules = sources.iter().filter(|file| several.is_match(&file.text)).filter_map(|file| {
        let module = file.path.strip_prefix(LOCAL_RUNS)?.rsplit('/').next()?;
        module.strip_suffix(".rs").map(str::to_owned)
    });
    let modules: Vec<String> = modules.collect();
    assert!(modules.len() > 10, "{modules:?}");
    let beside: Vec<&String> = modules.iter().filter(|module| !serial.contains(module)).collect();
    assert!(beside.is_empty(), "the group `ranks` of .config/nextest.toml has no {beside:?}");
}

/// Words in the source of a test that waits for a kubelet, for a browser, or for the build of an image, whose
/// base image comes from a registry.
const OUTSIDE_ANSWERS: [&str; 4] = ["with_real_node()", "\"chromium\"", "charts/images.sh", "test_image("];

/// Reads the tests that one operand of a union names: the package with each module if the operand names
/// modules, or else with each executable. Fails if it names no executable.
fn retried_tests(operand: &str) -> Vec<(String, String)> {
    let executables = Regex::new(r"binary_id\((?:/\^)?([a-z-]+)::\(?([a-z_|]+)").unwrap();
    let modules = Regex::new(r"test\(/\^\(?([a-z_|]+)\)?::/\)").unwrap();
    let found = executables.captures(operand).unwrap();
    let names = modules.captures(operand).map_or(&found[2], |found| found.get(1).unwrap().as_str());
    names.split('|').map(|name| (found[1].to_owned(), name.to_owned())).collect()
}

#[test]
fn only_tests_that_wait_for_a_kubelet_a_browser_or_a_registry_are_retried() {
    let config = config();
    let default = &config["profile"]["default"];
    assert!(default.get("retries").is_none(), "a retry for all tests");
    let settings = default["overrides"].as_array().unwrap();
    let retried: Vec<&toml::Value> = settings.iter().filter(|one| one.get("retries").is_some()).collect();
    assert!(retried.iter().all(|one| one["retries"].as_integer() == Some(1)), "at most one retry");
    let operands = retried.iter().flat_map(|one| one["filter"].as_str().unwrap().split(" + "));
    let names: Vec<(String, String)> = operands.flat_map(retried_tests).collect();
    assert!(names.len() > 5, "{names:?}");
    let sources = rust_sources().unwrap();
    let waits = |(package, name): &(String, String)| {
        let ends = [format!("/{name}.rs"), format!("/{name}/main.rs")];
        let mut files = sources.iter().filter(|file| {
            let is_named = ends.iter().any(|end| file.path.ends_with(end));
            is_named && file.path.contains("tests/") && package_of(&file.path) == *package
        });
        files.any(|file| OUTSIDE_ANSWERS.iter().any(|word| file.text.contains(word)))
    };
    let others: Vec<_> = names.iter().filter(|name| !waits(name)).collect();
    assert!(others.is_empty(), "these tests of .config/nextest.toml may not be retried: {others:?}");
}

/// Wrapper of the executables in which each of some modules runs in one process.
const PER_MODULE: &str = "one-process-per-module";

/// A module that is not listed would start a cluster for each of its tests.
#[test]
fn modules_that_share_a_cluster_run_in_one_process_each() {
    let config = config();
    let command = config["scripts"]["wrapper"][PER_MODULE]["command"]["command-line"].as_str().unwrap();
    let (_, listed) = command.split_once("--modules ").unwrap();
    let listed: BTreeSet<&str> = listed.trim_matches('\'').split('|').collect();
    let scripts = config["profile"]["default"]["scripts"].as_array().unwrap();
    let per_module = scripts.iter().find(|one| one["run-wrapper"].as_str() == Some(PER_MODULE)).unwrap();
    let names = Regex::new(r"binary_id\(([a-z-]+)::([a-z_]+)\)").unwrap();
    let sources = rust_sources().unwrap();
    let mut sharing = BTreeSet::new();
    for found in names.captures_iter(per_module["filter"].as_str().unwrap()) {
        let folder = format!("/tests/{}/", &found[2]);
        for file in sources.iter().filter(|file| file.text.contains(": Shared =")) {
            let Some((_, name)) = file.path.split_once(&folder) else { continue };
            if package_of(&file.path) == found[1] {
                sharing.insert(name.strip_suffix(".rs").unwrap());
            }
        }
    }
    assert_eq!(sharing, listed, "the modules of {PER_MODULE} in .config/nextest.toml");
}

/// Commands must name a package. Without one nextest runs the default members, which have few of the tests.
#[test]
fn commands_of_the_page_for_contributors_name_packages_groups_and_tests_that_exist() {
    let (page, config, sources) = (read("CONTRIBUTING.md"), config(), rust_sources().unwrap());
    let groups = config["test-groups"].as_table().unwrap();
    let group = Regex::new(r"suite\.sh group ([a-z]+)").unwrap();
    let named: Vec<_> = group.captures_iter(&page).map(|found| found[1].to_owned()).collect();
    assert!(!named.is_empty() && named.iter().all(|name| groups.contains_key(name)), "{named:?}");
    let lines: Vec<_> = page.lines().filter(|line| line.contains("nextest run ")).collect();
    assert!(!lines.is_empty());
    let test = Regex::new(r"test\(([a-z_]+)\)").unwrap();
    for line in lines {
        assert!(line.contains("--package ") || line.contains("--workspace "), "{line}");
        for found in test.captures_iter(line) {
            let start = format!("fn {}", &found[1]);
            assert!(sources.iter().any(|file| file.text.contains(&start)), "there is no such test: {line}");
        }
    }
}

/// Call that compares a text with its snapshot, in two parts so that this file does not contain it.
const SNAPSHOT: &str = concat!("insta::", "assert_");

/// Returns the name of the package to which a source belongs.
fn package_of(source: &str) -> String {
    let mut manifests = Path::new(source).ancestors().skip(1).map(|folder| folder.join("Cargo.toml"));
    let manifest = manifests.find(|manifest| workspace_root().join(manifest).exists()).unwrap();
    let manifest: toml::Table = read(manifest).parse().unwrap();
    manifest["package"]["name"].as_str().unwrap().to_owned()
}

#[test]
fn snapshots_and_generated_files_are_compared_before_anything_is_prepared() {
    let suite = read("tests/suite.sh");
    let place = |words: &str| suite.find(words).unwrap_or_else(|| panic!("tests/suite.sh has no {words}"));
    for cheap in ["--profile generated", "-E \"$PURE\""] {
        assert!(place(cheap) < place("stage \"preparation\""), "{cheap}: the order of tests/suite.sh");
    }
    let config = config();
    let filter = config["profile"]["generated"]["default-filter"].as_str().unwrap();
    let sources = rust_sources().unwrap();
    let compares = |text: &str| text.contains(SNAPSHOT) || text.contains("make generate`\"");
    let packages: BTreeSet<String> =
        sources.iter().filter(|file| compares(&file.text)).map(|file| package_of(&file.path)).collect();
    assert!(packages.len() > 4, "{packages:?}");
    let names = Regex::new(r"[a-z]+(-[a-z]+)*").unwrap();
    let named: BTreeSet<&str> = names.find_iter(filter).map(|name| name.as_str()).collect();
    let late: Vec<&String> = packages.iter().filter(|package| !named.contains(package.as_str())).collect();
    assert!(late.is_empty(), "the profile `generated` of .config/nextest.toml has no tests of {late:?}");
}

/// Generated files are compared before a commit too, even if their executable has tests that `make check`
/// cannot run.
#[test]
fn generated_files_are_compared_by_make_check_too() {
    let config = config();
    let filter = |profile: &str| config["profile"][profile]["default-filter"].as_str().unwrap().to_owned();
    let (check, generated) = (filter("check"), filter("generated"));
    let lists = Regex::new(r"::\(([a-z_|]+)\)\$/\)").unwrap();
    let left_out: Vec<&str> =
        lists.captures_iter(&check).map(|found| found.get(1).unwrap().as_str()).collect();
    assert!(!left_out.is_empty());
    let tests = Regex::new(r"\(binary_id\([a-z-]+::([a-z_]+)\) & test\(=([a-z_:]+)\)\)").unwrap();
    let mut num_tests = 0;
    for found in tests.captures_iter(&generated) {
        let (name, test) = (&found[1], &found[2]);
        let is_left_out = left_out.iter().any(|list| list.split('|').any(|one| one == name));
        let is_kept = check.contains(&format!(" - test(={test}))"));
        assert!(is_kept && !is_left_out, "the profile `check` of .config/nextest.toml leaves {test} out");
        num_tests += 1;
    }
    assert!(num_tests > 0);
}

/// Sources of the preparation, which are allowed to start a compiler.
const MAY_COMPILE: [&str; 3] =
    ["tests/cluster/src/", "tests/devices/src/build", "tests/src/reward_module.rs"];

#[test]
fn no_other_test_starts_a_compiler() {
    let start = Regex::new(r#"Command::new\("(cc|clang|g\+\+|gcc|go|nvcc|rustc)"\)"#).unwrap();
    let sources = rust_sources().unwrap();
    let starting = sources.iter().filter(|file| start.is_match(&file.text)).map(|file| file.path.as_str());
    let (allowed, others): (Vec<&str>, Vec<&str>) =
        starting.partition(|path| MAY_COMPILE.iter().any(|prefix| path.starts_with(*prefix)));
    assert!(others.is_empty(), "`tests/prepare` makes what tests need, and {others:?} compile themselves");
    let is_needed = |prefix: &&str| allowed.iter().any(|path| path.starts_with(*prefix));
    assert!(MAY_COMPILE.iter().all(is_needed), "only {allowed:?} start a compiler");
}
