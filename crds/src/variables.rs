//! Values of a manifest that may be secrets: variables of workers (`spec.workers.env`, and the containers of
//! `spec.workers.podTemplate`), and headers of reward servers.

use serde_json::Value;

use crate::resolved::ResolvedSpec;
use crate::spec::HeaderSpec;

/// Text in place of a value, in copies of the manifest that others may read.
const MASKED: &str = "(masked)";
/// Last words of names that belong to secrets.
const SECRET_WORDS: [&str; 11] = [
    "APIKEY",
    "AUTHORIZATION",
    "COOKIE",
    "CREDENTIAL",
    "CREDENTIALS",
    "KEY",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "SECRET",
    "TOKEN",
];

/// Returns the specification with the value of each variable and each header masked.
pub(crate) fn masked(spec: &ResolvedSpec) -> ResolvedSpec {
    let mut spec = with_masked_variables(spec);
    let functions = spec.rewards.functions.iter_mut();
    let headers = functions.filter_map(|function| function.server.as_mut()).flat_map(|one| &mut one.headers);
    for value in headers.filter_map(|header| header.value.as_mut()) {
        MASKED.clone_into(value);
    }
    spec
}

/// Returns the specification with the value of each variable masked.
pub(crate) fn with_masked_variables(spec: &ResolvedSpec) -> ResolvedSpec {
    let mut spec = spec.clone();
    for value in spec.workers.env.iter_mut().filter_map(|variable| variable.value.as_mut()) {
        MASKED.clone_into(value);
    }
    if let Some(template) = &mut spec.workers.pod_template {
        for_each_variable(template, &mut |variable| {
            if let Some(value) = variable.get_mut("value").filter(|value| !value.is_null()) {
                *value = MASKED.into();
            }
        });
    }
    spec
}

/// Whether the manifest has the value of a header whose name is that of a secret.
pub(crate) fn has_secret_header(spec: &ResolvedSpec) -> bool {
    let servers = spec.rewards.functions.iter().filter_map(|function| function.server.as_ref());
    let is_secret = |header: &HeaderSpec| header.value.is_some() && is_secret_name(&header.name);
    servers.flat_map(|server| &server.headers).any(is_secret)
}

/// Whether the manifest has the value of a variable whose name is that of a secret.
pub(crate) fn has_secret_value(spec: &ResolvedSpec) -> bool {
    let mut env = spec.workers.env.iter();
    let mut found = env.any(|variable| variable.value.is_some() && is_secret_name(&variable.name));
    if let Some(mut template) = spec.workers.pod_template.clone() {
        for_each_variable(&mut template, &mut |variable| {
            let name = variable["name"].as_str().unwrap_or_default();
            found |= variable.get("value").is_some_and(|value| !value.is_null()) && is_secret_name(name);
        });
    }
    found
}

/// Whether the last word of the name of a variable or header, such as `HF_TOKEN` or `X-Api-Key`, means a
/// secret. `HF_TOKEN_PATH` does not: it names a file.
pub fn is_secret_name(name: &str) -> bool {
    let last = name.rsplit(['_', '-', '.']).next().unwrap_or_default().to_ascii_uppercase();
    SECRET_WORDS.contains(&last.as_str())
}

/// Visits the items of each list `env` of a pod template.
fn for_each_variable(template: &mut Value, visit: &mut impl FnMut(&mut Value)) {
    match template {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::Array(variables) if name == "env" => variables.iter_mut().for_each(&mut *visit),
                    value => for_each_variable(value, visit),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| for_each_variable(item, visit)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_told_from_names_of_settings() {
        for secret in [
            "HF_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "WANDB_API_KEY",
            "db-password",
            "my.secret",
            "KEY",
            "Authorization",
            "X-Api-Key",
        ] {
            assert!(is_secret_name(secret), "{secret}");
        }
        for setting in [
            "TOKENIZERS_PARALLELISM",
            "HF_TOKEN_PATH",
            "MAX_TOKENS",
            "AWS_ACCESS_KEY_ID",
            "MONKEY",
            "HF_HOME",
            "Content-Type",
            "X-Tenant",
            "",
        ] {
            assert!(!is_secret_name(setting), "{setting}");
        }
    }
}
