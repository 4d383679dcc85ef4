//! Plots as inline SVG.
//!
//! A drawing stretches with its frame, strokes keep their width, and labels are HTML next to it. So a plot is
//! equally sharp, and its text equally large, on a phone and on a desktop.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::html::{escape, number};
use super::run::Points;
use super::scale::Scale;

/// Maximum number of points drawn per line; more cannot be distinguished.
const MAX_POINTS: usize = 600;
/// Number of points from which a noisy line is drawn faintly behind its moving average.
const MIN_SMOOTHED: usize = 30;
/// Length of either side of a drawing, in its own units.
const SIDE: f64 = 1000.0;

/// Style in which a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A line, which is smoothed if it is long and noisy.
    Line,
    /// A line with a dot at each value, for occasional measurements.
    Dots,
    /// A layer on top of the previous series; each value fills the width of its step.
    Layer,
}

/// A named curve of a plot.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) label: String,
    pub(super) points: Points,
    pub(super) mark: Mark,
    /// Index of the colour, from 0.
    pub(super) color: usize,
}

/// A plot: curves with a title and a caption.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    pub(super) title: &'static str,
    /// Name of the quantity with its unit.
    pub(super) caption: &'static str,
    pub(super) series: Vec<Series>,
    /// Whether the value axis is logarithmic, for values that span decades.
    pub(super) logarithmic: bool,
    /// Whether the plot spans the full width of the page.
    pub(super) wide: bool,
}

impl Plot {
    pub(super) fn new(title: &'static str, caption: &'static str, series: Vec<Series>) -> Self {
        let series = series.into_iter().filter(|series| !series.points.is_empty()).collect();
        Self { title, caption, series, logarithmic: false, wide: false }
    }

    pub(super) fn logarithmic(self) -> Self {
        Self { logarithmic: true, ..self }
    }

    pub(super) fn wide(self) -> Self {
        Self { wide: true, ..self }
    }

    /// Renders the plot as HTML; `None` if there is nothing to draw.
    pub(super) fn to_html(&self) -> Option<String> {
        if self.series.is_empty() {
            return None;
        }
        let axes = Axes::new(self);
        let class = if self.wide { "plot wide" } else { "plot" };
        let mut html = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(
            html,
            "<figure class=\"{class}\" tabindex=\"0\" data-plot=\"{data}\">\
             <figcaption><h3>{title}</h3><p>{caption}</p>{legend}</figcaption>\
             <div class=\"frame\"><div class=\"y\" aria-hidden=\"true\">{y_labels}</div>\
             <div class=\"area\"><svg viewBox=\"0 0 {SIDE} {SIDE}\" preserveAspectRatio=\"none\" role=\"img\">\
             <title>{title}</title><desc>{description}</desc>{grid}{curves}</svg></div>\
             <div class=\"x\" aria-hidden=\"true\">{x_labels}</div></div></figure>",
            data = escape(&self.data(&axes)),
            title = escape(self.title),
            caption = escape(self.caption),
            legend = self.legend(),
            description = escape(&self.description()),
            y_labels = labels(&axes.y, "bottom"),
            x_labels = labels(&axes.x, "left"),
            grid = grid(&axes.y),
            curves = self.curves(&axes),
        );
        Some(html)
    }

    /// Renders the names of the curves, each with its last value.
    fn legend(&self) -> String {
        let item = |series: &Series| {
            let last = series.points.last().map_or(0.0, |&(_, value)| value);
            let (color, label) = (series.color, escape(&series.label));
            format!("<li class=\"c{color}\">{label} <b>{}</b></li>", number(last))
        };
        format!("<ul>{}</ul>", self.series.iter().map(item).collect::<String>())
    }

    /// Describes the plot in words, for screen readers.
    fn description(&self) -> String {
        let in_words = |series: &Series| {
            let [(first_step, first), .., (last_step, last)] = series.points[..] else {
                let (step, value) = series.points[0];
                return format!("{}: {} at step {step}.", series.label, number(value));
            };
            let (first, last) = (number(first), number(last));
            format!("{}: from {first} at step {first_step} to {last} at step {last_step}.", series.label)
        };
        self.series.iter().map(in_words).collect::<Vec<_>>().join(" ")
    }

