//! Builds the model and the roles that use it: the actor with its optimizer, the reference, and reward
//! models. With FSDP each rank reads, initializes or copies only its shard.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use rlt_api::resolved::{ModelSource, ResolvedSpec};
use rlt_api::spec::{HubSpec, Precision, VisionTraining};
use rlt_channel::ModelCommit;
use rlt_data::seeds::{SeedUse, seed};
use rlt_data::tokenizer::Tokenizer;
use rlt_decoder::{Decoder, LoadOptions, Weights};
use rlt_models::{ModelConfig, OutputHead};
use rlt_parallel::{ProcessGroups, RankError, Ranks, ShardedParameters};
use rlt_plan::HEAD_CHUNK_TOKENS;
use rlt_storage::run_folder::RunFolder;
use tch::{Device, Kind};

use super::hub_models::{self, RepoCommit};
use super::{PassRanks, optimizer_options};
use crate::roles::actor::{Actor, ActorOptions};
use crate::roles::offload::Offload;
use crate::roles::reference::{CopyOptions, FrozenPolicy, Reference};
use crate::roles::reward::{Policy, RewardModels, Sharing};
use crate::run::error::TrainError;

/// Opens the source of the weights and checks it against the model's configuration.
pub(super) fn weights(
    spec: &ResolvedSpec,
    model_dir: Option<&Path>,
    tokenizer: &Tokenizer,
) -> Result<Weights, TrainError> {
    let head = spec.algorithm.head();
    let weights = match (&spec.model.source, model_dir) {
        (ModelSource::Architecture(architecture), _) => {
            let (vocab_size, eos_ids) = (tokenizer.vocab_len(), tokenizer.eos_ids());
            let vision_tokens = architecture.vision.map(|_| tokenizer.vision_tokens()).transpose()?;
            let config = ModelConfig::from_architecture(architecture, vocab_size, eos_ids, vision_tokens)
                .map_err(TrainError::ModelConfig)?;
            Weights::random_init(&config.with_head(head), weights_seed(spec))
        }
        (_, Some(dir)) if head == OutputHead::Vocabulary => Weights::open(dir)?,
        (_, Some(dir)) => Weights::open_with_head(dir, head, weights_seed(spec))?,
        (_, None) => return Err(TrainError::NoTokenizer),
    };
    let weights = weights.with_adapters(spec.model.adapters.iter().map(Path::new))?;
    Ok(match head {
        OutputHead::Vocabulary => weights,
        // transformers reads a sequence classifier at the last token that is not padding.
        OutputHead::Sequence | OutputHead::Tokens => {
            weights.with_pad(tokenizer.pad_id().or(tokenizer.eos_ids().first().copied()))
        }
    })
}

fn weights_seed(spec: &ResolvedSpec) -> u64 {
    seed(spec.training.seed, SeedUse::Weights, &[])
}

/// Builds the actor and its optimizer. If any role is sharded or offloaded, the actor's weights are held as
/// FSDP units that are gathered one at a time, also with only one rank.
pub(super) fn actor(
    spec: &ResolvedSpec,
    weights: &Weights,
    device: Device,
    pass_ranks: &PassRanks,
    folder: &RunFolder,
) -> Result<Actor, TrainError> {
    let ranks = &pass_ranks.updates;
    let training = &spec.training;
    let offload = Offload::new(training.offload, folder.root());
    let by_unit = spec.workers.mesh.is_any_sharded() || training.is_any_offloaded();
    let decoder = decoder(spec, weights, device, by_unit)?;
    let shards = by_unit.then(|| shards(spec, weights, &decoder, ranks, &offload)).transpose()?;
    let trained =
        shards.as_ref().map_or_else(|| decoder.trainable_parameters(), ShardedParameters::local_shards);
    let optimizer = offload.optimizer(trained, optimizer_options(spec))?;
    let options = ActorOptions {
        temperature: if spec.algorithm.samples() { spec.rollout.temperature } else { 1.0 },
        head_chunk_tokens: HEAD_CHUNK_TOKENS as usize,
        activation_checkpointing: training.activation_checkpointing.unwrap_or(false),
        max_grad_norm: training.max_grad_norm,
    };
    let actor =
        Actor::new(decoder, optimizer, options, ranks.clone()).scoring_by(pass_ranks.logprobs.clone());
    let actor = actor.scoring_reference_by(pass_ranks.reference.clone());
    let actor = actor.with_router_loss(Some(training.router_aux_loss_coef));
    let actor = match shards {
        Some(shards) => actor.with_shards(shards),
        None => actor,
    };
    let actor = match offload.activations() {
        Some(folder) => actor.with_offloaded_inputs(folder.to_owned()),
        None => actor,
    };
    for (ranks, field) in pass_ranks.of_different_degrees() {
        actor.check_sequence_parallel(ranks, field)?;
    }
    Ok(actor)
}

