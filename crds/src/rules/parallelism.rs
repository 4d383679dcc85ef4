//! The rules of how ranks share the work. What a worker needs of its node is not judged here.

use super::{Check, Rule};
use crate::spec::Device;

pub(super) const RULES: &[Rule] = &[Rule {
    scope: "spec.workers",
    at: "device",
    reads: &["count", "device"],
    message: "several workers exchange gradients between CPUs: device must be Cpu",
    cel: || "self.count == 1 || self.device == 'Cpu'".into(),
    holds: Check::Spec(|spec| spec.workers.count == 1 || spec.workers.device == Device::Cpu),
    allowed: Some(|_| "Cpu, or count 1".into()),
}];
