//! Environment variables that the operator sets and the trainer reads: where a pod reports, and its identity.
//! `RANK` and `RLT_ATTEMPT` are set in each pod, the others in a file that all pods of a job read.
//!
//! | variable | value |
//! |---|---|
//! | `RLT_CHANNEL_ADDRESS` | `https://host:port` of the operator; absent: nothing is sent |
//! | `RLT_CHANNEL_CA_FILE` | PEM file of the authority that signed the operator's certificate |
//! | `RLT_CHANNEL_TOKEN_FILE` | file of the service account token; read again for every report |
//! | `RLT_JOB_UID`, `RLT_JOB_NAMESPACE`, `RLT_JOB_NAME`, `RLT_ATTEMPT` | the identity of the reporting pod |
//! | `RANK` | rank of the process, as torchrun sets it |
//! | `RLT_RETRIES_LEFT` | remaining retries, as `spec.runPolicy.retries` in JSON; absent: no restarts |
//! | `RLT_RESTARTS` | earlier restarts in place by cause, in JSON; a launcher sets it for its ranks |
//! | `RLT_FOLLOW` | `Ranks`: the pod may be given another attempt; `Spare`: it waits for ranks; absent: neither |

/// Address of the operator, `https://host:port`.
pub const ADDRESS: &str = "RLT_CHANNEL_ADDRESS";
/// PEM file of the authority that signed the operator's certificate.
pub const CA_FILE: &str = "RLT_CHANNEL_CA_FILE";
/// File of the service account token.
pub const TOKEN_FILE: &str = "RLT_CHANNEL_TOKEN_FILE";
/// UID of the job.
pub const JOB_UID: &str = "RLT_JOB_UID";
/// Namespace of the job.
pub const JOB_NAMESPACE: &str = "RLT_JOB_NAMESPACE";
/// Name of the job.
pub const JOB_NAME: &str = "RLT_JOB_NAME";
/// Attempt of the pod, from 1.
pub const ATTEMPT: &str = "RLT_ATTEMPT";
/// Rank of the process, from 0; the variable of torchrun.
pub const RANK: &str = "RANK";
/// Retries that are left, in the form of `spec.runPolicy.retries` in JSON: how often a pod that runs all
/// ranks may restart its processes. Without the variable it never does.
pub const RETRIES_LEFT: &str = "RLT_RETRIES_LEFT";
/// Restarts in place before a rank's process started: a JSON object of counts by cause.
pub const RESTARTS: &str = "RLT_RESTARTS";
/// Whether the launcher polls the operator for its pod's attempt and ranks: [`FOLLOWS_RANKS`] or
/// [`FOLLOWS_SPARE`].
pub const FOLLOW: &str = "RLT_FOLLOW";
/// Value of [`FOLLOW`] for a pod that starts with the ranks of its environment.
pub const FOLLOWS_RANKS: &str = "Ranks";
/// Value of [`FOLLOW`] for a spare, which starts no rank until it is assigned some.
pub const FOLLOWS_SPARE: &str = "Spare";

/// File name of the token, where the operator mounts it.
pub const TOKEN_KEY: &str = "token";
/// Key of the authority's certificate in the job's ConfigMap.
pub const CA_KEY: &str = "channel-ca.crt";
/// Lifetime of a projected token in seconds; the kubelet renews the file after four fifths of it.
pub const TOKEN_SECONDS: i64 = 3600;
