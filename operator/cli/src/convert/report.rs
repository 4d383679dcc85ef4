//! The report of a conversion: the outcome for each setting.

use std::fmt;
use std::path::PathBuf;

use rlt_api::Problem;
use rlt_convert::{Conversion, Fate};

/// Everything that is reported in addition to the manifest.
pub(crate) struct Report<'a> {
    pub(crate) conversion: &'a Conversion,
    pub(crate) notes: &'a [String],
    pub(crate) problems: &'a [Problem],
    pub(crate) server: Option<PathBuf>,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcomes = &self.conversion.outcomes;
        let count = |is: fn(&Fate) -> bool| outcomes.iter().filter(|outcome| is(&outcome.fate)).count();
        let converted = count(|fate| matches!(fate, Fate::Converted(_)));
        let inherent = count(|fate| matches!(fate, Fate::Inherent(_)));
        let lost: Vec<_> = self.conversion.lost().collect();
        writeln!(
            out,
            "{} settings: {converted} converted, {inherent} with nothing to set here, {} without an equal",
            outcomes.len(),
            lost.len(),
        )?;
        for outcome in lost {
            if let Fate::Absent(reason) | Fate::Unknown(reason) = &outcome.fate {
                writeln!(out, "  {}={}: {reason}", outcome.key, outcome.value)?;
            }
        }
        self.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
        if let Some(server) = &self.server {
            writeln!(out, "reward server: python3 {} 8000", server.display())?;
        }
        if !self.problems.is_empty() {
            writeln!(out, "the manifest is not valid yet:")?;
        }
        self.problems.iter().try_for_each(|problem| writeln!(out, "  {problem}"))
    }
}
