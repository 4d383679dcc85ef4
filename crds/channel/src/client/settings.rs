//! Settings of status reports: address, identity and intervals.

use std::path::PathBuf;
use std::time::Duration;

use crate::{Source, environment};

/// Address and identity for status reports.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Address of the operator, `https://host:port`.
    pub address: String,
    /// PEM file of the authority that signed the operator's certificate; read again for every connection.
    pub ca_file: PathBuf,
    /// File of the service account token; read again for every report.
    pub token_file: PathBuf,
    /// Identity of the reporting process.
    pub source: Source,
    /// Intervals and timeouts.
    pub pace: Pace,
}

/// Intervals and timeouts of reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Interval of reports, until the operator requests another one.
    pub report_every: Duration,
    /// Timeout of one report, from the connection to the answer.
    pub timeout: Duration,
    /// Backoff after the first failure.
    pub first_backoff: Duration,
    /// Longest backoff, after many failures.
    pub longest_backoff: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            report_every: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            first_backoff: Duration::from_millis(500),
            longest_backoff: Duration::from_secs(15),
        }
    }
}

/// A variable of the environment is missing or malformed.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// The address is set, but another variable that it needs is not.
    #[error("{} is set, but {name} is not", environment::ADDRESS)]
    Missing {
        /// The missing variable.
        name: &'static str,
    },
    /// A variable has an unexpected value.
    #[error("{name}: expected {expected}, got {value:?}")]
    Malformed {
        /// Name of the malformed variable.
        name: &'static str,
        /// Expected form of the value.
        expected: &'static str,
        /// Value of the variable.
        value: String,
    },
}

impl Settings {
    /// Reads the variables of [`environment`] through `variable`; `None` without an operator to which to
    /// report.
    ///
    /// # Errors
    /// [`SettingsError`] where the address is set and the rest does not fit.
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, SettingsError> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let Some(address) = variable(environment::ADDRESS) else { return Ok(None) };
        if !address.starts_with("https://") {
            let name = environment::ADDRESS;
            return Err(SettingsError::Malformed { name, expected: "https://host:port", value: address });
        }
        let needed = |name| variable(name).ok_or(SettingsError::Missing { name });
        let number = |name| {
            let value = needed(name)?;
            value.parse().map_err(|_| SettingsError::Malformed { name, expected: "a whole number", value })
        };
        let rank = if variable(environment::RANK).is_some() { number(environment::RANK)? } else { 0 };
        let source = Source {
            job_uid: needed(environment::JOB_UID)?,
            namespace: needed(environment::JOB_NAMESPACE)?,
            name: needed(environment::JOB_NAME)?,
            attempt: number(environment::ATTEMPT)?,
            rank,
        };
        let (ca_file, token_file) =
            (needed(environment::CA_FILE)?.into(), needed(environment::TOKEN_FILE)?.into());
        Ok(Some(Self { address, ca_file, token_file, source, pace: Pace::default() }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn complete() -> BTreeMap<&'static str, &'static str> {
        BTreeMap::from([
            (environment::ADDRESS, "https://operator.rl.svc:9443"),
            (environment::CA_FILE, "/ca/channel-ca.crt"),
            (environment::TOKEN_FILE, "/token/token"),
            (environment::JOB_UID, "0a1b"),
            (environment::JOB_NAMESPACE, "team"),
            (environment::JOB_NAME, "adding"),
            (environment::ATTEMPT, "3"),
            (environment::RANK, "7"),
        ])
    }

    fn read(variables: &BTreeMap<&'static str, &'static str>) -> Result<Option<Settings>, SettingsError> {
        Settings::from_environment(|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn a_complete_environment_gives_address_and_identity() {
        let settings = read(&complete()).unwrap().unwrap();
        assert_eq!(settings.source.attempt, 3);
        assert_eq!(settings.source.rank, 7);
        assert_eq!(settings.source.job_uid, "0a1b");
    }

    #[test]
    fn without_an_address_nothing_is_reported() {
        let mut variables = complete();
        variables.remove(environment::ADDRESS);
        assert_eq!(read(&variables), Ok(None));
        variables.insert(environment::ADDRESS, "");
        assert_eq!(read(&variables), Ok(None));
    }

    #[test]
    fn a_variable_that_is_missing_or_malformed_is_named() {
        for name in
            [environment::CA_FILE, environment::TOKEN_FILE, environment::JOB_UID, environment::ATTEMPT]
        {
            let mut variables = complete();
            variables.remove(name);
            assert_eq!(read(&variables), Err(SettingsError::Missing { name }));
        }
        for (name, value) in [(environment::ATTEMPT, "first"), (environment::ADDRESS, "http://plain:1")] {
            let mut variables = complete();
            variables.insert(name, value);
            let error = read(&variables).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
