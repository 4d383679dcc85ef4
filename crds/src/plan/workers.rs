//! Workers: how many, how their ranks are laid out, whether a model fits that layout, and the variables that
//! give a process its rank.

use serde::Serialize;

use super::memory;
use super::model_config::{Family, ModelConfig, ModelConfigError, OutputHead, QkNorm};
use super::weight_sync::unmerged_refusal;
use crate::resolved::ResolvedSpec;
use crate::spec::{Device, LoraSpec, MeshSpec, WorkersSpec};

/// The port of the rendezvous store on the first worker.
pub const RENDEZVOUS_PORT: u16 = 29500;

/// How ranks share the work: the product of the axes is the number of ranks. Rank
/// `(r * dp_shard + d) * sp + s` has the places r, d and s along them, so that neighbours share tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mesh {
    /// Copies of the sharded model, each with data of its own.
    pub dp_replicate: u32,
    /// Ranks over which parameters, gradients and optimizer are sharded, each with data of its own.
    pub dp_shard: u32,
    /// Ranks that share the tokens of one micro-batch and otherwise hold the same.
    pub sp: u32,
    /// Neighbours that compute the same tokens with different parts of every weight.
    pub tp: u32,
    /// Neighbours that have different experts, of the ranks that hold a copy of the model together.
    pub ep: u32,
    /// Neighbours that share the tokens of log-probs, along which axes ever.
    pub logprob_sp: u32,
    /// Neighbours that share the tokens of the reference's log-probs.
    pub reference_sp: u32,
    /// Neighbours that share the tokens of the critic.
    pub critic_sp: u32,
    /// Ranks of a rollout tensor-parallel group, which share one copy of the packed weights.
    pub rollout_tp: u32,
}

impl Mesh {
    /// The mesh of a valid job.
    pub(super) fn new(workers: &WorkersSpec) -> Self {
        let MeshSpec { dp_shard, sp, tp, ep, rollout_tp, .. } = workers.mesh;
        Self {
            dp_replicate: workers.num_ranks() / (dp_shard * sp * tp),
            dp_shard,
            sp,
            tp,
            ep,
            logprob_sp: workers.mesh.sp_of_logprobs(),
            reference_sp: workers.mesh.sp_of_reference(),
            critic_sp: workers.mesh.sp_of_critic(),
            rollout_tp,
        }
    }

    /// The axes whose exchanges leave a worker of `ranks_per_worker` ranks, by their fields, with their
    /// degrees: those of every layer and token, which are slow across machines. Neighbours stay in one worker
    /// where the degree divides the number of its ranks.
    pub fn across_workers(&self, ranks_per_worker: u32) -> Vec<(&'static str, u32)> {
        let axes = [
            ("mesh.sp", self.sp),
            ("mesh.ep", self.ep),
            ("mesh.logprobSp", self.logprob_sp),
            ("mesh.referenceSp", self.reference_sp),
            ("mesh.criticSp", self.critic_sp),
            ("mesh.tp", self.tp),
            ("mesh.rolloutTp", self.rollout_tp),
        ];
        axes.into_iter().filter(|(_, degree)| !ranks_per_worker.is_multiple_of(*degree)).collect()
    }

    /// Number of ranks.
    pub fn world_size(&self) -> u32 {
        self.dp_replicate * self.dp_shard * self.sp * self.tp
    }
}

