//! The variables that the operator sets and the trainer reads: where a pod reports, and its identity. `RANK`
//! and `RLT_ATTEMPT` are the pod's own, the others in a file that all pods of a job read.
//!
//! | variable | value |
//! |---|---|
//! | `RLT_CHANNEL_ADDRESS` | `https://host:port` of the operator; absent: nothing is sent |
//! | `RLT_CHANNEL_CA_FILE` | PEM file of the authority behind the operator's certificate |
//! | `RLT_CHANNEL_TOKEN_FILE` | file of the service account token; read again for every report |
//! | `RLT_JOB_UID`, `RLT_JOB_NAMESPACE`, `RLT_JOB_NAME`, `RLT_ATTEMPT` | the identity of the reporting pod |
//! | `RANK` | torch's own |
//! | `RLT_RETRIES_LEFT` | `spec.runPolicy.retries` as far as they are left, in JSON; absent: no restarts in place |
//! | `RLT_RESTARTS` | of a launcher for its ranks: the restarts in place before, in JSON, by cause |
//! | `RLT_FOLLOW` | `Ranks`: the pod may be given another attempt; `Spare`: it waits for ranks; absent: neither |

/// `https://host:port` of the operator.
pub const ADDRESS: &str = "RLT_CHANNEL_ADDRESS";
/// PEM file of the authority behind the operator's certificate.
pub const CA_FILE: &str = "RLT_CHANNEL_CA_FILE";
/// File of the service account token.
pub const TOKEN_FILE: &str = "RLT_CHANNEL_TOKEN_FILE";
/// UID of the job.
pub const JOB_UID: &str = "RLT_JOB_UID";
/// Namespace of the job.
pub const JOB_NAMESPACE: &str = "RLT_JOB_NAMESPACE";
/// Name of the job.
pub const JOB_NAME: &str = "RLT_JOB_NAME";
/// The attempt, from 1.
pub const ATTEMPT: &str = "RLT_ATTEMPT";
/// The rank, from 0.
pub const RANK: &str = "RANK";
/// The retries that are left, in the form of `spec.runPolicy.retries` in JSON: a pod that runs all ranks may
/// restart its processes this often. Without the variable it restarts none.
pub const RETRIES_LEFT: &str = "RLT_RETRIES_LEFT";
/// The restarts in place before a rank's process started: a JSON object of counts by cause.
pub const RESTARTS: &str = "RLT_RESTARTS";
/// Whether the launcher asks the operator which attempt and ranks its pod has: [`FOLLOWS_RANKS`] or
/// [`FOLLOWS_SPARE`].
pub const FOLLOW: &str = "RLT_FOLLOW";
/// [`FOLLOW`] of a pod that starts with the ranks of its environment.
pub const FOLLOWS_RANKS: &str = "Ranks";
/// [`FOLLOW`] of a spare, which starts no rank before it is given some.
pub const FOLLOWS_SPARE: &str = "Spare";

/// The token's file, where the operator mounts it.
pub const TOKEN_KEY: &str = "token";
/// Key of the authority's certificate in the job's ConfigMap.
pub const CA_KEY: &str = "channel-ca.crt";
/// Seconds that a projected token is valid; the kubelet renews it on disk after four fifths of them.
pub const TOKEN_SECONDS: i64 = 3600;
