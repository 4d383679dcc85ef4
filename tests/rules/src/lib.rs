//! Sources of the workspace, for the rules of the repository.
//!
//! There is no product code here, and product code does not use this crate.

use std::path::{Path, PathBuf};

/// One source file of the workspace.
#[derive(Debug)]
pub struct SourceFile {
    /// Path relative to the workspace root.
    pub path: String,
    /// Full text of the file.
    pub text: String,
}

impl SourceFile {
    /// Returns the code of the file without its tests; `None` for a file of tests or benchmarks.
    pub fn production_code(&self) -> Option<&str> {
        let path = self.path.as_str();
        let is_test = path.starts_with("tests/")
            || path.contains("/tests/")
            || path.contains("/benches/")
            || path.ends_with("tests.rs");
        let is_end = |at: &usize| {
            let module = self.text[*at..].trim_start_matches("#[cfg(test)]\n");
            module.trim_start_matches("pub(super) ").starts_with("mod tests {")
        };
        let end = self.text.match_indices("#[cfg(test)]\n").map(|(at, _)| at).find(is_end);
        (!is_test).then(|| &self.text[..end.unwrap_or(self.text.len())])
    }
}

/// Returns the folder with the workspace's `Cargo.toml`.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Path of generated code, whose style is not ours.
const GENERATED: &str = "crds/channel/src/messages.rs";

/// Reads every `.rs` file of the workspace, except for build output and generated files, sorted by path.
///
/// # Errors
/// A folder or file of the checkout cannot be read.
pub fn rust_sources() -> std::io::Result<Vec<SourceFile>> {
    let root = workspace_root();
    let mut found = Vec::new();
    for path in source_paths(&["rs"])?.into_iter().filter(|path| path != GENERATED) {
        let text = std::fs::read_to_string(root.join(&path))?;
        found.push(SourceFile { path, text });
    }
    Ok(found)
}

/// Returns the paths of all files of the workspace with these extensions, relative to its root, sorted.
/// Folders of build output and of runs are left out.
///
/// # Errors
/// A folder of the checkout cannot be read.
pub fn source_paths(extensions: &[&str]) -> std::io::Result<Vec<String>> {
    let root = workspace_root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            if path.is_dir() {
                if name != "target" && name != "runs" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|found| extensions.iter().any(|one| found == *one)) {
                found.push(path.strip_prefix(&root).unwrap_or(&path).to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}
