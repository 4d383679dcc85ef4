//! Rule of pictures of the documentation that show the variants of a type or kinds of objects: they show all
//! of them, and no others.

use std::collections::BTreeSet;
use std::fs;

use regex::Regex;
use rlt_rules::workspace_root;

fn read(path: &str) -> String {
    fs::read_to_string(workspace_root().join(path)).unwrap()
}

/// Returns the names in a picture: the texts of the class `name`.
fn names(picture: &str) -> BTreeSet<String> {
    let name = Regex::new(r#"<text [^>]*class="[^"]*\bname"[^>]*>([^<]+)</text>"#).unwrap();
    name.captures_iter(picture).map(|found| found[1].to_owned()).collect()
}

/// Returns the variants of a public enum without fields.
fn variants(source: &str, enumeration: &str) -> BTreeSet<String> {
    let (_, body) = source.split_once(&format!("pub enum {enumeration} {{\n")).unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let variant = Regex::new(r"(?m)^    (\w+),$").unwrap();
    variant.captures_iter(body).map(|found| found[1].to_owned()).collect()
}

/// Returns the resources that the rules of a role let the operator create.
fn created(rules: &str) -> BTreeSet<String> {
    let resource = Regex::new(r"resources:\n  - (\S+)\n").unwrap();
    let rules = rules.split("- apiGroups:").filter(|rule| rule.contains("\n  - create\n"));
    rules.map(|rule| resource.captures(rule).unwrap()[1].to_owned()).collect()
}

/// Returns the resource name of a kind of objects.
fn resource_of(kind: &str) -> String {
    let kind = kind.to_lowercase();
    kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"))
}

#[test]
fn pictures_of_phases_and_causes_have_every_variant() {
    for (picture, source, enumeration) in [
        ("phases.svg", "crds/src/status/conditions.rs", "Phase"),
        ("failure.svg", "crds/src/failure/cause.rs", "FailureCause"),
        ("memory.svg", "crds/plan/src/memory/terms.rs", "Phase"),
    ] {
        let shown = names(&read(&format!("docs/pictures/{picture}")));
        assert_eq!(shown, variants(&read(source), enumeration), "{picture}");
        assert!(shown.len() >= 5, "{picture}: {shown:?}");
    }
}

#[test]
fn the_picture_of_objects_has_every_kind_that_the_operator_creates() {
    let shown = names(&read("docs/pictures/objects.svg"));
    let shown: BTreeSet<String> = shown.iter().map(|kind| resource_of(kind)).collect();
    let rules = |name: &str| created(&read(&format!("charts/rl-operator/files/{name}.yaml")));
    let expected: BTreeSet<String> = ["rules-watched", "rules-own"].into_iter().flat_map(rules).collect();
    assert_eq!(shown, expected);
}

#[test]
fn names_variants_and_resources_are_read() {
    let set = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<BTreeSet<_>>();
    let picture = "<text class=\"mid bold name\" x=\"1\">One</text>\n<text class=\"mid bold\">Two</text>\n";
    assert_eq!(names(picture), set(&["One"]));
    let source =
        "pub enum Phase {\n    /// The first.\n    One,\n    Two,\n}\n\nenum Other {\n    Three,\n}\n";
    assert_eq!(variants(source, "Phase"), set(&["One", "Two"]));
    let rule = |resource: &str, verb: &str| {
        format!("- apiGroups:\n  - \"\"\n  resources:\n  - {resource}\n  verbs:\n  - {verb}\n")
    };
    assert_eq!(created(&(rule("pods", "create") + &rule("nodes", "get"))), set(&["pods"]));
    assert_eq!([resource_of("NetworkPolicy"), resource_of("Pod")], ["networkpolicies", "pods"]);
}