    /// Returns the data that the script shows under the pointer: positions and values of each curve.
    fn data(&self, axes: &Axes) -> String {
        let curve = |series: &Series| {
            let points = thinned(&series.points);
            let rounded = |value: f64| format!("{value:.4}").parse().unwrap_or(value);
            let places: Vec<f64> = points.iter().map(|&(step, _)| rounded(axes.x.place(step))).collect();
            let steps: Vec<f64> = points.iter().map(|&(step, _)| step).collect();
            let values: Vec<String> = points.iter().map(|&(_, value)| number(value)).collect();
            serde_json::json!([series.label, series.color, places, steps, values])
        };
        serde_json::Value::from_iter(self.series.iter().map(curve)).to_string()
    }

    fn curves(&self, axes: &Axes) -> String {
        let mut base = Points::new();
        let drawn = self.series.iter().map(|series| match series.mark {
            Mark::Line => line(series, axes),
            Mark::Dots => dots(series, axes),
            Mark::Layer => {
                let (layer, top) = layer(series, &base, axes);
                base = top;
                layer
            }
        });
        drawn.collect()
    }
}

/// The two axes of a plot.
struct Axes {
    x: Scale,
    y: Scale,
}

impl Axes {
    fn new(plot: &Plot) -> Self {
        let steps = || plot.series.iter().flat_map(|series| series.points.iter().map(|&(step, _)| step));
        let (low, high) = (steps().fold(f64::INFINITY, f64::min), steps().fold(f64::NEG_INFINITY, f64::max));
        let layered = plot.series.iter().any(|series| series.mark == Mark::Layer);
        let margin = if layered { 0.5 } else { 0.0 };
        let values = || plot.series.iter().flat_map(|series| series.points.iter().map(|&(_, value)| value));
        let decades = plot.logarithmic.then(|| Scale::decades(values())).flatten();
        let y = match layered {
            true => Scale::from_zero(stack_heights(&plot.series).into_values()),
            false => decades.unwrap_or_else(|| Scale::from_zero(values())),
        };
        Self { x: Scale::of_steps(low - margin, high + margin), y }
    }

    /// Formats a point as `x,y` in units of the drawing, whose y grows downwards.
    fn point(&self, step: f64, value: f64) -> String {
        format!("{:.1},{:.1}", SIDE * self.x.place(step), SIDE * (1.0 - self.y.place(value)))
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let points: Vec<String> = points.iter().map(|&(step, value)| self.point(step, value)).collect();
        format!("M{}", points.join("L"))
    }
}

fn labels(scale: &Scale, side: &str) -> String {
    let label = |(label, place): (String, f64)| {
        format!("<span style=\"{side}:{:.2}%\">{}</span>", 100.0 * place, escape(&label))
    };
    scale.ticks().map(label).collect()
}

fn grid(scale: &Scale) -> String {
    let line = |(_, place): (String, f64)| {
        let y = SIDE * (1.0 - place);
        format!("<path class=\"grid\" d=\"M0,{y:.1}H{SIDE}\"/>")
    };
    scale.ticks().map(line).collect()
}

fn line(series: &Series, axes: &Axes) -> String {
    let points = thinned(&series.points);
    let color = series.color;
    if points.len() == 1 {
        return dots(series, axes);
    }
    if !is_noisy(&series.points) {
        return format!("<path class=\"line c{color}\" d=\"{}\"/>", axes.path(&points));
    }
    // Only the points that are drawn are smoothed, because the time is quadratic in their number.
    let smooth = smoothed(&points);
    format!(
        "<path class=\"line faint c{color}\" d=\"{}\"/><path class=\"line c{color}\" d=\"{}\"/>",
        axes.path(&points),
        axes.path(&smooth)
    )
}

