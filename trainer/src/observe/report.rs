//! `report.html`: one page about a run, generated from the run folder.
//!
//! ```text
//! metrics.jsonl, completions.jsonl, manifest.yaml -> Run -> sections of plots and tables -> one HTML file
//! ```
//! The page is self-contained: plots are inline SVG, the style sheet follows the reader's light or dark
//! scheme, and a small script only adds read-outs under the pointer. It can be generated at any time, after
//! one step or a thousand. Sections without data are left out.

mod completions;
mod error;
mod headline;
mod html;
mod page;
mod plot;
mod run;
mod sampled;
mod scale;
mod sections;
mod settings;

use std::path::{Path, PathBuf};

use rlt_storage::run_folder::write_atomically;

pub use error::ReportError;
use run::Run;

/// Writes `report.html` into the run folder, replacing an earlier one in one step, and returns its path.
///
/// # Errors
/// A log exists and cannot be read, or the page cannot be written. A missing log is an empty one.
pub fn render(run_folder: &Path) -> Result<PathBuf, ReportError> {
    let run = Run::load(run_folder)?;
    let path = run_folder.join("report.html");
    write_atomically(&path, page::render(&run).as_bytes())
        .map_err(|source| ReportError::Write { path: path.clone(), source })?;
    Ok(path)
}

/// Does the same as [`render`], for a folder named by the user that may not be a run folder.
///
/// # Errors
/// [`ReportError::NoRun`], and those of [`render`].
pub fn render_named(run_folder: &Path) -> Result<PathBuf, ReportError> {
    if run_folder.join("manifest.yaml").is_file() {
        return render(run_folder);
    }
    Err(ReportError::NoRun { folder: run_folder.to_owned() })
}

#[cfg(test)]
mod tests;
