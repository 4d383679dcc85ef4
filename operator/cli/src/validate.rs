//! `rlctl validate`: all problems of manifests, as text or JSON.

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use rlt_api::{ExitCode, Problem};
use serde::Serialize;

use crate::args::{Format, ValidateArgs};
use crate::manifest::{self, ManifestError};

/// Result of the validation of one manifest.
#[derive(Debug, Serialize)]
struct FileReport<'a> {
    file: &'a Path,
    valid: bool,
    problems: Vec<Problem>,
    /// Warnings, such as a job that loses its result.
    warnings: Vec<&'static str>,
    /// Error of the operating system if the file cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
}

impl<'a> FileReport<'a> {
    fn about(file: &'a Path) -> Self {
        let valid = Self { file, valid: true, problems: Vec::new(), warnings: Vec::new(), unreadable: None };
        match manifest::load(file) {
            Ok(job) => {
                let warnings = job.warnings().iter().map(|warning| warning.message).collect();
                Self { warnings, ..valid }
            }
            Err(ManifestError::Invalid { problems, .. }) => Self { valid: false, problems, ..valid },
            Err(ManifestError::Read { source, .. }) => {
                Self { valid: false, unreadable: Some(source.to_string()), ..valid }
            }
        }
    }
}

pub(crate) fn validate(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let reports: Vec<_> = args.manifests.paths().map(FileReport::about).collect();
    let mut out = args.output.output();
    match args.output {
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &reports).context("write the reports")?;
            writeln!(out)?;
        }
        Format::Text => write_text(&mut out, &reports)?,
    }
    Ok(if reports.iter().all(|report| report.valid) { ExitCode::Success } else { ExitCode::Usage })
}

fn write_text(out: &mut impl io::Write, reports: &[FileReport<'_>]) -> io::Result<()> {
    for report in reports {
        let file = report.file.display();
        match (report.problems.len(), &report.unreadable) {
            (_, Some(reason)) => writeln!(out, "{file}: can not be read: {reason}")?,
            (0, None) => writeln!(out, "{file}: valid")?,
            (1, None) => writeln!(out, "{file}: 1 problem")?,
            (num_problems, None) => writeln!(out, "{file}: {num_problems} problems")?,
        }
        for warning in &report.warnings {
            writeln!(out, "  {file}: warning: {warning}")?;
        }
        for problem in &report.problems {
            writeln!(out, "  {file}:{problem}")?;
        }
    }
    Ok(())
}
