//! One call to the operator: reads the files again, connects with TLS, and returns the answer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

use super::Settings;
use crate::channel_client::ChannelClient;
use crate::{AUTHORIZATION, FollowRequest, FollowResponse, ReportRequest, ReportResponse};

/// Reason why a report was not delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("failed to read {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("the token in {} is no text for a header", path.display())]
    Token { path: PathBuf },
    #[error("failed to prepare the connection")]
    Prepare(#[source] tonic::transport::Error),
    #[error("failed to connect to the operator")]
    Connect(#[source] tonic::transport::Error),
    #[error("the operator refused the call")]
    Call(#[source] Status),
    #[error("the operator did not answer within {seconds} s")]
    Timeout { seconds: f64 },
}

/// Connection that is opened on demand, and reopened after every failure, because certificates and the
/// process behind the address may have changed.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// The client of the open connection; `None` during a call, so that a call that fails or is cancelled
    /// closes the connection.
    client: Option<ChannelClient<Channel>>,
}

impl Connection {
    /// Sends one report, within `settings.pace.timeout`.
    pub(super) async fn send(
        &mut self,
        settings: &Settings,
        report: ReportRequest,
    ) -> Result<ReportResponse, SendError> {
        let answered = async {
            let (mut client, request) = self.prepare(settings, report).await?;
            let answer = client.report(request).await.map_err(SendError::Call)?;
            self.client = Some(client);
            Ok(answer.into_inner())
        };
        within(settings.pace.timeout, answered).await
    }

    /// Requests the pod's assignment, within `settings.pace.timeout`.
    pub(super) async fn ask(
        &mut self,
        settings: &Settings,
        question: FollowRequest,
    ) -> Result<FollowResponse, SendError> {
        let answered = async {
            let (mut client, request) = self.prepare(settings, question).await?;
            let answer = client.follow(request).await.map_err(SendError::Call)?;
            self.client = Some(client);
            Ok(answer.into_inner())
        };
        within(settings.pace.timeout, answered).await
    }

    /// Returns a connected client, and the message with the pod's token.
    ///
    /// The handshake is part of this future. A lazy channel would do it in a separate task, which keeps its
    /// socket after the call has timed out.
    async fn prepare<T>(
        &mut self,
        settings: &Settings,
        message: T,
    ) -> Result<(ChannelClient<Channel>, Request<T>), SendError> {
        let token = read(&settings.token_file)?;
        let value = format!("Bearer {}", token.trim());
        let value = value.parse().map_err(|_| SendError::Token { path: settings.token_file.clone() })?;
        let client = match self.client.take() {
            Some(client) => client,
            None => ChannelClient::new(endpoint(settings)?.connect().await.map_err(SendError::Connect)?),
        };
        let mut request = Request::new(message);
        request.metadata_mut().insert(AUTHORIZATION, value);
        Ok((client, request))
    }
}

async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, SendError>>,
) -> Result<T, SendError> {
    let answer = tokio::time::timeout(timeout, call).await;
    answer.map_err(|_| SendError::Timeout { seconds: timeout.as_secs_f64() })?
}

fn endpoint(settings: &Settings) -> Result<Endpoint, SendError> {
    let authority = Certificate::from_pem(read(&settings.ca_file)?);
    Endpoint::from_shared(settings.address.clone())
        .and_then(|endpoint| endpoint.tls_config(ClientTlsConfig::new().ca_certificate(authority)))
        .map_err(SendError::Prepare)
}

fn read(path: &Path) -> Result<String, SendError> {
    std::fs::read_to_string(path).map_err(|source| SendError::File { path: path.to_path_buf(), source })
}
