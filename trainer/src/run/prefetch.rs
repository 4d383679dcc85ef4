//! Warm-up of a hot spare: downloads the job's models, and reads their weights and this program's libraries
//! once, so that they are in the page cache of its node.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rlt_api::resolved::{ModelSource, ResolvedSpec};

use super::error::TrainError;
use super::setup::hub_models::pinned;
use crate::roles::reward::RewardModels;

/// Size of one read, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Downloads and reads the files that the run in the folder `root` will read; returns the number of bytes
/// read.
///
/// # Errors
/// When a model cannot be downloaded. Files that cannot be read are skipped: the ranks report them.
pub(crate) fn prefetch(spec: &ResolvedSpec, root: &Path) -> Result<u64, TrainError> {
    let spec = pinned(spec, root)?;
    let policy = match &spec.model.source {
        ModelSource::Path(path) => Some(PathBuf::from(path)),
        ModelSource::Hub(hub) => Some(rlt_hub::fetch(hub, None)?.dir),
        ModelSource::Architecture(_) => None,
    };
    let judges = RewardModels::folders(&spec.rewards.functions)?;
    let weights = policy.iter().chain(&judges).flat_map(|folder| weights_in(folder));
    Ok(weights.chain(libraries()).map(|file| read_through(&file).unwrap_or(0)).sum())
}

fn weights_in(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors")).collect()
}

/// Returns the shared libraries of this process, including libtorch's.
fn libraries() -> BTreeSet<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    paths.filter(|path| path.contains(".so")).map(PathBuf::from).collect()
}

fn read_through(path: &Path) -> io::Result<u64> {
    let (mut file, mut chunk, mut num_bytes) = (rlt_files::open(path)?, vec![0; CHUNK_BYTES], 0);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(num_bytes),
            more => num_bytes += more as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_and_the_libraries_of_the_process_are_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let weights = folder.path().join("model.safetensors");
        fs::write(&weights, vec![7; 3 * CHUNK_BYTES + 5]).unwrap();
        fs::write(folder.path().join("README.md"), "no weights").unwrap();
        assert_eq!(weights_in(folder.path()), std::slice::from_ref(&weights));
        assert_eq!(read_through(&weights).unwrap(), 3 * CHUNK_BYTES as u64 + 5);
        let torch = |path: &PathBuf| path.to_string_lossy().contains("libtorch_cpu");
        assert!(libraries().iter().any(torch), "{:?}", libraries());
    }
}
