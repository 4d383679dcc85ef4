//! The whole process, from its arguments to its end.

use kube::Client;

use crate::args::Args;

/// Why the operator ended.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is its message")]
pub enum RunError {
    #[error("failed to find the cluster")]
    Client(#[source] kube::Error),
}

/// Works until the process is asked to stop.
///
/// # Errors
/// [`RunError`] when no work is possible.
pub async fn run(args: Args) -> Result<(), RunError> {
    let client = Client::try_default().await.map_err(RunError::Client)?;
    let namespace = client.default_namespace();
    tracing::info!(namespace, trainer_image = args.trainer_image, "connected");
    Ok(())
}
