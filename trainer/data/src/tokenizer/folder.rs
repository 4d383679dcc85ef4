//! Reading and writing a tokenizer's Hugging Face folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rlt_core::types::TokenId;
use rlt_files::MAX_MODEL_JSON_BYTES;
use serde_json::{Map, Value, json};
use tokenizers::AddedToken;

use super::chat::ChatTemplate;
use super::refused::{refuse_old_pattern, refuse_other_prefix, refuse_unsupported};
use super::{Origin, SpecialTokens, Tokenizer, TokenizerError, definition, guarded};
use crate::images::ImageProcessor;

const DEFINITION: &str = "tokenizer.json";
pub(super) const CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS_MAP: &str = "special_tokens_map.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";
const IMAGE_PROCESSOR: &str = "preprocessor_config.json";
/// Templates by name, in files `NAME.jinja`.
const NAMED_TEMPLATES: &str = "additional_chat_templates";

/// Files of a tokenizer that are copied unchanged; files of the model are not among them.
const COPIED: [&str; 12] = [
    DEFINITION,
    CONFIG,
    SPECIAL_TOKENS_MAP,
    CHAT_TEMPLATE,
    ADDED_TOKENS_FILE,
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.json",
    IMAGE_PROCESSOR,
    "processor_config.json",
    "video_preprocessor_config.json",
];

impl Tokenizer {
    /// Loads the tokenizer of a Hugging Face folder.
    ///
    /// `tokenizer.json` is needed; special tokens come from `tokenizer_config.json` and
    /// `special_tokens_map.json`, those without a role included; the chat template from
    /// `chat_template.jinja` and `additional_chat_templates`, or else from `tokenizer_config.json`; further
    /// ending tokens from `generation_config.json`, then `config.json`. A model with a vision tower has an
    /// image processor, too. [`rlt_models::ModelFile`] lists the fields that are refused.
    ///
    /// # Errors
    /// [`TokenizerError`], with the file that is at fault.
    pub fn load(dir: &Path) -> Result<Self, TokenizerError> {
        let config = read_object(&dir.join(CONFIG))?.unwrap_or_default();
        refuse_unsupported(dir, &config)?;
        let special_map = read_object(&dir.join(SPECIAL_TOKENS_MAP))?.unwrap_or_default();
        let config = with_special_map(config, special_map);
        let (inner, max_text_bytes) = load_definition(dir, &config)?;
        refuse_old_pattern(dir, &config, &inner)?;
        refuse_other_prefix(dir, &config, &inner)?;
        let special = special_tokens(&config);
        let eos_ids = eos_ids(dir, &inner, &special)?;
        let chat = load_chat_template(dir, &config)?.map(Arc::new);
        let origin = Origin::Folder { dir: dir.to_owned(), replaced_template: false };
        let conversations = Arc::default();
        let images = ImageProcessor::load(dir).map_err(Box::new)?.map(Arc::new);
        let inner = Arc::new(inner);
        Ok(Self { inner, max_text_bytes, special, eos_ids, chat, conversations, images, origin })
    }

    /// Writes the files that transformers' `AutoTokenizer` loads into `dir`, which must exist.
    ///
    /// A tokenizer that was loaded is copied file by file; a replaced chat template is written in place of
    /// the old.
    ///
    /// # Errors
    /// [`TokenizerError::Read`] and [`TokenizerError::Write`].
    pub fn save(&self, dir: &Path) -> Result<(), TokenizerError> {
        let has_own_template = match &self.origin {
            Origin::Folder { dir: from, replaced_template } => {
                copy_files(from, dir)?;
                if !*replaced_template {
                    copy_named_templates(from, dir)?;
                }
                *replaced_template
            }
            Origin::Memory => {
                self.write_files(dir)?;
                true
            }
        };
        if let Some(settings) = self.images.as_ref().and_then(|images| images.new_settings()) {
            write_json(&dir.join(IMAGE_PROCESSOR), &settings)?;
        }
        let chat = self.chat.as_ref().filter(|_| has_own_template);
        if let Some(template) = chat.and_then(|chat| chat.default_source()) {
            write(&dir.join(CHAT_TEMPLATE), template.as_bytes())?;
        }
        sync(dir)
    }

