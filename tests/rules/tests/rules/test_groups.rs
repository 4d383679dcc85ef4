//! Groups of the test runner in `.config/nextest.toml`. A filter that names a module that is gone, or misses
//! one, is valid, and its tests then run beside others that disturb them.

use regex::Regex;
use rlt_rules::{rust_sources, workspace_root};

/// Folder of the tests that start whole runs, the modules of one executable.
const LOCAL_RUNS: &str = "tests/tests/local_run/";

/// Settings of the runner for some tests.
struct Override {
    /// Modules that the filter names.
    modules: Vec<String>,
    /// Whether at most one of its tests that have several ranks runs at a time.
    is_serial: bool,
}

fn overrides() -> Vec<Override> {
    let text = std::fs::read_to_string(workspace_root().join(".config/nextest.toml")).unwrap();
    let config: toml::Table = text.parse().unwrap();
    let names = Regex::new(r"test\(/\^\(?([a-z_|]+)\)?::/\)").unwrap();
    let read = |settings: &toml::Value| {
        let mut modules = Vec::new();
        for found in names.captures_iter(settings["filter"].as_str().unwrap()) {
            modules.extend(found[1].split('|').map(str::to_owned));
        }
        let group = settings.get("test-group").and_then(toml::Value::as_str);
        let is_serial = group == Some("ranks") || settings.get("threads-required").is_some();
        Override { modules, is_serial }
    };
    config["profile"]["default"]["overrides"].as_array().unwrap().iter().map(read).collect()
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
