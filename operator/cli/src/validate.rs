//! `rlctl validate`: everything that is wrong with manifests, for people or for programs.

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use rlt_api::{ExitCode, Problem};
use serde::Serialize;

use crate::args::{Format, ValidateArgs};
use crate::manifest::{self, ManifestError};

/// The answer about one manifest.
#[derive(Debug, Serialize)]
struct Verdict<'a> {
    file: &'a Path,
    valid: bool,
    problems: Vec<Problem>,
}

pub(crate) fn validate(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let mut verdicts = Vec::new();
    for file in &args.files {
        let problems = match manifest::load(file) {
            Ok(_) => Vec::new(),
            Err(ManifestError::Invalid { problems, .. }) => problems,
            Err(error) => return manifest::report(error),
        };
        verdicts.push(Verdict { file, valid: problems.is_empty(), problems });
    }
    let mut out = io::stdout().lock();
    match args.output {
        Format::Json => {
            serde_json::to_writer_pretty(&mut out, &verdicts).context("write the verdicts")?;
            writeln!(out)?;
        }
        Format::Text => write_text(&mut out, &verdicts)?,
    }
    Ok(if verdicts.iter().all(|verdict| verdict.valid) { ExitCode::Success } else { ExitCode::Usage })
}

fn write_text(out: &mut impl io::Write, verdicts: &[Verdict<'_>]) -> io::Result<()> {
    for verdict in verdicts {
        let file = verdict.file.display();
        match verdict.problems.len() {
            0 => writeln!(out, "{file}: valid")?,
            1 => writeln!(out, "{file}: 1 problem")?,
            num_problems => writeln!(out, "{file}: {num_problems} problems")?,
        }
        for problem in &verdict.problems {
            writeln!(out, "  {file}:{problem}")?;
        }
    }
    Ok(())
}