/// Why a model cannot be trained as the job asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// More ranks share a tensor or layer of the model than it can be sharded over.
    #[error("{field}: {degree} ranks cannot share {shared}: expected {expected}")]
    Degree {
        /// The field that asks for it.
        field: &'static str,
        /// Ranks that would share it.
        degree: u32,
        /// The part of the model that they would share, with its sizes.
        shared: String,
        /// The degrees that fit.
        expected: String,
    },
    /// Ranks exchange rows of experts on CPUs alone.
    #[error(
        "spec.workers.mesh.ep: ranks with GPUs do not exchange rows of experts yet: expected 1 on GPUs, got {ep}"
    )]
    ExpertParallelOnGpu {
        /// Ranks that would have different experts.
        ep: u32,
    },
    /// Some parts of models run on CPUs alone.
    #[error(
        "spec.workers.device: {family:?} has {part}, which have no kernels for GPUs yet: expected Cpu, got Cuda"
    )]
    PartOnGpu {
        /// The model's family.
        family: Family,
        /// Which part.
        part: &'static str,
    },
    /// transformers could not load what would be exported.
    #[error(
        "spec.algorithm: {family:?} has no classifiers in transformers, as which a reward model is exported: \
         expected an algorithm that trains a policy, got a reward model"
    )]
    NoClassifier {
        /// The model's family.
        family: Family,
    },
    /// Settings that quantized weights do not support.
    #[error("{field}: the model's linear layers have 4 or 8 bits: expected {expected}, got {got}")]
    Quantized {
        /// The field that asks for more.
        field: &'static str,
        /// The supported values.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The rollout cannot have the adapter beside its base.
    #[error(
        "spec.model.lora.merge: with the adapter beside its base the rollout does not sample from {part}: \
         expected true, got false"
    )]
    UnmergedAdapter {
        /// Which part of the job.
        part: &'static str,
    },
    /// More layers are to stay gathered than the model has.
    #[error(
        "spec.training.unshardedLayers: the model has {num_layers} layers: expected 1 to {num_layers}, got {got}"
    )]
    UnshardedLayers {
        /// How many are asked for.
        got: u32,
        /// How many there are.
        num_layers: usize,
    },
    /// Settings that models with a vision tower do not support.
    #[error("{field}: {family:?} has a vision tower: expected {expected}, got {got}")]
    Vision {
        /// The field that asks for more.
        field: &'static str,
        /// The model's family.
        family: Family,
        /// The supported values.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The job and the model's files disagree on its quantization.
    #[error("spec.model.quantization: {0}")]
    Quantization(ModelConfigError),
    /// A loss of routers is asked for where there are none.
    #[error(
        "spec.training.routerAuxLossCoef: {family:?} has no experts whose router it could balance: expected 0, got \
         {got}"
    )]
    NoRouters {
        /// The model's family.
        family: Family,
        /// The coefficient, as text.
        got: String,
    },
    /// Sequences would be longer than the model's rotary embedding has one set of frequencies for.
    #[error(
        "spec.data.maxPromptTokens and spec.rollout.maxCompletionTokens: sequences of {got} tokens need \
         the long factors of the model's LongRoPE, which are not supported: expected at most {longest} \
         together, or spec.rollout.maxModelTokens: {longest}"
    )]
    TooLong {
        /// Tokens of the longest sequence.
        got: u64,
        /// As many as have the short factors.
        longest: u64,
    },
}

