//! Rule of the specification: code that acts on a field reads it, because a field without an effect would
//! mislead its user.
//!
//! The rule scans source text. A field counts as read if it is accessed through a value named like its group
//! (`training.max_grad_norm`), or accessed or destructured in a file that accesses its group or names a type
//! that holds it. Types, rules and resolution in `crds/` do not count as readers; plans and reactions to
//! failures do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// Folders of the code that reads fields.
const READERS: [&str; 10] = [
    "trainer/src",
    "trainer/data/src",
    "trainer/decoder/src",
    "trainer/engine/src",
    "trainer/hub/src",
    "trainer/parallel/src",
    "operator",
    "crds/models/src",
    "crds/plan/src",
    "crds/src/failure",
];

/// Sections that configure the training. The number of their fields is bounded, because users have to read
/// them all.
const TRAINERS: [&str; 8] =
    ["model", "data", "rewards", "algorithm", "rollout", "training", "checkpoint", "tracking"];

/// Fields that resolution replaces by an enum or a method, each with the text of a read.
const TURNED: [(&str, &str); 51] = [
    ("model.path", "ModelSource::Path"),
    ("model.tokenizer.path", "TokenizerSource::Path"),
    ("model.tokenizer.characters", "TokenizerSource::Characters"),
    ("model.architecture.num_kv_heads", "kv_heads()"),
    ("model.architecture.head_dim", "head_width()"),
    ("data.train", "spec.sets("),
    ("data.held_out", "spec.sets("),
    ("data.datasets.held_out", "spec.sets(held_out)"),
    ("data.streaming.block_rows", "streaming.block_rows"),
    ("algorithm.kind", "policy_gradient"),
    ("algorithm.preset", "training.optimizer.learning_rate"),
    ("algorithm.advantage.estimator", "estimator: algorithm.advantage,"),
    ("algorithm.advantage.parameters", "estimator: algorithm.advantage,"),
    ("algorithm.loss.policy", "policy: algorithm.loss.policy"),
    ("algorithm.loss.parameters", "policy: algorithm.loss.policy"),
    ("algorithm.loss.aggregation", "aggregation: algorithm.loss.aggregation"),
    ("algorithm.loss.normalization_tokens", "aggregation: algorithm.loss.aggregation"),
    ("algorithm.kl.placement", "Kl::Reward("),
    ("algorithm.preference.loss", "losses: preference.losses.weighted()"),
    ("algorithm.preference.parameters", "losses: preference.losses.weighted()"),
    ("algorithm.preference.losses.loss", "losses: preference.losses.weighted()"),
    ("algorithm.preference.losses.weight", "losses: preference.losses.weighted()"),
    ("algorithm.preference.losses.parameters", "losses: preference.losses.weighted()"),
    ("algorithm.preference.divergence", "divergence: preference.divergence"),
    ("algorithm.preference.divergence_alpha", "divergence: preference.divergence"),
    ("algorithm.preference.desirable_weight", "Preference::Labels(kto)"),
    ("algorithm.preference.undesirable_weight", "Preference::Labels(kto)"),
    ("algorithm.preference.reference_point", "kto.reference_point"),
    ("training.steps", "length.num_steps"),
    ("training.epochs", "length.num_steps"),
    ("training.schedule.warmup_steps", "warmup.num_steps("),
    ("training.schedule.warmup_ratio", "warmup.num_steps("),
    ("training.optimizer.betas", "betas"),
    ("training.roles.critic.max_tokens_per_micro_batch", "critic_micro_batch_tokens()"),
    ("training.roles.critic.max_forward_tokens", "critic_forward_tokens()"),
    ("training.roles.critic.offload.parameters", "critic_offload()"),
    ("training.roles.critic.offload.optimizer", "critic_offload()"),
    ("training.roles.critic.offload.activations", "critic_offload()"),
    ("training.roles.critic.precision", "critic_precision()"),
    ("training.roles.reference.precision", "reference_precision()"),
    ("training.roles.reward_models.precision", "reward_model_precision()"),
    ("training.roles.reference.max_forward_tokens", "reference_forward_tokens()"),
    ("training.roles.reference.offload_parameters", "reference_is_offloaded()"),
    ("training.roles.reward_models.offload_parameters", "reward_models_are_offloaded()"),
    ("training.roles.reward_models.max_forward_tokens", "reward_model_forward_tokens()"),
    ("workers.mesh.logprob_sp", "sp_of_logprobs()"),
    ("workers.mesh.reference_sp", "sp_of_reference()"),
    ("workers.mesh.reference_dp_shard", "dp_shard_of_reference()"),
    ("workers.mesh.critic_dp_shard", "dp_shard_of_critic()"),
    ("workers.mesh.reward_model_dp_shard", "dp_shard_of_reward_models()"),
    ("workers.mesh.critic_sp", "sp_of_critic()"),
];

/// A field of the specification with a value instead of subfields.
struct Leaf {
    path: String,
    /// The field that holds its struct, such as `optimizer`.
    group: String,
    field: String,
    /// Structs of the specification and of the resolved specification that have this field.
    owners: Vec<String>,
}

#[test]
fn every_leaf_of_the_specification_is_read() {
    let leaves = leaves();
    let is_trainers =
        |leaf: &&Leaf| TRAINERS.iter().any(|section| leaf.path.starts_with(&format!("{section}.")));
    let num_trainers = leaves.iter().filter(is_trainers).count();
    assert!((100..=270).contains(&num_trainers), "{num_trainers} leaves: drop one before another is added");
    let sources = sources();
    let is_unread = |leaf: &&Leaf| {
        let reads = reader(leaf);
        !sources.iter().any(|source| reads(source))
    };
    let unread: Vec<_> = leaves.iter().filter(is_unread).map(|leaf| leaf.path.as_str()).collect();
    assert!(
        unread.is_empty(),
        "{} of {} fields without a reader:\n{}",
        unread.len(),
        leaves.len(),
        unread.join("\n")
    );
}

