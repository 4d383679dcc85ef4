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
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use rlt_storage::error_chain;
use rlt_storage::run_folder::write_atomically;

pub use error::ReportError;
use run::Run;

/// Longest wait for the page at the end of a run.
const TIMEOUT: Duration = Duration::from_secs(60);

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

/// Renders the report at the end of a run. An error, a panic or a slow disk does not change the result of the
/// run, because the page can be rendered from the files at any later time.
pub fn render_at_end(run_folder: &Path) {
    let folder = run_folder.to_path_buf();
    if let Err(reason) = with_timeout(TIMEOUT, move || render(&folder).map(drop)) {
        tracing::warn!(error = reason, "failed to render report.html; `rlt-trainer report` renders it again");
    }
}

/// Runs `work` on a separate thread, which is abandoned after `timeout`; returns the reason if there is no
/// result.
fn with_timeout(
    timeout: Duration,
    work: impl FnOnce() -> Result<(), ReportError> + Send + 'static,
) -> Result<(), String> {
    let (sender, done) = sync_channel(1);
    let thread = std::thread::Builder::new().name("report".into()).spawn(move || {
        // The receiver is gone after the timeout.
        let _ = sender.send(work());
    });
    thread.map_err(|error| format!("no thread: {error}"))?;
    match done.recv_timeout(timeout) {
        Ok(result) => result.map_err(|error| error_chain(&error)),
        Err(RecvTimeoutError::Timeout) => Err(format!("it takes longer than {} s", timeout.as_secs())),
        Err(RecvTimeoutError::Disconnected) => Err("it panicked".to_owned()),
    }
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