/// Checks that the degrees of the job's mesh divide the model's heads, and with `rolloutTp` its layers, and
/// that its rotary embedding covers the job's longest sequence.
///
/// # Errors
/// [`Misfit`], with the values that fit.
pub fn check_model(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let (mesh, heads) = (&spec.workers.mesh, (model.num_heads as u64, model.num_kv_heads as u64));
    let of_heads = [
        ("spec.workers.mesh.sp", mesh.sp),
        ("spec.workers.mesh.logprobSp", mesh.sp_of_logprobs()),
        ("spec.workers.mesh.referenceSp", mesh.sp_of_reference()),
        ("spec.workers.mesh.criticSp", mesh.sp_of_critic()),
    ];
    check_tensor_parallel(spec, model)?;
    // Those of a rank.
    let own = (heads.0 / u64::from(mesh.tp), heads.1 / u64::from(mesh.tp));
    if let Some((field, degree)) = of_heads.into_iter().find(|(_, sp)| !divides_heads(*sp, own)) {
        let of_tp =
            if mesh.tp == 1 { String::new() } else { format!(", of which each rank has 1 / {}", mesh.tp) };
        let shared = format!("the heads of a model with {} query and {} key heads{of_tp}", heads.0, heads.1);
        let expected = legal_degrees(own, |sp| divides_heads(sp, own));
        return Err(Misfit::Degree { field, degree, shared, expected });
    }
    if let Some((field, degree)) = of_heads.into_iter().find(|(_, sp)| *sp > 1 && model.attention_sinks) {
        let shared = "the attention of a model with a sink for each head".to_owned();
        return Err(Misfit::Degree { field, degree, shared, expected: "1".to_owned() });
    }
    check_experts(mesh.ep, model)?;
    check_device(spec.workers.device, mesh.ep, model)?;
    check_unsharded_layers(spec, model)?;
    check_quantization(spec, model)?;
    check_unmerged(spec, model)?;
    check_vision(spec, model)?;
    let coefficient = spec.training.router_aux_loss_coef;
    if coefficient != 0.0 && model.experts.is_none() {
        return Err(Misfit::NoRouters { family: model.family, got: coefficient.to_string() });
    }
    if spec.algorithm.head() != OutputHead::Vocabulary && !model.family.has_classifier() {
        return Err(Misfit::NoClassifier { family: model.family });
    }
    let field = "spec.workers.mesh.rolloutTp";
    let unshared = match model.qk_norm {
        _ if model.attention_sinks => Some("has a sink for each head and experts with biases"),
        QkNorm::None | QkNorm::Head => None,
        QkNorm::AllHeads => Some("normalises queries and keys over all heads"),
        QkNorm::EachHead => Some("normalises each head of queries and keys by weights of its own"),
    };
    if let Some(what) = unshared.filter(|_| mesh.rollout_tp > 1) {
        let shared = format!("the layers of a model that {what}");
        return Err(Misfit::Degree { field, degree: mesh.rollout_tp, shared, expected: "1".to_owned() });
    }
    let width = tp_width(model);
    if !tp_divides_layers(mesh.rollout_tp, heads, width) {
        let shared = format!(
            "the layers of a model with {} query and {} key heads and a feed-forward block {width} wide",
            heads.0, heads.1
        );
        let expected = legal_degrees(heads, |tp| tp_divides_layers(tp, heads, width));
        return Err(Misfit::Degree { field, degree: mesh.rollout_tp, shared, expected });
    }
    let got = spec.max_sequence_tokens();
    match model.longest_sequence().filter(|longest| got > *longest) {
        Some(longest) => Err(Misfit::TooLong { got, longest }),
        None => Ok(()),
    }
}

