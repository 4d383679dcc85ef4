//! The metrics of a step for trackers, with the stage that counts it.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Values of a step, by verl's names.
pub type Metrics = BTreeMap<String, f64>;

/// Stage of a run; each stage counts its steps separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Supervised training before reinforcement learning; `training/phase` 0.
    ColdStart,
    /// The training that the job is named after; `training/phase` 1.
    Training,
}

impl Stage {
    /// Prefix of the stage's metrics in a list with metrics of all stages.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::ColdStart => "cold_start/",
            Self::Training => "",
        }
    }
}

/// The metrics of one finished step: a line of `metrics.jsonl`.
///
/// As JSON it is one flat object: `step`, `training/phase`, `timestamp`, then the metrics by name. A value
/// that is not finite is `null`, since JSON cannot represent it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepMetrics {
    /// Stage to which the step belongs.
    pub stage: Stage,
    /// Number of the step within the stage, from 1; 0 for the evaluation before the first step.
    pub step: u64,
    /// Time at which the step finished, in seconds since 1970.
    pub timestamp: f64,
    /// Values of the step, by verl's names.
    pub values: Metrics,
}

impl StepMetrics {
    /// Makes the metrics of a step that has just finished.
    pub fn new(stage: Stage, step: u64, values: Metrics) -> Self {
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        Self { stage, step, timestamp, values }
    }

    /// Sort key of steps in the order of the run.
    pub fn position(&self) -> (Stage, u64) {
        (self.stage, self.step)
    }
}

impl Serialize for StepMetrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("step", &self.step)?;
        map.serialize_entry("training/phase", &u8::from(self.stage == Stage::Training))?;
        map.serialize_entry("timestamp", &self.timestamp)?;
        for (name, value) in self.values.iter().filter(|(name, _)| !is_own_field(name)) {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for StepMetrics {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = BTreeMap::<String, serde_json::Value>::deserialize(deserializer)?;
        let missing = |name| serde::de::Error::custom(format!("expected a number {name:?}"));
        let number = |name| fields.get(name).and_then(serde_json::Value::as_f64);
        let step = fields.get("step").and_then(serde_json::Value::as_u64).ok_or_else(|| missing("step"))?;
        let stage = match number("training/phase") {
            Some(0.0) => Stage::ColdStart,
            _ => Stage::Training,
        };
        let values = fields.iter().filter(|(name, _)| !is_own_field(name));
        let values = values.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect();
        Ok(Self { stage, step, timestamp: number("timestamp").unwrap_or(0.0), values })
    }
}

/// Whether a field of a line is not a metric; a metric of such a name would make the line ambiguous.
fn is_own_field(name: &str) -> bool {
    matches!(name, "step" | "training/phase" | "timestamp")
}