    fn write_files(&self, dir: &Path) -> Result<(), TokenizerError> {
        let path = dir.join(DEFINITION);
        let definition = self
            .inner
            .to_string(true)
            .map_err(|error| TokenizerError::Definition { path: path.clone(), message: error.to_string() })?;
        write(&path, definition.as_bytes())?;
        let roles = self.special.by_role().into_iter().flat_map(|(role, token)| Some((role, token?)));
        let special: Map<String, Value> =
            roles.map(|(role, token)| (role.to_owned(), json!(token))).collect();
        write_json(&dir.join(SPECIAL_TOKENS_MAP), &Value::Object(special.clone()))?;
        let mut config = special;
        config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
        config.insert("clean_up_tokenization_spaces".into(), json!(false));
        config.insert("model_max_length".into(), json!(1_000_000_000));
        write_json(&dir.join(CONFIG), &Value::Object(config))
    }
}

impl SpecialTokens {
    /// Roles under the names that files and chat templates use.
    pub(super) fn by_role(&self) -> [(&'static str, Option<&str>); 4] {
        [
            ("bos_token", self.bos.as_deref()),
            ("eos_token", self.eos.as_deref()),
            ("pad_token", self.pad.as_deref()),
            ("unk_token", self.unk.as_deref()),
        ]
    }

    /// Whether a token of this text has a name.
    fn contains(&self, token: &str) -> bool {
        let has_role = self.by_role().into_iter().any(|(_, named)| named == Some(token));
        has_role || self.named.values().any(|named| named == token)
    }
}

/// Adds the fields of `special_tokens_map.json` to the configuration. As in transformers 5 they take
/// precedence unless the configuration has `added_tokens_decoder`, and lists of tokens are joined.
fn with_special_map(mut config: Map<String, Value>, special_map: Map<String, Value>) -> Map<String, Value> {
    let map_wins = !config.contains_key(ADDED_TOKENS);
    for (field, value) in special_map.into_iter().filter(|(_, value)| !value.is_null()) {
        let is_absent = config.get(&field).is_none_or(Value::is_null);
        if is_absent || (map_wins && !EXTRA.contains(&field.as_str())) {
            config.insert(field, value);
        } else if map_wins && let Some(tokens) = config.get_mut(&field).and_then(Value::as_array_mut) {
            tokens.extend(value.as_array().into_iter().flatten().cloned());
        }
    }
    config
}

/// Builds the tokenizer of a folder, with the maximum length of a text that it encodes, in bytes.
fn load_definition(
    dir: &Path,
    config: &Map<String, Value>,
) -> Result<(tokenizers::Tokenizer, usize), TokenizerError> {
    let path = dir.join(DEFINITION);
    let bytes = rlt_files::read(&path, definition::MAX_BYTES)
        .map_err(|source| TokenizerError::Read { path: path.clone(), source })?;
    let refused = |message: String| TokenizerError::Definition { path: path.clone(), message };
    let max_text_bytes = definition::check(&bytes).map_err(refused)?;
    let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(bytes)).map_err(refused)?;
    // A definition may contain settings for batches; texts are never truncated or padded here.
    inner.with_padding(None);
    inner.with_truncation(None).map_err(|error| refused(error.to_string()))?;
    let own = inner.get_added_tokens_decoder().into_values();
    let own: BTreeMap<String, AddedToken> = own.map(|token| (token.content.clone(), token)).collect();
    let is_listed = config.contains_key(ADDED_TOKENS);
    let special = special_tokens(config);
    let mut changed = if is_listed { config_tokens(config) } else { old_tokens(dir, config, &special)? };
    changed.retain(|token| match own.get(&token.content) {
        // A token of the configuration overrides that of the definition, for example in how it strips white
        // space.
        Some(own) => is_listed && own != token,
        None => true,
    });
    for token in &mut changed {
        token.special |= special.contains(&token.content);
    }
    let listed: BTreeSet<String> = changed.iter().map(|token| token.content.clone()).collect();
    let is_new = |token: &AddedToken| !own.contains_key(&token.content) && !listed.contains(&token.content);
    changed.extend(named_tokens(config, &inner).into_iter().filter(is_new));
    let longest = changed.iter().map(|token| token.content.len()).max().unwrap_or(0);
    let num_new = changed.iter().filter(|token| !own.contains_key(&token.content)).count();
    definition::check_added(own.len() + num_new, longest).map_err(refused)?;
    guarded(|| inner.add_tokens(changed)).map_err(refused)?;
    Ok((inner, max_text_bytes))
}

