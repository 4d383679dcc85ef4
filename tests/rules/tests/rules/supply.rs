//! Rule of licences and sources of dependencies: every package that Cargo would build obeys `deny.toml`.
//!
//! `make deny` checks known vulnerabilities, because it downloads their list.

use std::process::Command;

use rlt_rules::workspace_root;
use serde_json::Value;

/// Returns every package of the lock file that is built for Linux on x86-64, except for the workspace's own.
fn packages() -> Vec<Value> {
    let arguments = ["metadata", "--offline", "--locked", "--all-features", "--format-version", "1"];
    let platform = ["--filter-platform", "x86_64-unknown-linux-gnu"];
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo.args(arguments).args(platform).current_dir(workspace_root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let is_built = |package: &&Value| nodes.iter().any(|node| node["id"] == package["id"]);
    let foreign = |package: &&Value| !package["source"].is_null();
    let packages = metadata["packages"].as_array().unwrap();
    packages.iter().filter(is_built).filter(foreign).cloned().collect()
}

fn policy() -> toml::Table {
    std::fs::read_to_string(workspace_root().join("deny.toml")).unwrap().parse().unwrap()
}

#[test]
fn every_package_may_be_had_under_a_licence_that_is_allowed() {
    let policy = policy();
    let allowed: Vec<spdx::Licensee> = policy["licenses"]["allow"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| spdx::Licensee::parse(name.as_str().unwrap()).unwrap())
        .collect();
    let packages = packages();
    assert!(packages.len() > 200, "{}", packages.len());
    let refused: Vec<String> = packages
        .iter()
        .filter(|package| {
            let text = package["license"].as_str().unwrap_or_default();
            let licence = spdx::Expression::parse_mode(text, spdx::ParseMode::LAX);
            !licence.is_ok_and(|it| it.evaluate(|wanted| allowed.iter().any(|one| one.satisfies(wanted))))
        })
        .map(|package| format!("{} {}: {}", package["name"], package["version"], package["license"]))
        .collect();
    assert!(refused.is_empty(), "deny.toml allows no licence of {refused:#?}");
}

#[test]
fn no_package_is_banned_or_from_elsewhere() {
    let policy = policy();
    let banned: Vec<&str> =
        policy["bans"]["deny"].as_array().unwrap().iter().map(|ban| ban["crate"].as_str().unwrap()).collect();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        assert!(!banned.contains(&name), "deny.toml bans {name}");
        let source = package["source"].as_str().unwrap();
        assert!(source.starts_with("registry+"), "{name} comes from {source}");
    }
}
