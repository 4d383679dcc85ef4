//! The messages of a `.wandb` file, with those fields of `wandb/proto/wandb_internal.proto` that are written
//! here.

use serde_json::Value;

/// Oldest version of W&B that can read the file, as stated in its own files.
const MIN_CONSUMER: &str = "0.70.0";

/// A record of the file; exactly one of its messages is set.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Record {
    /// Number of the record in the file, from 1.
    #[prost(int64, tag = "1")]
    pub num: i64,
    #[prost(message, optional, tag = "2")]
    pub history: Option<History>,
    #[prost(message, optional, tag = "3")]
    pub summary: Option<Items>,
    #[prost(message, optional, tag = "17")]
    pub run: Option<Run>,
    #[prost(message, optional, tag = "18")]
    pub exit: Option<Exit>,
    #[prost(message, optional, tag = "21")]
    pub header: Option<Header>,
}

impl Record {
    /// Makes the first record of every file.
    pub(super) fn header() -> Self {
        let producer = concat!("rlt-tracking ", env!("CARGO_PKG_VERSION")).to_owned();
        let version_info = Some(VersionInfo { producer, min_consumer: MIN_CONSUMER.to_owned() });
        Self { header: Some(Header { version_info }), ..Self::default() }
    }
}

/// Metrics of one step.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct History {
    #[prost(message, repeated, tag = "1")]
    pub item: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    pub step: Option<HistoryStep>,
}

/// Index on the run's step axis.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HistoryStep {
    #[prost(int64, tag = "1")]
    pub num: i64,
}

/// Values to set in the summary or in the configuration.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Items {
    #[prost(message, repeated, tag = "1")]
    pub update: Vec<Item>,
}

/// A named value.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Item {
    /// Name in configurations.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Name in histories and summaries, one part per level.
    #[prost(string, repeated, tag = "2")]
    pub nested_key: Vec<String>,
    #[prost(string, tag = "16")]
    pub value_json: String,
}

impl Item {
    /// Makes a value of a history or a summary.
    pub(super) fn of(name: &str, value: &Value) -> Self {
        Self { key: String::new(), nested_key: vec![name.to_owned()], value_json: value.to_string() }
    }

    /// Makes a value of the configuration.
    pub(super) fn of_config(name: &str, value: &Value) -> Self {
        Self { key: name.to_owned(), nested_key: Vec::new(), value_json: value.to_string() }
    }
}

/// Identity, names and configuration of the run.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Run {
    #[prost(string, tag = "1")]
    pub run_id: String,
    #[prost(string, tag = "2")]
    pub entity: String,
    #[prost(string, tag = "3")]
    pub project: String,
    #[prost(message, optional, tag = "4")]
    pub config: Option<Items>,
    #[prost(string, tag = "8")]
    pub display_name: String,
    #[prost(message, optional, tag = "17")]
    pub start_time: Option<Time>,
}

/// A time as `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Time {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// End of the run.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Exit {
    #[prost(int32, tag = "1")]
    pub exit_code: i32,
    /// Duration of the run, in seconds.
    #[prost(int32, tag = "2")]
    pub runtime: i32,
}

/// Program that wrote the file.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Header {
    #[prost(message, optional, tag = "1")]
    pub version_info: Option<VersionInfo>,
}

/// Version of the writer, and oldest version that can read the file.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct VersionInfo {
    #[prost(string, tag = "1")]
    pub producer: String,
    #[prost(string, tag = "2")]
    pub min_consumer: String,
}