/// Checks that a model can be computed on a device, `Auto` being none yet, with its experts on `ep` ranks.
///
/// # Errors
/// [`Misfit::ExpertParallelOnGpu`], [`Misfit::Vision`] and [`Misfit::PartOnGpu`].
pub fn check_device(device: Device, ep: u32, model: &ModelConfig) -> Result<(), Misfit> {
    if let (Device::Cuda, Some(part)) = (device, model.cpu_part()) {
        return Err(Misfit::PartOnGpu { family: model.family, part });
    }
    match device {
        Device::Cuda if ep > 1 => Err(Misfit::ExpertParallelOnGpu { ep }),
        Device::Cuda if model.vision.is_some() => Err(Misfit::Vision {
            field: "spec.workers.device",
            family: model.family,
            expected: "Cpu, as there are no kernels of its positions for GPUs yet",
            got: "Cuda".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Checks that `tp` ranks can have equal parts of every weight of a layer, and some of the vocabulary each.
fn check_tensor_parallel(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let (field, tp) = ("spec.workers.mesh.tp", spec.workers.mesh.tp);
    let uncut = match model.qk_norm {
        _ if tp == 1 => return Ok(()),
        _ if model.experts.is_some() => Some("with experts, which ep distributes"),
        _ if model.latent.is_some() => Some("with latent attention"),
        _ if model.vision.is_some() => Some("with a vision tower"),
        _ if model.quantization.is_some() => Some("with quantized weights"),
        _ if model.attention_sinks => Some("with a sink for each head"),
        QkNorm::None | QkNorm::Head => None,
        QkNorm::AllHeads => Some("that normalises queries and keys over all heads"),
        QkNorm::EachHead => Some("that normalises each head of queries and keys by weights of its own"),
    };
    let misfit =
        |shared: String, expected: String| Err(Misfit::Degree { field, degree: tp, shared, expected });
    if let Some(what) = uncut {
        return misfit(format!("the weights of a model {what}"), "1".to_owned());
    }
    let (heads, width) =
        ((model.num_heads as u64, model.num_kv_heads as u64), model.intermediate_size as u64);
    if !tp_divides_weights(tp, heads, width) {
        let shared = format!(
            "the layers of a model with {} query and {} key heads and a feed-forward block {width} wide",
            heads.0, heads.1
        );
        return misfit(shared, legal_degrees(heads, |tp| tp_divides_weights(tp, heads, width)));
    }
    // The first ranks have as many tokens as the largest; the last one must have some.
    let has_tokens = |tp: u32| {
        let tp = tp as usize;
        (tp - 1) * model.vocab_size.div_ceil(tp) < model.vocab_size
    };
    if !has_tokens(tp) {
        let fits = |tp: u32| has_tokens(tp) && tp_divides_weights(tp, heads, width);
        return misfit(format!("a vocabulary of {} tokens", model.vocab_size), legal_degrees(heads, fits));
    }
    Ok(())
}

/// Checks that the model has experts that `ep` ranks can have equally many of.
fn check_experts(ep: u32, model: &ModelConfig) -> Result<(), Misfit> {
    let num_experts = model.experts.as_ref().map_or(0, |experts| experts.num_experts as u64);
    if ep == 1 || (num_experts > 0 && num_experts.is_multiple_of(ep.into())) {
        return Ok(());
    }
    let (shared, expected) = match num_experts {
        0 => (format!("the experts of {:?}, which has none", model.family), "1".to_owned()),
        count => (
            format!("the {count} experts of a layer"),
            legal_degrees((count, count), |ep| count.is_multiple_of(ep.into())),
        ),
    };
    Err(Misfit::Degree { field: "spec.workers.mesh.ep", degree: ep, shared, expected })
}

/// Checks that there are as many layers as are to stay gathered.
fn check_unsharded_layers(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let num_layers = model.num_layers;
    match spec.training.unsharded_layers.filter(|layers| *layers as usize > num_layers) {
        Some(got) => Err(Misfit::UnshardedLayers { got, num_layers }),
        None => Ok(()),
    }
}

/// Checks that an adapter that is to stay beside its base can.
fn check_unmerged(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let lora = spec.model.lora.as_ref().filter(|lora| lora.merge == Some(false));
    let refusal = |lora: &LoraSpec| unmerged_refusal(lora.parts(), model, spec.workers.device);
    match lora.and_then(refusal) {
        Some(part) => Err(Misfit::UnmergedAdapter { part }),
        None => Ok(()),
    }
}

/// Checks the settings of models with a vision tower.
fn check_vision(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    if model.vision.is_none() {
        return Ok(());
    }
    let (mesh, family) = (&spec.workers.mesh, model.family);
    let not_shared = "1, as the tokens of images are not shared among ranks yet";
    let alone = "1, as each rank samples alone";
    let critic = memory::has_critic(spec).then(|| mesh.sp_of_critic());
    let degrees = [
        ("spec.workers.mesh.sp", mesh.sp, not_shared),
        ("spec.workers.mesh.logprobSp", mesh.sp_of_logprobs(), not_shared),
        ("spec.workers.mesh.referenceSp", mesh.sp_of_reference(), not_shared),
        ("spec.workers.mesh.criticSp", critic.unwrap_or(1), not_shared),
        ("spec.workers.mesh.rolloutTp", mesh.rollout_tp, alone),
    ];
    if let Some((field, degree, expected)) = degrees.into_iter().find(|(_, degree, _)| *degree > 1) {
        return Err(Misfit::Vision { field, family, expected, got: degree.to_string() });
    }
    let refused =
        |field, expected, got: &str| Misfit::Vision { field, family, expected, got: got.to_owned() };
    if spec.model.quantization.is_some() {
        return Err(refused("spec.model.quantization", "none", "a quantization"));
    }
    if spec.algorithm.head() != OutputHead::Vocabulary {
        let expected = "an algorithm that trains a policy, as reward models read text alone";
        return Err(refused("spec.algorithm", expected, "a reward model"));
    }
    Ok(())
}

/// Checks the settings of models with quantized weights, by the job or by the model's files.
fn check_quantization(spec: &ResolvedSpec, model: &ModelConfig) -> Result<(), Misfit> {
    let quantized = model.clone().with_quantization(spec.model.quantization.as_ref());
    if quantized.map_err(Misfit::Quantization)?.quantization.is_none() {
        return Ok(());
    }
    if spec.model.lora.is_none() {
        let (field, expected) = ("spec.model.lora", "an adapter, as such weights are frozen");
        return Err(Misfit::Quantized { field, expected, got: "none".to_owned() });
    }
    if spec.model.lora.as_ref().is_some_and(|lora| lora.dora) {
        let (field, expected) =
            ("spec.model.lora.dora", "false, as the rollout has no magnitudes beside codes");
        return Err(Misfit::Quantized { field, expected, got: "true".to_owned() });
    }
    if spec.model.lora.as_ref().is_some_and(|lora| lora.merge == Some(true)) {
        let (field, expected) = ("spec.model.lora.merge", "false, as the rollout folds nothing into codes");
        return Err(Misfit::Quantized { field, expected, got: "true".to_owned() });
    }
    let tp = spec.workers.mesh.rollout_tp;
    if tp > 1 {
        let (field, expected) = ("spec.workers.mesh.rolloutTp", "1, as each rank samples alone");
        return Err(Misfit::Quantized { field, expected, got: tp.to_string() });
    }
    Ok(())
}

/// The feed-forward width that `rolloutTp` must divide; with experts the greatest common divisor of their
/// width and of the shared block's.
fn tp_width(model: &ModelConfig) -> u64 {
    let dense = (0..model.num_layers).any(|layer_idx| model.experts_of(layer_idx).is_none());
    let experts = model.experts.as_ref();
    let widths = [
        dense.then_some(model.intermediate_size),
        experts.map(|experts| experts.intermediate_size),
        experts.and_then(|experts| experts.shared_intermediate_size),
    ];
    widths.into_iter().flatten().fold(0, |all, width| greatest_common_divisor(all, width as u64))
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

/// Whether each of `sp` ranks can have as many query heads as the others, with the key heads that these look
/// at.
pub(crate) fn divides_heads(sp: u32, (num_heads, num_kv_heads): (u64, u64)) -> bool {
    let sp = u64::from(sp);
    num_heads.is_multiple_of(sp) && (num_kv_heads.is_multiple_of(sp) || sp.is_multiple_of(num_kv_heads))
}

/// Whether each of `tp` ranks can have as wide a slice of every layer as the others: heads, and of the
/// feed-forward block's width.
pub(crate) fn tp_divides_layers(tp: u32, heads: (u64, u64), intermediate_size: u64) -> bool {
    divides_heads(tp, heads) && intermediate_size.is_multiple_of(tp.into())
}

/// Whether `tp` ranks that train together can have equal parts of every weight of a layer.
pub(crate) fn tp_divides_weights(tp: u32, heads: (u64, u64), intermediate_size: u64) -> bool {
    [heads.0, heads.1, intermediate_size].iter().all(|size| size.is_multiple_of(tp.into()))
}

/// Every degree up to the number of query heads that `fits`, as text.
pub(crate) fn legal_degrees((num_heads, _): (u64, u64), fits: impl Fn(u32) -> bool) -> String {
    let degrees = (1..=u32::try_from(num_heads).unwrap_or(u32::MAX)).filter(|degree| fits(*degree));
    format!("one of {}", degrees.map(|sp| sp.to_string()).collect::<Vec<_>>().join(", "))
}

/// The name of the group whose ranks train, which every job has and which is the first.
pub const TRAINER_GROUP: &str = "trainer";
/// The name of the group of hot spares, which have no ranks until they take those of a lost worker.
pub const SPARE_GROUP: &str = "spare";

/// Workers that are alike. The ranks of a group are a world of their own; spares have none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerGroup {
    /// Its name within the job.
    pub name: String,
    /// Name of the job, which names its workers.
    #[serde(skip)]
    job: String,
    /// Number of workers.
    pub num_workers: u32,
    /// Ranks of one worker, one for each of its devices.
    pub ranks_per_worker: u32,
    /// The device of each rank.
    pub device: Device,
}

/// A variable in a rank's environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EnvironmentVariable {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

impl WorkerGroup {
    pub(super) fn trainer(job: &str, workers: &WorkersSpec, device: Device) -> Self {
        Self {
            name: TRAINER_GROUP.into(),
            job: job.into(),
            num_workers: workers.count,
            ranks_per_worker: workers.ranks_per_worker,
            device,
        }
    }

    /// Pods like those of the training group that wait; `None` where the job asks for none.
    pub(super) fn spares(job: &str, workers: &WorkersSpec, device: Device) -> Option<Self> {
        let num_workers = workers.spares?;
        Some(Self { name: SPARE_GROUP.into(), num_workers, ..Self::trainer(job, workers, device) })
    }

    /// Whether its workers wait for the ranks of others.
    pub fn is_spare(&self) -> bool {
        self.name == SPARE_GROUP
    }

    /// Name of a worker, which is also its host name; workers count from 0.
    pub fn worker_name(&self, worker_idx: u32) -> String {
        format!("{}-{}-{worker_idx}", self.job, self.name)
    }

    /// Name of the service that gives the first worker an address.
    pub fn service_name(&self) -> String {
        format!("{}-{}", self.job, self.name)
    }

    /// The first rank of a worker.
    pub fn first_rank(&self, worker_idx: u32) -> u32 {
        worker_idx.saturating_mul(self.ranks_per_worker)
    }

    /// GPUs that a worker asks the cluster for.
    pub fn gpus_per_worker(&self) -> u32 {
        if self.device == Device::Cuda { self.ranks_per_worker } else { 0 }
    }

    /// The variables that give a process its rank, under the names of torchrun.
    ///
    /// `None` when there is no such rank.
    pub fn environment(&self, rank: u32) -> Option<Vec<EnvironmentVariable>> {
        if self.is_spare() {
            return None;
        }
        let world_size = self.num_workers * self.ranks_per_worker;
        let first = || format!("{}.{}", self.worker_name(0), self.service_name());
        let master = if self.num_workers == 1 { "localhost".into() } else { first() };
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", world_size.to_string()),
            ("LOCAL_RANK", rank.checked_rem(self.ranks_per_worker)?.to_string()),
            ("LOCAL_WORLD_SIZE", self.ranks_per_worker.to_string()),
            ("MASTER_ADDR", master),
            ("MASTER_PORT", RENDEZVOUS_PORT.to_string()),
        ];
        let variables = variables.map(|(name, value)| EnvironmentVariable { name, value });
        (rank < world_size).then(|| variables.into())
    }
}
