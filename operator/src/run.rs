//! The whole process, from its arguments to its exit.

use std::sync::Arc;

use kube::runtime::events::Reporter;
use rlt_objects::args::Args;
use rlt_objects::build::{ChannelAccess, Settings};
use rlt_objects::labels;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::context::Context;
use crate::controller;
use crate::index::Index;
use crate::process::{Process, ProcessError};
use crate::progress::{KnownWorkers, Reports};

/// An error that ends the operator.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum RunError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("failed to listen for signals")]
    Signals(#[source] std::io::Error),
}

/// Runs until the process is asked to stop, or is no longer the leader.
///
/// # Errors
/// [`RunError`] when no work is possible.
pub async fn run(args: Args) -> Result<(), RunError> {
    let stop = asked_to_stop().map_err(RunError::Signals)?;
    let mut process = Process::start(&args.process, Reports::new()).await?;
    let context = Arc::new(context(&args, &process));
    let (index, prepared) = (Arc::clone(&context.index), Arc::clone(&context.prepared));
    if let Some(channel) = &process.channel {
        tokio::spawn(hand_out_authority(channel.renewals(), context.clone()));
    }
    process.serve_channel(&args.process, KnownWorkers { index, prepared });
    let limiter = process.limiter.clone();
    // Active reconciles end with their calls in flight, so that another leader can begin at once. Only the
    // Events of statuses that were written are still sent.
    let stop = async move {
        stop.await;
        limiter.close();
    };
    let working = controller::run(context, &args.namespaces, args.concurrency, stop);
    tokio::select! {
        () = working => {}
        // Writes in flight must be cancelled: the process ends.
        error = process.lost() => return Err(ProcessError::from(error).into()),
    }
    process.release().await;
    Ok(())
}

/// Writes the ConfigMap of every job again when the status channel has a new authority, which pods read from
/// there.
pub(crate) async fn hand_out_authority(mut renewals: watch::Receiver<()>, context: Arc<Context>) {
    while renewals.changed().await.is_ok() {
        context.prepared.clear();
        context.index.requeue_all();
    }
}

fn context(args: &Args, process: &Process) -> Context {
    let channel = process.channel.as_ref().map(|channel| ChannelAccess {
        address: channel.address.clone(),
        authority: channel.authority.clone(),
    });
    let instance = args.process.pod_name.clone().or_else(|| std::env::var("HOSTNAME").ok());
    Context {
        reporter: Reporter { controller: labels::OPERATOR.into(), instance },
        events: Arc::default(),
        client: process.client.clone(),
        limiter: process.limiter.clone(),
        settings: Settings {
            trainer_image: args.trainer_image.clone(),
            trainer_cuda_image: args.trainer_cuda_image.clone(),
            pull_policy: args.trainer_image_pull_policy,
            channel,
            pods: args.pods(),
            traces: rlt_traces::for_pods(|name| std::env::var(name).ok()),
        },
        index: Arc::new(Index::new(args.node_signals())),
        discovery: Arc::default(),
        prepared: Arc::default(),
        written: Arc::default(),
        reports: Arc::new(process.reports.clone()),
        leadership: process.leadership(),
        failures: Arc::default(),
        metrics: process.metrics.clone(),
        synced: process.synced.clone(),
    }
}

/// Completes with the first stop signal, SIGTERM or SIGINT.
fn asked_to_stop() -> std::io::Result<impl Future<Output = ()> + Send + Sync + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("received a stop signal");
    })
}
