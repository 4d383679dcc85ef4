//! Uncached reads of nodes. The cache may be stale, and a decision based on it could end a healthy attempt,
//! or run two processes of one rank.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use rlt_objects::node_signals::NodeSignals;

use super::ApplyError;
use crate::client::MAX_IN_FLIGHT;
use crate::nodes::{NodeLabels, NodeState, NodeStates};

/// Reads the states of these nodes; a node that does not exist is lost.
///
/// # Errors
/// When one of them could not be read.
pub async fn read_nodes(
    client: &Client,
    signals: &NodeSignals,
    names: BTreeSet<Arc<str>>,
) -> Result<NodeStates, ApplyError> {
    let calls = names.into_iter().map(|name| async move {
        let state = read(client, signals, &name).await?;
        Ok((name, state))
    });
    stream::iter(calls).buffer_unordered(MAX_IN_FLIGHT).try_collect().await
}

/// Reads the `wanted` labels of these nodes; a node that does not exist has none.
///
/// # Errors
/// When one of them could not be read.
pub async fn read_node_labels(
    client: &Client,
    names: BTreeSet<Arc<str>>,
    wanted: &[&str],
) -> Result<NodeLabels, ApplyError> {
    let calls = names.into_iter().map(|name| async move {
        let found = Api::<Node>::all(client.clone()).get_metadata_opt(&name).await;
        let found =
            found.map_err(|source| ApplyError::Call { act: "read node", name: name.to_string(), source })?;
        let mut labels = found.and_then(|node| node.metadata.labels).unwrap_or_default();
        labels.retain(|label, _| wanted.contains(&label.as_str()));
        Ok((name, labels))
    });
    stream::iter(calls).buffer_unordered(MAX_IN_FLIGHT).try_collect().await
}

pub(super) async fn read(
    client: &Client,
    signals: &NodeSignals,
    name: &str,
) -> Result<NodeState, ApplyError> {
    match Api::<Node>::all(client.clone()).get_opt(name).await {
        Ok(found) => Ok(found.map_or(NodeState::Lost, |found| NodeState::read(&found, signals))),
        Err(source) => Err(ApplyError::Call { act: "read node", name: name.to_owned(), source }),
    }
}
