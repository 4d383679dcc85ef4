//! Adapters on disk in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rlt_api::plan::model_config::{OutputHead, ParameterShape, TensorShape};
use rlt_api::spec::{DropoutPosition, LoraInit};
use serde_json::{Value, json};
use tch::Tensor;

use super::{LoraConfig, LoraError, ModuleMatch, Patterns, dora, experts, peft_names};
use crate::model::checkpoint::{WeightFiles, read_json};
use crate::model::decoder::{self, Decoder};
use crate::model::experts::ExpertWeights;
use crate::model::export::{StoredAs, TensorWriter, in_size, write_json};
use crate::model::saved_modules::ADAPTED_MODEL;
use crate::model::weights::{EMBEDDING, HEAD, is_label_head};

pub(super) const CONFIG_FILE: &str = "adapter_config.json";
/// The version of PEFT whose layout adapters are written in.
const PEFT_VERSION: &str = "0.21.2";
pub(super) const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// Settings of PEFT that change what an adapter computes and are not implemented; each must be absent, null,
/// false or empty.
const UNSUPPORTED: [&str; 12] = [
    "use_qalora",
    "use_bdlora",
    "fan_in_fan_out",
    "lora_bias",
    "layers_to_transform",
    "layer_replication",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
];

/// The model that an adapter belongs to, as PEFT names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseModel {
    /// A folder, or an id on the hub.
    pub name_or_path: String,
    /// The commit of an id on the hub.
    pub revision: Option<String>,
}

