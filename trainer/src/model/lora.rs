//! Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) on a frozen decoder, compatible with PEFT.
//!
//! ```text
//! y = x W^T + scaling * (x A^T) B^T        A [rank, in], B [out, rank], both f32 and trainable
//! ```
//! With [`Adapter::Off`](super::Adapter) the same weights are the reference policy. B starts at zero (except
//! under `Orthogonal`), so the first step computes the base's values bit for bit. Names, matching rules,
//! initialisation and files are PEFT's.

mod adapter;
pub(super) mod dora;
mod experts;
pub(super) mod folded;
mod from_weights;
mod init;
mod loftq;
mod patterns;
mod resize;
mod serving;
mod targets;

use std::collections::BTreeMap;

use rlt_api::ExitCode;
use rlt_api::plan::model_config::{ModelConfig, ProjectionShape, TOWER};
use rlt_api::spec::{DropoutPosition, LoraInit, LoraSpec, VlmLora};
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};

use super::decoder::Decoder;
use super::error::ModelError;
use super::projection::{Linear, LoraPair};
use super::weights::is_label_head;
use adapter::CONFIG_FILE;
pub use adapter::{AdapterExport, BaseModel};
pub use patterns::Patterns;
pub use targets::ModuleMatch;

/// Shape, targets and initialisation of adapters.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// Rank of the update, where no pattern gives another one.
    pub rank: usize,
    /// Numerator of the scaling, where no pattern gives another one.
    pub alpha: f64,
    /// Scale by alpha / sqrt(rank) (rsLoRA, arXiv 2312.03732) instead of alpha / rank.
    pub rank_stabilized: bool,
    /// Parts of a vision-language model that get an adapter: text, vision or both.
    pub parts: VlmLora,
    /// Linear layers of these parts that get an adapter.
    pub targets: ModuleMatch,
    /// Parameters of experts and routers that get an adapter, full names or their ends after a dot.
    pub target_parameters: Vec<String>,
    /// Linear layers that get none although `targets` matches them.
    pub exclude: Option<ModuleMatch>,
    /// Probability with which an input of A, or an output of B, is dropped in a pass that has a dropout seed.
    pub dropout: f64,
    /// Initialisation of A and B.
    pub init: LoraInit,
    /// Ranks and alphas of single modules (PEFT's `rank_pattern` and `alpha_pattern`).
    pub patterns: Patterns,
    /// Whether magnitudes are trained apart from directions (DoRA).
    pub dora: bool,
    /// Whether dropout applies to the input of A or to the output of B.
    pub dropout_position: DropoutPosition,
    /// Ends of the names of modules of which all weights are trained, and saved with the adapter.
    pub modules_to_save: Vec<String>,
}

impl Default for LoraConfig {
    /// The configuration of a specification that sets no field.
    fn default() -> Self {
        Self::from_spec(&LoraSpec::default())
    }
}

