//! `rlctl why`: explains why a job waits, failed or continues, and what to change. The job, its pods and
//! Events are read here, a local run in `local`; pure functions explain them.

mod explanation;
mod failed;
mod job;
mod local;
mod refused;
mod scheduling;
mod snapshot;
mod waiting;

use std::io::Write as _;

use k8s_openapi::jiff::Timestamp;
use rlt_api::ExitCode;
use rlt_objects::prepare::Prepared;
use rlt_objects::worker::Worker;

use crate::args::{DocumentFormat, WhyArgs};
use crate::cluster::{Connection, block_on};
use crate::document;
use crate::events::job_event::of_job;
use job::explain;
pub(crate) use snapshot::JobSnapshot;

pub(crate) fn why(args: &WhyArgs) -> anyhow::Result<ExitCode> {
    let explanation = if local::is_run(&args.name) {
        local::explain(&local::LocalRun::read(&args.name)?)
    } else {
        block_on(async {
            let connection = Connection::open(&args.cluster).await?;
            Ok(explain(&gather(&connection, &args.name).await?))
        })?
    };
    let mut out = args.output.output();
    match args.output {
        DocumentFormat::Json => document::write_json(&mut out, &explanation)?,
        DocumentFormat::Yaml => document::write_yaml(&mut out, &explanation)?,
        DocumentFormat::Text => out.write_all(explanation.to_string().as_bytes())?,
    }
    Ok(ExitCode::Success)
}

async fn gather(connection: &Connection, name: &str) -> anyhow::Result<JobSnapshot> {
    let job = connection.job(name).await?;
    let pods = connection.pods(&job).await?;
    let mut workers: Vec<_> = pods.iter().filter_map(Worker::read).map(|(_, worker)| worker).collect();
    // A spare waits for ranks and explains nothing.
    workers.retain(|worker| !worker.is_spare());
    workers.sort_by_key(|worker| (worker.attempt, worker.idx));
    // A user with access to jobs and pods may lack access to Events; most causes are known without them.
    let events = connection.events().await.map(|events| of_job(&job, &events)).unwrap_or_default();
    Ok(JobSnapshot { prepared: Prepared::new(&job), job, workers, events, now: Timestamp::now() })
}

#[cfg(test)]
mod tests;
