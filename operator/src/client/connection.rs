//! Opens connections to the API server: over HTTP/2, so that concurrent calls need no separate handshakes,
//! and with pings, which detect a dead connection while no call is made.

use std::time::Duration;

use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

use super::ApiLayer;
use super::connections::Connections;

/// Interval and timeout of HTTP/2 pings on an idle connection, the values of client-go.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));

/// Returns a client of the API server of `config`, with its credentials and with `layer` around every call.
pub(super) fn connect(config: Config, layer: &ApiLayer) -> Result<Client, kube::Error> {
    // Configurations that only kube's own connector supports use HTTP/1.1.
    if config.proxy_url.is_some() || config.tls_server_name.is_some() || config.auth_info.exec.is_some() {
        return Ok(ClientBuilder::try_from(config)?.with_layer(layer).build());
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp);
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(KEEP_ALIVE.0)
        .http2_keep_alive_timeout(KEEP_ALIVE.1)
        .http2_keep_alive_while_idle(true);
    let connections = Connections::new(move || builder.build::<_, Body>(connector.clone()));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(ClientBuilder::new(service, config.default_namespace).with_layer(layer).build())
}
