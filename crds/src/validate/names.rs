//! Checks of namespaces, labels and annotations, with the rules of the API server (package `validation` of
//! `k8s.io/apimachinery`).

use std::collections::BTreeMap;

use super::problem::Problem;
use crate::manifest::Metadata;
use crate::spec::RLTrainingJobSpec;

/// Maximum length of a namespace, of a name after its prefix, and of a label's value, in characters.
const MAX_LEN: usize = 63;
/// Maximum length of the prefix of a name, in characters.
const MAX_PREFIX_LEN: usize = 253;
/// Maximum size of all annotations of an object in bytes, names included.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Returns the problems of a job's namespace, labels and annotations. An empty namespace is the default one.
pub(super) fn of_metadata(metadata: &Metadata) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(namespace) =
        metadata.namespace.as_ref().filter(|name| !name.is_empty() && !is_dns_label(name))
    {
        problems.push(Problem {
            value: Some(namespace.clone().into()),
            allowed: Some(format!(
                "at most {MAX_LEN} lower-case letters, digits and '-', beginning and ending with a letter or digit"
            )),
            ..Problem::new("metadata.namespace", "is not a namespace that Kubernetes accepts")
        });
    }
    problems.extend(labels("metadata.labels", &metadata.labels));
    problems.extend(annotations("metadata.annotations", &metadata.annotations));
    problems
}

/// Returns the problems of the labels and annotations of a job's pods.
pub(super) fn of_pods(spec: &RLTrainingJobSpec) -> Vec<Problem> {
    let pod = &spec.workers.pod;
    let mut problems = labels("spec.workers.pod.labels", &pod.labels);
    problems.extend(annotations("spec.workers.pod.annotations", &pod.annotations));
    problems
}

fn labels(path: &str, labels: &BTreeMap<String, String>) -> Vec<Problem> {
    let mut problems: Vec<Problem> = names(path, labels.keys().map(String::as_str));
    for (name, value) in labels.iter().filter(|(_, value)| !value.is_empty() && !is_name(value)) {
        problems.push(Problem {
            value: Some(value.clone().into()),
            allowed: Some(format!(
                "at most {MAX_LEN} letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
            )),
            ..Problem::new(format!("{path}[{name:?}]"), "is not a label value that Kubernetes accepts")
        });
    }
    problems
}

fn annotations(path: &str, annotations: &BTreeMap<String, String>) -> Vec<Problem> {
    let lower: Vec<String> = annotations.keys().map(|name| name.to_lowercase()).collect();
    let mut problems = names(path, lower.iter().map(String::as_str));
    let bytes: usize = annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_ANNOTATION_BYTES {
        problems.push(Problem::new(path, format!("have {bytes} bytes, at most {MAX_ANNOTATION_BYTES}")));
    }
    problems
}

fn names<'a>(path: &str, names: impl Iterator<Item = &'a str>) -> Vec<Problem> {
    let wrong = names.filter(|name| !is_qualified_name(name)).map(|name| Problem {
        value: Some(name.into()),
        allowed: Some(format!(
            "a name of at most {MAX_LEN} letters, digits, '-', '_' and '.', alone or after a domain and '/'"
        )),
        ..Problem::new(path, "has a name that Kubernetes does not accept")
    });
    wrong.collect()
}

/// Returns whether a text is a name, alone or after a domain and a slash.
fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => {
            prefix.len() <= MAX_PREFIX_LEN && prefix.split('.').all(is_domain_part) && is_name(name)
        }
        None => is_name(text),
    }
}

fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    has_form(text, u8::is_ascii_alphanumeric, is_inner) && text.len() <= MAX_LEN
}

fn is_dns_label(text: &str) -> bool {
    is_domain_part(text) && text.len() <= MAX_LEN
}

fn is_domain_part(text: &str) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    has_form(text, is_plain, |byte| is_plain(&byte) || byte == b'-')
}

/// Returns whether `outer` holds for the first and the last character of a text, and `inner` for every
/// character.
fn has_form(text: &str, outer: impl Fn(&u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(&outer)
        && bytes.last().is_some_and(&outer)
        && bytes.iter().all(|byte| inner(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(metadata: &Metadata) -> Vec<String> {
        of_metadata(metadata).into_iter().map(|problem| problem.path).collect()
    }

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Cases of `IsDNS1123Label`, `IsQualifiedName` and `IsValidLabelValue`.
    #[test]
    fn names_that_the_api_server_refuses_are_reported() {
        let fine = Metadata {
            namespace: Some("0-team".into()),
            labels: map(&[("app.kubernetes.io/Name_1.x", "v1.0-A"), ("a", ""), ("1", "0")]),
            annotations: map(&[("Example.COM/Note", "any text, \u{e9} and spaces")]),
            ..Metadata::default()
        };
        assert_eq!(paths(&fine), [""; 0]);
        assert_eq!(paths(&Metadata { namespace: Some(String::new()), ..fine }), [""; 0]);
        for namespace in ["Team", "a_b", "-a", "a-", "a.b", &"a".repeat(64)] {
            let metadata = Metadata { namespace: Some(namespace.into()), ..Metadata::default() };
            assert_eq!(paths(&metadata), ["metadata.namespace"], "{namespace}");
        }
        for name in ["", "-a", "a-", "a b", "/a", "A.com/a", "a/b/c", "a..b/c", "a_b/c", "é", &"a".repeat(64)]
        {
            let metadata = Metadata { labels: map(&[(name, "x")]), ..Metadata::default() };
            assert_eq!(paths(&metadata), ["metadata.labels"], "{name}");
        }
        for value in ["a b", "-a", "a_", "a/b", "é", &"a".repeat(64)] {
            let metadata = Metadata { labels: map(&[("a", value)]), ..Metadata::default() };
            assert_eq!(paths(&metadata), ["metadata.labels[\"a\"]"], "{value}");
        }
        let large =
            Metadata { annotations: map(&[("a", "x".repeat(262_144).as_str())]), ..Metadata::default() };
        assert_eq!(paths(&large), ["metadata.annotations"]);
    }
}