/// Returns the tokens of `added_tokens_decoder` by id.
fn config_tokens(config: &Map<String, Value>) -> Vec<AddedToken> {
    let decoder = config.get(ADDED_TOKENS).and_then(Value::as_object);
    let mut tokens: Vec<(u32, &Value)> =
        decoder.into_iter().flatten().filter_map(|(id, token)| Some((id.parse().ok()?, token))).collect();
    tokens.sort_by_key(|(id, _)| *id);
    tokens.into_iter().filter_map(|(_, token)| added_token(token, false)).collect()
}

/// Returns the tokens of `added_tokens.json` by id. transformers adds those that `tokenizer.json` lacks if
/// the configuration has no [`ADDED_TOKENS`].
fn old_tokens(
    dir: &Path,
    config: &Map<String, Value>,
    special: &SpecialTokens,
) -> Result<Vec<AddedToken>, TokenizerError> {
    let ids = read_object(&dir.join(ADDED_TOKENS_FILE))?.unwrap_or_default();
    let mut contents: Vec<(u64, &str)> =
        ids.iter().filter_map(|(content, id)| Some((id.as_u64()?, content.as_str()))).collect();
    contents.sort_unstable();
    let extra = EXTRA.into_iter().filter_map(|field| config.get(field)?.as_array()).flatten();
    let extra: BTreeSet<String> = extra.filter_map(token_text).collect();
    let is_special = |content: &str| special.contains(content) || extra.contains(content);
    Ok(contents.into_iter().map(|(_, content)| AddedToken::from(content, is_special(content))).collect())
}

/// Parses a token that is written as its text or as an object. `special` makes it special whatever its own
/// field says.
fn added_token(token: &Value, special: bool) -> Option<AddedToken> {
    let flag = |name| token.get(name).and_then(Value::as_bool);
    let is_special = special || flag("special").unwrap_or(false);
    let added = AddedToken::from(token_text(token)?, is_special);
    // transformers does not normalize special tokens that are plain texts.
    let added = added.normalized(flag("normalized").unwrap_or(!is_special && token.is_string()));
    let added = added.single_word(flag("single_word").unwrap_or(false));
    Some(added.lstrip(flag("lstrip").unwrap_or(false)).rstrip(flag("rstrip").unwrap_or(false)))
}

/// Fields of special tokens with a role, in transformers' order.
const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Fields of special tokens without a role: a list, or an object by name.
const EXTRA: [&str; 3] =
    ["model_specific_special_tokens", "extra_special_tokens", "additional_special_tokens"];
/// Field of tokens by id.
const ADDED_TOKENS: &str = "added_tokens_decoder";
/// File of tokens with their ids, in the form of old releases.
const ADDED_TOKENS_FILE: &str = "added_tokens.json";

/// Returns the special tokens that the configuration names, in the order in which transformers adds them.
///
/// A token with a role is included only if the vocabulary has it; other tokens that the vocabulary lacks get
/// ids after it. A model's own tokens are fields such as `image_token`.
fn named_tokens(config: &Map<String, Value>, inner: &tokenizers::Tokenizer) -> Vec<AddedToken> {
    let field = |name: &str| config.get(name).filter(|value| !value.is_null());
    let roles = ROLES.into_iter().filter_map(field).filter_map(|token| added_token(token, true));
    let mut tokens: Vec<AddedToken> =
        roles.filter(|token| inner.token_to_id(&token.content).is_some()).collect();
    let is_own = |name: &str| name.ends_with("_token") && !ROLES.contains(&name);
    let own = config.iter().filter(|(name, _)| is_own(name));
    tokens.extend(own.filter_map(|(_, token)| added_token(token, true)));
    // Files of transformers 4 often have an empty `extra_special_tokens` in addition to the other field.
    let extra = EXTRA.into_iter().filter_map(field).flat_map(|tokens| match tokens {
        Value::Array(tokens) => tokens.iter().collect(),
        Value::Object(tokens) => tokens.values().collect(),
        _ => Vec::new(),
    });
    tokens.extend(extra.filter_map(|token| added_token(token, true)));
    tokens
}

fn special_tokens(config: &Map<String, Value>) -> SpecialTokens {
    let find = |role: &str| config.get(role).and_then(token_text);
    SpecialTokens {
        bos: find("bos_token"),
        eos: find("eos_token"),
        pad: find("pad_token"),
        unk: find("unk_token"),
        named: further_named(config),
    }
}