impl Decoder {
    /// Attaches the PEFT adapter in `dir` and freezes everything else.
    ///
    /// # Errors
    /// [`LoraError`] with the file and the field or tensor.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<(), LoraError> {
        let config = read_adapter_config(dir)?;
        self.attach(&config, 0)?;
        self.allocate_modules_to_save();
        self.read_adapter_weights(dir)
    }

    /// Replaces the attached adapter's weights by those in `dir`.
    pub(super) fn read_adapter_weights(&mut self, dir: &Path) -> Result<(), LoraError> {
        let files = open_weights(dir)?;
        self.check_tying(dir)?;
        // A classifier's head is the adapter's where it has one.
        let is_label_head = |name: &str| name.strip_prefix(ADAPTED_MODEL).is_some_and(is_label_head);
        let mut matrices = self.saved_with_adapter();
        matrices.retain(|(name, _)| !is_label_head(name) || files.shape(name).is_some());
        matrices.retain(|(name, _)| !self.is_of_other_head(name));
        let shape_of = |(name, tensor): &(String, Tensor)| TensorShape {
            name: name.clone(),
            shape: tensor.size().iter().map(|dim| *dim as usize).collect(),
        };
        let old = self.experts_in_old_layout(dir, &files)?;
        let expected = matrices.iter().filter(|(name, _)| !old.contains(name)).map(shape_of);
        files
            .check(&expected.collect::<Vec<_>>(), |name| old.contains(name) || self.is_of_other_head(name))?;
        for (name, mut matrix) in matrices.into_iter().filter(|(name, _)| !old.contains(name)) {
            let stored = files.read(&name)?;
            tch::no_grad(|| matrix.copy_(&stored));
        }
        Ok(())
    }

    /// Refuses an adapter that trained an embedding apart from the head that is tied to it here.
    pub(super) fn check_tying(&self, dir: &Path) -> Result<(), LoraError> {
        let is_tied = self.config.tie_word_embeddings && self.config.head == OutputHead::Vocabulary;
        if !is_tied || self.saved_by_base(None).keys().all(|name| name != EMBEDDING) {
            return Ok(());
        }
        let path = dir.join(CONFIG_FILE);
        let document = read_json(&path)?;
        match document["ensure_weight_tying"].as_bool() {
            Some(true) => Ok(()),
            _ => Err(LoraError::BadConfig {
                field: "ensure_weight_tying".to_owned(),
                expected: "true, as the model's head is its embedding and stays so".to_owned(),
                got: document["ensure_weight_tying"].to_string(),
                path,
            }),
        }
    }

    /// Whether a tensor of an adapter is a head that this decoder, the trunk of a critic, does without, or
    /// the embedding again, as PEFT writes it for a tied head.
    pub(super) fn is_of_other_head(&self, name: &str) -> bool {
        self.head.is_none() && name.strip_prefix(ADAPTED_MODEL) == Some(HEAD)
    }

    /// Reads what of the adapter of experts is stored in the layout of PEFT 0.18; the names of those
    /// matrices.
    fn experts_in_old_layout(&self, dir: &Path, files: &WeightFiles) -> Result<BTreeSet<String>, LoraError> {
        let mut old = BTreeSet::new();
        let experts = self.layers.iter().filter_map(|layer| layer.experts());
        if experts.clone().all(|experts| experts.adapted().next().is_none()) {
            return Ok(old);
        }
        let path = dir.join(CONFIG_FILE);
        let document = read_json(&path)?;
        for experts in experts {
            for (_, lora, names) in experts.adapted() {
                let shapes = [files.shape(&names[0]), files.shape(&names[1])];
                let [Some(shape_a), Some(shape_b)] = shapes else { continue };
                let stored = (lora, [shape_a, shape_b]);
                if experts::is_in_old_layout(stored, &document, (&path, &names[0]))? {
                    let (a, b) = (files.read(&names[0])?, files.read(&names[1])?);
                    let (a, b) = experts::from_old_layout(&a, &b, experts.router.size()[0]);
                    tch::no_grad(|| {
                        lora.a.shallow_clone().copy_(&a);
                        lora.b.shallow_clone().copy_(&b);
                    });
                    old.extend(names);
                }
            }
        }
        Ok(old)
    }

    /// Writes the attached adapter to `dir` as PEFT does, matrices in f32; `base_model` is the model that
    /// PEFT loads beneath it.
    ///
    /// # Errors
    /// [`LoraError::NoAdapter`] without an adapter, and [`LoraError::Model`] when a file cannot be written.
    pub fn save_adapter(&self, dir: &Path, base_model: Option<&BaseModel>) -> Result<(), LoraError> {
        let mut export = AdapterExport::begin(self, dir, base_model)?;
        self.parts().try_for_each(|layer_idx| export.write(layer_idx))?;
        export.finish()
    }

    /// What an adapter's file holds: its matrices, what is trained whole, and a classifier's head, which is
    /// trained beside it.
    fn saved_with_adapter(&self) -> Vec<(String, Tensor)> {
        let is_head = |(name, _): &(String, Tensor)| is_label_head(name);
        let head = self.base_parameters().into_iter().filter(is_head);
        let head = head.map(|(name, tensor)| (format!("base_model.model.{name}"), tensor));
        // PEFT looks for a tied head, too.
        let outer = self.saved_by_base(None);
        let tied = outer
            .get(EMBEDDING)
            .filter(|_| self.config.tie_word_embeddings && self.config.head == OutputHead::Vocabulary);
        let tied = tied.map(|(saved, _)| (format!("{ADAPTED_MODEL}{HEAD}"), saved.shallow_clone()));
        // What is outside of the layers is written first.
        tied.into_iter().chain(head).chain(self.adapter_parameters()).collect()
    }

    /// The whole sizes of what is saved with an adapter, by PEFT's names, where ranks may have parts of it.
    fn sizes_with_adapter(&self) -> BTreeMap<String, Vec<i64>> {
        let of_model = |ParameterShape { name, shape, .. }: ParameterShape| {
            (format!("{ADAPTED_MODEL}{name}"), shape.iter().map(|dim| *dim as i64).collect())
        };
        let mut sizes: BTreeMap<String, Vec<i64>> =
            self.config.parameters().into_iter().map(of_model).collect();
        if let Some(embedding) = sizes.get(&format!("{ADAPTED_MODEL}{EMBEDDING}")).cloned() {
            // A tied head is no parameter of its own.
            sizes.entry(format!("{ADAPTED_MODEL}{HEAD}")).or_insert(embedding);
        }
        let whole = self.projection_sizes();
        let adapted = self.layers.iter().flat_map(|layer| &layer.projections);
        for (projection, lora) in adapted.filter_map(|one| Some((one, one.lora.as_ref()?))) {
            let Some([outputs, inputs]) = whole.get(&projection.name).copied() else { continue };
            let [name_a, name_b] = peft_names(&projection.name);
            sizes.insert(name_a, vec![lora.a.size()[0], inputs]);
            sizes.insert(name_b, vec![outputs, lora.b.size()[1]]);
        }
        sizes
    }

    /// Every matrix of the adapter under PEFT's name.
    pub(crate) fn adapter_parameters(&self) -> Vec<(String, Tensor)> {
        let mut parameters = self.saved_parameters(None);
        for (layer_idx, layer) in self.layers.iter().enumerate() {
            for projection in &layer.projections {
                if let Some(lora) = &projection.lora {
                    let [name_a, name_b] = peft_names(&projection.name);
                    parameters.push((name_a, lora.a.shallow_clone()));
                    parameters.push((name_b, lora.b.shallow_clone()));
                    let magnitudes = lora.magnitudes.iter().map(Tensor::shallow_clone);
                    parameters.extend(magnitudes.map(|values| (dora::peft_name(&projection.name), values)));
                }
            }
            parameters.extend(layer.experts().into_iter().flat_map(ExpertWeights::adapter_parameters));
            parameters.extend(self.saved_parameters(Some(layer_idx)));
        }
        parameters
    }
}

