//! Machine-readable output: one value as JSON or YAML.

use std::io;

use anyhow::Context as _;
use serde::Serialize;

/// Writes a value as JSON, ended by a line break.
pub(crate) fn write_json(out: &mut impl io::Write, value: &impl Serialize) -> anyhow::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value).context("write JSON")?;
    writeln!(out)?;
    Ok(())
}

/// Writes a value as one YAML document.
pub(crate) fn write_yaml(out: &mut impl io::Write, value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_saphyr::to_string(value).context("write YAML")?;
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        writeln!(out)?;
    }
    Ok(())
}
