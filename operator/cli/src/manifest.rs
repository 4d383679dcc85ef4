//! Reading of manifests from files and standard input.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::result;

use rlt_api::{Problem, ValidatedJob};
use rlt_objects::pod_template;

/// A manifest that cannot be read, or is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    /// The file cannot be read.
    #[error("read manifest {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The manifest is invalid; each line of the message says where and why.
    #[error("{}", lines(path, problems))]
    Invalid { path: PathBuf, problems: Vec<Problem> },
}

/// File name that means standard input.
pub(crate) const STANDARD_INPUT: &str = "-";

/// Reads and validates one manifest; `-` is standard input.
pub(crate) fn load(path: &Path) -> result::Result<ValidatedJob, ManifestError> {
    load_with_text(path).map(|(job, _)| job)
}

/// Reads and validates one manifest and also returns its text, since standard input can be read only once.
pub(crate) fn load_with_text(path: &Path) -> result::Result<(ValidatedJob, String), ManifestError> {
    let text = read(path).map_err(|source| ManifestError::Read { path: path.to_owned(), source })?;
    match rlt_api::validate_with(&text, pod_template::problems_of) {
        Ok(job) => Ok((job, text)),
        Err(problems) => Err(ManifestError::Invalid { path: path.to_owned(), problems }),
    }
}

/// Writes the problems to standard error, for commands that need a valid manifest.
pub(crate) fn report(error: ManifestError) -> anyhow::Result<rlt_api::ExitCode> {
    writeln!(rlt_terminal::messages(), "{:#}", anyhow::Error::new(error))?;
    Ok(rlt_api::ExitCode::Usage)
}

fn read(path: &Path) -> io::Result<String> {
    rlt_files::read_argument(path, rlt_files::MAX_MANIFEST_BYTES)
}

/// Formats one line per problem, in the form that editors and terminals make clickable.
fn lines(path: &Path, problems: &[Problem]) -> String {
    let line = |problem: &Problem| format!("{}:{problem}", path.display());
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}
