//! Dynamic loss scaling (Micikevicius et al., arXiv:1710.03740). 16-bit floats with 5 bits of exponent lose
//! gradients below 6e-8, so the loss is multiplied by a factor before the backward pass, and gradients are
//! divided by it before they are applied. The factor is as large as gradients allow: it doubles after many
//! updates without an overflow, and each overflow halves it. The constants are those of
//! `torch.amp.GradScaler`.

use serde::{Deserialize, Serialize};
use tch::Kind;

const FIRST_FACTOR: f64 = 65536.0;
const MAX_FACTOR: f64 = 16_777_216.0;
/// Smallest factor of the loss. A gradient that is not finite at this factor is not an overflow caused by
/// scaling.
const MIN_FACTOR: f64 = 1.0;
/// Number of updates without an overflow after which the factor doubles.
const GROWTH_INTERVAL: u32 = 2000;

/// Factor of a role's loss: a power of two, so that scaling itself rounds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LossScale {
    factor: f64,
    /// Number of updates since the factor changed; `None` if it is fixed.
    num_good: Option<u32>,
}

impl LossScale {
    /// Creates the scale for the compute dtype `compute`: fixed at 1, unless the dtype is half precision.
    pub fn of(compute: Kind) -> Self {
        match compute {
            Kind::Half => Self { factor: FIRST_FACTOR, num_good: Some(0) },
            _ => Self { factor: 1.0, num_good: None },
        }
    }

    /// Returns the factor by which the loss's derivatives are multiplied.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Whether the factor follows the gradients; it is fixed otherwise.
    pub fn is_dynamic(&self) -> bool {
        self.num_good.is_some()
    }

    /// Counts an applied update, and raises the factor when due.
    pub(crate) fn grow(&mut self) {
        let Some(num_good) = &mut self.num_good else { return };
        *num_good += 1;
        if *num_good == GROWTH_INTERVAL {
            *num_good = 0;
            self.factor = (2.0 * self.factor).min(MAX_FACTOR);
        }
    }

    /// Lowers the factor after a gradient that was not finite. Returns false if the factor is fixed or at its
    /// minimum.
    pub(crate) fn back_off(&mut self) -> bool {
        if !self.is_dynamic() || self.factor <= MIN_FACTOR {
            return false;
        }
        *self = Self { factor: 0.5 * self.factor, num_good: Some(0) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_the_range_of_fp32_are_never_scaled() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let mut scale = LossScale::of(kind);
            (0..3 * GROWTH_INTERVAL).for_each(|_| scale.grow());
            assert!(!scale.back_off());
            assert_eq!((scale.factor(), scale.is_dynamic()), (1.0, false));
        }
    }

    #[test]
    fn the_factor_doubles_after_many_updates_and_halves_with_each_overflow() {
        let mut scale = LossScale::of(Kind::Half);
        (0..GROWTH_INTERVAL - 1).for_each(|_| scale.grow());
        assert_eq!(scale.factor(), FIRST_FACTOR);
        scale.grow();
        assert_eq!(scale.factor(), 2.0 * FIRST_FACTOR);
        // An overflow begins the count again.
        (0..GROWTH_INTERVAL - 1).for_each(|_| scale.grow());
        assert!(scale.back_off());
        scale.grow();
        assert_eq!(scale.factor(), FIRST_FACTOR);
        (0..16).for_each(|_| assert!(scale.back_off()));
        assert_eq!(scale.factor(), MIN_FACTOR);
        assert!(!scale.back_off(), "what is left is no overflow");
        (0..30 * GROWTH_INTERVAL).for_each(|_| scale.grow());
        assert_eq!(scale.factor(), MAX_FACTOR);
    }

    #[test]
    fn a_saved_and_loaded_state_continues_unchanged() {
        let mut scale = LossScale::of(Kind::Half);
        scale.back_off();
        (0..GROWTH_INTERVAL / 2).for_each(|_| scale.grow());
        let text = serde_json::to_string(&scale).expect("numbers");
        let mut resumed: LossScale = serde_json::from_str(&text).expect("what was written");
        for _ in 0..GROWTH_INTERVAL {
            scale.grow();
            resumed.grow();
            assert_eq!(scale, resumed);
        }
        assert_eq!(scale.factor(), FIRST_FACTOR);
    }
}
