//! The operator's binary: arguments in, exit code out.

use anyhow::Context as _;
use clap::Parser as _;
use rlt_operator::Args;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).json().init();
    rlt_operator::run(args).await.context("run the operator")
}
