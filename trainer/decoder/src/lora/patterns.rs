//! PEFT's `rank_pattern` and `alpha_pattern`: modules and parameters whose adapters have another rank or
//! alpha. PEFT writes them by itself where gate and up of experts become one tensor.

use serde_json::{Map, Value};

use rlt_api::spec::{LoraSpec, ModulePattern};

use super::error::LoraError;
use super::targets;

/// Regular expressions, each for a full name or its end after a dot. If several match, the first counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patterns {
    /// Ranks by pattern, each above 0.
    pub ranks: Vec<(String, usize)>,
    /// Alphas by pattern.
    pub alphas: Vec<(String, f64)>,
}

impl Patterns {
    /// The patterns of `spec.model.lora`.
    pub(super) fn from_spec(spec: &LoraSpec) -> Self {
        let ranks = spec.rank_pattern.iter().map(|(pattern, rank)| (pattern.clone(), *rank as usize));
        let alphas = spec.alpha_pattern.iter().map(|(pattern, alpha)| (pattern.clone(), *alpha));
        Self { ranks: ranks.collect(), alphas: alphas.collect() }
    }

    /// The first field that differs in `other`, with the values of both. Order does not count.
    pub(super) fn first_difference(&self, other: &Self) -> Option<(&'static str, [String; 2])> {
        let documents = [self, other].map(|patterns| {
            let mut document = Value::Null;
            patterns.write(&mut document);
            document
        });
        ["rank_pattern", "alpha_pattern"].into_iter().find_map(|field| {
            let [own, others] = documents.each_ref().map(|document| &document[field]);
            (own != others).then(|| (field, [own.to_string(), others.to_string()]))
        })
    }

    /// Refuses a pattern that matches none of the `adapted` modules and parameters.
    pub(super) fn check_used(&self, adapted: &[String]) -> Result<(), LoraError> {
        let ranks = self.ranks.iter().map(|(pattern, _)| ("rankPattern", pattern));
        let alphas = self.alphas.iter().map(|(pattern, _)| ("alphaPattern", pattern));
        for (field, pattern) in ranks.chain(alphas) {
            let mut is_used = false;
            for name in adapted {
                is_used |= is_match(pattern, name)?;
            }
            if !is_used {
                return Err(LoraError::UnusedPattern { field, pattern: pattern.clone() });
            }
        }
        Ok(())
    }

    /// Reads the patterns of an `adapter_config.json`.
    ///
    /// # Errors
    /// The field of an invalid pattern, with what was expected.
    pub(super) fn read(document: &Value) -> Result<Self, (&'static str, &'static str)> {
        let ranks = entries(document, "rank_pattern", "integers above 0 by pattern", |value| {
            value.as_u64().filter(|rank| *rank > 0).map(|rank| rank as usize)
        })?;
        let alphas = entries(document, "alpha_pattern", "numbers by pattern", Value::as_f64)?;
        Ok(Self { ranks, alphas })
    }

    /// Writes the patterns to an `adapter_config.json`.
    pub(super) fn write(&self, document: &mut Value) {
        let ranks = self.ranks.iter().map(|(pattern, rank)| (pattern.clone(), Value::from(*rank)));
        document["rank_pattern"] = ranks.collect::<Map<_, _>>().into();
        // Most alphas are integers, and PEFT writes them as such.
        let number = |alpha: f64| match alpha.fract() == 0.0 {
            true => Value::from(alpha as i64),
            false => Value::from(alpha),
        };
        let alphas = self.alphas.iter().map(|(pattern, alpha)| (pattern.clone(), number(*alpha)));
        document["alpha_pattern"] = alphas.collect::<Map<_, _>>().into();
    }

    /// Rank and alpha of a module or a parameter; `None` if no pattern matches.
    pub(super) fn of(&self, name: &str) -> Result<(Option<usize>, Option<f64>), LoraError> {
        Ok((first_match(&self.ranks, name)?, first_match(&self.alphas, name)?))
    }
}

fn first_match<T: Copy>(patterns: &[(String, T)], name: &str) -> Result<Option<T>, LoraError> {
    for (pattern, value) in patterns {
        if is_match(pattern, name)? {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}

fn is_match(pattern: &str, name: &str) -> Result<bool, LoraError> {
    let bad = |source| LoraError::BadPattern { pattern: pattern.to_owned(), source };
    let compiled = ModulePattern::for_ends_of_names(pattern).map_err(bad)?;
    targets::is_match(&compiled, name).map_err(bad)
}

fn entries<T>(
    document: &Value,
    field: &'static str,
    expected: &'static str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<(String, T)>, (&'static str, &'static str)> {
    match &document[field] {
        Value::Null => Ok(Vec::new()),
        Value::Object(entries) => {
            let read = entries.iter().map(|(pattern, value)| Some((pattern.clone(), read(value)?)));
            read.collect::<Option<_>>().ok_or((field, expected))
        }
        _ => Err((field, expected)),
    }
}
