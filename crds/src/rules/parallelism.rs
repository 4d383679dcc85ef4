//! The rules of how ranks share the work. Resources of nodes are not checked here.

use super::algorithm::{cel_estimator, estimator, with_critic};
use super::{Check, Rule, cel_learns_from, cel_list, cel_samples_nothing, divisors, learns_from};
use crate::plan::{divides_heads, legal_degrees, tp_divides_layers, tp_divides_weights};
use crate::spec::{LearnsFrom, MeshSpec, RLTrainingJobSpec};

/// Query and key heads of a new model; those of others are known where their files are.
fn heads(spec: &RLTrainingJobSpec) -> Option<(u64, u64)> {
    let shape = spec.model.architecture.as_ref()?;
    Some((shape.num_heads.into(), shape.kv_heads().into()))
}

/// The width of its feed-forward block.
fn feed_forward_width(spec: &RLTrainingJobSpec) -> Option<u64> {
    spec.model.architecture.as_ref().map(|shape| shape.intermediate_size.into())
}

/// That a degree is 1, or another field's. One that has a default the API server fills in.
fn cel_is_one(path: &str, degree: fn(&MeshSpec) -> Option<u32>) -> String {
    match degree(&MeshSpec::default()) {
        Some(_) => format!("{path} == 1"),
        None => format!("!has({path}) || {path} == 1"),
    }
}

/// The number of ranks.
const NUM_RANKS: &str = "(self.count * self.ranksPerWorker)";
/// The largest number of ranks, as tested.
const MAX_RANKS: u32 = 1024;

/// Kinds whose losses never read log-probs of a reference.
fn is_without_reference(from: LearnsFrom) -> bool {
    matches!(from, LearnsFrom::Demonstrations | LearnsFrom::ScoredPairs | LearnsFrom::Steps)
}

/// A degree divides the number of ranks.
macro_rules! divides_num_ranks {
    ($degree:literal, $given:expr, $because:literal) => {
        Rule {
            scope: "spec.workers",
            at: concat!("mesh.", $degree),
            reads: &[concat!("mesh.", $degree), "count", "ranksPerWorker"],
            message: concat!($degree, " must divide count * ranksPerWorker: ", $because),
            cel: || {
                let degree = concat!("self.mesh.", $degree);
                format!("{} || {NUM_RANKS} % {degree} == 0", cel_is_one(degree, $given))
            },
            holds: Check::Spec(|spec| {
                given(spec, $given).is_none_or(|degree| spec.workers.num_ranks().is_multiple_of(degree))
            }),
            allowed: Some(|spec| divisors(spec.workers.num_ranks())),
        }
    };
}

/// A role's shards and the sequence-parallel groups divide the number of ranks.
macro_rules! divides_with_sp {
    ($degree:literal, $given:expr) => {
        Rule {
            scope: "spec.workers",
            at: concat!("mesh.", $degree),
            reads: &[concat!("mesh.", $degree), "mesh.sp", "count", "ranksPerWorker"],
            message: concat!(
                $degree,
                " * sp must divide count * ranksPerWorker: as many ranks hold a copy of the role"
            ),
            cel: || {
                let degree = concat!("self.mesh.", $degree);
                format!("!has({degree}) || {NUM_RANKS} % ({degree} * self.mesh.sp) == 0")
            },
            holds: Check::Spec(|spec| {
                let sp = spec.workers.mesh.sp;
                given(spec, $given).is_none_or(|degree| spec.workers.num_ranks().is_multiple_of(degree * sp))
            }),
            allowed: Some(|spec| divisors((spec.workers.num_ranks() / spec.workers.mesh.sp).max(1))),
        }
    };
}

/// A sequence-parallel degree divides the heads of a new model. The heads of other models are known only once
/// their files are read.
macro_rules! divides_heads {
    ($degree:literal, $given:expr) => {
        Rule {
            scope: "spec",
            at: concat!("workers.mesh.", $degree),
            reads: &[
                concat!("workers.mesh.", $degree),
                "model.architecture.numHeads",
                "model.architecture.numKvHeads",
            ],
            message: concat!(
                $degree,
                " must divide the model's numHeads, and divide or be a multiple of its numKvHeads"
            ),
            cel: || {
                let degree = concat!("self.workers.mesh.", $degree);
                let is_one = cel_is_one(degree, $given);
                format!("{is_one} || !has(self.model.architecture) || ({})", cel_divides_heads(degree))
            },
            holds: Check::Spec(|spec| {
                let given = given(spec, $given).zip(heads(spec));
                given.is_none_or(|(degree, heads)| divides_heads(degree, heads))
            }),
            allowed: Some(|spec| {
                let legal = |heads| legal_degrees(heads, |degree| divides_heads(degree, heads));
                heads(spec).map_or_else(String::new, legal)
            }),
        }
    };
}