/// Returns the special tokens with a name besides those of [`SpecialTokens::by_role`], as transformers gives
/// them to chat templates: roles, objects of tokens by name, and a model's own fields.
fn further_named(config: &Map<String, Value>) -> BTreeMap<String, String> {
    let by_name = |field: &str| config.get(field).and_then(Value::as_object).into_iter().flatten();
    let own = config.iter().filter(|(name, _)| name.ends_with("_token"));
    let all = by_name("extra_special_tokens").chain(own).chain(by_name("model_specific_special_tokens"));
    let mut named: BTreeMap<String, String> =
        all.filter_map(|(name, token)| Some((name.clone(), token_text(token)?))).collect();
    for (role, _) in SpecialTokens::default().by_role() {
        named.remove(role);
    }
    named
}

/// A token is written as its text or as an object with `content`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

fn eos_ids(
    dir: &Path,
    inner: &tokenizers::Tokenizer,
    special: &SpecialTokens,
) -> Result<Vec<TokenId>, TokenizerError> {
    let mut ids = Vec::new();
    if let Some(token) = &special.eos {
        let missing = || TokenizerError::MissingToken { role: "eos", token: token.clone() };
        ids.push(inner.token_to_id(token).ok_or_else(missing)?);
    }
    for file in ["generation_config.json", "config.json"] {
        let object = read_object(&dir.join(file))?.unwrap_or_default();
        // A model with a vision tower may have the field only in the configuration of its text model.
        let stated =
            [object.get("eos_token_id"), object.get("text_config").and_then(|text| text.get("eos_token_id"))];
        let Some(declared) = stated.into_iter().flatten().find(|value| !value.is_null()) else { continue };
        for id in token_ids(declared) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        break;
    }
    if ids.is_empty() { Err(TokenizerError::NoEos { dir: dir.to_owned() }) } else { Ok(ids) }
}

fn token_ids(value: &Value) -> Vec<TokenId> {
    let id = |value: &Value| value.as_u64().and_then(|id| TokenId::try_from(id).ok());
    match value {
        Value::Array(values) => values.iter().filter_map(id).collect(),
        single => id(single).into_iter().collect(),
    }
}

fn load_chat_template(
    dir: &Path,
    config: &Map<String, Value>,
) -> Result<Option<ChatTemplate>, TokenizerError> {
    let mut sources = template_files(dir)?;
    if sources.is_empty() {
        sources = config_templates(config);
    }
    if sources.is_empty() {
        return Ok(None);
    }
    ChatTemplate::named(sources).map(Some).map_err(|error| TokenizerError::Chat(Box::new(error)))
}

/// Returns the templates of `tokenizer_config.json` by name: one, a list, or an object. As in transformers,
/// files of templates replace all of them.
fn config_templates(config: &Map<String, Value>) -> Vec<(String, String)> {
    match config.get("chat_template") {
        Some(Value::String(source)) => vec![("default".to_owned(), source.clone())],
        Some(Value::Array(named)) => named.iter().filter_map(named_template).collect(),
        Some(Value::Object(named)) => {
            let text = |source: &Value| source.as_str().map(str::to_owned);
            named.iter().filter_map(|(name, source)| Some((name.clone(), text(source)?))).collect()
        }
        _ => Vec::new(),
    }
}

fn named_template(value: &Value) -> Option<(String, String)> {
    let field = |name| value.get(name)?.as_str().map(str::to_owned);
    Some((field("name")?, field("template")?))
}

/// `chat_template.jinja` and `additional_chat_templates/NAME.jinja`; later entries replace earlier ones.
fn template_files(dir: &Path) -> Result<Vec<(String, String)>, TokenizerError> {
    let mut sources = Vec::new();
    if let Some(source) = read_if_present(&dir.join(CHAT_TEMPLATE))? {
        sources.push(("default".to_owned(), source));
    }
    for path in named_template_paths(dir)? {
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        if let (Some(name), Some(source)) = (name, read_if_present(&path)?) {
            sources.push((name, source));
        }
    }
    Ok(sources)
}

fn named_template_paths(dir: &Path) -> Result<Vec<std::path::PathBuf>, TokenizerError> {
    let path = dir.join(NAMED_TEMPLATES);
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    let failed = |source| TokenizerError::Read { path: path.clone(), source };
    let entries = fs::read_dir(&path).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    paths.sort();
    Ok(paths)
}

fn copy_files(from: &Path, to: &Path) -> Result<(), TokenizerError> {
    for name in COPIED {
        let path = from.join(name);
        match rlt_files::read(&path, definition::MAX_BYTES) {
            Ok(bytes) => write(&to.join(name), &bytes)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(TokenizerError::Read { path, source }),
        }
    }
    Ok(())
}

