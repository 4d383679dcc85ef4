//! Generated files of the Helm chart. The chart's own templates are written by hand.

use std::path::{Path, PathBuf};

use crate::permissions::{Reach, rules};

/// Folder of the chart's generated files.
const FOLDER: &str = "charts/rl-operator/files";
/// Generated CRD, of which the chart has a copy.
const CRD: &str = "crds/manifests/rltrainingjobs.yaml";

/// The files could not be generated or written.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum ChartError {
    #[error("failed to {act} {}: {source}", path.display())]
    File { act: &'static str, path: PathBuf, source: std::io::Error },
    #[error("failed to write rules as YAML: {0}")]
    Yaml(#[from] serde_saphyr::SerializeError),
}

/// Returns all generated files below the workspace's `root`, with their content.
///
/// # Errors
/// [`ChartError`] if the CRD cannot be read.
pub fn files(root: &Path) -> Result<Vec<(PathBuf, String)>, ChartError> {
    let crd = root.join(CRD);
    let text = std::fs::read_to_string(&crd).map_err(|source| ChartError::File {
        act: "read",
        path: crd,
        source,
    })?;
    let folder = root.join(FOLDER);
    let mut files = vec![(folder.join("crd.yaml"), text)];
    for (name, reach) in [("watched", Reach::Watched), ("own", Reach::Own), ("cluster", Reach::Cluster)] {
        let yaml = serde_saphyr::to_string(&rules(reach))?;
        files.push((folder.join(format!("rules-{name}.yaml")), yaml));
    }
    Ok(files)
}

/// Writes the files below the workspace's `root`.
///
/// # Errors
/// [`ChartError`].
pub fn write(root: &Path) -> Result<(), ChartError> {
    for (path, text) in files(root)? {
        std::fs::write(&path, text).map_err(|source| ChartError::File { act: "write", path, source })?;
    }
    Ok(())
}
