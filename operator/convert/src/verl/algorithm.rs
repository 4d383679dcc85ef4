//! verl's estimator, loss and KL: the nearest preset, and every field in which verl's settings differ from
//! it.

use crate::draft::Draft;
use crate::settings::Settings;

/// verl's estimators, each with the preset to start from and our estimator.
const ESTIMATORS: [(&str, &str, &str); 14] = [
    ("gae", "PPO", "Gae"),
    ("grpo", "GRPO", "Grpo"),
    ("grpo_vectorized", "GRPO", "Grpo"),
    ("grpo_passk", "GRPO", "GrpoPassk"),
    ("rloo", "RLOO", "Rloo"),
    ("rloo_vectorized", "RLOO", "Rloo"),
    ("reinforce_plus_plus", "ReinforcePlusPlus", "ReinforcePlusPlus"),
    ("reinforce_plus_plus_baseline", "ReinforcePlusPlus", "ReinforcePlusPlusBaseline"),
    ("remax", "ReMax", "ReMax"),
    ("opo", "GRPO", "Opo"),
    ("gpg", "GRPO", "Gpg"),
    ("gdpo", "GRPO", "Gdpo"),
    ("optimal_token_baseline", "GRPO", "OptimalTokenBaseline"),
    ("tir_optimal_token_baseline", "GRPO", "OptimalTokenBaseline"),
];

/// verl's policy losses, each with ours.
const LOSSES: [(&str, &str); 12] = [
    ("vanilla", "Vanilla"),
    ("gspo", "Gspo"),
    ("sapo", "Sapo"),
    ("gpg", "Gpg"),
    ("geo_mean", "GeoMean"),
    ("gmpo", "GeoMean"),
    ("cispo", "Cispo"),
    ("clip_cov", "ClipCov"),
    ("kl_cov", "KlCov"),
    ("dppo_tv", "DppoTv"),
    ("dppo_kl", "DppoKl"),
    ("dro", "Dro"),
];

/// verl's aggregations of token losses, each with ours.
const AGGREGATIONS: [(&str, &str); 5] = [
    ("token-mean", "TokenMean"),
    ("token-sum", "TokenSum"),
    ("seq-mean-token-mean", "SequenceMeanTokenMean"),
    ("seq-mean-token-sum", "SequenceMeanTokenSum"),
    ("seq-mean-token-sum-norm", "SequenceMeanTokenSumNorm"),
];

/// verl's KL estimators, each with ours; an empty one has no equivalent.
const DIVERGENCES: [(&str, &str); 12] = [
    ("kl", "K1"),
    ("k1", "K1"),
    ("kl+", "K1StraightThrough"),
    ("k1+", "K1StraightThrough"),
    ("abs", "Abs"),
    ("mse", "K2"),
    ("k2", "K2"),
    ("low_var_kl", "K3"),
    ("k3", "K3"),
    ("low_var_kl+", "K3StraightThrough"),
    ("k3+", "K3StraightThrough"),
    ("full", ""),
];

const ACTOR: &str = "actor_rollout_ref.actor";

/// Sets the section `algorithm`. `given` are the script's settings; `settings` also has verl's defaults.
pub(super) fn finish(settings: &Settings, given: &Settings, draft: &mut Draft) {
    let named = settings.text("algorithm.adv_estimator").unwrap_or_default();
    let found = ESTIMATORS.iter().find(|(theirs, ..)| *theirs == named);
    if found.is_none() {
        let known: Vec<_> = ESTIMATORS.iter().map(|(theirs, ..)| *theirs).collect();
        let known = known.join(", ");
        draft.remark("algorithm", format!("algorithm.adv_estimator={named} has no equal: {known} have one."));
    }
    let (kind, estimator) = found.map_or(("GRPO", "Grpo"), |(_, kind, estimator)| (*kind, *estimator));
    draft.set("spec.algorithm.kind", kind);
    draft.set("spec.algorithm.advantage.estimator", estimator);
    if matches!(estimator, "Grpo" | "GrpoPassk") {
        let divides = settings.is_true("algorithm.norm_adv_by_std_in_grpo");
        draft.set("spec.algorithm.advantage.normalizeByStd", divides);
    }
    if matches!(estimator, "ReinforcePlusPlus" | "Gae") {
        draft.set_some("spec.algorithm.advantage.gamma", settings.number("algorithm.gamma"));
    }
    if estimator == "Gae" {
        draft.set_some("spec.algorithm.advantage.lambda", settings.number("algorithm.lam"));
        critic(settings, draft);
    }
    loss(settings, given, draft);
    kl(settings, draft);
    correction(settings, draft);
    if settings.is_true("algorithm.filter_groups.enable") {
        dynamic_sampling(settings, draft);
    }
    if settings.is_true("algorithm.use_pf_ppo") {
        reweighting(settings, draft);
    }
}

