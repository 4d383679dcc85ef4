//! Which linear layers an adapter goes to, by PEFT's rules: a list matches a whole name or its end after a
//! dot, a pattern matches the whole name.

use std::collections::BTreeSet;
use std::fmt;

use fancy_regex::Regex;

use rlt_api::spec::modules_of_megatron;

use super::{LoraConfig, LoraError, is_of_tower};

/// A choice among the linear layers of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleMatch {
    /// Every linear layer except the head.
    AllLinear,
    /// Layers with one of these names, whole or as the end after a dot, such as `q_proj` or
    /// `layers.0.mlp.up_proj`.
    Names(Vec<String>),
    /// Layers whose whole name matches this regular expression.
    Pattern(String),
}

impl ModuleMatch {
    /// A list of names, where `all-linear` alone means every linear layer.
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
    /// The same, where names of Megatron that no module has become those that modules have.
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

/// The names by which modules are called that `name` means; a name that means nothing stays, to be refused.
fn own_names(name: String, available: &[String]) -> Vec<String> {
    let is_there = |name: &str| available.iter().any(|module| is_called(module, name));
    let own: Vec<String> =
        modules_of_megatron(&name).iter().filter(|own| is_there(own)).map(|own| (*own).to_owned()).collect();
    if own.is_empty() || is_there(&name) { vec![name] } else { own }
}

/// Whether a module has a name, whole or as its end after a dot.
fn is_called(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|start| start.is_empty() || start.ends_with('.'))
}

/// Names among `available` that the configuration chooses; at least one, or an error that says what there is;
/// none where parameters alone are adapted.
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

/// Whether `regex` matches a module's name: as checkpoints have it, or of a vision tower as transformers has
/// it in memory.
pub(super) fn is_match(regex: &Regex, module: &str) -> Result<bool, Box<fancy_regex::Error>> {
    Ok(regex.is_match(module)? || (is_of_tower(module) && regex.is_match(&format!("model.{module}"))?))
}

/// The last parts of all names, each once.
fn kinds(available: &[String]) -> String {
    let last = |name: &'_ String| name.rsplit('.').next().unwrap_or_default().to_owned();
    let kinds: BTreeSet<String> = available.iter().map(last).collect();
    kinds.into_iter().collect::<Vec<_>>().join(", ")
}
