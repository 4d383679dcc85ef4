//! TLS server of the status channel, with limits for each connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use rlt_channel::channel_server::{Channel, ChannelServer};
use rlt_channel::limits::MAX_REPORT_BYTES;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};

use super::certificates::Certificates;
use super::connections::Connections;
use super::shares::Limits;
use super::token::MAX_TOKEN_BYTES;

/// Timeout of one report, including the review of its token.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest size of a request's headers in bytes: the token and little else.
const MAX_HEADER_BYTES: u32 = 2 * MAX_TOKEN_BYTES as u32;
/// Maximum number of concurrent requests on one connection; a rank sends one at a time.
const STREAMS_PER_CONNECTION: u32 = 4;
/// Idle time before a keep-alive ping.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The status channel cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port is in use, or not permitted.
    #[error("failed to listen on {address} for reports")]
    Listen {
        /// Address on which the server should listen.
        address: SocketAddr,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The certificate or key cannot be used, or the server failed.
    #[error("failed to serve the status channel")]
    Serve(#[from] tonic::transport::Error),
}

/// Starts the server. Returns its address and its task, which ends when `stop` completes.
///
/// # Errors
/// [`ServeError::Listen`].
pub async fn serve<S: Channel>(
    service: Arc<S>,
    address: SocketAddr,
    certificates: &Certificates,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(SocketAddr, tokio::task::JoinHandle<Result<(), ServeError>>), ServeError> {
    let listen = async {
        let listener = TcpListener::bind(address).await?;
        Ok((listener.local_addr()?, listener))
    };
    let (address, listener) = listen.await.map_err(|source| ServeError::Listen { address, source })?;
    let (certificate, key) = certificates.identity();
    let tls =
        ServerTlsConfig::new().identity(Identity::from_pem(certificate, key)).timeout(HANDSHAKE_TIMEOUT);
    let service = ChannelServer::from_arc(service).max_decoding_message_size(MAX_REPORT_BYTES);
    let router = Server::builder()
        .timeout(REQUEST_TIMEOUT)
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .tls_config(tls)?
        .add_service(service);
    let connections = Connections::within(Limits::of_channel());
    let incoming = TcpListenerStream::new(listener).filter_map(move |accepted| {
        let counted = match accepted {
            Ok(stream) => connections.admit(stream).map(Ok),
            Err(error) => Some(Err(error)),
        };
        std::future::ready(counted)
    });
    let serving = async move {
        // Ranks never close their connections, so a graceful shutdown would not end.
        tokio::select! {
            served = router.serve_with_incoming(incoming) => served.map_err(ServeError::Serve),
            () = stop => Ok(()),
        }
    };
    Ok((address, tokio::spawn(serving)))
}