/// An adapter's folder that is being written, one part of the model after the other: only the current part is
/// read.
#[derive(Debug)]
pub struct AdapterExport<'a> {
    decoder: &'a Decoder,
    file: TensorWriter,
}

impl<'a> AdapterExport<'a> {
    /// As [`Decoder::save_adapter`], up to the first matrix.
    ///
    /// # Errors
    /// As of [`Decoder::save_adapter`].
    pub fn begin(
        decoder: &'a Decoder,
        dir: &Path,
        base_model: Option<&BaseModel>,
    ) -> Result<Self, LoraError> {
        let no_adapter = || LoraError::NoAdapter { dir: dir.to_owned() };
        let config = decoder.lora.as_ref().ok_or_else(no_adapter)?;
        write_json(&dir.join(CONFIG_FILE), &adapter_config(decoder, config, base_model))?;
        let matrices = decoder.saved_with_adapter();
        let name = |own: &str| stored_name(decoder, own);
        let sizes = decoder.sizes_with_adapter();
        let whole = |own: &str, tensor: &Tensor| {
            sizes.get(own).map_or_else(|| tensor.shallow_clone(), |size| in_size(tensor, size))
        };
        let stored = matrices.iter().map(|(own, tensor)| (name(own), StoredAs::plain(&whole(own, tensor))));
        let file = TensorWriter::begin(&dir.join(WEIGHTS_FILE), &stored.collect::<Vec<_>>())?;
        Ok(Self { decoder, file })
    }

    /// Writes the matrices of the layer `layer_idx`; outside of the layers there is a classifier's head.
    ///
    /// # Errors
    /// [`LoraError::Model`] when the file cannot be written.
    pub fn write(&mut self, layer_idx: Option<usize>) -> Result<(), LoraError> {
        let matrices = self.decoder.saved_with_adapter().into_iter();
        let of_part = matrices.filter(|(name, _)| decoder::layer_idx(name) == layer_idx);
        for (_, matrix) in of_part {
            self.file.write(&StoredAs::plain(&matrix))?;
        }
        Ok(())
    }

    /// Gives the file of matrices its name, after the last layer.
    ///
    /// # Errors
    /// [`LoraError::Model`] when the file cannot be written.
    pub fn finish(self) -> Result<(), LoraError> {
        Ok(self.file.finish()?)
    }
}

/// The matrices of the adapter in `dir`.
pub(super) fn open_weights(dir: &Path) -> Result<WeightFiles, LoraError> {
    let mut files = WeightFiles::open_file(&dir.join(WEIGHTS_FILE))?;
    files.rename(without_language_model);
    Ok(files)
}

/// What transformers calls the text model beside a vision tower, in memory.
const LANGUAGE_MODEL: &str = "model.language_model.";
/// Parts of the text model.
const OF_LANGUAGE_MODEL: [&str; 3] = ["layers.", "embed_tokens", "norm"];

/// The name of a module or matrix as PEFT has it, which adapts what transformers has in memory.
fn stored_name(decoder: &Decoder, name: &str) -> String {
    if decoder.config.vision.is_none() {
        return name.to_owned();
    }
    OF_LANGUAGE_MODEL.iter().fold(name.to_owned(), |name, part| {
        name.replace(&format!("model.{part}"), &format!("{LANGUAGE_MODEL}{part}"))
    })
}

/// The same name here.
fn without_language_model(name: &str) -> String {
    name.replace(LANGUAGE_MODEL, "model.")
}

