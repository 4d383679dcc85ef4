//! `rlctl status`: the state of jobs on a cluster, as a table, as a page about one job, or for programs.

mod page;
mod summary;
mod table;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::pin::pin;

use futures::TryStreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use rlt_api::ExitCode;

use crate::args::{DocumentFormat, StatusArgs};
use crate::cluster::{Connection, block_on};
use crate::document;
use summary::Summary;
pub(crate) use summary::{seconds_between, status_of};

pub(crate) fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    block_on(async {
        let connection = Connection::open(&args.cluster).await?;
        let summaries = read(&connection, args).await?;
        write(args, &summaries)?;
        if args.watch {
            follow(&connection, args, &summaries).await?;
        }
        Ok(ExitCode::Success)
    })
}

async fn read(connection: &Connection, args: &StatusArgs) -> anyhow::Result<Vec<Summary>> {
    let jobs = if args.names.is_empty() {
        connection.jobs(args.all_namespaces).await?
    } else {
        let mut jobs = Vec::new();
        for name in &args.names {
            jobs.push(connection.job(name).await?);
        }
        jobs
    };
    let now = Timestamp::now();
    Ok(jobs.iter().map(|job| Summary::of(job, now)).collect())
}

fn write(args: &StatusArgs, summaries: &[Summary]) -> anyhow::Result<()> {
    let mut out = args.output.output();
    match (args.output, summaries) {
        (DocumentFormat::Json, _) => document::write_json(&mut out, &summaries)?,
        (DocumentFormat::Yaml, _) => document::write_yaml(&mut out, &summaries)?,
        (DocumentFormat::Text, []) => writeln!(rlt_terminal::messages(), "no jobs")?,
        (DocumentFormat::Text, [one]) if args.names.len() == 1 && !args.watch => {
            out.write_all(page::render(one).as_bytes())?;
        }
        (DocumentFormat::Text, many) => {
            out.write_all(table::render(many, args.all_namespaces).as_bytes())?;
        }
    }
    Ok(())
}

/// Writes a row for every change, until all jobs named by the arguments have ended.
async fn follow(connection: &Connection, args: &StatusArgs, shown: &[Summary]) -> anyhow::Result<()> {
    let mut layout = table::Layout::of(shown, args.all_namespaces);
    let mut rows: BTreeMap<String, Summary> = shown.iter().map(|one| (one.key(), one.clone())).collect();
    let jobs = connection.jobs_api(args.all_namespaces);
    let mut changes = pin!(watcher(jobs, watcher::Config::default()).applied_objects());
    while !has_ended(args, &rows) {
        let changed = changes.try_next().await;
        let Some(job) = changed? else { break };
        let summary = Summary::of(&job, Timestamp::now());
        let is_meant = args.names.is_empty() || args.names.contains(&summary.name);
        if is_meant && rows.get(&summary.key()).is_none_or(|known| known.differs_from(&summary)) {
            rlt_terminal::text().write_all(layout.row(&summary).as_bytes())?;
            rows.insert(summary.key(), summary);
        }
    }
    Ok(())
}

fn has_ended(args: &StatusArgs, rows: &BTreeMap<String, Summary>) -> bool {
    !args.names.is_empty() && rows.values().all(|row| row.has_ended)
}

#[cfg(test)]
mod tests;
