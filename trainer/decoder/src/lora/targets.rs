//! Choice of the linear layers that get an adapter, by PEFT's rules: a list matches a full name or its end
//! after a dot, a pattern matches the full name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rlt_api::spec::{ModulePattern, PatternError, modules_of_megatron};
use rlt_models::{ModelConfig, ProjectionShape};

use super::error::LoraError;
use crate::names::is_of_tower;

/// A choice of linear layers of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleMatch {
    /// Every linear layer except the head.
    AllLinear,
    /// Layers with one of these names, in full or as the end after a dot, such as `q_proj` or
    /// `layers.0.mlp.up_proj`.
    Names(Vec<String>),
    /// Layers whose full name matches this regular expression.
    Pattern(String),
}

impl ModuleMatch {
    /// The choice of a list of names, in which `all-linear` alone means every linear layer.
    pub(crate) fn from_names(names: &[String]) -> Self {
        match names {
            [name] if name.eq_ignore_ascii_case("all-linear") => Self::AllLinear,
            names => Self::Names(names.to_vec()),
        }
    }

    /// Replaces Megatron's module names by the model's own, unless the model has modules of those names.
    pub(super) fn in_own_names(self, available: &[String]) -> Self {
        match self {
            Self::Names(names) => {
                Self::Names(names.into_iter().flat_map(|name| own_names(name, available)).collect())
            }
            other => other,
        }
    }

    /// The names among `available` that the choice matches.
    pub(super) fn select<'a>(&self, available: &'a [String]) -> Result<BTreeSet<&'a str>, LoraError> {
        let mut selected = BTreeSet::new();
        match self {
            Self::AllLinear => selected.extend(available.iter().map(String::as_str)),
            Self::Names(names) => {
                for name in names {
                    let is_match = |module: &&str| is_called(module, name);
                    let matches: Vec<&str> = available.iter().map(String::as_str).filter(is_match).collect();
                    if matches.is_empty() {
                        let (name, available) = (name.clone(), kinds(available));
                        return Err(LoraError::UnknownModule { name, available });
                    }
                    selected.extend(matches);
                }
            }
            Self::Pattern(pattern) => {
                let bad = |source| LoraError::BadPattern { pattern: pattern.clone(), source };
                let compiled = ModulePattern::for_full_names(pattern).map_err(bad)?;
                for module in available {
                    if is_match(&compiled, module).map_err(bad)? {
                        selected.insert(module.as_str());
                    }
                }
            }
        }
        Ok(selected)
    }
}

impl fmt::Display for ModuleMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllLinear => f.write_str("all-linear"),
            Self::Names(names) => write!(f, "{names:?}"),
            Self::Pattern(pattern) => write!(f, "/{pattern}/"),
        }
    }
}

/// The names of modules for the name `name`, which may be Megatron's. A name that matches nothing is kept, to
/// be refused later.
fn own_names(name: String, available: &[String]) -> Vec<String> {
    let is_there = |name: &str| available.iter().any(|module| is_called(module, name));
    let own: Vec<String> =
        modules_of_megatron(&name).iter().filter(|own| is_there(own)).map(|own| (*own).to_owned()).collect();
    if own.is_empty() || is_there(&name) { vec![name] } else { own }
}

/// Whether a module has this name, in full or as its end after a dot.
fn is_called(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|start| start.is_empty() || start.ends_with('.'))
}

/// Whether a pattern matches a module's name in checkpoints, or that of a vision tower's module in
/// transformers' memory.
pub(super) fn is_match(pattern: &ModulePattern, module: &str) -> Result<bool, PatternError> {
    Ok(pattern.is_match(module)? || (is_of_tower(module) && pattern.is_match(&format!("model.{module}"))?))
}

/// The last components of all names, each once, as a text for errors.
pub(super) fn kinds(available: &[String]) -> String {
    let last = |name: &'_ String| name.rsplit('.').next().unwrap_or_default().to_owned();
    let kinds: BTreeSet<String> = available.iter().map(last).collect();
    kinds.into_iter().collect::<Vec<_>>().join(", ")
}

/// `[out_features, in_features]` of every projection of the text model, by its full name.
pub(super) fn projection_sizes(config: &ModelConfig) -> BTreeMap<String, [i64; 2]> {
    let of_layer = |layer_idx: usize| {
        let named = move |shape: ProjectionShape| {
            let size = [shape.out_features, shape.in_features].map(|width| width as i64);
            (format!("model.layers.{layer_idx}.{}", shape.name), size)
        };
        config.projections(layer_idx).into_iter().map(named)
    };
    (0..config.num_layers).flat_map(of_layer).collect()
}