/// Reads `adapter_config.json`, refusing by name what would change the numbers and is not implemented.
fn read_adapter_config(dir: &Path) -> Result<LoraConfig, LoraError> {
    let path = dir.join(CONFIG_FILE);
    let document = read_json(&path)?;
    let bad = |field: &str, expected: &str| LoraError::BadConfig {
        path: path.clone(),
        field: field.to_owned(),
        expected: expected.to_owned(),
        got: document.get(field).map_or_else(|| "nothing".to_owned(), Value::to_string),
    };
    if document["peft_type"] != "LORA" {
        return Err(bad("peft_type", "\"LORA\""));
    }
    if document.get("bias").is_some_and(|bias| bias != "none") {
        return Err(bad("bias", "\"none\""));
    }
    if let Some(field) = UNSUPPORTED.into_iter().find(|field| is_set(&document[*field])) {
        return Err(bad(field, "nothing, as it is not supported"));
    }
    let modules = |field: &str| module_match(&document[field]).map_err(|expected| bad(field, expected));
    let patterns = Patterns::read(&document).map_err(|(field, expected)| bad(field, expected))?;
    Ok(LoraConfig {
        rank: document["r"].as_u64().ok_or_else(|| bad("r", "an integer above 0"))? as usize,
        alpha: document["lora_alpha"].as_f64().ok_or_else(|| bad("lora_alpha", "a number"))?,
        rank_stabilized: document["use_rslora"].as_bool().unwrap_or(false),
        targets: match modules("target_modules")? {
            Some(targets) => targets,
            // Experts alone.
            None if is_set(&document["target_parameters"]) => ModuleMatch::Names(Vec::new()),
            None => return Err(bad("target_modules", "names or a pattern")),
        },
        target_parameters: match module_match(&document["target_parameters"]) {
            Ok(Some(ModuleMatch::Names(names))) => names,
            Ok(None) => Vec::new(),
            _ => return Err(bad("target_parameters", "a list of names, or null")),
        },
        exclude: modules("exclude_modules")?,
        dropout: document["lora_dropout"].as_f64().unwrap_or(0.0),
        init: LoraInit::Peft,
        patterns,
        dora: document["use_dora"].as_bool().unwrap_or(false),
        dropout_position: DropoutPosition::Before,
        modules_to_save: match module_match(&document["modules_to_save"]) {
            Ok(Some(ModuleMatch::Names(names))) => names,
            Ok(None) => Vec::new(),
            _ => return Err(bad("modules_to_save", "a list of names, or null")),
        },
    })
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        _ => true,
    }
}

fn module_match(value: &Value) -> Result<Option<ModuleMatch>, &'static str> {
    const EXPECTED: &str = "a list of names, a pattern, or null";
    match value {
        Value::Null => Ok(None),
        Value::String(name) if name.eq_ignore_ascii_case("all-linear") => Ok(Some(ModuleMatch::AllLinear)),
        Value::String(pattern) => Ok(Some(ModuleMatch::Pattern(pattern.clone()))),
        Value::Array(items) if items.is_empty() => Ok(None),
        Value::Array(items) => {
            let names = items.iter().map(|item| item.as_str().map(without_language_model));
            Ok(Some(ModuleMatch::Names(names.collect::<Option<_>>().ok_or(EXPECTED)?)))
        }
        _ => Err(EXPECTED),
    }
}

/// What the adapter in `dir` was stored as, which the spec's `config` continues: both have magnitudes or
/// none, and ranks and scalings are the same unless it `is_resized`.
pub(super) fn continued(dir: &Path, config: &LoraConfig, is_resized: bool) -> Result<LoraConfig, LoraError> {
    let stored = read_adapter_config(dir)?;
    let disagree = |field: &str, expected: String, got: String| LoraError::BadConfig {
        path: dir.join(CONFIG_FILE),
        field: field.to_owned(),
        expected,
        got,
    };
    if stored.dora != config.dora {
        return Err(disagree("use_dora", config.dora.to_string(), stored.dora.to_string()));
    }
    if is_resized {
        return Ok(stored);
    }
    if stored.rank != config.rank {
        return Err(disagree("r", config.rank.to_string(), stored.rank.to_string()));
    }
    if stored.scaling() != config.scaling() {
        let scaling = |config: &LoraConfig| format!("a scaling of {}", config.scaling());
        return Err(disagree("lora_alpha", scaling(config), scaling(&stored)));
    }
    if stored.modules_beside() != config.modules_beside() {
        let names = |config: &LoraConfig| format!("{:?}", config.modules_beside());
        return Err(disagree("modules_to_save", names(config), names(&stored)));
    }
    if let Some((field, [expected, got])) = config.patterns.first_difference(&stored.patterns) {
        return Err(disagree(field, expected, got));
    }
    Ok(stored)
}