/// Builds the full policy of a job on the CPU, for a checkpoint to be read into. The job's compute dtype is
/// that in which the checkpoint was trained.
pub(crate) fn whole_policy(
    spec: &ResolvedSpec,
    model_dir: Option<&Path>,
    tokenizer: &Tokenizer,
) -> Result<Decoder, TrainError> {
    let weights = weights(spec, model_dir, tokenizer)?;
    let weights = weights.quantized(spec.model.quantization.as_ref(), spec.training.precision)?;
    decoder(spec, &weights, Device::Cpu, false)
}

/// Builds the decoder with its adapter. If `by_unit` is set, it gets the shapes of the weights without
/// values, except for a frozen vision tower.
fn decoder(
    spec: &ResolvedSpec,
    weights: &Weights,
    device: Device,
    by_unit: bool,
) -> Result<Decoder, TrainError> {
    let (compute, trainable) = (compute_kind(spec), spec.model.lora.is_none());
    // Trained weights have fp32 masters. Weights below an adapter never change, so they are stored in the
    // compute dtype, which spares a cast at each use.
    let param_dtype = if trainable { Kind::Float } else { compute };
    let options = LoadOptions { device, param_dtype, compute, trainable };
    let mut decoder = match by_unit {
        true => Decoder::meta(weights.config(), &options)?,
        false => Decoder::from_weights(weights, &options)?,
    };
    match (spec.model.vision_tower, by_unit) {
        (VisionTraining::Trained, true) => decoder.meta_vision(),
        (VisionTraining::Trained, false) => decoder.train_vision(),
        (VisionTraining::Frozen, true) => decoder.read_vision(weights)?,
        (VisionTraining::Frozen, false) => {}
    }
    if let Some(lora) = &spec.model.lora {
        let seed = weights_seed(spec);
        match by_unit {
            true => decoder.attach_lora_meta(lora, seed)?,
            false => decoder.attach_lora_spec(lora, seed)?,
        }
    }
    Ok(decoder)
}

/// Returns the compute dtype of the models.
fn compute_kind(spec: &ResolvedSpec) -> Kind {
    kind_of(spec.training.precision)
}

/// Returns the tensor dtype of a precision; `Auto` has been resolved by then.
pub(super) fn kind_of(precision: Precision) -> Kind {
    match precision {
        Precision::Auto | Precision::Fp32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
        Precision::Fp16 => Kind::Half,
    }
}

/// Creates this rank's shards of a decoder that has shapes only, and fills them from `weights`.
fn shards(
    spec: &ResolvedSpec,
    weights: &Weights,
    decoder: &Decoder,
    ranks: &Ranks,
    offload: &Offload,
) -> Result<ShardedParameters, TrainError> {
    let ranks = Rc::new(ranks.on_mesh(spec.workers.mesh.dp_shard as usize)?);
    let unsharded_layers = spec.training.layers_kept_unsharded(decoder.layers().len());
    let shards = ShardedParameters::new(decoder, ranks, offload.parameters())?;
    let shards = shards.keeping_unsharded(unsharded_layers);
    shards.read(weights)?;
    if spec.model.lora.as_ref().is_some_and(|lora| lora.adapter_path.is_none()) {
        shards.start_adapter(decoder, |name| name)?;
    }
    Ok(shards)
}

