//! Choice of the linear layers that get an adapter, by PEFT's rules: a list matches a full name or its end
//! after a dot, a pattern matches the full name.

use std::collections::BTreeSet;
use std::fmt;

use fancy_regex::Regex;

use rlt_api::spec::modules_of_megatron;

use super::{LoraConfig, LoraError};
use crate::model::names::is_of_tower;

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
    pub fn from_names(names: &[String]) -> Self {
        match names {
            [name] if name.eq_ignore_ascii_case("all-linear") => Self::AllLinear,
            names => Self::Names(names.to_vec()),
        }
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

impl LoraConfig {
    /// Replaces Megatron's names, if no module is called so, by the names of the model's modules.
    pub(super) fn in_own_names(self, available: &[String]) -> Self {
        let own = |choice: ModuleMatch| match choice {
            ModuleMatch::Names(names) => {
                ModuleMatch::Names(names.into_iter().flat_map(|name| own_names(name, available)).collect())
            }
            other => other,
        };
        Self { targets: own(self.targets), exclude: self.exclude.map(own), ..self }
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

/// The names among `available` that the configuration chooses. Choosing none is an error, unless only
/// parameters are adapted.
pub(super) fn matched(config: &LoraConfig, available: &[String]) -> Result<BTreeSet<String>, LoraError> {
    let chosen = select(&config.targets, available)?;
    let excluded = match &config.exclude {
        Some(exclude) => select(exclude, available)?,
        None => BTreeSet::new(),
    };
    if matches!(&config.targets, ModuleMatch::Names(names) if names.is_empty())
        && !config.target_parameters.is_empty()
    {
        return Ok(BTreeSet::new());
    }
    let matched: BTreeSet<String> = chosen.difference(&excluded).map(|name| (*name).to_owned()).collect();
    if matched.is_empty() {
        return Err(LoraError::NoTarget {
            targets: config.targets.to_string(),
            exclude: config.exclude.as_ref().map_or_else(|| "exceptions".to_owned(), ModuleMatch::to_string),
            available: kinds(available),
        });
    }
    Ok(matched)
}

fn select<'a>(choice: &ModuleMatch, available: &'a [String]) -> Result<BTreeSet<&'a str>, LoraError> {
    let mut selected = BTreeSet::new();
    match choice {
        ModuleMatch::AllLinear => selected.extend(available.iter().map(String::as_str)),
        ModuleMatch::Names(names) => {
            for name in names {
                let is_match = |module: &&str| is_called(module, name);
                let matches: Vec<&str> = available.iter().map(String::as_str).filter(is_match).collect();
                if matches.is_empty() {
                    return Err(LoraError::UnknownModule { name: name.clone(), available: kinds(available) });
                }
                selected.extend(matches);
            }
        }
        ModuleMatch::Pattern(pattern) => {
            let bad = |source| LoraError::BadPattern { pattern: pattern.clone(), source };
            let regex = Regex::new(&format!("^(?:{pattern})$")).map_err(|error| bad(Box::new(error)))?;
            for module in available {
                if is_match(&regex, module).map_err(bad)? {
                    selected.insert(module.as_str());
                }
            }
        }
    }
    Ok(selected)
}

/// Whether `regex` matches a module's name in checkpoints, or that of a vision tower's module in
/// transformers' memory.
pub(super) fn is_match(regex: &Regex, module: &str) -> Result<bool, Box<fancy_regex::Error>> {
    Ok(regex.is_match(module)? || (is_of_tower(module) && regex.is_match(&format!("model.{module}"))?))
}

/// The last components of all names, each once, as a text for errors.
fn kinds(available: &[String]) -> String {
    let last = |name: &'_ String| name.rsplit('.').next().unwrap_or_default().to_owned();
    let kinds: BTreeSet<String> = available.iter().map(last).collect();
    kinds.into_iter().collect::<Vec<_>>().join(", ")
}