fn copy_named_templates(from: &Path, to: &Path) -> Result<(), TokenizerError> {
    let paths = named_template_paths(from)?;
    if paths.is_empty() {
        return Ok(());
    }
    let target = to.join(NAMED_TEMPLATES);
    fs::create_dir_all(&target).map_err(|source| TokenizerError::Write { path: target.clone(), source })?;
    for path in paths {
        if let (Some(name), Some(source)) = (path.file_name(), read_if_present(&path)?) {
            write(&target.join(name), source.as_bytes())?;
        }
    }
    sync(&target)
}

/// Syncs a folder, so that the names of the files in it survive a power loss.
fn sync(folder: &Path) -> Result<(), TokenizerError> {
    let synced = rlt_files::sync_folder(folder);
    synced.map_err(|source| TokenizerError::Write { path: folder.to_owned(), source })
}

pub(super) fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, TokenizerError> {
    let Some(text) = read_if_present(path)? else { return Ok(None) };
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|source| TokenizerError::Parse { path: path.to_owned(), source })
}

fn read_if_present(path: &Path) -> Result<Option<String>, TokenizerError> {
    match rlt_files::read_to_string(path, MAX_MODEL_JSON_BYTES) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TokenizerError::Read { path: path.to_owned(), source }),
    }
}

