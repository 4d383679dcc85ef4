//! Combination of the values of several reward functions to one reward.

use std::collections::BTreeMap;

use super::{Overlong, RewardError};

/// Bounds of the weighted sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    min: f64,
    max: f64,
}

impl Clip {
    /// Makes bounds; an absent one is infinite.
    ///
    /// # Errors
    /// [`RewardError::Setting`] unless `min <= max`.
    pub fn new(min: Option<f64>, max: Option<f64>) -> Result<Self, RewardError> {
        let (min, max) = (min.unwrap_or(f64::NEG_INFINITY), max.unwrap_or(f64::INFINITY));
        if min <= max {
            return Ok(Self { min, max });
        }
        let value = format!("[{min}, {max}]");
        Err(RewardError::Setting { function: "clip", field: "min", value, expected: "at most max" })
    }
}

/// A function's value with its weight in the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightedPart<'a> {
    /// Name of the function.
    pub name: &'a str,
    /// Weight in the sum; a negative one turns a reward into a penalty.
    pub weight: f64,
    /// Unweighted value of the function.
    pub value: f64,
}

/// Combines parts to one reward: `clip(sum of weight x value) + overlong penalty`.
///
/// The penalty is added after the clip, so that bounds such as `[0, 1]` do not hide it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Combiner {
    /// Bounds of the weighted sum.
    pub clip: Option<Clip>,
    /// Penalty for overlong completions.
    pub overlong: Option<Overlong>,
}

impl Combiner {
    /// Returns the weighted sum of the parts, clipped.
    pub fn score<'a>(&self, parts: impl IntoIterator<Item = WeightedPart<'a>>) -> f64 {
        let sum: f64 = parts.into_iter().map(|part| part.weight * part.value).sum();
        self.clip.map_or(sum, |clip| sum.clamp(clip.min, clip.max))
    }

    /// Returns the reward of a completion of `num_tokens` tokens with this score.
    pub fn shaped(&self, score: f64, num_tokens: usize) -> f64 {
        score + self.overlong.map_or(0.0, |overlong| overlong.penalty(num_tokens))
    }
}

/// Returns the parts' values by function name, as they are recorded.
pub fn parts_by_name<'a>(parts: impl IntoIterator<Item = WeightedPart<'a>>) -> BTreeMap<String, f64> {
    parts.into_iter().map(|part| (part.name.to_owned(), part.value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [WeightedPart<'_>; 2] = [
        WeightedPart { name: "right", weight: 2.0, value: 1.0 },
        WeightedPart { name: "long", weight: 0.5, value: -1.0 },
    ];

    #[test]
    fn parts_are_weighted_and_summed() {
        assert_eq!(Combiner::default().score(PARTS), 1.5);
        assert_eq!(Combiner::default().score([]), 0.0);
        assert_eq!(parts_by_name(PARTS), BTreeMap::from([("right".into(), 1.0), ("long".into(), -1.0)]));
    }

    #[test]
    fn the_overlong_penalty_survives_the_clip() {
        let clip = Some(Clip::new(Some(0.0), Some(1.0)).unwrap());
        let overlong = Some(Overlong::new(100, 20, 2.0).unwrap());
        let combiner = Combiner { clip, overlong };
        assert_eq!(combiner.score(PARTS), 1.0);
        assert_eq!([80, 90, 100].map(|num_tokens| combiner.shaped(1.0, num_tokens)), [1.0, 0.0, -1.0]);
    }

    #[test]
    fn clip_bounds_are_in_order() {
        assert!(Clip::new(Some(1.0), None).is_ok());
        assert!(matches!(Clip::new(Some(1.0), Some(0.0)), Err(RewardError::Setting { .. })));
        assert!(matches!(Clip::new(Some(f64::NAN), None), Err(RewardError::Setting { .. })));
    }
}