/// Builds the reference that the algorithm needs. With LoRA it is the base of the adapter. Otherwise it is a
/// copy of the loaded model, made before a checkpoint overwrites the actor, or after the cold start.
pub(super) fn reference(
    spec: &ResolvedSpec,
    actor: &Actor,
    folder: &RunFolder,
    meshes: &RoleMeshes,
) -> Result<Reference, TrainError> {
    Ok(match (spec.algorithm.reads_reference(), &spec.model.lora, &spec.algorithm.cold_start) {
        (false, _, _) => Reference::None,
        (true, Some(_), _) => Reference::AdapterOff,
        (true, None, Some(_)) => Reference::Frozen(None),
        (true, None, None) => {
            let copy_options = reference_copy_options(spec, folder, meshes);
            Reference::Frozen(Some(Box::new(FrozenPolicy::copy_of(actor, &copy_options)?)))
        }
    })
}

/// Options for the copy of a frozen reference: dtype, mesh, master weights and offloading.
pub(super) fn reference_copy_options(
    spec: &ResolvedSpec,
    folder: &RunFolder,
    meshes: &RoleMeshes,
) -> CopyOptions {
    let compute = Some(kind_of(spec.training.reference_precision()));
    let mesh = meshes.reference.clone();
    let keeps_master = spec.algorithm.reference_sync.is_some();
    let is_offloaded = spec.training.reference_is_offloaded();
    CopyOptions { compute, mesh, keeps_master, ..CopyOptions::in_folder(folder.root(), is_offloaded) }
}

/// FSDP meshes of the roles other than the actor; `None` where every rank holds the full role. They are
/// listed by role, because each may have a degree of its own.
pub(super) struct RoleMeshes {
    pub(super) reference: Option<Rc<ProcessGroups>>,
    pub(super) critic: Option<Rc<ProcessGroups>>,
    reward_models: Option<Rc<ProcessGroups>>,
}

impl RoleMeshes {
    /// Creates the meshes. Roles with the same sharding degree share one, the actor's included. Collective.
    pub(super) fn of(spec: &ResolvedSpec, actor: &Actor) -> Result<Self, RankError> {
        let mut known: Vec<Rc<ProcessGroups>> =
            actor.learner.shards().map(ShardedParameters::ranks).into_iter().collect();
        let mut of_degree = |degree: u32| -> Result<Option<Rc<ProcessGroups>>, RankError> {
            if known.is_empty() {
                return Ok(None);
            }
            let same = known.iter().find(|mesh| mesh.dp_shard() == degree as usize).map(Rc::clone);
            if same.is_none() {
                known.push(Rc::new(actor.learner.ranks().on_mesh(degree as usize)?));
            }
            Ok(same.or_else(|| known.last().map(Rc::clone)))
        };
        let mesh = &spec.workers.mesh;
        Ok(Self {
            reference: of_degree(mesh.dp_shard_of_reference())?,
            critic: of_degree(mesh.dp_shard_of_critic())?,
            reward_models: match actor.learner.ranks().tp_group() {
                None => of_degree(mesh.dp_shard_of_reward_models())?,
                // Each rank scores different samples, so reward models are sharded over all ranks, without
                // sequence-parallel groups. Where `ep` does not divide their degree, a rank has all experts.
                Some(_) => {
                    let degree = mesh.dp_shard_of_reward_models();
                    let ep = if degree.is_multiple_of(mesh.ep) { mesh.ep } else { 1 };
                    let all = actor.learner.ranks().world().with_expert_parallel(ep as usize);
                    Some(Rc::new(all.on_mesh(degree as usize)?))
                }
            },
        })
    }
}

