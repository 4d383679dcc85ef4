//! Binary of the operator: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser as _;
use rlt_objects::args::Args;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).json();
    let traces = rlt_traces::start(lines, filter, Some("rlt-operator"));
    let outcome = rlt_operator::run(args).await.map_err(anyhow::Error::new);
    if let Err(error) = &outcome {
        // The error with its chain of causes, in one JSON object like other log lines.
        tracing::error!(error = format!("{error:#}"), "operator stopped");
    }
    if let Some(traces) = traces {
        traces.finish();
    }
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
