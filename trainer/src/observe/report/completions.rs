//! A few completions from early and late in the run, side by side.

use rlt_core::types::{FinishReason, RewardStatus};
use serde_json::Value;

use super::html::{escape, number, shortened};
use super::run::Run;
use crate::observe::tracking::CompletionRecord;

/// Maximum number of pairs that are shown.
const MAX_PAIRS: usize = 6;
/// Maximum number of completions of one step that are searched for pairs.
const MAX_OF_STEP: usize = 64;
/// Maximum number of characters shown of a prompt or a completion.
const MAX_CHARACTERS: usize = 1500;

/// Renders the section; empty if no completion was recorded.
pub(super) fn render(run: &Run) -> String {
    let pairs = pairs(&run.completions);
    if pairs.is_empty() {
        return String::new();
    }
    let rows: String = pairs.into_iter().map(|(early, late)| row(early, late)).collect();
    format!("<section><h2>Early and late</h2><div class=\"pairs\">{rows}</div></section>\n")
}

/// Completions that the page may show: those of the first and of the last step. Held-out completions are
/// separate, because their prompts are sampled repeatedly; they are shown first.
#[derive(Debug, Default)]
pub(super) struct Ends {
    held_out: OfKind,
    trained: OfKind,
}

#[derive(Debug, Default)]
struct OfKind {
    first: Vec<CompletionRecord>,
    last: Vec<CompletionRecord>,
}

impl Ends {
    /// Adds the next completion of a run.
    pub(super) fn take(&mut self, record: CompletionRecord) {
        // Only the first sample of each group is kept, so that several prompts are shown.
        if record.sample > 0 {
            return;
        }
        let kind = if record.held_out { &mut self.held_out } else { &mut self.trained };
        keep(&mut kind.first, &record, |step, kept| step < kept);
        keep(&mut kind.last, &record, |step, kept| step > kept);
    }

    /// Returns the number of completions in memory.
    #[cfg(test)]
    pub(super) fn num_kept(&self) -> usize {
        let kinds = [&self.held_out, &self.trained].into_iter();
        kinds.map(|kind| kind.first.len() + kind.last.len()).sum()
    }
}

/// Adds a completion to `kept`, which has completions of one step. If the step of `record` replaces that
/// step, the others are dropped; records of any other step are ignored.
fn keep(kept: &mut Vec<CompletionRecord>, record: &CompletionRecord, replaces: fn(u64, u64) -> bool) {
    match kept.first().map(|first| first.step) {
        Some(step) if replaces(record.step, step) => kept.clear(),
        Some(step) if step != record.step => return,
        _ => {}
    }
    if kept.len() < MAX_OF_STEP {
        kept.push(record.clone());
    }
}

type Pair<'a> = (&'a CompletionRecord, Option<&'a CompletionRecord>);

/// Pairs completions of the first step with those of the last step, of the same prompt if both steps have it.
fn pairs(ends: &Ends) -> Vec<Pair<'_>> {
    let mut pairs = Vec::new();
    for OfKind { first, last } in [&ends.held_out, &ends.trained] {
        let is_one_step = first.first().map(|record| record.step) == last.first().map(|record| record.step);
        match is_one_step {
            true => pairs.extend(first.iter().map(|record| (record, None))),
            false => {
                pairs.extend(matched(&first.iter().collect::<Vec<_>>(), &last.iter().collect::<Vec<_>>()))
            }
        }
    }
    pairs.truncate(MAX_PAIRS);
    pairs
}

fn matched<'a>(early: &[&'a CompletionRecord], late: &[&'a CompletionRecord]) -> Vec<Pair<'a>> {
    let mut late: Vec<Option<&CompletionRecord>> = late.iter().copied().map(Some).collect();
    let mut same: Vec<Pair<'a>> = Vec::new();
    let mut rest = Vec::new();
    for &record in early {
        let found = late.iter_mut().find(|late| late.is_some_and(|late| late.prompt == record.prompt));
        match found.and_then(Option::take) {
            Some(partner) => same.push((record, Some(partner))),
            None => rest.push(record),
        }
    }
    let others = rest.into_iter().zip(late.into_iter().flatten()).map(|(early, late)| (early, Some(late)));
    same.extend(others);
    same
}

fn row(early: &CompletionRecord, late: Option<&CompletionRecord>) -> String {
    let shared_prompt = late.is_none_or(|late| late.prompt == early.prompt);
    let late_html = late.map(|late| card(late, !shared_prompt)).unwrap_or_default();
    let prompt = if shared_prompt { prompt(early) } else { String::new() };
    let class = if late.is_some() { "pair" } else { "pair single" };
    format!("<article class=\"{class}\">{prompt}{}{late_html}</article>", card(early, !shared_prompt))
}

fn prompt(record: &CompletionRecord) -> String {
    let answer = match &record.ground_truth {
        Value::Null => String::new(),
        Value::String(text) => format!("<p class=\"answer\">expected {}</p>", quoted(text)),
        other => format!("<p class=\"answer\">expected {}</p>", quoted(&other.to_string())),
    };
    format!("<div class=\"prompt\"><pre>{}</pre>{answer}</div>", text(&record.prompt))
}

fn quoted(text: &str) -> String {
    format!("<code>{}</code>", escape(&shortened(text, 200)))
}

fn text(text: &str) -> String {
    escape(&shortened(text, MAX_CHARACTERS))
}

fn card(record: &CompletionRecord, with_prompt: bool) -> String {
    let ending = match record.finish_reason {
        FinishReason::Stop => "ended by itself",
        FinishReason::Length => "cut off",
        FinishReason::Context => "cut off by the model's context",
    };
    let status = match record.reward_status {
        RewardStatus::Ok => String::new(),
        RewardStatus::Wrong => " · judged wrong".into(),
        RewardStatus::Timeout => " · reward timed out".into(),
        RewardStatus::Infra => " · reward failed".into(),
    };
    let tokens =
        if record.num_tokens == 1 { "1 token".into() } else { format!("{} tokens", record.num_tokens) };
    let own_prompt = if with_prompt { prompt(record) } else { String::new() };
    format!(
        "<div class=\"completion\"><h4>Step {step}<b>reward {reward}</b></h4>{own_prompt}<pre>{completion}</pre>\
         <p class=\"note\">{tokens}, {ending}{status}</p></div>",
        step = record.step,
        reward = number(record.reward),
        completion = text(&record.completion),
    )
}