/// The experts of a role are distributed over the ranks that hold a copy of it.
macro_rules! holds_experts {
    ($degree:literal, $given:expr) => {
        Rule {
            scope: "spec.workers",
            at: "mesh.ep",
            reads: &["mesh.ep", concat!("mesh.", $degree), "mesh.sp"],
            message: concat!("ep must divide ", $degree, " * sp: as many ranks hold a copy of all experts"),
            cel: || {
                let degree = concat!("self.mesh.", $degree);
                let is_default = given_default($given, degree);
                format!("self.mesh.ep == 1 || {is_default}{degree} * self.mesh.sp % self.mesh.ep == 0")
            },
            holds: Check::Spec(|spec| {
                let MeshSpec { ep, sp, .. } = spec.workers.mesh;
                given(spec, $given).is_none_or(|degree| (degree * sp).is_multiple_of(ep.max(1)))
            }),
            allowed: Some(|spec| divisors(given(spec, $given).unwrap_or(1) * spec.workers.mesh.sp)),
        }
    };
}

/// A role's degrees and those of tensor parallelism divide the number of ranks.
macro_rules! divides_beside_tp {
    ($degree:literal, $given:expr, $sp:expr) => {
        Rule {
            scope: "spec.workers",
            at: "mesh.tp",
            reads: &["mesh.tp", concat!("mesh.", $degree), "mesh.sp", "count", "ranksPerWorker"],
            message: if $sp {
                concat!(
                    $degree,
                    " * sp * tp must divide count * ranksPerWorker: as many ranks hold a copy of the role"
                )
            } else {
                concat!(
                    $degree,
                    " * tp must divide count * ranksPerWorker: as many ranks compute the same tokens"
                )
            },
            cel: || {
                let degree = concat!("self.mesh.", $degree);
                let sp = if $sp { " * self.mesh.sp" } else { "" };
                let is_default = given_default($given, degree);
                format!("self.mesh.tp == 1 || {is_default}{NUM_RANKS} % ({degree}{sp} * self.mesh.tp) == 0")
            },
            holds: Check::Spec(|spec| {
                let MeshSpec { tp, sp, .. } = spec.workers.mesh;
                let beside = tp * if $sp { sp } else { 1 };
                tp == 1
                    || given(spec, $given)
                        .is_none_or(|degree| spec.workers.num_ranks().is_multiple_of(degree * beside))
            }),
            allowed: Some(|spec| {
                let sp = if $sp { spec.workers.mesh.sp } else { 1 };
                divisors((spec.workers.num_ranks() / (given(spec, $given).unwrap_or(1) * sp).max(1)).max(1))
            }),
        }
    };
}

/// What tensor parallelism does not cut.
macro_rules! not_beside_tp {
    ($reads:literal, $message:literal, $cel:literal, $has:expr) => {
        Rule {
            scope: "spec",
            at: "workers.mesh.tp",
            reads: &["workers.mesh.tp", $reads],
            message: $message,
            cel: || format!("self.workers.mesh.tp == 1 || !({})", $cel),
            holds: Check::Spec(|spec| {
                let has: fn(&RLTrainingJobSpec) -> bool = $has;
                spec.workers.mesh.tp == 1 || !has(spec)
            }),
            allowed: Some(|_| "1".to_owned()),
        }
    };
}

/// That a degree is not given, and follows another field; nothing where the API server fills it in.
fn given_default(degree: fn(&MeshSpec) -> Option<u32>, path: &str) -> String {
    match degree(&MeshSpec::default()) {
        Some(_) => String::new(),
        None => format!("!has({path}) || "),
    }
}

