//! The critic: a separate decoder with a value head, which predicts the future reward at every token.
//!
//! ```text
//! MicroBatch -> forward (tape) -> hidden of predicting positions -> value head: one number each
//!     -> value loss (rlt-core) -> its derivative -> hidden and head gradients -> backward
//! ```
//! A token's value is that of the state in which it was chosen, so it is read at the position that predicts
//! the token. Returns are computed in `rlt-core`. The critic is a [`Learner`], which has the loop over
//! micro-batches and updates, with the loss in `value_loss`.
//!
//! Legend of shapes: d hidden size.

mod learn;
mod role;
mod value_loss;

use std::path::Path;
use std::rc::Rc;

use rlt_api::spec::{CriticSpec, LoraSpec};
use rlt_core::batch::Batch;
use rlt_decoder::{Adapter, Decoder, LoraError, NamedTensors};
use rlt_parallel::{ProcessGroups, RankError, Ranks, ShardedParameters};
use rlt_storage::checkpoint::{Checkpoint, CheckpointError};
use tch::{Kind, Tensor};

pub use self::learn::{CriticError, CriticReport, value_metrics};
pub(crate) use self::role::CriticPlan;
pub use self::role::CriticRole;
use self::value_loss::values_of;
use crate::roles::actor::Actor;
use crate::roles::error::StepFault;
use crate::roles::learner::scoring::{Scoring, TokenValues};
use crate::roles::learner::{Learner, LearnerError, LearnerOptions};
use crate::roles::offload::Offload;
use crate::roles::optim::{AdamWOptions, OptimError};

/// Prefix of the names of the critic's tensors in a checkpoint.
const PREFIX: &str = "critic.";
const VALUE_HEAD: &str = "critic.value_head.weight";

/// Settings of a critic's passes and updates, which are fixed for a run.
#[derive(Clone, Debug)]
pub struct CriticOptions {
    /// The manifest's settings.
    pub critic: CriticSpec,
    /// Settings of the optimizer.
    pub optimizer: AdamWOptions,
    /// Whether only layer inputs are kept for the backward pass.
    pub activation_checkpointing: bool,
    /// Largest global norm of a gradient, to which larger ones are clipped.
    pub max_grad_norm: f64,
    /// Offload of the critic's parameters, moments and activations.
    pub offload: Offload,
    /// Compute dtype; `None` means the actor's, which a critic that is an adapter always has.
    pub compute: Option<Kind>,
    /// Ranks over which the critic is sharded, if the actor is; `None` means the actor's, which a critic that
    /// is an adapter always has.
    pub mesh: Option<Rc<ProcessGroups>>,
}

impl Default for CriticOptions {
    /// Returns the defaults of a manifest and of [`AdamWOptions`]; dtype and mesh are the actor's.
    fn default() -> Self {
        Self {
            critic: CriticSpec::default(),
            optimizer: AdamWOptions::default(),
            activation_checkpointing: false,
            max_grad_norm: 1.0,
            offload: Offload::default(),
            compute: None,
            mesh: None,
        }
    }
}

