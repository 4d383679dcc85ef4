//! Configuration of an adapter: shape, targets, initialisation, and what follows from them for one module.

use std::collections::BTreeSet;

use rlt_api::spec::{DropoutPosition, LoraInit, LoraSpec, VlmLora};

use super::error::LoraError;
use super::patterns::Patterns;
use super::targets::{ModuleMatch, kinds};
use crate::names::is_label_head;

/// Shape, targets and initialisation of adapters.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// Rank of the update, where no pattern gives another one.
    pub rank: usize,
    /// Numerator of the scaling, where no pattern gives another one.
    pub alpha: f64,
    /// Whether the scaling is alpha / sqrt(rank) (rsLoRA, arXiv 2312.03732) instead of alpha / rank.
    pub rank_stabilized: bool,
    /// Parts of a vision-language model that get an adapter: text, vision or both.
    pub parts: VlmLora,
    /// Linear layers of these parts that get an adapter.
    pub targets: ModuleMatch,
    /// Parameters of experts and routers that get an adapter, full names or their ends after a dot.
    pub target_parameters: Vec<String>,
    /// Linear layers that get no adapter although `targets` matches them.
    pub exclude: Option<ModuleMatch>,
    /// Probability with which an input of A, or an output of B, is dropped in a pass that has a dropout seed.
    pub dropout: f64,
    /// Initialisation of A and B.
    pub init: LoraInit,
    /// Ranks and alphas of single modules (PEFT's `rank_pattern` and `alpha_pattern`).
    pub patterns: Patterns,
    /// Whether magnitudes are trained apart from directions (DoRA).
    pub dora: bool,
    /// Whether dropout applies to the input of A or to the output of B.
    pub dropout_position: DropoutPosition,
    /// Name suffixes of modules whose full weights are trained, and saved with the adapter (PEFT's
    /// `modules_to_save`).
    pub modules_to_save: Vec<String>,
}

impl Default for LoraConfig {
    /// The configuration of a specification that sets no field.
    fn default() -> Self {
        Self::from_spec(&LoraSpec::default())
    }
}

impl LoraConfig {
    /// The adapter that `spec.model.lora` describes.
    pub fn from_spec(spec: &LoraSpec) -> Self {
        let choose = |names: &[String], pattern: &Option<String>| match pattern {
            Some(pattern) => Some(ModuleMatch::Pattern(pattern.clone())),
            None if names.is_empty() => None,
            None => Some(ModuleMatch::from_names(names)),
        };
        Self {
            rank: spec.rank as usize,
            alpha: spec.alpha,
            rank_stabilized: spec.rank_stabilized,
            parts: spec.vlm_lora,
            targets: choose(&spec.target_modules, &spec.target_pattern)
                .unwrap_or_else(|| ModuleMatch::Names(Vec::new())),
            target_parameters: spec.target_parameters.clone(),
            exclude: choose(&spec.exclude_modules, &spec.exclude_pattern),
            dropout: spec.dropout,
            init: spec.init,
            patterns: Patterns::from_spec(spec),
            dora: spec.dora,
            dropout_position: spec.dropout_position,
            modules_to_save: spec.modules_to_save.clone(),
        }
    }

    /// Factor of `B A x` where no pattern gives another rank or alpha.
    pub fn scaling(&self) -> f64 {
        self.scaling_of(self.rank, self.alpha)
    }

    /// Factor of `B A x` for this rank and alpha.
    pub(super) fn scaling_of(&self, rank: usize, alpha: f64) -> f64 {
        let rank = rank as f64;
        alpha / if self.rank_stabilized { rank.sqrt() } else { rank }
    }

    /// Rank and scaling of the adapter of the module or parameter `name`.
    pub(super) fn rank_and_scaling(&self, name: &str) -> Result<(usize, f64), LoraError> {
        let (rank, alpha) = self.patterns.of(name)?;
        let rank = rank.unwrap_or(self.rank);
        Ok((rank, self.scaling_of(rank, alpha.unwrap_or(self.alpha))))
    }

    /// Replaces Megatron's module names by the model's own, unless the model has modules of those names.
    pub(super) fn in_own_names(self, available: &[String]) -> Self {
        let own = |choice: ModuleMatch| choice.in_own_names(available);
        Self { targets: own(self.targets), exclude: self.exclude.map(own), ..self }
    }

    /// The names among `available` that get an adapter. Choosing none is an error, unless only parameters are
    /// adapted.
    pub(super) fn matched(&self, available: &[String]) -> Result<BTreeSet<String>, LoraError> {
        let chosen = self.targets.select(available)?;
        let excluded = match &self.exclude {
            Some(exclude) => exclude.select(available)?,
            None => BTreeSet::new(),
        };
        if matches!(&self.targets, ModuleMatch::Names(names) if names.is_empty())
            && !self.target_parameters.is_empty()
        {
            return Ok(BTreeSet::new());
        }
        let matched: BTreeSet<String> = chosen.difference(&excluded).map(|name| (*name).to_owned()).collect();
        if matched.is_empty() {
            return Err(LoraError::NoTarget {
                targets: self.targets.to_string(),
                exclude: self
                    .exclude
                    .as_ref()
                    .map_or_else(|| "exceptions".to_owned(), ModuleMatch::to_string),
                available: kinds(available),
            });
        }
        Ok(matched)
    }

    /// The names in `modules_to_save` without a classifier's head, sorted.
    pub(super) fn modules_beside(&self) -> BTreeSet<&str> {
        let names = self.modules_to_save.iter().map(String::as_str);
        names.filter(|name| !is_label_head(&format!("{name}.weight"))).collect()
    }
}
