//! One call: files read again, TLS, the answer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Response, Status};

use super::Settings;
use crate::channel_client::ChannelClient;
use crate::{AUTHORIZATION, FollowRequest, FollowResponse, ReportRequest, ReportResponse};

/// Why a report was not delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("failed to read {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("the token in {} is no text for a header", path.display())]
    Token { path: PathBuf },
    #[error("failed to prepare the connection")]
    Prepare(#[source] tonic::transport::Error),
    #[error("the operator refused the call")]
    Call(#[source] Status),
    #[error("the operator did not answer within {seconds} s")]
    Timeout { seconds: f64 },
}

/// A connection that is made when it is needed, and made again after every failure: certificates and the
/// process behind the address may have changed.
#[derive(Debug, Default)]
pub(super) struct Connection {
    client: Option<ChannelClient<Channel>>,
}

impl Connection {
    /// Sends one report, within `settings.pace.timeout`.
    pub(super) async fn send(
        &mut self,
        settings: &Settings,
        report: ReportRequest,
    ) -> Result<ReportResponse, SendError> {
        let (client, request) = self.prepare(settings, report)?;
        let answer = within(settings.pace.timeout, client.report(request)).await;
        self.keep_unless_failed(answer)
    }

    /// Requests the pod's assignment, within `settings.pace.timeout`.
    pub(super) async fn ask(
        &mut self,
        settings: &Settings,
        question: FollowRequest,
    ) -> Result<FollowResponse, SendError> {
        let (client, request) = self.prepare(settings, question)?;
        let answer = within(settings.pace.timeout, client.follow(request)).await;
        self.keep_unless_failed(answer)
    }

    /// The client, and a message with the pod's token.
    fn prepare<T>(
        &mut self,
        settings: &Settings,
        message: T,
    ) -> Result<(&mut ChannelClient<Channel>, Request<T>), SendError> {
        let token = read(&settings.token_file)?;
        let value = format!("Bearer {}", token.trim());
        let value = value.parse().map_err(|_| SendError::Token { path: settings.token_file.clone() })?;
        let client = match self.client.take() {
            Some(client) => client,
            None => ChannelClient::new(endpoint(settings)?.connect_lazy()),
        };
        let mut request = Request::new(message);
        request.metadata_mut().insert(AUTHORIZATION, value);
        Ok((self.client.insert(client), request))
    }

    fn keep_unless_failed<T>(&mut self, answer: Result<T, SendError>) -> Result<T, SendError> {
        if answer.is_err() {
            self.client = None;
        }
        answer
    }
}

async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, SendError> {
    let answer = tokio::time::timeout(timeout, call).await;
    let answer = answer.map_err(|_| SendError::Timeout { seconds: timeout.as_secs_f64() })?;
    Ok(answer.map_err(SendError::Call)?.into_inner())
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
