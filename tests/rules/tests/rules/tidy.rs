//! Rules of style: dependencies, module headers, sizes and words.

use std::collections::BTreeMap;
use std::process::Command;

use rlt_rules::{rust_sources, source_paths, workspace_root};

/// Maximum number of lines of a file; 250 is the aim.
const MAX_FILE_LINES: usize = 600;
/// Maximum number of source files directly in a folder. Pages of documentation and snapshots of tests are
/// exempt: a list of their names is their table of contents.
const MAX_FOLDER_FILES: usize = 20;
/// Extensions of source files: Rust, C++ and CUDA.
const SOURCE_EXTENSIONS: [&str; 6] = ["rs", "cpp", "h", "inl", "cu", "cuh"];
/// Maximum number of lines of a function's body; 25 is the aim.
const MAX_FUNCTION_LINES: usize = 60;
/// Maximum number of lines of the body of a test or a benchmark, which may list cases.
const MAX_TEST_LINES: usize = 100;
/// Maximum number of columns of a comment. It is that of code, because the formatter leaves comments alone.
const MAX_COMMENT_COLUMNS: usize = 110;
/// This file contains what it forbids.
const THIS_FILE: &str = "tests/rules/tests/rules/tidy.rs";

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(workspace_root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the packages in a build of `package` alone with its default features, without dev-dependencies.
fn dependency_names(package: &str) -> Vec<String> {
    let tree = cargo(&[
        "tree",
        "--offline",
        "--prefix",
        "none",
        "--edges",
        "normal",
        "--format",
        "{p}",
        "--package",
        package,
    ]);
    tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn dependency_arrows_point_only_where_the_design_lets_them() {
    let torch: &[&str] = &["tch", "torch-sys", "rlt-torch"];
    let kubernetes: &[&str] = &["kube", "kube-core", "kube-client", "k8s-openapi"];
    let forbidden: [(&str, &[&[&str]]); 25] = [
        (
            "rlt-api",
            &[
                torch,
                kubernetes,
                &["tokio", "rlt-core", "rlt-layout", "rlt-models", "rlt-plan", "rlt-trainer"],
            ],
        ),
        ("rlt-channel", &[torch, kubernetes, &["rlt-api", "rlt-core", "rlt-trainer"]]),
        ("rlt-files", &[torch, kubernetes, &["tokio", "rlt-api", "rlt-core", "rlt-trainer"]]),
        ("rlt-terminal", &[torch, kubernetes, &["rlt-api", "rlt-core", "rlt-trainer"]]),
        ("rlt-traces", &[torch, kubernetes, &["rlt-api", "rlt-core", "rlt-trainer"]]),
        ("rlt-tracking", &[torch, kubernetes, &["rlt-api", "rlt-core", "rlt-trainer"]]),
        ("rlctl", &[torch, &["rlt-core", "rlt-operator", "rlt-trainer"]]),
        ("rlt-convert", &[torch, kubernetes, &["tokio", "rlt-core", "rlt-trainer"]]),
        ("rlt-objects", &[torch, &["kube-client", "rlt-core", "rlt-operator", "rlt-trainer"]]),
        ("rlt-operator", &[torch, &["rlt-core", "rlt-trainer"]]),
        ("rlt-core", &[torch, kubernetes, &["tokio", "rlt-api", "rlt-trainer"]]),
        ("rlt-algorithms", &[torch, kubernetes, &["tokio", "rlt-api", "rlt-core", "rlt-trainer"]]),
        ("rlt-data", &[kubernetes, &["rlt-hub", "rlt-plan", "rlt-sandbox", "rlt-storage", "rlt-trainer"]]),
        (
            "rlt-decoder",
            &[
                kubernetes,
                &["tokio", "rlt-data", "rlt-hub", "rlt-plan", "rlt-sandbox", "rlt-storage", "rlt-trainer"],
            ],
        ),
        (
            "rlt-engine",
            &[
                kubernetes,
                &["tokio", "rlt-data", "rlt-hub", "rlt-plan", "rlt-sandbox", "rlt-storage", "rlt-trainer"],
            ],
        ),
        ("rlt-hub", &[torch, kubernetes, &["rlt-core", "rlt-data", "rlt-sandbox", "rlt-trainer"]]),
        ("rlt-layout", &[torch, kubernetes, &["tokio", "rlt-api", "rlt-core", "rlt-trainer"]]),
        ("rlt-models", &[torch, kubernetes, &["tokio", "rlt-core", "rlt-plan", "rlt-trainer"]]),
        (
            "rlt-parallel",
            &[
                kubernetes,
                &["tokio", "rlt-data", "rlt-hub", "rlt-plan", "rlt-sandbox", "rlt-storage", "rlt-trainer"],
            ],
        ),
        ("rlt-plan", &[torch, kubernetes, &["tokio", "rlt-core", "rlt-trainer"]]),
        ("rlt-sandbox", &[torch, kubernetes, &["tokio", "rlt-algorithms", "rlt-api", "rlt-files"]]),
        ("rlt-storage", &[kubernetes, &["rlt-data", "rlt-hub", "rlt-plan", "rlt-sandbox", "rlt-trainer"]]),
        ("rlt-template", &[torch, kubernetes, &["tokio", "rlt-api", "rlt-core", "rlt-trainer"]]),
        ("rlt-torch", &[kubernetes, &["tokio", "rlt-api", "rlt-core", "rlt-trainer"]]),
        ("rlt-trainer", &[kubernetes]),
    ];
    for (package, groups) in forbidden {
        let present = dependency_names(package);
        for name in groups.iter().copied().flatten() {
            assert!(!present.iter().any(|p| p == name), "{package} must not depend on {name}");
        }
    }
}

/// Top modules of the trainer, each with the other ones that it may use.
const TRAINER_MODULES: [(&str, &[&str]); 5] = [
    ("commands", &["recipes", "run", "roles", "observe"]),
    ("recipes", &["run", "roles"]),
    ("run", &["roles", "observe"]),
    ("roles", &["observe"]),
    ("observe", &[]),
];

/// Modules of `roles`, each with the other ones that it may use.
const ROLE_MODULES: [(&str, &[&str]); 11] = [
    ("rollout", &["actor", "reward", "step_context", "error"]),
    ("reference", &["actor", "learner", "step_context", "error"]),
    ("critic", &["actor", "learner", "offload", "optim", "step_context", "error"]),
    ("actor", &["learner", "objective", "optim", "step_context", "error"]),
    ("reward", &["learner", "step_context", "error"]),
    ("learner", &["optim", "error"]),
    ("offload", &["optim"]),
    ("optim", &[]),
    ("objective", &[]),
    ("step_context", &[]),
    ("error", &[]),
];

#[test]
fn a_module_of_the_trainer_uses_only_modules_below_it() {
    let wrong = forbidden_uses("trainer/src/", "crate::", &TRAINER_MODULES);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_role_uses_only_roles_below_it() {
    let wrong = forbidden_uses("trainer/src/roles/", "crate::roles::", &ROLE_MODULES);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the uses between the modules of `folder` that `table` does not allow. Their paths begin with
/// `prefix`. A row may only name modules of later rows, so that no two modules need each other.
fn forbidden_uses(folder: &str, prefix: &str, table: &[(&str, &[&str])]) -> Vec<String> {
    let row_of = |name: &str| table.iter().position(|(module, _)| *module == name);
    let mut wrong = Vec::new();
    for (row, (module, allowed)) in table.iter().enumerate() {
        let not_below = allowed.iter().filter(|used| row_of(used).is_none_or(|other| other <= row));
        wrong.extend(not_below.map(|used| format!("`{used}` is in no row below `{module}`")));
    }
    for file in rust_sources().unwrap() {
        let Some(path) = file.path.strip_prefix(folder) else { continue };
        let module = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        if ["lib", "main"].contains(&module) || path.contains("tests") {
            continue;
        }
        let Some((_, allowed)) = table.iter().find(|(name, _)| *name == module) else {
            wrong.push(format!("{} is in no module", file.path));
            continue;
        };
        for used in names_behind(prefix, &file.text) {
            if used != module && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{} uses `{used}`, which `{module}` may not", file.path));
            }
        }
    }
    wrong
}

/// Words of code that name a role. The learner may not contain them, because each role uses it.
const ROLE_WORDS: [&str; 10] = [
    "actor",
    "critic",
    "reference",
    "reward",
    "rollout",
    "Actor",
    "Critic",
    "FrozenPolicy",
    "RewardModels",
    "Engine",
];

#[test]
fn the_learner_names_no_role() {
    let folder = "trainer/src/roles/learner";
    let sources = rust_sources().unwrap();
    let is_of_learner =
        |path: &str| path == format!("{folder}.rs") || path.starts_with(&format!("{folder}/"));
    let files: Vec<_> = sources.iter().filter(|file| is_of_learner(&file.path)).collect();
    assert!(files.len() > 10, "the files of the learner are found: {}", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let code = file.production_code().unwrap_or_default();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words.any(|word| ROLE_WORDS.contains(&word)) {
                wrong.push(format!("{}: {}", file.path, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "a role gives the learner what it needs:\n{}", wrong.join("\n"));
}

/// Returns the names that a file uses after `prefix`, one by one or in braces, without its comments and
/// tests.
fn names_behind(prefix: &str, text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = lines.map(str::trim).collect();
    let mut names = Vec::new();
    for behind in code.split(prefix).skip(1) {
        let listed = behind.strip_prefix('{').and_then(|list| list.split(';').next());
        for path in listed.unwrap_or(behind.split(',').next().unwrap_or_default()).split(',') {
            names.extend(path.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned));
        }
    }
    names
}

#[test]
fn every_package_takes_the_workspace_lints() {
    let metadata: serde_json::Value =
        serde_json::from_str(&cargo(&["metadata", "--offline", "--no-deps", "--format-version", "1"]))
            .unwrap();
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = std::fs::read_to_string(package["manifest_path"].as_str().unwrap()).unwrap();
        let own_lints = package["name"] == "rlt-torch" || package["name"] == "rlt-devices";
        assert!(
            own_lints || manifest.contains("[lints]\nworkspace = true"),
            "{} does not take the workspace lints",
            package["name"]
        );
    }
}

#[test]
fn every_file_opens_by_saying_what_lives_there() {
    for file in rust_sources().unwrap() {
        assert!(file.text.starts_with("//!"), "{} does not open with `//!`", file.path);
    }
}

#[test]
fn unsafe_code_lives_in_the_torch_package_and_in_stand_in_devices_alone() {
    for file in rust_sources().unwrap() {
        let is_in = |folder| file.path.starts_with(folder);
        let allowed = is_in("trainer/torch/") || is_in("tests/devices/") || file.path == THIS_FILE;
        let has_unsafe = file.text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or("");
            code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl")
        });
        assert!(allowed || !has_unsafe, "{} has unsafe code", file.path);
    }
}

#[test]
fn files_and_functions_stay_small() {
    let mut too_long = Vec::new();
    for file in rust_sources().unwrap() {
        let num_lines = file.text.lines().count();
        if num_lines > MAX_FILE_LINES {
            too_long.push(format!("{} has {num_lines} lines", file.path));
        }
        let production = file.production_code().unwrap_or_default();
        let long =
            function_lengths(production).into_iter().filter(|(_, length)| *length > MAX_FUNCTION_LINES);
        let all = function_lengths(&file.text).into_iter().filter(|(_, length)| *length > MAX_TEST_LINES);
        for (name, length) in long.chain(all) {
            too_long.push(format!("{}: fn {name} has {length} lines", file.path));
        }
    }
    assert!(too_long.is_empty(), "{}", too_long.join("\n"));
}

#[test]
fn folders_stay_small() {
    let mut num_files: BTreeMap<String, usize> = BTreeMap::new();
    for path in source_paths(&SOURCE_EXTENSIONS).unwrap() {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *num_files.entry(folder.to_owned()).or_default() += 1;
    }
    num_files.retain(|_, num| *num > MAX_FOLDER_FILES);
    assert!(num_files.is_empty(), "more than {MAX_FOLDER_FILES} source files: {num_files:#?}");
}

#[test]
fn comments_are_no_wider_than_code() {
    let is_prose = |line: &str| {
        let comment = line.trim_start().strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']));
        // A row of a table cannot be wrapped.
        comment.is_some_and(|comment| !comment.trim_start().starts_with('|'))
    };
    let mut too_wide = Vec::new();
    for file in rust_sources().unwrap() {
        for (idx, line) in file.text.lines().enumerate() {
            if is_prose(line) && line.chars().count() > MAX_COMMENT_COLUMNS {
                too_wide.push(format!("{}:{}", file.path, idx + 1));
            }
        }
    }
    assert!(too_wide.is_empty(), "{}", too_wide.join("\n"));
}

/// Returns the name and the number of lines of each function: from its `fn` line to the line that closes it
/// at the same indentation.
fn function_lengths(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut lengths = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some(name) = function_name(code) else { continue };
        // A declaration without a body, such as that of a foreign function, is skipped.
        let first = lines[start..].iter().find(|line| line.ends_with(['{', ';']));
        if first.is_some_and(|line| line.ends_with(';')) {
            continue;
        }
        let closing = format!("{}}}", " ".repeat(line.len() - code.len()));
        let end = lines[start..].iter().position(|l| *l == closing).unwrap_or(0);
        lengths.push((name, end));
    }
    lengths
}

fn function_name(code: &str) -> Option<String> {
    let mut rest = code;
    for prefix in ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    Some(name.split(['(', '<']).next().unwrap_or(name).to_owned())
}

/// Words that do not say what a function does or a field holds.
const EMPTY_NAMES: [&str; 9] = ["beside", "own", "others", "seen", "whole", "here", "known", "kept", "held"];

/// Returns the name of the public field that a line declares.
fn public_field_name(code: &str) -> Option<String> {
    let field =
        ["pub(crate) ", "pub(super) ", "pub "].into_iter().find_map(|prefix| code.strip_prefix(prefix))?;
    field.split_once(':').map(|(name, _)| name.to_owned())
}

#[test]
fn names_are_the_fields_own_words() {
    let unwanted = ["utils", "util", "helper", "helpers", "manager", "trajectory", "remove_padding"];
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for file in rust_sources().unwrap().iter().filter(|f| f.path != THIS_FILE) {
        for line in file.text.lines().filter(|l| !l.trim_start().starts_with("//")) {
            // The field `manager` belongs to Kubernetes' ManagedFieldsEntry.
            let code = line.split('"').step_by(2).collect::<String>().replace("entry.manager", "");
            for word in code.split(|c: char| !c.is_alphanumeric() && c != '_') {
                if unwanted.contains(&word.to_lowercase().as_str()) {
                    *found.entry(format!("{}: {word}", file.path)).or_default() += 1;
                }
            }
            let code = code.trim_start();
            let name = function_name(code).or_else(|| public_field_name(code));
            if let Some(name) = name.filter(|name| EMPTY_NAMES.contains(&name.as_str())) {
                *found.entry(format!("{}: {name}", file.path)).or_default() += 1;
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
