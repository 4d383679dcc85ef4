//! Rule of the packages' dependencies: the sources of a package name each of them, and packages of the
//! workspace depend only on packages below them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;
use rlt_rules::workspace_root;

/// Packages from the bottom up, each with the packages of the workspace on which it depends outside of tests.
/// A package depends only on packages in rows above its own.
const PACKAGES: [(&str, &[&str]); 33] = [
    ("rlt-algorithms", &[]),
    ("rlt-channel", &[]),
    ("rlt-files", &[]),
    ("rlt-layout", &[]),
    ("rlt-sandbox", &[]),
    ("rlt-template", &[]),
    ("rlt-terminal", &[]),
    ("rlt-torch", &[]),
    ("rlt-traces", &[]),
    ("rlt-core", &["rlt-algorithms"]),
    ("rlt-tracking", &["rlt-algorithms", "rlt-files"]),
    ("rlt-api", &["rlt-algorithms", "rlt-template"]),
    ("rlt-models", &["rlt-api", "rlt-layout"]),
    ("rlt-plan", &["rlt-api", "rlt-models"]),
    ("rlt-convert", &["rlt-api"]),
    ("rlt-objects", &["rlt-api", "rlt-channel", "rlt-models", "rlt-plan", "rlt-traces"]),
    ("rlt-operator", &["rlt-api", "rlt-channel", "rlt-objects", "rlt-plan", "rlt-traces"]),
    (
        "rlctl",
        &[
            "rlt-api",
            "rlt-channel",
            "rlt-convert",
            "rlt-files",
            "rlt-models",
            "rlt-objects",
            "rlt-plan",
            "rlt-terminal",
            "rlt-tracking",
        ],
    ),
    ("rlt-hub", &["rlt-api", "rlt-files", "rlt-tracking"]),
    ("rlt-data", &["rlt-api", "rlt-core", "rlt-files", "rlt-models", "rlt-template", "rlt-terminal"]),
    ("rlt-storage", &["rlt-api", "rlt-channel", "rlt-files", "rlt-layout", "rlt-torch", "rlt-tracking"]),
    ("rlt-decoder", &["rlt-api", "rlt-core", "rlt-files", "rlt-layout", "rlt-models", "rlt-torch"]),
    ("rlt-parallel", &["rlt-core", "rlt-decoder", "rlt-files", "rlt-layout", "rlt-models", "rlt-torch"]),
    (
        "rlt-engine",
        &["rlt-api", "rlt-core", "rlt-decoder", "rlt-layout", "rlt-models", "rlt-parallel", "rlt-torch"],
    ),
    (
        "rlt-trainer",
        &[
            "rlt-api",
            "rlt-channel",
            "rlt-core",
            "rlt-data",
            "rlt-decoder",
            "rlt-engine",
            "rlt-files",
            "rlt-hub",
            "rlt-layout",
            "rlt-models",
            "rlt-parallel",
            "rlt-plan",
            "rlt-sandbox",
            "rlt-storage",
            "rlt-template",
            "rlt-terminal",
            "rlt-torch",
            "rlt-traces",
            "rlt-tracking",
        ],
    ),
    ("expert-iteration", &["rlt-api", "rlt-data", "rlt-trainer"]),
    ("rlt-mutations", &[]),
    ("rlt-rules", &[]),
    ("rlt-skipped", &[]),
    ("rlt-devices", &["rlt-skipped"]),
    ("rlt-cluster", &["rlt-skipped"]),
    ("rlt-tests", &["rlt-rules", "rlt-skipped"]),
    ("rlt-prepare", &["rlt-cluster", "rlt-devices", "rlt-tests"]),
];

/// Tables of a manifest, each with the folders and files whose code uses the dependencies in it.
const TABLES: [(&str, &[&str]); 3] = [
    ("dependencies", &["src"]),
    ("dev-dependencies", &["src", "tests", "benches", "examples"]),
    ("build-dependencies", &["build.rs"]),
];

/// Dependencies that no source names, by package, each with the reason.
const UNNAMED: [(&str, &str, &str); 1] =
    [("rlt-api", "k8s-openapi", "the derive of `kube` writes code that names it")];

/// Packages that the default members must not need: the bindings of libtorch, test clusters, and the sandbox,
/// whose tests run Python.
const NOT_BY_DEFAULT: [&str; 3] = ["tch", "rlt-cluster", "rlt-sandbox"];

/// A package of the workspace.
struct Package {
    folder: PathBuf,
    manifest: toml::Table,
}

impl Package {
    fn name(&self) -> &str {
        self.manifest["package"]["name"].as_str().unwrap()
    }