fn write_json(path: &Path, value: &Value) -> Result<(), TokenizerError> {
    write(path, format!("{value:#}\n").as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), TokenizerError> {
    // The file is synced, because an export must be complete after a power loss too.
    let written = fs::File::create(path).and_then(|mut file| {
        std::io::Write::write_all(&mut file, bytes)?;
        file.sync_all()
    });
    written.map_err(|source| TokenizerError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use rlt_hub::is_of_model;

    use super::*;

    /// The tokenizer of a folder whose definition has these fields.
    fn with(fields: Value) -> Result<Tokenizer, TokenizerError> {
        let mut definition = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": { "type": "WordLevel", "vocab": { "<eos>": 0, "x": 1, "<unk>": 2 }, "unk_token": "<unk>" },
        });
        definition.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(DEFINITION), definition.to_string()).unwrap();
        fs::write(folder.path().join(CONFIG), json!({ "eos_token": "<eos>" }).to_string()).unwrap();
        Tokenizer::load(folder.path())
    }

    #[test]
    fn replacements_that_multiply_a_text_are_refused_and_usual_ones_are_not() {
        let doubling = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aa" });
        let filling = json!({ "type": "Replace", "pattern": { "Regex": "" }, "content": "abc" });
        let usual = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
        let sequence = |kind: &str, steps: Vec<Value>| json!({ "type": "Sequence", kind: steps });
        for (field, step) in [
            ("normalizer", sequence("normalizers", vec![doubling.clone(); 40])),
            ("decoder", sequence("decoders", vec![doubling; 40])),
            ("normalizer", sequence("normalizers", vec![filling; 5])),
        ] {
            let refused = with(json!({ field: step })).unwrap_err().to_string();
            assert!(refused.contains(&format!("its {field} may make a text")), "{refused}");
        }
        with(json!({ "normalizer": sequence("normalizers", vec![usual; 3]) })).unwrap();
    }

    /// A step that replaces characters by a table of SentencePiece, whose longest text has `length` bytes.
    fn precompiled(trie_bytes: u32, length: usize) -> Value {
        use base64::Engine as _;
        let table = [&trie_bytes.to_le_bytes()[..], &[0; 8], &vec![b'a'; length], &[0]].concat();
        let table = base64::prelude::BASE64_STANDARD.encode(table);
        json!({ "type": "Precompiled", "precompiled_charsmap": table })
    }

    #[test]
    fn every_kind_of_step_that_multiplies_a_text_is_counted() {
        let bytes = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
        });
        let steps =
            |kind: &str, step: &Value, count: usize| json!({ "type": "Sequence", kind: vec![step; count] });
        let prepend = json!({ "type": "Prepend", "prepend": "▁" });
        let doubling = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aa" });
        for (field, step) in [
            ("normalizer", steps("normalizers", &json!({ "type": "ByteLevel" }), 9)),
            ("normalizer", steps("normalizers", &prepend, 5)),
            ("normalizer", precompiled(8, 257)),
            ("normalizer", precompiled(1 << 30, 1)),
            ("normalizer", json!({ "normalizers": vec![json!({ "prepend": "▁" }); 5] })),
            ("decoder", steps("decoders", &doubling, 5)),
            ("pre_tokenizer", steps("pretokenizers", &bytes, 9)),
            ("pre_tokenizer", steps("pretokenizers", &steps("pretokenizers", &bytes, 3), 3)),
        ] {
            let refused = with(json!({ field: step })).unwrap_err();
            assert!(refused.to_string().contains(&format!("its {field} may make a text")), "{refused}");
            assert_eq!(refused.exit_code(), rlt_api::ExitCode::BadConfig);
        }
        with(json!({ "pre_tokenizer": steps("pretokenizers", &bytes, 2) })).unwrap();
        with(json!({ "normalizer": steps("normalizers", &prepend, 2) })).unwrap();
    }

    #[test]
    fn definitions_of_any_depth_and_number_of_tokens_are_refused_and_not_built() {
        let deep =
            (0..200).fold(json!(null), |inner, _| json!({ "type": "Sequence", "normalizers": [inner] }));
        let mut long = json!({ "type": "WordLevel", "vocab": { "<eos>": 0 }, "unk_token": "<eos>" });
        long["vocab"]["a".repeat(20_000)] = json!(1);
        // What the tokens are does not matter: they are counted first.
        let many = vec![json!({}); (1 << 18) + 1];
        for (fields, expected) in [
            (json!({ "normalizer": deep }), "recursion limit exceeded"),
            (json!({ "model": long }), "it has 20000 bytes in its longest token, expected at most 16384"),
            (json!({ "added_tokens": many }), "it has 262145 added tokens, expected at most 262144"),
        ] {
            let refused = with(fields).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
            assert_eq!(refused.exit_code(), rlt_api::ExitCode::BadConfig);
        }
    }

    #[test]
    fn the_longer_a_text_may_become_the_shorter_it_has_to_be() {
        let doubling = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aa" });
        let steps = json!({ "type": "Sequence", "normalizers": vec![doubling; 8] });
        let tokenizer = with(json!({ "normalizer": steps })).unwrap();
        assert_eq!(tokenizer.encode("x").unwrap(), [1]);
        let text = "a".repeat((512 << 10) + 1);
        let offsets = tokenizer.encode_with_offsets(&text).map(drop);
        for error in [tokenizer.encode(&text).map(drop).unwrap_err(), offsets.unwrap_err()] {
            assert!(error.to_string().contains("expected at most 524288 bytes"), "{error}");
            assert_eq!(error.exit_code(), rlt_api::ExitCode::BadConfig);
        }
    }

    #[test]
    fn vocabularies_and_merges_are_counted_before_they_are_built() {
        for (field, items) in [("vocab", "entries in its vocabulary"), ("merges", "merges")] {
            let text = format!(r#"{{"model":{{"{field}":[0{}]}}}}"#, ",0".repeat(1 << 22));
            let message = definition::check(text.as_bytes()).unwrap_err();
            assert_eq!(message, format!("it has 4194305 {items}, expected at most 4194304"));
        }
    }

    #[test]
    fn files_of_a_tokenizer_that_are_not_regular_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for name in [DEFINITION, CONFIG] {
            // Opening the pipe to read it would block until a writer opens it.
            let path = folder.path().join(name);
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
            let refused = Tokenizer::load(folder.path()).unwrap_err();
            assert!(refused.to_string().contains(name), "{refused}");
            let source = std::error::Error::source(&refused).unwrap().to_string();
            assert_eq!(source, "expected a regular file, found a pipe");
        }
    }

    #[test]
    fn a_pattern_that_exceeds_the_limits_of_the_regex_library_is_an_error() {
        let split = json!({
            "type": "Split", "pattern": { "Regex": "(x+x+)+[yz]" }, "behavior": "Isolated", "invert": false,
        });
        let tokenizer = with(json!({ "pre_tokenizer": split })).unwrap();
        assert_eq!(tokenizer.encode("x").unwrap(), [1]);
        let error = tokenizer.encode(&"x".repeat(60)).unwrap_err();
        assert!(matches!(error, TokenizerError::Encode { num_bytes: 60, .. }), "{error}");
    }

    #[test]
    fn every_file_that_an_export_copies_is_fetched_from_the_hub() {
        for name in COPIED.into_iter().chain(["additional_chat_templates/tools.jinja"]) {
            assert!(is_of_model(name), "{name}");
        }
    }
}