#[test]
fn the_scan_tells_reading_from_naming() {
    let leaf = Leaf {
        path: "training.optimizer.epsilon".into(),
        group: "optimizer".into(),
        field: "epsilon".into(),
        owners: vec!["OptimizerSpec".into()],
    };
    assert!(reads(&leaf, "let x = spec.optimizer.epsilon;"));
    assert!(reads(&leaf, "fn f(o: &OptimizerSpec) { g(o.epsilon) }"));
    assert!(reads(&leaf, "let spec::OptimizerSpec { epsilon, .. } = o;"));
    assert!(!reads(&leaf, "let x = other.epsilon;"));
    assert!(!reads(&leaf, "struct OptimizerSpec; let epsilon = 1;"));
    assert!(!reads(&leaf, "optimizer.epsilon_decay"));
}

fn reads(leaf: &Leaf, source: &str) -> bool {
    reader(leaf)(source)
}

/// Returns a predicate: whether a source reads the field. It first searches for plain text, for speed.
fn reader(leaf: &Leaf) -> impl Fn(&str) -> bool {
    let Leaf { path, group, field, owners } = leaf;
    let sign = TURNED.iter().find(|(turned, _)| turned == path).map(|(_, sign)| *sign);
    let regex = |pattern: String| Regex::new(&pattern).unwrap();
    let from_group = regex(format!(r"\b{group}\s*\.\s*{field}\b"));
    let taken = regex(format!(r"\.\s*{field}\b(?:[^=(\w]|\s*==)"));
    let destructured = regex(format!(r"\b[A-Z]\w*\s*\{{[^{{}}]*\b{field}\b"));
    let into_group = regex(format!(r"\.\s*{group}\b"));
    let (field, owners) = (field.clone(), owners.clone());
    move |source| match sign {
        Some(sign) => source.contains(sign),
        None => {
            source.contains(&field)
                && (from_group.is_match(source)
                    || (into_group.is_match(source) || owners.iter().any(|owner| source.contains(owner)))
                        && (taken.is_match(source) || destructured.is_match(source)))
        }
    }
}

/// Returns the production code of the product, one text for each file.
fn sources() -> Vec<String> {
    let files = READERS.iter().flat_map(|folder| rust_files(&root().join(folder)));
    let is_test = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.ends_with("tests.rs") || path.components().any(|part| part.as_os_str() == "tests")
    };
    let code = |path: PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned()
    };
    files.filter(|path| !is_test(path)).map(code).collect()
}

fn root() -> PathBuf {
    rlt_rules::workspace_root()
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Structs and enums by name, with the fields and their types.
type Types = BTreeMap<String, Vec<(String, String)>>;

fn types(folder: &str) -> Types {
    let item = Regex::new(r"(?ms)^pub (?:struct|enum) (\w+) \{\n(.*?)^\}").unwrap();
    let field =
        Regex::new(r"(?m)^\s+(?:pub )?([a-z_0-9]+): ([\w<>:, \[\];]+?),?$|([a-z_0-9]+): (\w+)(?:,| \})")
            .unwrap();
    let folder = root().join("crds/src").join(folder);
    let mut files = rust_files(&folder);
    files.push(folder.with_extension("rs"));
    let mut types = Types::new();
    let comment = Regex::new(r"(?m)^\s*//.*$").unwrap();
    for text in files.iter().map(|file| fs::read_to_string(file).unwrap()) {
        let text = comment.replace_all(&text, "");
        for captures in item.captures_iter(&text) {
            let fields = field.captures_iter(&captures[2]).map(|field| {
                let part = |one: usize, other: usize| {
                    field.get(one).or(field.get(other)).map_or("", |found| found.as_str()).to_owned()
                };
                (part(1, 3), part(2, 4))
            });
            types.insert(captures[1].to_owned(), fields.collect());
        }
    }
    types
}

fn leaves() -> Vec<Leaf> {
    let (spec, resolved) = (types("spec"), types("resolved"));
    let mut leaves = Vec::new();
    for (section, type_) in &spec["RLTrainingJobSpec"] {
        if spec.contains_key(type_) {
            collect(&spec, &resolved, section, section, type_, &mut leaves);
        } else {
            // A value of the job itself is read from its specification.
            let owners = vec!["RLTrainingJobSpec".to_owned()];
            leaves.push(Leaf { path: section.clone(), group: "spec".into(), field: section.clone(), owners });
        }
    }
    leaves
}

fn collect(spec: &Types, resolved: &Types, path: &str, group: &str, owner: &str, leaves: &mut Vec<Leaf>) {
    for (field, type_) in &spec[owner] {
        let path = format!("{path}.{field}");
        let inner = type_.trim_start_matches("Option<").trim_start_matches("Vec<").trim_end_matches('>');
        if spec.get(inner).is_some_and(|fields| !fields.is_empty()) {
            collect(spec, resolved, &path, field, inner, leaves);
            continue;
        }
        let also = resolved.iter().filter(|(_, fields)| fields.iter().any(|(name, _)| name == field));
        let owners = also.map(|(name, _)| name).chain([&owner.to_owned()]).cloned().collect();
        leaves.push(Leaf { path, group: group.to_owned(), field: field.clone(), owners });
    }
}
