//! Reward functions of a manifest, compiled once, and the check that every row can be judged.

use std::sync::Arc;

use rlt_api::spec::{RewardFunctionSpec, RewardKind, RewardsSpec};
use rlt_core::reward::{Clip, Combiner, Given, Overlong, RewardError, RewardFunction};
use rlt_core::types::Prompt;
use rlt_data::{Dataset, RowLocation};

use super::external::ExternalError;

/// Named, weighted reward functions, and the rule that combines their values.
#[derive(Clone, Default)]
pub struct RewardFunctions {
    functions: Vec<NamedFunction>,
    combiner: Combiner,
}

/// A reward function of the manifest with its weight.
#[derive(Clone)]
pub(super) struct NamedFunction {
    pub(super) name: String,
    pub(super) weight: f64,
    data_sources: Vec<String>,
    pub(super) function: Arc<dyn RewardFunction>,
}

/// Completions cannot be judged; found before training starts.
#[derive(Debug, thiserror::Error)]
pub enum RewardSetupError {
    /// The settings of a function are invalid.
    #[error("failed to set up reward function {name:?}")]
    Function {
        /// The function's name in the manifest.
        name: String,
        /// The invalid setting.
        #[source]
        source: RewardError,
    },
    /// A function lacks a field that its kind needs.
    #[error("failed to set up reward function {name:?}: kind {kind:?} needs {field}")]
    MissingField {
        /// The function's name in the manifest.
        name: String,
        /// The function's kind.
        kind: RewardKind,
        /// The missing field.
        field: &'static str,
    },
    /// A function that is computed elsewhere could not be set up.
    #[error("failed to set up reward function {name:?}")]
    External {
        /// The function's name in the manifest.
        name: String,
        /// The failing server, module or setting.
        #[source]
        source: ExternalError,
    },
    /// `rewards.clip` or `rewards.overlong` is invalid.
    #[error("failed to set up rewards")]
    Shaping(#[source] RewardError),
    /// No function judges a row's data source.
    #[error(
        "failed to judge {location}: no reward function accepts data_source {data_source:?}; the functions \
         accept {accepted:?}"
    )]
    UnknownDataSource {
        /// Location of the row.
        location: RowLocation,
        /// The row's `data_source`.
        data_source: String,
        /// The data sources of the functions.
        accepted: Vec<String>,
    },
    /// A row's ground truth does not fit a function.
    #[error("failed to judge {location} with reward function {name:?}")]
    Row {
        /// Location of the row.
        location: RowLocation,
        /// The function's name in the manifest.
        name: String,
        /// How the ground truth does not fit.
        #[source]
        source: RewardError,
    },
}

impl RewardFunctions {
    /// Compiles the functions of a manifest; `max_completion_tokens` is `rollout.maxCompletionTokens`.
    ///
    /// # Errors
    /// [`RewardSetupError`].
    pub fn new(spec: &RewardsSpec, max_completion_tokens: usize) -> Result<Self, RewardSetupError> {
        let clip = spec.clip.as_ref().map(|clip| Clip::new(Some(clip.min), Some(clip.max))).transpose();
        let overlong = spec.overlong.as_ref().map(|overlong| {
            Overlong::new(max_completion_tokens, overlong.buffer_tokens as usize, overlong.penalty_factor)
        });
        let combiner = Combiner {
            clip: clip.map_err(RewardSetupError::Shaping)?,
            overlong: overlong.transpose().map_err(RewardSetupError::Shaping)?,
        };
        let compile = |function| NamedFunction::new(function, max_completion_tokens);
        let functions = spec.functions.iter().map(compile).collect::<Result<_, _>>()?;
        Ok(Self { functions, combiner })
    }

    /// Adds a function that a manifest cannot name.
    pub fn with(mut self, name: &str, weight: f64, function: Arc<dyn RewardFunction>) -> Self {
        let (name, data_sources) = (name.to_owned(), Vec::new());
        self.functions.push(NamedFunction { name, weight, data_sources, function });
        self
    }

    /// Checks that every prompt has a function that judges it, and the ground truth that the function needs.
    ///
    /// # Errors
    /// [`RewardSetupError::UnknownDataSource`] and [`RewardSetupError::Row`], with file and row.
    pub fn check(&self, prompts: &Dataset<Prompt>) -> Result<(), RewardSetupError> {
        for (idx, prompt) in prompts.items().iter().enumerate() {
            let Some(location) = prompts.location(idx) else { continue };
            self.check_prompt(prompt, location)?;
        }
        Ok(())
    }

    /// Checks one prompt, see [`Self::check`].
    pub(crate) fn check_prompt(
        &self,
        prompt: &Prompt,
        location: &RowLocation,
    ) -> Result<(), RewardSetupError> {
        let mut is_judged = false;
        for function in self.judging(&prompt.data_source) {
            is_judged = true;
            let (name, location) = (&function.name, location);
            function.function.check_ground_truth(&prompt.ground_truth).map_err(|source| {
                RewardSetupError::Row { location: location.clone(), name: name.clone(), source }
            })?;
        }
        if is_judged {
            return Ok(());
        }
        Err(RewardSetupError::UnknownDataSource {
            location: location.clone(),
            data_source: prompt.data_source.clone(),
            accepted: self.functions.iter().flat_map(|function| function.data_sources.clone()).collect(),
        })
    }

    /// Returns the functions that judge rows of a data source, in the manifest's order.
    pub(super) fn judging(&self, data_source: &str) -> impl Iterator<Item = &NamedFunction> {
        self.functions.iter().filter(move |function| judges(&function.data_sources, data_source))
    }

    pub(super) fn combiner(&self) -> &Combiner {
        &self.combiner
    }
}

/// Whether a function with these `dataSources` judges rows of a data source. A function without any judges
/// all.
pub(super) fn judges(data_sources: &[String], data_source: &str) -> bool {
    data_sources.is_empty() || data_sources.iter().any(|source| source == data_source)
}

impl NamedFunction {
    fn new(spec: &RewardFunctionSpec, max_completion_tokens: usize) -> Result<Self, RewardSetupError> {
        let function = compile(spec, max_completion_tokens)?;
        let (name, data_sources) = (spec.name.clone(), spec.data_sources.clone());
        Ok(Self { name, weight: spec.weight, data_sources, function })
    }
}

fn compile(
    spec: &RewardFunctionSpec,
    max_completion_tokens: usize,
) -> Result<Arc<dyn RewardFunction>, RewardSetupError> {
    let given = Given { name: &spec.name, settings: &spec.settings, max_completion_tokens };
    let name = || spec.name.clone();
    spec.kind.build(&given).map_err(|error| match error {
        RewardError::MissingSetting { field } => {
            RewardSetupError::MissingField { name: name(), kind: spec.kind, field }
        }
        source => RewardSetupError::Function { name: name(), source },
    })
}
