//! The whole process, from its arguments to its end.

use std::sync::Arc;

use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::args::Args;
use crate::build::Settings;
use crate::context::Context;
use crate::controller;
use crate::labels;
use crate::observe::NoReports;

/// Why the operator ended.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum RunError {
    #[error("failed to find the cluster")]
    Client(#[source] kube::Error),
    #[error("failed to listen for signals")]
    Signals(#[source] std::io::Error),
}

/// Works until the process is asked to stop.
///
/// # Errors
/// [`RunError`] when no work is possible.
pub async fn run(args: Args) -> Result<(), RunError> {
    let client = Client::try_default().await.map_err(RunError::Client)?;
    let stop = asked_to_stop().map_err(RunError::Signals)?;
    // Held for the whole run: who holds it may write.
    let (_leader, leadership) = watch::channel(true);
    let settings = Settings {
        trainer_image: args.trainer_image.clone(),
        pull_policy: args.trainer_image_pull_policy,
        channel: None,
    };
    let instance = std::env::var("HOSTNAME").ok();
    let reporter = Reporter { controller: labels::OPERATOR.into(), instance };
    let context = Context {
        recorder: Recorder::new(client.clone(), reporter),
        client,
        settings,
        index: Arc::default(),
        prepared: Arc::default(),
        written: Arc::default(),
        reports: Arc::new(NoReports),
        leadership,
        failures: Arc::default(),
    };
    controller::run(Arc::new(context), &args.namespaces, args.concurrency, stop).await;
    Ok(())
}

/// Ends with the first request to stop, whoever sends it.
fn asked_to_stop() -> std::io::Result<impl Future<Output = ()> + Send + Sync + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to stop");
    })
}