/// An adapter could not be attached, read or written.
#[derive(Debug, thiserror::Error)]
pub enum LoraError {
    /// The rank is one that no adapter can have.
    #[error("attaching an adapter: expected {expected}, got rank {got}")]
    BadRank {
        /// The ranks that are accepted.
        expected: &'static str,
        /// The rank requested.
        got: usize,
    },
    /// A pattern is not a regular expression.
    #[error("attaching an adapter: parsing the pattern {pattern:?}")]
    BadPattern {
        /// The pattern as it was given.
        pattern: String,
        /// The parser's error.
        source: Box<fancy_regex::Error>,
    },
    /// A pattern of ranks or alphas matches no adapter, most often because of a typing error.
    #[error("attaching an adapter: {field}: the pattern {pattern:?} matches none of its modules")]
    UnusedPattern {
        /// The field that holds the pattern.
        field: &'static str,
        /// The pattern as it was given.
        pattern: String,
    },
    /// The targets match no linear layer.
    #[error(
        "attaching an adapter: no linear layer matches {targets} without {exclude}, the model has {available}"
    )]
    NoTarget {
        /// The requested targets.
        targets: String,
        /// The requested exclusions.
        exclude: String,
        /// Names of the linear layers inside a decoder layer.
        available: String,
    },
    /// A name in a list matches no module, most often because of a typing error.
    #[error(
        "attaching an adapter: the module name {name:?} matches no linear layer, the model has {available}"
    )]
    UnknownModule {
        /// The name as it was given.
        name: String,
        /// Names of the linear layers inside a decoder layer.
        available: String,
    },
    /// A target parameter is the name of no parameter of experts or routers.
    #[error(
        "attaching an adapter: targetParameters: {name:?} matches no parameter of experts, the model has {available}"
    )]
    UnknownParameter {
        /// The name as it was given.
        name: String,
        /// Names of the parameters that can have an adapter.
        available: String,
    },
    /// A setting is unavailable for adapters of experts and routers.
    #[error("attaching an adapter to parameters: {field}: expected {expected}, got {got}")]
    NotForParameters {
        /// The field of the setting.
        field: &'static str,
        /// The values that are accepted.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The matrices of an adapter of experts fit the layouts of PEFT 0.18 and of later versions alike.
    #[error(
        "reading {path}: tensor {tensor} of shape {shape:?} fits the layouts of PEFT before and since 0.19: expected \
         a `peft_version` in {CONFIG_FILE} that tells them apart, got {got}", path = path.display()
    )]
    AmbiguousLayout {
        /// The file with the matrices.
        path: PathBuf,
        /// Name of the matrix A.
        tensor: String,
        /// Shape of the matrix A.
        shape: Vec<i64>,
        /// The actual `peft_version`.
        got: String,
    },
    /// The adapter is for a vision tower, and the model has none.
    #[error("attaching an adapter: vlmLora: expected Text, as the model has no vision tower, got {got:?}")]
    NoTower {
        /// The requested parts.
        got: VlmLora,
    },
    /// An entry of `modulesToSave` is the name of no module of which all weights can be trained.
    #[error(
        "attaching an adapter: modulesToSave: {name:?} is not the end of {available}, or is that of a linear layer, \
         which an adapter trains"
    )]
    UnknownModuleToSave {
        /// The name as it was given.
        name: String,
        /// Names of the modules that can be trained.
        available: String,
    },
    /// `modulesToSave` names the head, which is tied to the embedding, without the embedding.
    #[error(
        "attaching an adapter: modulesToSave: the model's head is its embedding (`tie_word_embeddings`): expected \
         \"embed_tokens\", which trains both, got \"lm_head\" alone"
    )]
    TiedHead,
    /// LoftQ was requested without quantized weights, from whose quantization error it starts.
    #[error(
        "attaching an adapter: init: Loftq starts from what quantization takes from weights: expected a model that \
         model.quantization quantizes, got {got}"
    )]
    NothingQuantized {
        /// The actual quantization.
        got: &'static str,
    },
    /// The decoder has an adapter already.
    #[error("attaching an adapter: the model has one already")]
    AlreadyAttached,
    /// The model has no adapter to save.
    #[error("saving the adapter to {dir}: the model has none", dir = dir.display())]
    NoAdapter {
        /// Folder in which it should have been saved.
        dir: PathBuf,
    },
    /// A field of `adapter_config.json` is absent, of another type, or requests something not implemented.
    #[error("reading {path}: field `{field}`: expected {expected}, got {got}", path = path.display())]
    BadConfig {
        /// Path of the `adapter_config.json`.
        path: PathBuf,
        /// The name of the field.
        field: String,
        /// The values that are accepted.
        expected: String,
        /// The actual value.
        got: String,
    },
    /// An adapter cannot be folded into quantized weights.
    #[error(
        "folding the adapter of {dir} into the model: expected weights in 16 or 32 bits, got quantized ones", dir = dir.display()
    )]
    QuantizedBase {
        /// Folder of the adapter.
        dir: PathBuf,
    },
    /// A file of the adapter could not be read or written, or a tensor in it does not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl LoraError {
    /// The exit code of a process that ends with this error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Model(error) => error.exit_code(),
            _ => ExitCode::BadConfig,
        }
    }
}