fn dots(series: &Series, axes: &Axes) -> String {
    let points = thinned(&series.points);
    // Lines of zero length with round ends stay round, however the drawing is stretched.
    let dots: String =
        points.iter().map(|&(step, value)| format!("M{}h0", axes.point(step, value))).collect();
    let color = series.color;
    let line = match points.len() {
        1 => String::new(),
        _ => format!("<path class=\"line c{color}\" d=\"{}\"/>", axes.path(&points)),
    };
    format!("{line}<path class=\"dot c{color}\" d=\"{dots}\"/>")
}

/// Draws one layer on top of `base`; also returns its upper edge, which is the base of the next layer.
fn layer(series: &Series, base: &Points, axes: &Axes) -> (String, Points) {
    let height_at = |points: &Points, step: f64| {
        points.binary_search_by(|(other, _)| other.total_cmp(&step)).map_or(0.0, |idx| points[idx].1)
    };
    let mut steps: Vec<f64> = base.iter().chain(&series.points).map(|&(step, _)| step).collect();
    steps.sort_by(f64::total_cmp);
    steps.dedup();
    let top: Points =
        steps.iter().map(|&step| (step, height_at(base, step) + height_at(&series.points, step))).collect();
    let bottom: Points = steps.iter().map(|&step| (step, height_at(base, step))).collect();
    let half = 0.5 * stride(&top) as f64;
    let edge = |points: &Points| -> Points {
        let sides = |&(step, value): &(f64, f64)| [(step - half, value), (step + half, value)];
        thinned(points).iter().flat_map(sides).collect()
    };
    let mut outline = edge(&top);
    outline.extend(edge(&bottom).into_iter().rev());
    (format!("<path class=\"layer c{}\" d=\"{}Z\"/>", series.color, axes.path(&outline)), top)
}

/// Returns the sum of all series at each step.
pub(super) fn stack_heights<'a>(series: impl IntoIterator<Item = &'a Series>) -> BTreeMap<u64, f64> {
    let mut heights = BTreeMap::new();
    for &(step, value) in series.into_iter().flat_map(|series| &series.points) {
        *heights.entry(step as u64).or_default() += value;
    }
    heights
}

/// Returns the number of adjacent points that are drawn as one.
fn stride(points: &Points) -> usize {
    points.len().div_ceil(MAX_POINTS).max(1)
}

/// Returns means of adjacent points, so that a long series stays small.
fn thinned(points: &Points) -> Points {
    let mean = |chunk: &[(f64, f64)]| {
        let (steps, values) =
            chunk.iter().fold((0.0, 0.0), |(steps, values), &(s, v)| (steps + s, values + v));
        (steps / chunk.len() as f64, values / chunk.len() as f64)
    };
    match stride(points) {
        1 => points.clone(),
        stride => points.chunks(stride).map(mean).collect(),
    }
}

/// Smooths a series by local linear regression: each value is that of the line which fits its neighbourhood
/// best. Unlike a moving average, the result does not lag, and is not biased at the ends.
fn smoothed(points: &Points) -> Points {
    let reach = (points.len() / 16).max(3);
    let around = |idx: usize| {
        let window = &points[idx.saturating_sub(reach)..(idx + reach + 1).min(points.len())];
        (points[idx].0, fit(window, points[idx].0))
    };
    (0..points.len()).map(around).collect()
}

/// Returns the value at `step` of the least-squares line through `points`.
fn fit(points: &[(f64, f64)], step: f64) -> f64 {
    let num = points.len() as f64;
    let mean_step = points.iter().map(|&(step, _)| step).sum::<f64>() / num;
    let mean_value = points.iter().map(|&(_, value)| value).sum::<f64>() / num;
    let (mut covariance, mut variance) = (0.0, 0.0);
    for &(step, value) in points {
        covariance += (step - mean_step) * (value - mean_value);
        variance += (step - mean_step).powi(2);
    }
    let slope = if variance > 0.0 { covariance / variance } else { 0.0 };
    mean_value + slope * (step - mean_step)
}

/// Whether a line changes its direction too often to be readable.
fn is_noisy(points: &Points) -> bool {
    let turns = points.windows(3).filter(|three| {
        let (first, second) = (three[1].1 - three[0].1, three[2].1 - three[1].1);
        first * second < 0.0
    });
    points.len() >= MIN_SMOOTHED && turns.count() > points.len() / 4
}
