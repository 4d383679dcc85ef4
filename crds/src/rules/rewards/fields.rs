//! Rules that follow from the declarations of reward functions: a function has the settings and sections that
//! its kind needs, and none that its kind does not read.

use std::sync::LazyLock;

use crate::rules::rule::FieldRule;
use crate::rules::{Check, Rule, cel_list, cel_name};
use crate::spec::{RewardFunctionSpec, RewardKind};

impl FieldRule {
    fn readers(self) -> Vec<RewardKind> {
        let reads = |kind: &RewardKind| fields(*kind).any(|(name, _)| name == self.name);
        RewardKind::ALL.into_iter().filter(reads).collect()
    }

    fn needing(self) -> Vec<RewardKind> {
        let needs = |kind: &RewardKind| fields(*kind).any(|field| field == (self.name, true));
        RewardKind::ALL.into_iter().filter(needs).collect()
    }

    pub(in crate::rules) fn holds(self, function: &RewardFunctionSpec) -> bool {
        if function.has(self.name) {
            self.readers().contains(&function.kind)
        } else {
            !self.needing().contains(&function.kind)
        }
    }

    #[cfg_attr(not(feature = "kube"), expect(dead_code, reason = "only the definition holds CEL"))]
    pub(in crate::rules) fn cel(self) -> String {
        let (name, readers, needing) = (self.name, self.readers(), self.needing());
        let reads = cel_is(&readers);
        if needing.is_empty() {
            format!("!has(self.{name}) || {reads}")
        } else if needing == readers {
            format!("has(self.{name}) == ({reads})")
        } else {
            format!("has(self.{name}) ? {reads} : !({})", cel_is(&needing))
        }
    }

    fn message(self) -> String {
        let (name, readers, needing) = (self.name, self.readers(), self.needing());
        if needing.is_empty() {
            return format!("no kind but {} reads {name}", listed(&readers));
        }
        let (kinds, needs) = if needing.len() == 1 { ("kind", "needs") } else { ("kinds", "need") };
        let others: Vec<RewardKind> =
            readers.iter().copied().filter(|kind| !needing.contains(kind)).collect();
        let besides = if others.is_empty() { String::new() } else { format!(" but {}", listed(&others)) };
        format!("the {kinds} {} {needs} {name}, and no other kind{besides} reads it", listed(&needing))
    }
}

/// One rule for each field.
pub(in crate::rules) static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let mut names: Vec<&'static str> = Vec::new();
    for (name, _) in RewardKind::ALL.into_iter().flat_map(fields) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.into_iter().map(rule).collect()
});

/// Yields the settings and sections of a kind, each with whether the kind needs it.
fn fields(kind: RewardKind) -> impl Iterator<Item = (&'static str, bool)> {
    let settings = kind.settings().iter().map(|setting| (setting.name, true));
    settings.chain(kind.sections().iter().map(|section| (section.name, section.is_needed)))
}

/// Converts to a [`Rule`]. Its texts are leaked, which is bounded because the list of rules is built once.
fn rule(name: &'static str) -> Rule {
    let rule = FieldRule { name };
    Rule {
        scope: "spec.rewards.functions[]",
        at: name,
        reads: Box::leak(Box::new([name, "kind"])),
        message: Box::leak(rule.message().into_boxed_str()),
        cel: String::new,
        holds: Check::RewardField(rule),
        allowed: None,
    }
}

fn cel_is(kinds: &[RewardKind]) -> String {
    match kinds {
        [kind] => format!("self.kind == {}", cel_name(kind)),
        kinds => format!("self.kind in {}", cel_list(kinds)),
    }
}

fn listed(kinds: &[RewardKind]) -> String {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}