fn reweighting(settings: &Settings, draft: &mut Draft) {
    const METHODS: [(&str, &str); 3] = [("pow", "Pow"), ("max_min", "MaxMin"), ("max_random", "MaxRandom")];
    let key = "algorithm.pf_ppo.reweight_method";
    let method = settings.text(key).unwrap_or_else(|| "pow".to_owned());
    let method = word(&METHODS, &method, key, draft);
    draft.set_some("spec.algorithm.reweighting.method", method);
    if method == Some("Pow") {
        draft.set_some("spec.algorithm.reweighting.power", settings.number("algorithm.pf_ppo.weight_pow"));
    }
}

/// Settings of verl's critic that are the actor's here, each with the actor's setting and its default.
const SHARED: [(&str, &str, &str); 8] = [
    ("critic.model.path", "actor_rollout_ref.model.path", ""),
    ("critic.ppo_epochs", "actor_rollout_ref.actor.ppo_epochs", "1"),
    ("critic.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size", "256"),
    ("critic.loss_agg_mode", "actor_rollout_ref.actor.loss_agg_mode", "token-mean"),
    ("critic.loss_scale_factor", "actor_rollout_ref.actor.loss_scale_factor", ""),
    ("critic.grad_clip", "actor_rollout_ref.actor.grad_clip", "1.0"),
    ("critic.optim.weight_decay", "actor_rollout_ref.actor.optim.weight_decay", "0.01"),
    ("critic.optim.betas", "actor_rollout_ref.actor.optim.betas", "[0.9,0.999]"),
];

/// Adds a remark for each setting of the critic that differs from the actor's.
fn shared_with_actor(settings: &Settings, draft: &mut Draft) {
    let is_equal = |one: &str, other: &str| {
        one == other || one.parse::<f64>().ok().is_some_and(|one| other.parse::<f64>() == Ok(one))
    };
    for (key, actors, default) in SHARED {
        let Some(given) = settings.text(key) else { continue };
        let actor = settings.text(actors).unwrap_or_else(|| default.to_owned());
        if !is_equal(&given, &actor) {
            draft.remark(
                "algorithm",
                format!("{key}={given} has no equal: the critic has the actor's {actors}."),
            );
        }
    }
}

fn critic(settings: &Settings, draft: &mut Draft) {
    shared_with_actor(settings, draft);
    draft.set_some("spec.algorithm.critic.learningRate", settings.number("critic.optim.lr"));
    draft.set_some("spec.algorithm.critic.valueClip", settings.number("critic.cliprange_value"));
    // verl first trains the actor in step W, so the critic learns alone in W - 1 steps.
    let warmup = settings.count("trainer.critic_warmup").unwrap_or(0);
    draft.set("spec.algorithm.critic.warmupSteps", warmup.saturating_sub(1));
    if settings.is_true("critic.use_dynamic_bsz") || settings.is_true(&format!("{ACTOR}.use_dynamic_bsz")) {
        let tokens = settings.count("critic.ppo_max_token_len_per_gpu");
        draft.set_some("spec.training.roles.critic.maxTokensPerMicroBatch", tokens);
        let tokens = settings.count("critic.forward_max_token_len_per_gpu");
        draft.set_some("spec.training.roles.critic.maxForwardTokens", tokens);
    }
}

