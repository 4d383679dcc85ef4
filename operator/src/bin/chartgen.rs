//! Writes the generated files of the Helm chart: the CRD and the rules of the roles.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rlt_operator::chart;

#[expect(clippy::print_stderr, reason = "a command says on the terminal what it could not do")]
fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf);
    match chart::write(&root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