impl LoraConfig {
    /// The adapter that `spec.model.lora` describes.
    pub fn from_spec(spec: &LoraSpec) -> Self {
        let choose = |names: &[String], pattern: &Option<String>| match pattern {
            Some(pattern) => Some(ModuleMatch::Pattern(pattern.clone())),
            None if names.is_empty() => None,
            None => Some(ModuleMatch::from_names(names)),
        };
        Self {
            rank: spec.rank as usize,
            alpha: spec.alpha,
            rank_stabilized: spec.rank_stabilized,
            parts: spec.vlm_lora,
            targets: choose(&spec.target_modules, &spec.target_pattern)
                .unwrap_or_else(|| ModuleMatch::Names(Vec::new())),
            target_parameters: spec.target_parameters.clone(),
            exclude: choose(&spec.exclude_modules, &spec.exclude_pattern),
            dropout: spec.dropout,
            init: spec.init,
            patterns: Patterns::from_spec(spec),
            dora: spec.dora,
            dropout_position: spec.dropout_position,
            modules_to_save: spec.modules_to_save.clone(),
        }
    }

    /// Factor of `B A x` where no pattern gives another rank or alpha.
    pub fn scaling(&self) -> f64 {
        self.scaling_of(self.rank, self.alpha)
    }

    fn scaling_of(&self, rank: usize, alpha: f64) -> f64 {
        let rank = rank as f64;
        alpha / if self.rank_stabilized { rank.sqrt() } else { rank }
    }

    /// Rank and scaling of the adapter of the module or parameter `name`.
    fn rank_and_scaling(&self, name: &str) -> Result<(usize, f64), LoraError> {
        let (rank, alpha) = self.patterns.of(name)?;
        let rank = rank.unwrap_or(self.rank);
        Ok((rank, self.scaling_of(rank, alpha.unwrap_or(self.alpha))))
    }
}

impl Decoder {
    /// Attaches the adapter that `spec.model.lora` describes: a fresh one drawn from `seed`, or the stored
    /// one of `adapterPath`. The targets of a stored one must be the spec's, and its ranks and scaling, too,
    /// unless it is resized. Freezes everything but the adapter.
    ///
    /// # Errors
    /// [`LoraError`].
    pub fn attach_lora_spec(&mut self, spec: &LoraSpec, seed: u64) -> Result<(), LoraError> {
        self.attach_lora_meta(spec, seed)?;
        if spec.adapter_path.is_none() {
            self.start_adapter();
        }
        Ok(())
    }

    /// [`Self::attach_lora_spec`] for meta tensors, which have no values. The parameters of a fresh
    /// adapter that follow from the weights are set later, from [`Self::adapter_from_weights`].
    pub(crate) fn attach_lora_meta(&mut self, spec: &LoraSpec, seed: u64) -> Result<(), LoraError> {
        let config = LoraConfig::from_spec(spec);
        let Some(dir) = spec.adapter_path.as_ref().map(Path::new) else {
            self.check_loftq(&config)?;
            self.attach(&config, seed)?;
            return config.patterns.check_used(&self.adapted_names());
        };
        let stored = adapter::continued(dir, &config, spec.resize_adapter)?;
        self.attach(&config, seed)?;
        self.allocate_modules_to_save();
        if spec.resize_adapter {
            self.read_resized_adapter(dir, &stored)
        } else {
            self.read_adapter_weights(dir)
        }
    }

    /// Attaches a fresh adapter, drawn from `seed`, and freezes everything else but a classifier's head and
    /// the modules that are saved with the adapter.
    ///
    /// # Errors
    /// [`LoraError`] when nothing is matched, a listed name matches nothing, or the rank cannot be.
    pub fn attach_lora(&mut self, config: &LoraConfig, seed: u64) -> Result<(), LoraError> {
        self.attach(config, seed)?;
        self.start_adapter();
        Ok(())
    }