fn loss(settings: &Settings, given: &Settings, draft: &mut Draft) {
    let text = |key: &str| settings.text(&format!("{ACTOR}.{key}")).unwrap_or_default();
    let number = |key: &str| settings.number(&format!("{ACTOR}.{key}"));
    let policy = word(&LOSSES, &text("policy_loss.loss_mode"), "actor.policy_loss.loss_mode", draft)
        .unwrap_or("Vanilla");
    draft.set("spec.algorithm.loss.policy", policy);
    if !matches!(policy, "Sapo" | "Gpg" | "Dro" | "KlCov") {
        clips(settings, given, draft);
    }
    if matches!(policy, "Vanilla" | "DppoTv" | "DppoKl") {
        draft.set_some("spec.algorithm.loss.dualClip", number("clip_ratio_c"));
    }
    let parts: &[(&str, &str)] = match policy {
        "Sapo" => &[
            ("policy_loss.tau_pos", "sapoTauPositive"),
            ("policy_loss.tau_neg", "sapoTauNegative"),
            ("tau_pos", "sapoTauPositive"),
            ("tau_neg", "sapoTauNegative"),
        ],
        "ClipCov" => &[
            ("policy_loss.clip_cov_ratio", "covarianceRatio"),
            ("policy_loss.clip_cov_lb", "covarianceLow"),
            ("policy_loss.clip_cov_ub", "covarianceHigh"),
        ],
        "KlCov" => &[("policy_loss.kl_cov_ratio", "covarianceRatio"), ("policy_loss.ppo_kl_coef", "penalty")],
        "Dro" => &[("policy_loss.dro_beta", "penalty")],
        _ => &[],
    };
    for (key, field) in parts {
        draft.set_some(&format!("spec.algorithm.loss.{field}"), number(key));
    }
    let is_defined_otherwise = matches!(policy, "Gspo" | "Sapo" | "GeoMean");
    let aggregation = word(&AGGREGATIONS, &text("loss_agg_mode"), "actor.loss_agg_mode", draft);
    let aggregation = if is_defined_otherwise { sequence_means(given, policy, draft) } else { aggregation };
    draft.set_some("spec.algorithm.loss.aggregation", aggregation);
    if aggregation == Some("SequenceMeanTokenSumNorm") {
        let tokens = settings.count(&format!("{ACTOR}.loss_scale_factor"));
        draft.set_some("spec.algorithm.loss.normalizationTokens", tokens);
    }
    draft.set_some(
        "spec.algorithm.loss.entropyCoefficient",
        number("entropy_coeff").filter(|factor| *factor != 0.0),
    );
}

/// Default of both clips in verl's `actor.yaml`.
const CLIP_RATIO: f64 = 0.2;

/// Sets the clips. Both bounds have a default in verl, so `clip_ratio` applies only to a bound that a script
/// sets to null.
fn clips(settings: &Settings, given: &Settings, draft: &mut Draft) {
    let key = |name: &str| format!("{ACTOR}.{name}");
    let both = settings.number(&key("clip_ratio"));
    let mut has_default = false;
    for (name, field) in [("clip_ratio_low", "clipLow"), ("clip_ratio_high", "clipHigh")] {
        let own = settings.number(&key(name));
        let is_null = given.is_null(&key(name));
        has_default |= own.is_none() && !is_null;
        let clip = if is_null { both } else { own.or(Some(CLIP_RATIO)) };
        draft.set_some(&format!("spec.algorithm.loss.{field}"), clip);
    }
    if let Some(ratio) = both.filter(|ratio| has_default && *ratio != CLIP_RATIO) {
        let text = format!(
            "clip_ratio={ratio} has no effect in verl: clip_ratio_low and clip_ratio_high have the default {CLIP_RATIO}."
        );
        draft.remark("algorithm", text);
    }
}

/// Returns the aggregation of sequence-level losses. verl ignores `loss_agg_mode` for them, too, although
/// scripts set it.
fn sequence_means(given: &Settings, policy: &str, draft: &mut Draft) -> Option<&'static str> {
    let key = format!("{ACTOR}.loss_agg_mode");
    let named = given.text(&key).unwrap_or_default();
    if !named.is_empty() && named != "seq-mean-token-mean" {
        let text = format!(
            "{key}={named} has no effect in verl with this loss: {policy} is aggregated by SequenceMeanTokenMean."
        );
        draft.remark("algorithm", text);
    }
    Some("SequenceMeanTokenMean")
}

fn kl(settings: &Settings, draft: &mut Draft) {
    let in_loss = settings.is_true(&format!("{ACTOR}.use_kl_loss"));
    let in_reward = settings.is_true("algorithm.use_kl_in_reward");
    let (placement, estimator, coefficient) = match (in_loss, in_reward) {
        (true, _) => ("Loss", format!("{ACTOR}.kl_loss_type"), format!("{ACTOR}.kl_loss_coef")),
        (false, true) => {
            ("Reward", "algorithm.kl_penalty".to_owned(), "algorithm.kl_ctrl.kl_coef".to_owned())
        }
        (false, false) => return draft.set("spec.algorithm.kl.placement", "None"),
    };
    if in_loss && in_reward {
        draft.remark(
            "algorithm",
            "algorithm.use_kl_in_reward=True has no equal together with use_kl_loss: the KL acts in one place.",
        );
    }
    draft.set("spec.algorithm.kl.placement", placement);
    let named = settings.text(&estimator).unwrap_or_default();
    let estimator = word(&DIVERGENCES, &named, &estimator, draft);
    draft.set_some("spec.algorithm.kl.estimator", estimator);
    draft.set_some("spec.algorithm.kl.coefficient", settings.number(&coefficient));
    if !in_loss && settings.text("algorithm.kl_ctrl.type").as_deref() == Some("adaptive") {
        let target = settings.number("algorithm.kl_ctrl.target_kl").unwrap_or(0.1);
        draft.set("spec.algorithm.kl.adaptive.target", target);
        draft.set_some("spec.algorithm.kl.adaptive.horizon", settings.count("algorithm.kl_ctrl.horizon"));
    }
}

