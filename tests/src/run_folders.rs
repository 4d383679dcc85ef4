//! Folders for the files of runs that tests start, in memory if the test suite has reserved space there.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The variable by which `tests/suite.sh` names a folder in memory.
const IN_MEMORY: &str = "RLT_TESTS_IN_MEMORY";

/// Makes a folder for the files of runs, which is deleted with its handle. It is in memory if `make test` has
/// found space there, because a run waits for the disk at every file that it commits.
///
/// Tests that measure memory call [`tempfile::tempdir`] instead: pages of a file in memory count as memory of
/// the process that maps them.
///
/// # Errors
/// When the folder cannot be made.
pub fn run_folder() -> io::Result<TempDir> {
    folder_in(memory().as_deref())
}

/// Whether the pages of a file count as memory of the process that maps them.
pub fn is_in_memory(path: &Path) -> bool {
    memory().is_some_and(|memory| path.starts_with(memory))
}

fn memory() -> Option<PathBuf> {
    std::env::var_os(IN_MEMORY).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

fn folder_in(memory: Option<&Path>) -> io::Result<TempDir> {
    memory.map_or_else(tempfile::tempdir, tempfile::tempdir_in)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_for_runs_is_below_the_one_in_memory_and_deleted_with_its_handle() {
        let memory = tempfile::tempdir().unwrap();
        let folder = folder_in(Some(memory.path())).unwrap();
        assert_eq!(folder.path().parent(), Some(memory.path()));
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
        assert_ne!(folder_in(None).unwrap().path().parent(), Some(memory.path()));
    }
}
