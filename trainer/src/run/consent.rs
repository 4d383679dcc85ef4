//! Consent to environment variables that a manifest sends to addresses of its own choice. The manifest may
//! come from someone else, so the user of a local run must allow each variable. A pod has only variables of
//! its job's owner and needs no consent.

use std::fmt::{self, Display, Formatter};
use std::io::{self, BufRead, Write};

use reqwest::Url;
use rlt_api::resolved::ResolvedSpec;
use rlt_channel::environment::JOB_UID;
use rlt_tracking::{mlflow, trackio};

/// A variable whose value the manifest sends, and its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentVariable {
    /// Name of the variable.
    pub name: String,
    /// Origin of the destination, such as `https://judge.example.com`.
    pub origin: String,
    /// Field of the manifest that names the destination.
    pub field: String,
}

impl Display for SentVariable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "  {} to {} ({})", self.name, self.origin, self.field)
    }
}

/// The manifest sends variables that the user has not allowed.
#[derive(Debug, thiserror::Error)]
#[error(
    "the manifest sends variables of this environment to addresses that it names:\n{}\nif you trust the addresses with \
     them, start with{}",
    listed(.0),
    flags(.0)
)]
pub struct NotAllowed(pub Vec<SentVariable>);

/// Checks that the user allows each variable of this process that the job sends: by its name in `allowed`, or
/// by an answer on the terminal.
///
/// # Errors
/// [`NotAllowed`] with the other variables.
pub(crate) fn check(spec: &ResolvedSpec, allowed: &[String]) -> Result<(), NotAllowed> {
    if std::env::var_os(JOB_UID).is_some() {
        return Ok(());
    }
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let asked = not_allowed(sent_variables(spec), allowed, is_set);
    // A closed terminal gives no answer, and so no consent.
    if asked.is_empty()
        || (rlt_terminal::has_user()
            && is_confirmed(&asked, &mut io::stdin().lock(), &mut rlt_terminal::messages()).unwrap_or(false))
    {
        return Ok(());
    }
    Err(NotAllowed(asked))
}

/// Returns every environment variable that is set and that a job sends to an address of its manifest.
fn sent_variables(spec: &ResolvedSpec) -> Vec<SentVariable> {
    let mut sent = Vec::new();
    let mut add = |name: &str, url: &str, field: String| {
        sent.push(SentVariable { name: name.to_owned(), origin: origin(url), field });
    };
    for (idx, function) in spec.rewards.functions.iter().enumerate() {
        let Some(server) = &function.server else { continue };
        for name in server.headers.iter().filter_map(|header| header.env.as_ref()) {
            add(name, &server.url, format!("spec.rewards.functions[{idx}].server"));
        }
    }
    if let Some(server) = &spec.tracking.mlflow {
        for name in mlflow::CREDENTIALS {
            add(name, &server.url, "spec.tracking.mlflow".to_owned());
        }
    }
    if let Some(server) = &spec.tracking.trackio {
        for name in trackio::credentials_for(&server.url).iter().copied() {
            add(name, &server.url, "spec.tracking.trackio".to_owned());
        }
    }
    sent
}

/// Returns the variables that are set and not in `allowed`.
fn not_allowed(
    sent: Vec<SentVariable>,
    allowed: &[String],
    is_set: impl Fn(&str) -> bool,
) -> Vec<SentVariable> {
    let is_asked = |variable: &SentVariable| !allowed.contains(&variable.name) && is_set(&variable.name);
    sent.into_iter().filter(is_asked).collect()
}