/// The adapted modules as PEFT is to find them. In a mixture of experts it takes `all-linear` and patterns
/// for every expert, too, so that there modules are named: by their last names where these mean the same.
fn saved_targets(decoder: &Decoder, config: &LoraConfig) -> Value {
    if decoder.config.vision.is_some() {
        // A name such as `up_proj` is the tower's, too.
        let adapted = decoder.layers.iter().flat_map(|layer| &layer.projections);
        let adapted = adapted.filter(|projection| projection.lora.is_some());
        return adapted.map(|projection| stored_name(decoder, &projection.name)).collect();
    }
    match &config.targets {
        ModuleMatch::Names(names) if names.is_empty() => Value::Null,
        ModuleMatch::Names(names) => json!(names),
        ModuleMatch::AllLinear | ModuleMatch::Pattern(_) if decoder.config.experts.is_some() => {
            let projections = || decoder.layers.iter().flat_map(|layer| &layer.projections);
            let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
            let adapted = || projections().filter(|one| one.lora.is_some());
            let kinds: BTreeSet<String> = adapted().map(|one| last(&one.name)).collect();
            let others = projections().filter(|one| one.lora.is_none());
            if others.into_iter().any(|one| kinds.contains(&last(&one.name))) {
                return adapted().map(|one| one.name.clone()).collect();
            }
            json!(kinds)
        }
        ModuleMatch::AllLinear => json!("all-linear"),
        ModuleMatch::Pattern(pattern) => json!(pattern),
    }
}

/// What PEFT trains beside an adapter, and does not adapt, as it is to find it.
fn saved_modules(decoder: &Decoder, config: &LoraConfig) -> Vec<String> {
    let head = (decoder.config.head != OutputHead::Vocabulary).then(|| "score".to_owned());
    let is_tied = decoder.config.tie_word_embeddings;
    let names = config.modules_beside().into_iter().filter(|name| !(is_tied && *name == "lm_head"));
    if decoder.config.vision.is_none() {
        return names.map(str::to_owned).chain(head).collect();
    }
    // A name such as `norm` is the tower's, too.
    let all = decoder.parts().flat_map(|layer_idx| decoder.saved_by_base(layer_idx).into_keys());
    let module = |name: String| stored_name(decoder, name.strip_suffix(".weight").unwrap_or(&name));
    all.map(module).chain(head).collect()
}

impl LoraConfig {
    /// The names of modules that are trained whole, but for a classifier's head, in the order of text.
    fn modules_beside(&self) -> BTreeSet<&str> {
        let names = self.modules_to_save.iter().map(String::as_str);
        names.filter(|name| !is_label_head(&format!("{name}.weight"))).collect()
    }
}

fn adapter_config(decoder: &Decoder, config: &LoraConfig, base_model: Option<&BaseModel>) -> Value {
    let head = decoder.config.head;
    let modules = |choice: &ModuleMatch| match choice {
        ModuleMatch::AllLinear => json!("all-linear"),
        ModuleMatch::Names(names) => json!(names),
        ModuleMatch::Pattern(pattern) => json!(pattern),
    };
    let saved = saved_modules(decoder, config);
    // Of tied weights PEFT trains the embedding, which the head follows.
    let keeps_tied =
        decoder.config.tie_word_embeddings && saved.iter().any(|name| name.ends_with("embed_tokens"));
    let mut document = json!({
        "peft_type": "LORA",
        "peft_version": PEFT_VERSION,
        "task_type": match head {
            OutputHead::Vocabulary => "CAUSAL_LM",
            OutputHead::Sequence => "SEQ_CLS",
            OutputHead::Tokens => "TOKEN_CLS",
        },
        "modules_to_save": Some(&saved).filter(|names| !names.is_empty()),
        "ensure_weight_tying": keeps_tied,
        "base_model_name_or_path": base_model.map(|base| &base.name_or_path),
        "revision": base_model.and_then(|base| base.revision.as_ref()),
        "r": config.rank,
        "lora_alpha": config.alpha,
        "use_rslora": config.rank_stabilized,
        "lora_dropout": config.dropout,
        "target_modules": saved_targets(decoder, config),
        "exclude_modules": config.exclude.as_ref().map(modules),
        "target_parameters": Some(&config.target_parameters).filter(|names| !names.is_empty()),
        "bias": "none",
        "fan_in_fan_out": false,
        "use_dora": config.dora,
        "init_lora_weights": true,
        "inference_mode": true,
    });
    config.patterns.write(&mut document);
    document
}
