//! One report on its way: files read anew, TLS, the call.

use std::path::{Path, PathBuf};

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

use super::Settings;
use crate::channel_client::ChannelClient;
use crate::{AUTHORIZATION, ReportRequest, ReportResponse};

/// Why a report did not arrive.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("failed to read {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("the token in {} is no text for a header", path.display())]
    Token { path: PathBuf },
    #[error("failed to prepare the connection")]
    Prepare(#[source] tonic::transport::Error),
    #[error("the operator did not take the report")]
    Call(#[source] Status),
    #[error("the operator did not answer within {seconds} s")]
    Timeout { seconds: f64 },
}

/// A connection that is made when it is needed, and made anew after every failure: certificates and the
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
        let timeout = settings.pace.timeout;
        let sent = tokio::time::timeout(timeout, self.call(settings, report)).await;
        let sent = sent.unwrap_or(Err(SendError::Timeout { seconds: timeout.as_secs_f64() }));
        if sent.is_err() {
            self.client = None;
        }
        sent
    }

    async fn call(
        &mut self,
        settings: &Settings,
        report: ReportRequest,
    ) -> Result<ReportResponse, SendError> {
        let token = read(&settings.token_file)?;
        let value = format!("Bearer {}", token.trim());
        let value = value.parse().map_err(|_| SendError::Token { path: settings.token_file.clone() })?;
        let client = match &mut self.client {
            Some(client) => client,
            None => self.client.insert(ChannelClient::new(endpoint(settings)?.connect_lazy())),
        };
        let mut request = Request::new(report);
        request.metadata_mut().insert(AUTHORIZATION, value);
        Ok(client.report(request).await.map_err(SendError::Call)?.into_inner())
    }
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