    /// Attaches an adapter without setting those of its parameters that follow from the model's weights.
    fn attach(&mut self, config: &LoraConfig, seed: u64) -> Result<(), LoraError> {
        if self.lora.is_some() {
            return Err(LoraError::AlreadyAttached);
        }
        if config.rank == 0 {
            return Err(LoraError::BadRank { expected: "a rank of at least 1", got: 0 });
        }
        if config.parts.adapts_vision() && self.vision.is_none() {
            return Err(LoraError::NoTower { got: config.parts });
        }
        let available = self.projection_names(config.parts);
        let config = &config.clone().in_own_names(&available);
        let matched = targets::matched(config, &available)?;
        self.check_expert_targets(config)?;
        for (name, parameter) in self.named_parameters() {
            let _ = parameter.set_requires_grad(is_label_head(&name));
        }
        let device = self.device();
        let sizes = self.projection_sizes();
        for projection in self.projections_mut().filter(|projection| matched.contains(&projection.name)) {
            let (rank, scaling) = config.rank_and_scaling(&projection.name)?;
            if config.init == LoraInit::Orthogonal && rank % 2 == 1 {
                let expected = "an even rank for orthogonal matrices";
                return Err(LoraError::BadRank { expected, got: rank });
            }
            // A weight that ranks share is not all here.
            let size = sizes.get(&projection.name).copied();
            let size = size.unwrap_or_else(|| projection.weight.size());
            let (a, b) = init::matrices(config.init, rank, seed, &projection.name, size);
            let place = |tensor: Tensor| tensor.to_device(device).set_requires_grad(true);
            let (dropout, dropout_position) = (config.dropout, config.dropout_position);
            let pair =
                LoraPair { a: place(a), b: place(b), magnitudes: None, scaling, dropout, dropout_position };
            let [outputs, _] = size;
            let magnitudes = config.dora.then(|| place(Tensor::ones([outputs], (Kind::Float, Device::Cpu))));
            projection.lora = Some(LoraPair { magnitudes, ..pair });
        }
        self.attach_to_experts(config, seed)?;
        self.attach_modules_to_save(&config.modules_to_save)?;
        self.lora = Some(config.clone());
        Ok(())
    }

    /// The configuration of the attached adapter.
    pub fn lora(&self) -> Option<&LoraConfig> {
        self.lora.as_ref()
    }

    /// Every linear layer that may have an adapter: those of the text model, then those of a vision tower.
    pub(crate) fn projections(&self) -> impl Iterator<Item = &Linear> {
        self.layers.iter().flat_map(|layer| &layer.projections).chain(self.tower_projections())
    }

    /// The linear layers of a vision tower.
    pub(super) fn tower_projections(&self) -> impl Iterator<Item = &Linear> {
        self.vision.iter().flat_map(|tower| &tower.projections)
    }

    /// The names of the linear layers of `parts`.
    fn projection_names(&self, parts: VlmLora) -> Vec<String> {
        let is_meant = |projection: &&Linear| match is_of_tower(&projection.name) {
            true => parts.adapts_vision(),
            false => parts.adapts_text(),
        };
        self.projections().filter(is_meant).map(|projection| projection.name.clone()).collect()
    }

    /// The names of the modules and parameters that have adapters.
    fn adapted_names(&self) -> Vec<String> {
        let projections = self.projections().filter(|projection| projection.lora.is_some());
        let experts = self.layers.iter().filter_map(|layer| layer.experts());
        let parameters = experts.flat_map(|experts| {
            let router = experts.router_lora.is_some().then(|| experts.router_name());
            experts.adapted().map(|(tensor, ..)| experts.tensor_name(tensor)).chain(router)
        });
        projections.map(|projection| projection.name.clone()).chain(parameters).collect()
    }

    fn projection_sizes(&self) -> BTreeMap<String, [i64; 2]> {
        projection_sizes(&self.config)
    }

    fn projections_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let of_text = self.layers.iter_mut().flat_map(|layer| &mut layer.projections);
        of_text.chain(self.vision.iter_mut().flat_map(|tower| &mut tower.projections))
    }
}

/// Whether `name` is a module or parameter of the vision tower.
pub(crate) fn is_of_tower(name: &str) -> bool {
    name.starts_with(TOWER)
}

/// `[out_features, in_features]` of every projection of the text model, by its full name.
fn projection_sizes(config: &ModelConfig) -> BTreeMap<String, [i64; 2]> {
    let of_layer = |layer_idx: usize| {
        let named = move |shape: ProjectionShape| {
            let size = [shape.out_features, shape.in_features].map(|width| width as i64);
            (format!("model.layers.{layer_idx}.{}", shape.name), size)
        };
        config.projections(layer_idx).into_iter().map(named)
    };
    (0..config.num_layers).flat_map(of_layer).collect()
}

/// PEFT's names of a projection's matrices A and B.
pub(crate) fn peft_names(projection: &str) -> [String; 2] {
    ["A", "B"].map(|matrix| format!("base_model.model.{projection}.lora_{matrix}.weight"))
}

#[cfg(test)]
mod expert_tests;
#[cfg(test)]
mod tests;