/// The experts in a layer of a new model, 0 without any; those of others are known where their files are.
fn num_experts(spec: &RLTrainingJobSpec) -> Option<u32> {
    spec.model.architecture.as_ref().map(|shape| shape.experts.map_or(0, |experts| experts.count))
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.workers",
        at: "ranksPerWorker",
        reads: &["count", "ranksPerWorker"],
        message: "count * ranksPerWorker must be at most 1024: so many ranks a job may have",
        cel: || format!("self.ranksPerWorker == 1 || {NUM_RANKS} <= {MAX_RANKS}"),
        holds: Check::Spec(|spec| spec.workers.num_ranks() <= MAX_RANKS),
        allowed: Some(|spec| format!("1 to {}", MAX_RANKS / spec.workers.count.max(1))),
    },
    divides_num_ranks!(
        "dpShard",
        |mesh| Some(mesh.dp_shard),
        "every copy of the model is held by as many ranks"
    ),
    Rule {
        scope: "spec.workers",
        at: "mesh.sp",
        reads: &["mesh.sp", "mesh.dpShard", "count", "ranksPerWorker"],
        message: "dpShard * sp must divide count * ranksPerWorker: every micro-batch is computed by sp ranks",
        cel: || format!("self.mesh.sp == 1 || {NUM_RANKS} % (self.mesh.dpShard * self.mesh.sp) == 0"),
        holds: Check::Spec(|spec| {
            let mesh = &spec.workers.mesh;
            mesh.sp == 1 || spec.workers.num_ranks().is_multiple_of(mesh.dp_shard * mesh.sp)
        }),
        allowed: Some(|spec| divisors((spec.workers.num_ranks() / spec.workers.mesh.dp_shard).max(1))),
    },
    divides_beside_tp!("dpShard", |mesh| Some(mesh.dp_shard), true),
    divides_beside_tp!("referenceDpShard", |mesh| mesh.reference_dp_shard, true),
    divides_beside_tp!("criticDpShard", |mesh| mesh.critic_dp_shard, true),
    divides_beside_tp!("logprobSp", |mesh| mesh.logprob_sp, false),
    divides_beside_tp!("referenceSp", |mesh| mesh.reference_sp, false),
    divides_beside_tp!("criticSp", |mesh| mesh.critic_sp, false),
    Rule {
        scope: "spec",
        at: "workers.mesh.tp",
        reads: &[
            "workers.mesh.tp",
            "model.architecture.numHeads",
            "model.architecture.numKvHeads",
            "model.architecture.intermediateSize",
        ],
        message: "tp must divide the model's numHeads, numKvHeads and intermediateSize",
        cel: || {
            let (tp, of_model) = ("self.workers.mesh.tp", "self.model.architecture");
            let kv_heads = format!("{of_model}.numKvHeads");
            format!(
                "{tp} == 1 || !has({of_model}) || ({of_model}.numHeads % {tp} == 0 && {of_model}.intermediateSize % {tp} == 0 && (!has({kv_heads}) || {kv_heads} % {tp} == 0))"
            )
        },
        holds: Check::Spec(|spec| {
            let sizes = heads(spec).zip(feed_forward_width(spec));
            sizes.is_none_or(|(heads, width)| tp_divides_weights(spec.workers.mesh.tp, heads, width))
        }),
        allowed: Some(|spec| {
            let legal = |(heads, width)| legal_degrees(heads, |tp| tp_divides_weights(tp, heads, width));
            heads(spec).zip(feed_forward_width(spec)).map_or_else(String::new, legal)
        }),
    },
    not_beside_tp!(
        "model.architecture.experts",
        "tp does not cut experts: distribute them with ep",
        "has(self.model.architecture) && has(self.model.architecture.experts)",
        |spec| spec.model.architecture.as_ref().is_some_and(|shape| shape.experts.is_some())
    ),
    not_beside_tp!(
        "model.architecture.vision",
        "tp does not serve models with a vision tower",
        "has(self.model.architecture) && has(self.model.architecture.vision)",
        |spec| spec.model.architecture.as_ref().is_some_and(|shape| shape.vision.is_some())
    ),
    not_beside_tp!(
        "model.quantization",
        "tp does not cut quantized weights: remove model.quantization, or share them with dpShard",
        "has(self.model.quantization)",
        |spec| spec.model.quantization.is_some()
    ),
    not_beside_tp!(
        "model.lora.dora",
        "tp does not serve DoRA, whose norms are of whole rows of a weight",
        "has(self.model.lora) && self.model.lora.dora",
        |spec| spec.model.lora.as_ref().is_some_and(|lora| lora.dora)
    ),
    holds_experts!("dpShard", |mesh| Some(mesh.dp_shard)),
    holds_experts!("referenceDpShard", |mesh| mesh.reference_dp_shard),
    holds_experts!("criticDpShard", |mesh| mesh.critic_dp_shard),
    holds_experts!("rewardModelDpShard", |mesh| mesh.reward_model_dp_shard),
    Rule {
        scope: "spec",
        at: "workers.mesh.ep",
        reads: &["workers.mesh.ep", "model.architecture.experts.count"],
        message: "ep must divide the model's experts.count, and is 1 for a model without experts",
        cel: || {
            let of_model = "self.model.architecture";
            format!(
                "self.workers.mesh.ep == 1 || !has({of_model}) || (has({of_model}.experts) && \
                 {of_model}.experts.count % self.workers.mesh.ep == 0)"
            )
        },
        holds: Check::Spec(|spec| {
            let ep = spec.workers.mesh.ep.max(1);
            ep == 1 || num_experts(spec).is_none_or(|count| count > 0 && count.is_multiple_of(ep))
        }),
        allowed: Some(|spec| num_experts(spec).map_or_else(String::new, |count| divisors(count.max(1)))),
    },
    divides_num_ranks!(
        "logprobSp",
        |mesh| mesh.logprob_sp,
        "every pass for log-probs is computed by logprobSp ranks"
    ),
    divides_num_ranks!(
        "referenceSp",
        |mesh| mesh.reference_sp,
        "every pass for the reference's log-probs is computed by referenceSp ranks"
    ),
    divides_num_ranks!(
        "criticSp",
        |mesh| mesh.critic_sp,
        "every micro-batch of the critic is computed by criticSp ranks"
    ),
    divides_with_sp!("referenceDpShard", |mesh| mesh.reference_dp_shard),
    divides_with_sp!("criticDpShard", |mesh| mesh.critic_dp_shard),
    divides_with_sp!("rewardModelDpShard", |mesh| mesh.reward_model_dp_shard),
    Rule {
        scope: "spec",
        at: "workers.mesh.referenceDpShard",
        reads: &["workers.mesh.referenceDpShard", "model.lora", "algorithm.kind"],
        message: "without a frozen reference there is nothing to share: remove referenceDpShard with model.lora, SFT, \
                  RewardModel and ProcessReward",
        cel: || {
            let none = cel_learns_from("self.algorithm", is_without_reference);
            format!("!has(self.workers.mesh.referenceDpShard) || (!has(self.model.lora) && !({none}))")
        },
        holds: Check::Spec(|spec| {
            let has_frozen = spec.model.lora.is_none() && !is_without_reference(learns_from(spec));
            spec.workers.mesh.reference_dp_shard.is_none() || has_frozen
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.criticDpShard",
        reads: &[
            "workers.mesh.criticDpShard",
            "model.lora",
            "algorithm.advantage.estimator",
            "algorithm.kind",
        ],
        message: "criticDpShard needs a critic with weights of its own: an estimator that reads values, such as Gae, and no \
                  model.lora",
        cel: || {
            let estimator = cel_estimator("self.algorithm");
            format!(
                "!has(self.workers.mesh.criticDpShard) || \
                 (!has(self.model.lora) && {estimator} in {})",
                cel_list(&with_critic())
            )
        },
        holds: Check::Spec(|spec| {
            let has_own = spec.model.lora.is_none() && with_critic().contains(&estimator(spec));
            spec.workers.mesh.critic_dp_shard.is_none() || has_own
        }),
        allowed: None,
    },
    divides_num_ranks!(
        "rolloutTp",
        |mesh| Some(mesh.rollout_tp),
        "every completion is sampled by rolloutTp ranks"
    ),
    Rule {
        scope: "spec",
        at: "workers.mesh.logprobSp",
        reads: &["workers.mesh.logprobSp", "algorithm.kind"],
        message: "SFT computes no log-probs without gradients: remove logprobSp",
        cel: || {
            let is_supervised = cel_learns_from("self.algorithm", |from| from == LearnsFrom::Demonstrations);
            format!("!({is_supervised}) || !has(self.workers.mesh.logprobSp)")
        },
        holds: Check::Spec(|spec| {
            spec.workers.mesh.logprob_sp.is_none() || learns_from(spec) != LearnsFrom::Demonstrations
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.referenceSp",
        reads: &["workers.mesh.referenceSp", "algorithm.kind"],
        message: "SFT, RewardModel and ProcessReward read no reference: remove referenceSp",
        cel: || {
            let none = cel_learns_from("self.algorithm", is_without_reference);
            format!("!has(self.workers.mesh.referenceSp) || !({none})")
        },
        holds: Check::Spec(|spec| {
            spec.workers.mesh.reference_sp.is_none() || !is_without_reference(learns_from(spec))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.criticSp",
        reads: &["workers.mesh.criticSp", "algorithm.advantage.estimator", "algorithm.kind"],
        message: "criticSp is used only with an estimator that reads a critic's values, such as Gae, which PPO includes",
        cel: || {
            let estimator = cel_estimator("self.algorithm");
            format!("!has(self.workers.mesh.criticSp) || {estimator} in {}", cel_list(&with_critic()))
        },
        holds: Check::Spec(|spec| {
            spec.workers.mesh.critic_sp.is_none() || with_critic().contains(&estimator(spec))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.rolloutTp",
        reads: &["workers.mesh.rolloutTp", "algorithm.kind", "rewards.functions"],
        message: "training on a data set without reward functions samples nothing: remove rolloutTp",
        cel: || {
            format!(
                "self.workers.mesh.rolloutTp == 1 || self.rewards.functions.size() > 0 || !({})",
                cel_samples_nothing("self.algorithm")
            )
        },
        holds: Check::Spec(|spec| {
            spec.workers.mesh.rollout_tp == 1
                || spec.algorithm.kind.samples()
                || !spec.rewards.functions.is_empty()
        }),
        allowed: None,
    },
    divides_heads!("sp", |mesh| Some(mesh.sp)),
    divides_heads!("logprobSp", |mesh| mesh.logprob_sp),
    divides_heads!("referenceSp", |mesh| mesh.reference_sp),
    divides_heads!("criticSp", |mesh| mesh.critic_sp),
    Rule {
        scope: "spec",
        at: "workers.mesh.rolloutTp",
        reads: &[
            "workers.mesh.rolloutTp",
            "model.architecture.numHeads",
            "model.architecture.numKvHeads",
            "model.architecture.intermediateSize",
        ],
        message: "rolloutTp must divide the model's numHeads and intermediateSize, and divide or be a multiple of \
                  its numKvHeads",
        cel: || {
            let tp = "self.workers.mesh.rolloutTp";
            let width = format!("self.model.architecture.intermediateSize % {tp} == 0");
            let is_whole = format!("{tp} == 1 || !has(self.model.architecture)");
            format!("{is_whole} || ({} && {width})", cel_divides_heads(tp))
        },
        holds: Check::Spec(|spec| {
            let sizes = heads(spec).zip(feed_forward_width(spec));
            sizes.is_none_or(|(heads, width)| tp_divides_layers(spec.workers.mesh.rollout_tp, heads, width))
        }),
        allowed: Some(|spec| {
            let legal = |(heads, width)| legal_degrees(heads, |tp| tp_divides_layers(tp, heads, width));
            heads(spec).zip(feed_forward_width(spec)).map_or_else(String::new, legal)
        }),
    },
];

/// A degree of the mesh; `None` where it is another field's.
fn given(spec: &RLTrainingJobSpec, degree: fn(&MeshSpec) -> Option<u32>) -> Option<u32> {
    degree(&spec.workers.mesh)
}

/// The CEL condition that `degree` divides the heads of a new model.
fn cel_divides_heads(degree: &str) -> String {
    let heads = "self.model.architecture.numHeads";
    let kv_heads = "self.model.architecture.numKvHeads";
    let kv_heads = format!("(has({kv_heads}) ? {kv_heads} : {heads})");
    format!("{heads} % {degree} == 0 && ({kv_heads} % {degree} == 0 || {degree} % {kv_heads} == 0)")
}