/// Sets the rollout correction from `rollout_is` and `rollout_rs`, whose thresholds are numbers or
/// `lower_upper`.
fn correction(settings: &Settings, draft: &mut Draft) {
    let key = |name: &str| format!("algorithm.rollout_correction.{name}");
    let Some(level) = settings.text(&key("rollout_is")) else {
        if settings.get(&key("rollout_rs")).is_some() {
            draft.remark(
                "algorithm",
                "rollout_rs without rollout_is has no equal: rejection comes with importance weights.",
            );
        }
        return;
    };
    const LEVELS: [(&str, &str); 2] = [("token", "Token"), ("sequence", "Sequence")];
    let level = word(&LEVELS, &level, &key("rollout_is"), draft);
    draft.set_some("spec.algorithm.importanceCorrection.level", level);
    let (lower, upper) =
        bounds(settings.text(&key("rollout_is_threshold")).unwrap_or_else(|| "2.0".to_owned()));
    draft.set_some("spec.algorithm.importanceCorrection.threshold", upper);
    draft.set_some("spec.algorithm.importanceCorrection.lowerThreshold", lower);
    if settings.is_true(&key("rollout_is_batch_normalize")) {
        draft.set("spec.algorithm.importanceCorrection.normalize", true);
    }
    let Some(statistic) = settings.text(&key("rollout_rs")) else { return };
    const STATISTICS: [(&str, &str); 11] = [
        ("token_k1", "TokenK1"),
        ("token_k2", "TokenK2"),
        ("token_k3", "TokenK3"),
        ("seq_sum_k1", "SequenceSumK1"),
        ("seq_sum_k2", "SequenceSumK2"),
        ("seq_sum_k3", "SequenceSumK3"),
        ("seq_mean_k1", "SequenceMeanK1"),
        ("seq_mean_k2", "SequenceMeanK2"),
        ("seq_mean_k3", "SequenceMeanK3"),
        ("seq_max_k2", "SequenceMaxK2"),
        ("seq_max_k3", "SequenceMaxK3"),
    ];
    let Some(statistic) = word(&STATISTICS, &statistic, &key("rollout_rs"), draft) else { return };
    let (lower, upper) = bounds(settings.text(&key("rollout_rs_threshold")).unwrap_or_default());
    draft.set("spec.algorithm.importanceCorrection.rejection.statistic", statistic);
    draft.set_some("spec.algorithm.importanceCorrection.rejection.upper", upper);
    draft.set_some("spec.algorithm.importanceCorrection.rejection.lower", lower);
}

/// Parses thresholds `upper` or `lower_upper` to (lower, upper).
fn bounds(text: String) -> (Option<f64>, Option<f64>) {
    match text.split_once('_') {
        Some((lower, upper)) => (lower.parse().ok(), upper.parse().ok()),
        None => (None, text.parse().ok()),
    }
}

fn dynamic_sampling(settings: &Settings, draft: &mut Draft) {
    let metric = settings.text("algorithm.filter_groups.metric").unwrap_or_default();
    let measured = if metric.contains("final") { "Reward" } else { "Score" };
    if !["", "acc", "score", "seq_reward", "seq_final_reward"].contains(&metric.as_str()) {
        draft.remark("algorithm", format!("filter_groups.metric={metric} has no equal: {measured} is set."));
    }
    draft.set("spec.algorithm.dynamicSampling.metric", measured);
    // In verl, 0 means no bound.
    let batches = settings.count("algorithm.filter_groups.max_num_gen_batches").filter(|count| *count > 0);
    draft.set("spec.algorithm.dynamicSampling.maxBatches", batches.unwrap_or(1000));
    if let Some(prompts) = settings.count("data.gen_batch_size") {
        draft.remark(
            "algorithm",
            format!("data.gen_batch_size={prompts}: a rollout has promptsPerStep prompts; groups beyond what a step needs are dropped."),
        );
    }
}

/// Translates a word of verl; an unknown word is noted in a remark.
fn word(
    words: &[(&'static str, &'static str)],
    theirs: &str,
    key: &str,
    draft: &mut Draft,
) -> Option<&'static str> {
    let ours =
        words.iter().find(|(word, _)| *word == theirs).map(|(_, ours)| *ours).filter(|ours| !ours.is_empty());
    if ours.is_none() {
        draft.remark("algorithm", format!("{key}={theirs} has no equal."));
    }
    ours
}
