//! Presets of `algorithm.kind`, one file each, with name, source, kind of data, and the parts of an algorithm
//! that it selects. The list below registers them; the enum of the custom resource, rules, reference and
//! resolution are derived from it.

#[macro_use]
mod registry;
mod projects;

mod cispo;
mod dapo;
mod dr_grpo;
mod grpo;
mod gspo;
mod pf_ppo;
mod ppo;
mod preference;
mod preset;
mod process_reward;
mod reinforce_plus_plus;
mod remax;
mod reward_model;
mod rloo;
mod sft;
mod vapo;

use preference::{cpo, dpo, kto, online_dpo, orpo, simpo};
use preset::Declaration;
pub use preset::{LearnsFrom, Preset};
pub use projects::PresetProject;

register_presets! {
    sft::Sft,
    ppo::Ppo,
    grpo::Grpo,
    dr_grpo::DrGrpo,
    dapo::Dapo,
    rloo::Rloo,
    reinforce_plus_plus::ReinforcePlusPlus,
    remax::ReMax,
    gspo::Gspo,
    cispo::Cispo,
    dpo::Dpo,
    simpo::SimPo,
    cpo::Cpo,
    orpo::Orpo,
    kto::Kto,
    online_dpo::OnlineDpo,
    vapo::Vapo,
    pf_ppo::PfPpo,
    reward_model::RewardModel,
    process_reward::ProcessReward,
}

impl AlgorithmKind {
    /// Kind of data from which the algorithm learns.
    pub fn learns_from(self) -> LearnsFrom {
        self.declaration().learns_from
    }

    /// Whether the algorithm samples the completions from which it learns.
    pub fn samples(self) -> bool {
        self.learns_from().samples()
    }

    /// Returns the preset's values for completions of at most `max_completion_tokens` tokens.
    pub fn preset(self, max_completion_tokens: u32) -> Preset {
        (self.declaration().preset)(max_completion_tokens)
    }
}