/// Returns the folders of the reward models. The leader downloads those of the hub; the other ranks use the
/// cache. Collective.
pub(super) fn reward_model_folders(
    spec: &ResolvedSpec,
    ranks: &Ranks,
    folder: &RunFolder,
) -> Result<Vec<PathBuf>, TrainError> {
    let functions = &spec.rewards.functions;
    if !RewardModels::is_any_on_hub(functions) {
        return Ok(RewardModels::folders(functions)?);
    }
    ranks.leader_first(|| {
        let folders = RewardModels::folders(&hub_models::pinned(spec, folder.root())?.rewards.functions)?;
        if ranks.is_leader() {
            hub_models::record_judges(folder, spec, &folders)?;
        }
        Ok(folders)
    })
}

/// Returns the commits of the models from the hub. `reward_folders` are the folders of the reward functions
/// that have a model, in the order of the manifest.
pub(super) fn commits(
    spec: &ResolvedSpec,
    model_dir: Option<&Path>,
    reward_folders: &[PathBuf],
) -> Vec<ModelCommit> {
    let commit = |field: String, hub: &HubSpec, dir: &Path| {
        let RepoCommit { repo, commit } = RepoCommit::of(hub, dir)?;
        Some(ModelCommit { field, repo, commit })
    };
    let of_policy = match (&spec.model.source, model_dir) {
        (ModelSource::Hub(hub), Some(dir)) => commit("spec.model.hub".to_owned(), hub, dir),
        _ => None,
    };
    let judged = spec.rewards.functions.iter().filter_map(|one| Some((&one.name, one.model.as_ref()?)));
    let of_rewards = judged.zip(reward_folders).filter_map(|((name, model), dir)| {
        commit(format!("spec.rewards.functions[{name}].model.hub"), model.hub.as_ref()?, dir)
    });
    of_policy.into_iter().chain(of_rewards).collect()
}

/// Loads the reward models, frozen, in the dtype of their role, and sharded if the actor is.
pub(super) fn reward_models(
    spec: &ResolvedSpec,
    folders: &[PathBuf],
    tokenizer: &Tokenizer,
    actor: &Actor,
    meshes: &RoleMeshes,
    folder: &RunFolder,
) -> Result<RewardModels, TrainError> {
    let longest_sequence = spec.max_sequence_tokens() as usize;
    let policy = Policy { tokenizer, longest_sequence };
    let numbers = kind_of(spec.training.reward_model_precision());
    let device = actor.learner.decoder().device();
    let options = LoadOptions { device, param_dtype: numbers, compute: numbers, trainable: false };
    // Every rank scores full sequences, even if it shares the tokens of other passes.
    let max_tokens = (spec.training.reward_model_forward_tokens() as usize).max(longest_sequence);
    let offload_to = spec.training.reward_models_are_offloaded().then_some(folder.root());
    let sharing = meshes.reward_models.clone().map(|mesh| Sharing { mesh, offload_to });
    let all = actor.learner.ranks().world();
    Ok(RewardModels::load(&spec.rewards.functions, folders, policy, max_tokens, &options, &all, sharing)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_named_with_the_field_of_its_model() {
        let text = r#"
apiVersion: rltraining.dev/v1alpha1
kind: RLTrainingJob
metadata: {name: hub}
spec:
  model: {hub: {repo: owner/policy}}
  data: {train: [a.jsonl]}
  rewards:
    functions:
      - {name: exact, kind: Exact}
      - {name: near, kind: Model, model: {path: /models/judge}}
      - {name: far, kind: Model, model: {hub: {repo: owner/judge}}}
  algorithm: {kind: GRPO}
  training: {steps: 1}
"#;
        let job = rlt_api::validate(text).unwrap();
        let folders = ["/models/judge", "/hub/models--owner--judge/snapshots/b"].map(PathBuf::from);
        let policy = Path::new("/hub/models--owner--policy/snapshots/a");
        let commits = commits(job.spec(), Some(policy), &folders);
        let fields: Vec<_> = commits.iter().map(|one| (&*one.field, &*one.repo, &*one.commit)).collect();
        let judge = ("spec.rewards.functions[far].model.hub", "owner/judge", "b");
        assert_eq!(fields, [("spec.model.hub", "owner/policy", "a"), judge]);
    }
}
