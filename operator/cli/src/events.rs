//! `rlctl events`: the history of a job, from Kubernetes' Events on it, its pods and its claim.

pub(crate) mod job_event;

use std::fmt::Write as _;
use std::io::Write as _;

use k8s_openapi::jiff::Timestamp;
use rlt_api::ExitCode;

use crate::args::{DocumentFormat, EventsArgs};
use crate::cluster::{Connection, block_on};
use crate::document;
use crate::measure::duration;
use crate::status::seconds_between;
use job_event::{JobEvent, of_job};

pub(crate) fn events(args: &EventsArgs) -> anyhow::Result<ExitCode> {
    block_on(async {
        let connection = Connection::open(&args.cluster).await?;
        let job = connection.job(&args.name).await?;
        let events = of_job(&job, &connection.events().await?);
        let mut out = args.output.output();
        match args.output {
            DocumentFormat::Json => document::write_json(&mut out, &events)?,
            DocumentFormat::Yaml => document::write_yaml(&mut out, &events)?,
            DocumentFormat::Text if events.is_empty() => writeln!(rlt_terminal::messages(), "no events")?,
            DocumentFormat::Text => out.write_all(render(&events, Timestamp::now()).as_bytes())?,
        }
        Ok(ExitCode::Success)
    })
}

/// Formats events, one line each: age, type, object, reason, count, message.
fn render(events: &[JobEvent], now: Timestamp) -> String {
    let width = events.iter().map(|one| one.about().len()).max().unwrap_or(0);
    let mut text = String::new();
    for one in events {
        let age = one.time().map(|time| format!("{} ago", duration(seconds_between(time, now))));
        let mark = if one.is_warning { "!" } else { " " };
        let count = if one.count > 1 { format!(" (x{})", one.count) } else { String::new() };
        let _ = writeln!(
            text,
            "{:>12} {mark} {:width$}  {}{count}: {}",
            age.unwrap_or_default(),
            one.about(),
            one.reason,
            one.message
        );
    }
    text
}

#[cfg(test)]
mod tests;