/// A critic could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CriticSetupError {
    /// The critic's adapter could not be attached.
    #[error("failed to attach the critic's adapter")]
    Adapter(#[from] LoraError),
    /// The critic's optimizer could not be made.
    #[error("failed to prepare the critic's optimizer")]
    Optimizer(#[from] OptimError),
    /// The critic could not be sharded.
    #[error("failed to shard the critic")]
    Ranks(#[from] RankError),
}

impl StepFault for CriticSetupError {
    fn act(&self) -> &'static str {
        "failed to create the critic"
    }
}

/// A value function with its optimizer.
#[derive(Debug)]
pub struct Critic {
    /// The decoder, with this rank's shards of backbone and head if the critic is sharded.
    pub(crate) learner: Learner,
    /// The value head, f32 `[d]`.
    head_d: Tensor,
    options: CriticOptions,
}

impl Critic {
    /// Creates a critic with the weights of `actor` and a value head of zeros, so that its first values are
    /// 0. All of its weights are trained, or with `lora` only an adapter, initialized from `seed`, on the
    /// actor's base weights. If the actor is sharded, so is the critic, and this call is collective. `ranks`
    /// are the actor's, with the critic's sequence-parallel groups.
    ///
    /// # Errors
    /// [`CriticSetupError`].
    pub fn from_actor(
        actor: &Actor,
        lora: Option<(&LoraSpec, u64)>,
        options: CriticOptions,
        ranks: Ranks,
    ) -> Result<Self, CriticSetupError> {
        let compute = options.compute.unwrap_or_else(|| actor.learner.decoder().compute_kind());
        let decoder = backbone(actor.learner.decoder(), lora, actor.learner.shards().is_some(), compute)?;
        let hidden = decoder.config.hidden_size as i64;
        let head_d = Tensor::zeros([hidden], (Kind::Float, decoder.device())).set_requires_grad(true);
        let shards =
            actor.learner.shards().map(|base| shards(&decoder, &head_d, base, lora.is_some(), &options));
        let shards = shards.transpose()?;
        if let (Some(shards), Some((LoraSpec { adapter_path: None, .. }, _))) = (&shards, lora) {
            shards.start_adapter(&decoder, |name| name.strip_prefix(PREFIX).unwrap_or(name))?;
        }
        let trained = match &shards {
            Some(shards) => shards.local_shards(),
            None => named(decoder.trainable_parameters().into_iter().chain([head(&head_d)])).collect(),
        };
        let optimizer = options.offload.optimizer(trained, options.optimizer)?;
        let CriticOptions { activation_checkpointing, max_grad_norm, .. } = options;
        let passes = LearnerOptions { activation_checkpointing, max_grad_norm };
        let learner = Learner::new(decoder, optimizer, passes, ranks)
            .with_shards(shards)
            .with_offloaded_inputs(options.offload.activations().map(Path::to_owned));
        Ok(Self { learner, head_d, options })
    }

    /// Returns the number of first steps in which only the critic learns.
    pub fn warmup_steps(&self) -> u64 {
        self.options.critic.warmup_steps.unwrap_or_default().into()
    }

    /// Computes the value of every completion token of `batch`, in micro-batches of at most `max_tokens`
    /// tokens.
    ///
    /// # Errors
    /// If a sequence alone is longer than `max_tokens`, or a rank is lost.
    pub fn values(&self, batch: &Batch, max_tokens: usize) -> Result<Vec<f64>, LearnerError> {
        let (model, ranks) = (self.learner.model(), self.learner.ranks());
        let scoring = Scoring { model, ranks, adapter: Adapter::On, routes: None };
        let [values] = scoring
            .batch(batch, max_tokens, |hidden_cd, _| TokenValues::of(&values_of(hidden_cd, &self.head_d)))?;
        Ok(values)
    }

    /// Returns this rank's shards of the critic's tensors for a checkpoint, or all tensors without sharding.
    /// The tensors share memory with the critic, or are in offload storage.
    ///
    /// # Errors
    /// Offloaded moments cannot be read.
    pub fn state_tensors(&self) -> Result<Vec<(String, Tensor)>, rlt_torch::Error> {
        let optimizer = self.learner.optimizer();
        let state = optimizer.state_tensors()?;
        Ok(optimizer.parameters().into_iter().chain(state).collect())
    }

    /// Whether `checkpoint` holds a critic.
    pub fn is_in(checkpoint: &Checkpoint) -> bool {
        checkpoint.contains(VALUE_HEAD)
    }

    /// Loads the critic from a checkpoint, saved by any number of ranks.
    ///
    /// # Errors
    /// The checkpoint lacks a tensor, or one has another shape.
    pub fn load(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.learner.train_state().restore(checkpoint)
    }
}

/// Returns the actor's decoder without its head: with its values, or as meta tensors if the decoder is
/// sharded.
fn backbone(
    actor: &Decoder,
    lora: Option<(&LoraSpec, u64)>,
    is_shared: bool,
    compute: Kind,
) -> Result<Decoder, CriticSetupError> {
    let Some((lora, seed)) = lora else {
        return Ok(if is_shared { actor.backbone_meta(compute) } else { actor.trained_backbone(compute) });
    };
    let mut backbone = actor.shared_backbone();
    match is_shared {
        true => backbone.attach_lora_meta(lora, seed)?,
        false => backbone.attach_lora_spec(lora, seed)?,
    }
    Ok(backbone)
}

/// Creates this rank's shards of a backbone and its head, with the actor's values. A critic that is an
/// adapter shares the actor's frozen shards.
fn shards(
    backbone: &Decoder,
    head_d: &Tensor,
    base: &ShardedParameters,
    has_adapter: bool,
    options: &CriticOptions,
) -> Result<ShardedParameters, CriticSetupError> {
    let (layers, mut outer) = backbone.parameters_by_layer();
    outer.push(head(head_d));
    let trained =
        |part: NamedTensors| named(part.into_iter().filter(|(_, leaf)| leaf.requires_grad())).collect();
    let (layers, outer) = (layers.into_iter().map(trained).collect(), trained(outer));
    let offload_to = options.offload.parameters();
    if has_adapter {
        let sharded = ShardedParameters::with_frozen_of(base, backbone, layers, outer, offload_to)?;
        return Ok(sharded.keeping_unsharded(base.unsharded_layers()));
    }
    let mesh = options.mesh.clone().unwrap_or_else(|| base.ranks());
    let own = ShardedParameters::from_units(backbone, layers, outer, mesh, offload_to)?;
    let own = own.keeping_unsharded(base.unsharded_layers());
    own.copy_from(base, |name| name.strip_prefix(PREFIX).unwrap_or(name))?;
    Ok(own)
}

fn head(head_d: &Tensor) -> (String, Tensor) {
    ("value_head.weight".to_owned(), head_d.shallow_clone())
}

/// Renames parameters to the critic's names.
fn named(parameters: impl IntoIterator<Item = (String, Tensor)>) -> impl Iterator<Item = (String, Tensor)> {
    parameters.into_iter().map(|(name, tensor)| (format!("{PREFIX}{name}"), tensor))
}
