//! The messages of a `.wandb` file: those fields of `wandb/proto/wandb_internal.proto` that are written here.

use serde_json::Value;

/// The oldest program of W&B that can read the file, as its own files say.
const MIN_CONSUMER: &str = "0.70.0";

/// One record of the file; exactly one of its messages is set.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Record {
    /// Place in the file, from 1.
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
    /// The first record of every file.
    pub(super) fn header() -> Self {
        let producer = concat!("rlt-tracking ", env!("CARGO_PKG_VERSION")).to_owned();
        let version_info = Some(VersionInfo { producer, min_consumer: MIN_CONSUMER.to_owned() });
        Self { header: Some(Header { version_info }), ..Self::default() }
    }
}

/// What one step logs.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct History {
    #[prost(message, repeated, tag = "1")]
    pub item: Vec<Item>,
    #[prost(message, optional, tag = "2")]
    pub step: Option<HistoryStep>,
}

/// Position on the run's step axis.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HistoryStep {
    #[prost(int64, tag = "1")]
    pub num: i64,
}

/// Values to set: of the summary, or of the configuration.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Items {
    #[prost(message, repeated, tag = "1")]
    pub update: Vec<Item>,
}

/// A value by its name.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Item {
    /// The name in configurations.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The name in histories and summaries, one part for each level.
    #[prost(string, repeated, tag = "2")]
    pub nested_key: Vec<String>,
    #[prost(string, tag = "16")]
    pub value_json: String,
}

impl Item {
    /// A value of a history or a summary.
    pub(super) fn of(name: &str, value: &Value) -> Self {
        Self { key: String::new(), nested_key: vec![name.to_owned()], value_json: value.to_string() }
    }

    /// A value of the configuration.
    pub(super) fn of_config(name: &str, value: &Value) -> Self {
        Self { key: name.to_owned(), nested_key: Vec::new(), value_json: value.to_string() }
    }
}

/// The run itself.
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

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Time {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// The run's end.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Exit {
    #[prost(int32, tag = "1")]
    pub exit_code: i32,
    /// Seconds.
    #[prost(int32, tag = "2")]
    pub runtime: i32,
}

/// What wrote the file.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Header {
    #[prost(message, optional, tag = "1")]
    pub version_info: Option<VersionInfo>,
}

/// The writer's version, and the oldest reader.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct VersionInfo {
    #[prost(string, tag = "1")]
    pub producer: String,
    #[prost(string, tag = "2")]
    pub min_consumer: String,
}
