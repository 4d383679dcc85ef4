//! `rlctl logs`: the log of a job's worker, optionally across restarts.

mod choice;

use std::io::{self, Write as _};
use std::pin::pin;
use std::time::Duration;

use futures::{AsyncBufRead, AsyncReadExt as _};
use kube::api::LogParams;
use rlt_api::ExitCode;
use rlt_api::status::FailureStatus;
use rlt_objects::job::Job;
use rlt_objects::worker::{TRAINER_CONTAINER, Worker};

use crate::args::LogsArgs;
use crate::cluster::{Connection, block_on};
use choice::{Choice, Wanted, choose};

/// Interval between two reads of a job whose pod has not started yet.
const POLL: Duration = Duration::from_millis(500);
/// Largest number of bytes that are forwarded at once.
const CHUNK_BYTES: usize = 16 << 10;

pub(crate) fn logs(args: &LogsArgs) -> anyhow::Result<ExitCode> {
    block_on(async {
        let connection = Connection::open(&args.cluster).await?;
        let wanted = Wanted { rank: args.rank, attempt: args.attempt, previous: args.previous };
        if args.follow {
            follow(&connection, args, wanted).await?;
            return Ok(ExitCode::Success);
        }
        let job = connection.job(&args.name).await?;
        match choose(&job, &workers(&connection, &job).await?, wanted, None) {
            Choice::Pod { name, .. } => copy(&connection, &name, args, false).await?,
            Choice::Gone { attempt, last } => {
                note(&format!("the pod of attempt {attempt} is gone, and its log with it"))?;
                show(last.as_ref())?;
            }
            Choice::NotYet(why) => anyhow::bail!("{why}; rlctl why {} says more", args.name),
            Choice::Impossible(why) => anyhow::bail!(why),
        }
        Ok(ExitCode::Success)
    })
}

/// Forwards the log of every attempt's worker, until the job has ended.
async fn follow(connection: &Connection, args: &LogsArgs, wanted: Wanted) -> anyhow::Result<()> {
    let mut shown = None;
    let mut waits_for = String::new();
    loop {
        let job = connection.job(&args.name).await?;
        match choose(&job, &workers(connection, &job).await?, wanted, shown) {
            Choice::Pod { name, attempt } => {
                if attempt > 1 || shown.is_some() {
                    note(&format!("attempt {attempt}"))?;
                }
                copy(connection, &name, args, true).await?;
                shown = Some(attempt);
                continue;
            }
            Choice::Gone { .. } => return Ok(()),
            Choice::NotYet(why) if why != waits_for => {
                note(&why)?;
                waits_for = why;
            }
            Choice::NotYet(_) => {}
            Choice::Impossible(why) => anyhow::bail!(why),
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn workers(connection: &Connection, job: &Job) -> anyhow::Result<Vec<Worker>> {
    let pods = connection.pods(job).await?;
    Ok(pods.iter().filter_map(Worker::read).map(|(_, worker)| worker).collect())
}

async fn copy(connection: &Connection, pod: &str, args: &LogsArgs, follow: bool) -> anyhow::Result<()> {
    let params = LogParams {
        follow,
        tail_lines: args.tail,
        container: Some(TRAINER_CONTAINER.to_owned()),
        ..LogParams::default()
    };
    let stream = connection.pods_api().log_stream(pod, &params).await;
    let stream = stream.map_err(|error| connection.explain(format!("read the log of {pod}"), pod, error))?;
    hand_on(stream).await
}

/// Forwards a stream without buffering, so that an incomplete line is shown too. On a terminal control
/// sequences are escaped; a file or another program gets every byte unchanged.
async fn hand_on(stream: impl AsyncBufRead) -> anyhow::Result<()> {
    let mut stream = pin!(stream);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut out = rlt_terminal::document();
    loop {
        let length = stream.read(&mut chunk).await?;
        if length == 0 {
            return Ok(());
        }
        out.write_all(&chunk[..length])?;
        out.flush()?;
    }
}

/// Shows the last failure's message from the job's status.
fn show(last: Option<&FailureStatus>) -> io::Result<()> {
    let Some(last) = last else { return Ok(()) };
    let pod = last.pod.as_deref().unwrap_or("the job");
    writeln!(rlt_terminal::text(), "{pod}, attempt {}, {:?}: {}", last.attempt, last.cause, last.message)
}

fn note(text: &str) -> io::Result<()> {
    writeln!(rlt_terminal::messages(), "-- {text} --")
}