/// Asks whether the variables may be sent; everything but `y` and `yes` means no.
fn is_confirmed(
    asked: &[SentVariable],
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> io::Result<bool> {
    writeln!(output, "The manifest sends variables of your environment to addresses that it names:")?;
    write!(output, "{}\nSend them? [y/N] ", listed(asked))?;
    output.flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Returns scheme, host and port of an address. Path and query may be long and do not tell who gets the
/// value. An invalid address is returned unchanged and refused later.
fn origin(url: &str) -> String {
    Url::parse(url).map_or_else(|_| format!("{url:?}"), |url| url.origin().ascii_serialization())
}

fn listed(variables: &[SentVariable]) -> String {
    variables.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn flags(variables: &[SentVariable]) -> String {
    let mut names: Vec<_> = variables.iter().map(|variable| variable.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| format!(" --send-env {name}")).collect()
}

#[cfg(test)]
mod tests {
    use rlt_tests::tiny_job_with;
    use serde_json::json;

    use super::*;

    /// Returns all destinations that a manifest can name, each with every variable that it would get.
    fn everything() -> Vec<SentVariable> {
        let server = |url: &str, name: &str| json!({ "url": url, "headers": [{ "name": "A", "env": name }] });
        let manifest = tiny_job_with(json!({
            "rewards": { "functions": [
                { "name": "own", "kind": "Exact" },
                { "name": "far", "kind": "Server", "server": server("https://a.example/x?y=z", "AWS_SECRET_ACCESS_KEY") },
                {
                    "name": "judge", "kind": "Judge", "server": server("http://b.example:8443", "JUDGE"),
                    "judge": { "model": "m", "rubric": "{{ prompt }} {{ completion }}" },
                },
            ] },
            "tracking": {
                "mlflow": { "url": "http://c.example:5000/mlflow" },
                "trackio": { "url": "https://owner-board.hf.space" },
            },
        }));
        sent_variables(rlt_api::validate(&manifest.to_string()).unwrap().spec())
    }

    #[test]
    fn every_variable_that_a_manifest_can_direct_is_found_with_its_destination() {
        let shown: Vec<_> = everything().iter().map(|each| each.to_string()).collect();
        assert_eq!(
            shown,
            [
                "  AWS_SECRET_ACCESS_KEY to https://a.example (spec.rewards.functions[1].server)",
                "  JUDGE to http://b.example:8443 (spec.rewards.functions[2].server)",
                "  MLFLOW_TRACKING_TOKEN to http://c.example:5000 (spec.tracking.mlflow)",
                "  MLFLOW_TRACKING_USERNAME to http://c.example:5000 (spec.tracking.mlflow)",
                "  MLFLOW_TRACKING_PASSWORD to http://c.example:5000 (spec.tracking.mlflow)",
                "  TRACKIO_WRITE_TOKEN to https://owner-board.hf.space (spec.tracking.trackio)",
                "  HF_TOKEN to https://owner-board.hf.space (spec.tracking.trackio)",
            ]
        );
    }

    #[test]
    fn variables_that_are_unset_or_allowed_need_no_answer() {
        let is_set = |name: &str| ["JUDGE", "HF_TOKEN"].contains(&name);
        let names = |allowed: &[&str]| {
            let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            let asked = not_allowed(everything(), &allowed, is_set);
            asked.into_iter().map(|each| each.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["JUDGE", "HF_TOKEN"]);
        assert_eq!(names(&["JUDGE", "PATH"]), ["HF_TOKEN"]);
        assert_eq!(names(&["HF_TOKEN", "JUDGE"]), [""; 0]);
    }

    #[test]
    fn only_yes_allows_and_the_question_names_variable_and_destination() {
        for (answer, expected) in [
            ("y\n", true),
            (" YES \n", true),
            ("yes", true),
            ("n\n", false),
            ("\n", false),
            ("", false),
            ("yy\n", false),
        ] {
            let mut shown = Vec::new();
            let confirmed = is_confirmed(&everything(), &mut answer.as_bytes(), &mut shown).unwrap();
            assert_eq!(confirmed, expected, "{answer:?}");
            let shown = String::from_utf8(shown).unwrap();
            assert!(shown.contains("AWS_SECRET_ACCESS_KEY to https://a.example"), "{shown}");
        }
    }

    #[test]
    fn a_refusal_says_how_to_allow_each_variable() {
        let error = NotAllowed(everything()).to_string();
        assert!(error.contains("AWS_SECRET_ACCESS_KEY to https://a.example"), "{error}");
        assert!(error.ends_with(
            "start with --send-env AWS_SECRET_ACCESS_KEY --send-env HF_TOKEN --send-env JUDGE --send-env \
             MLFLOW_TRACKING_PASSWORD --send-env MLFLOW_TRACKING_TOKEN --send-env MLFLOW_TRACKING_USERNAME --send-env \
             TRACKIO_WRITE_TOKEN"
        ), "{error}");
    }
}