    /// Returns the names of the dependencies in a table of the manifest, in order.
    fn dependencies(&self, table: &str) -> Vec<&str> {
        let listed = self.manifest.get(table).and_then(toml::Value::as_table);
        let mut names: Vec<&str> =
            listed.into_iter().flat_map(|listed| listed.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Reads the code of the package in these folders and files, and the files that it includes by `#[path]`.
    fn code(&self, places: &[&str]) -> String {
        let mut code = String::new();
        for file in places.iter().flat_map(|place| rust_files(&self.folder.join(place))) {
            let text = fs::read_to_string(&file).unwrap();
            for named in PATH.captures_iter(&text) {
                code += &fs::read_to_string(file.with_file_name(&named[1])).unwrap_or_default();
            }
            code += &text;
        }
        code.lines().filter_map(|line| line.split("//").next()).collect::<Vec<_>>().join("\n")
    }
}

static PATH: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#"#\[path = "([^"]+)"\]"#).unwrap());

fn read_manifest(folder: &Path) -> toml::Table {
    fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap()
}

fn packages() -> Vec<Package> {
    listed_packages("members")
}

/// Reads the packages in a list of the workspace: `members` or `default-members`.
fn listed_packages(list: &str) -> Vec<Package> {
    let root = workspace_root();
    let workspace = read_manifest(&root);
    let members = workspace["workspace"][list].as_array().unwrap();
    let folders = members.iter().map(|member| root.join(member.as_str().unwrap()));
    folders.map(|folder| Package { manifest: read_manifest(&folder), folder }).collect()
}

/// Returns the file itself, or all Rust files below a folder; nothing if the path does not exist.
fn rust_files(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else {
        return path.is_file().then(|| path.to_path_buf()).into_iter().collect();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_source = |path: &PathBuf| path.is_dir() || path.extension().is_some_and(|ending| ending == "rs");
    paths.filter(is_source).flat_map(|path| rust_files(&path)).collect()
}

/// Whether code names a dependency in a path or an import.
fn is_named(dependency: &str, code: &str) -> bool {
    let name = dependency.replace('-', "_");
    Regex::new(&format!(r"\b{name}::|\buse {name}\b")).unwrap().is_match(code)
}

fn is_listed(package: &str, dependency: &str) -> bool {
    UNNAMED.iter().any(|(of, name, _)| (*of, *name) == (package, dependency))
}

#[test]
fn a_source_names_every_dependency_of_its_package() {
    let mut wrong = Vec::new();
    for package in packages() {
        for (table, places) in TABLES {
            let code = package.code(places);
            for dependency in package.dependencies(table) {
                let found = is_named(dependency, &code);
                if found == is_listed(package.name(), dependency) {
                    let is = if found {
                        "a source names it, so it needs no exception"
                    } else {
                        "no source names it"
                    };
                    wrong.push(format!("{}, {table}.{dependency}: {is}", package.name()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (package, dependency, reason) in UNNAMED {
        let is_declared = |of: &Package| {
            of.name() == package
                && TABLES.iter().any(|(table, _)| of.dependencies(table).contains(&dependency))
        };
        assert!(packages().iter().any(is_declared), "{package} does not depend on {dependency}: {reason}");
    }
}

#[test]
fn packages_depend_on_packages_below_them() {
    let packages = packages();
    let mut wrong = Vec::new();
    for (row, (name, expected)) in PACKAGES.iter().enumerate() {
        let Some(package) = packages.iter().find(|package| package.name() == *name) else {
            wrong.push(format!("the workspace has no package {name}"));
            continue;
        };
        let mut declared = package.dependencies("dependencies");
        declared.retain(|dependency| packages.iter().any(|other| other.name() == *dependency));
        if declared != *expected {
            wrong.push(format!("{name} depends on {declared:?}, expected {expected:?}"));
        }
        for dependency in *expected {
            if !PACKAGES[..row].iter().any(|(below, _)| below == dependency) {
                wrong.push(format!("{name} depends on {dependency}, which has no row above it"));
            }
        }
    }
    for package in &packages {
        if !PACKAGES.iter().any(|(name, _)| *name == package.name()) {
            wrong.push(format!("{} has no row", package.name()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Plain `cargo test` builds the default members and their tests.
#[test]
fn default_members_need_no_libtorch_cluster_or_python_also_in_their_tests() {
    let packages = packages();
    let mut needed: Vec<String> = Vec::new();
    for member in listed_packages("default-members") {
        needed.push(member.name().to_owned());
        needed.extend(member.dependencies("dev-dependencies").into_iter().map(str::to_owned));
    }
    let mut next = 0;
    while let Some(name) = needed.get(next) {
        assert!(!NOT_BY_DEFAULT.contains(&name.as_str()), "default members need {name}");
        if let Some(package) = packages.iter().find(|package| package.name() == name) {
            let tables = ["dependencies", "build-dependencies"];
            let below: Vec<String> =
                tables.iter().flat_map(|table| package.dependencies(table)).map(str::to_owned).collect();
            needed.extend(below.into_iter().filter(|name| !needed.contains(name)).collect::<Vec<_>>());
        }
        next += 1;
    }
    assert!(next > 30, "only {next} packages are needed");
}

#[test]
fn a_dependency_is_named_by_a_path_or_an_import_and_not_by_a_longer_word() {
    assert!(is_named("serde-saphyr", "let value = serde_saphyr::from_str(text);"));
    assert!(is_named("tch", "use tch::{Kind, Tensor};") && is_named("wat", "use wat as text;"));
    assert!(!is_named("tch", "let patch = patch::apply();") && !is_named("half", "let half = 1;"));
    assert!(!is_named("serde", "use serde_json::Value;"));
}
