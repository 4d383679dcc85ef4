//! Axes of plots: they map values to positions between 0 and 1, and choose round numbers as labels.

use super::html;

/// An axis of a plot, linear or logarithmic.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Labelled values, ascending.
    ticks: Vec<f64>,
}

impl Scale {
    /// Creates an axis over exactly `low..=high`, labelled at integers; widened where both are equal.
    pub(super) fn of_steps(low: f64, high: f64) -> Self {
        let (low, high) = if low < high { (low, high) } else { (low - 0.5, high + 0.5) };
        let spacing = nice_spacing((high - low) / 5.0).max(1.0);
        Self { low, high, logarithmic: false, ticks: multiples(spacing, low, high) }
    }

    /// Creates an axis from zero (or below, for negative values) to a round number above all `values`.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values.fold((0.0f64, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
        let high = if low == 0.0 && high == 0.0 { 1.0 } else { high };
        let spacing = nice_spacing((high - low) / 4.0);
        // The slack keeps a value that equals a multiple up to rounding from opening another interval.
        let low = (low / spacing + 1e-9).floor() * spacing;
        let high = (high / spacing - 1e-9).ceil() * spacing;
        Self { low, high, logarithmic: false, ticks: multiples(spacing, low, high) }
    }

    /// Creates an axis of full decades around all positive `values`; `None` where there are none.
    pub(super) fn decades(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = values
            .filter(|&value| value > 0.0)
            .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            return None;
        }
        let low = low.log10().floor() as i32;
        let high = (high.log10().ceil() as i32).max(low + 1);
        let stride = ((high - low) / 5 + 1) as usize;
        let ticks = (low..=high).step_by(stride).map(|exponent| 10f64.powi(exponent)).collect();
        Some(Self { low: f64::from(low), high: f64::from(high), logarithmic: true, ticks })
    }

    /// Returns the position of a value on the axis, from 0 to 1. On a logarithmic axis, values that are not
    /// positive are at the bottom.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = match (self.logarithmic, value > 0.0) {
            (true, true) => value.log10(),
            (true, false) => self.low,
            (false, _) => value,
        };
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Returns the label and position of each tick.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (String, f64)> {
        self.ticks.iter().map(|&tick| (html::number(tick), self.place(tick)))
    }
}

/// Returns the smallest of 1, 2, 2.5, 5 times a power of ten that is at least `spacing`.
fn nice_spacing(spacing: f64) -> f64 {
    let power = 10f64.powf(spacing.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| factor * power >= spacing * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

fn multiples(spacing: f64, low: f64, high: f64) -> Vec<f64> {
    let first = (low / spacing - 1e-9).ceil() as i64;
    let last = (high / spacing + 1e-9).floor() as i64;
    (first..=last).map(|multiple| multiple as f64 * spacing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<String> {
        scale.ticks().map(|(label, _)| label).collect()
    }

    #[test]
    fn axes_end_at_round_numbers_and_hold_every_value() {
        assert_eq!(labels(&Scale::from_zero([0.11, 0.83].into_iter())), ["0", "0.25", "0.5", "0.75", "1"]);
        assert_eq!(
            labels(&Scale::from_zero([-3.0, 7.0].into_iter())),
            ["-5", "-2.5", "0", "2.5", "5", "7.5"]
        );
        assert_eq!(labels(&Scale::from_zero([0.0].into_iter())), ["0", "0.25", "0.5", "0.75", "1"]);
        assert_eq!(labels(&Scale::from_zero([1e-6].into_iter())), ["0", "2.5e-7", "5e-7", "7.5e-7", "1e-6"]);
        assert_eq!(labels(&Scale::of_steps(0.0, 100.0)), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(labels(&Scale::of_steps(3.0, 3.0)), ["3"]);
    }

    #[test]
    fn decades_cover_small_and_large_values() {
        let scale = Scale::decades([2e-8, 3e-6].into_iter()).unwrap();
        assert_eq!(labels(&scale), ["1e-8", "1e-7", "1e-6", "1e-5"]);
        assert!((scale.place(1e-6) - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(scale.place(0.0), 0.0);
        assert_eq!(Scale::decades([0.0].into_iter()), None);
    }
}
