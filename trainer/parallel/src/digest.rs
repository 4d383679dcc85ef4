//! Digests of weights: 64 bits for each parameter, or for a rank's shard of it. Trainer and engine compare
//! them before a rollout, and the reference's log-probs are cached under them. A version number in their
//! place would not notice a weight that a sync missed.
//!
//! The digest of a frozen parameter is cached, and stays valid while libtorch's version counter of the tensor
//! is unchanged. A weight sync with LoRA therefore reads only the adapter.
//!
//! A digest is computed on the device of the weights, so no weight is copied from a GPU.

use std::collections::{BTreeMap, BTreeSet};

use rlt_core::digest::{combine, digest64};
use rlt_torch::cuda::{DeviceDigest, Kernels};
use tch::{Device, Kind, Tensor};

use super::{DecoderUnits, RankError, ShardedParameters};

/// The digests of weights could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    /// The memory of a parameter could not be read.
    #[error("failed to compute the digest of {what}")]
    Tensor {
        /// Name of the parameter, or of the unit that it was gathered for.
        what: String,
        /// Error of the tensor library.
        #[source]
        source: rlt_torch::Error,
    },
    /// A rank's shard could not be read.
    #[error("failed to read the shards of weights for their digests")]
    Shards(#[from] RankError),
}

/// Digests of all parameters of a decoder, adapters included, at one point in time. For a sharded decoder
/// they cover this rank's shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDigest {
    parameters: Vec<(String, u64)>,
}

impl WeightDigest {
    /// Digests every local parameter of `policy`, bit by bit. Reads each of them once, and gathers nothing.
    ///
    /// # Errors
    /// [`DigestError`] if a parameter's memory cannot be read.
    pub fn of<'a>(policy: impl Into<DecoderUnits<'a>>) -> Result<Self, DigestError> {
        Self::with_cache(policy.into(), &mut DigestCache::default())
    }

    /// Digests the parameters like [`Self::of`], but takes the digests of unchanged frozen parameters from
    /// the cache.
    pub fn with_cache(policy: DecoderUnits<'_>, digest_cache: &mut DigestCache) -> Result<Self, DigestError> {
        let trained = policy.decoder().trainable_parameters().into_iter().map(|(name, _)| name).collect();
        // Offloaded values are at another address each time they are read.
        let is_offloaded = policy.shards().is_some_and(ShardedParameters::is_offloaded);
        let mut of_policy = digest_cache.of_policy(trained, is_offloaded);
        let mut names = Vec::new();
        let mut add = |name: &str, tensor: &Tensor| -> Result<(), DigestError> {
            names.push(name.to_owned());
            of_policy.see(name, tensor)
        };
        match policy.shards() {
            Some(shards) => shards.for_each_shard(|slice, local_shard| add(slice.name, local_shard))?,
            None => {
                let whole = policy.decoder().named_parameters();
                whole.iter().try_for_each(|(name, tensor)| add(name, tensor))?;
            }
        }
        let (digests, frozen) = of_policy.finish()?;
        digest_cache.frozen = frozen;
        Ok(Self { parameters: names.into_iter().zip(digests).collect() })
    }

    /// Combines the names and digests of the parameters that `counted` accepts into one digest.
    pub fn combined(&self, counted: impl Fn(&str) -> bool) -> u64 {
        let parameters = self.parameters.iter().filter(|(name, _)| counted(name));
        parameters.fold(0, |all, (name, own)| {
            let name = name.bytes().fold(0, |text, byte| combine(text, u64::from(byte)));
            combine(combine(all, name), *own)
        })
    }

    /// Whether both have the same parameter names, and equal digests except for the parameters that `trained`
    /// selects.
    pub fn equals_beside(&self, other: &Self, trained: impl Fn(&str) -> bool) -> bool {
        let same = |((name, own), (theirs, other)): (&(String, u64), &(String, u64))| {
            name == theirs && (own == other || trained(name))
        };
        self.parameters.len() == other.parameters.len()
            && self.parameters.iter().zip(&other.parameters).all(same)
    }

    /// Name of the first parameter that differs, is missing or is new in `other`.
    pub fn first_difference<'a>(&'a self, other: &'a Self) -> Option<&'a str> {
        let (mine, theirs) = (&self.parameters, &other.parameters);
        let differing = mine.iter().zip(theirs).find(|(mine, theirs)| mine != theirs).map(|(mine, _)| mine);
        let longer = if mine.len() > theirs.len() { mine } else { theirs };
        let unpaired = longer.get(mine.len().min(theirs.len()));
        differing.or(unpaired).map(|(name, _)| name.as_str())
    }
}

/// Cache of the digests of frozen parameters.
#[derive(Debug, Default)]
pub struct DigestCache {
    frozen: BTreeMap<String, CachedDigest>,
    /// Number of tensors read so far, over all passes.
    num_read: usize,
}

/// A cached digest, with the tensor and the version from which it was computed.
#[derive(Debug)]
struct CachedDigest {
    /// Keeps the memory allocated, so that no other tensor can have its address.
    tensor: Tensor,
    version: i64,
    digest: u64,
}

impl CachedDigest {
    /// Whether `tensor` is the cached one, unchanged.
    fn is_of(&self, tensor: &Tensor) -> bool {
        let place = |tensor: &Tensor| (tensor.data_ptr(), tensor.kind(), tensor.size());
        self.version == tensor.internal_version() && place(&self.tensor) == place(tensor)
    }
}

impl DigestCache {
    fn of_policy(&mut self, trained: BTreeSet<String>, is_offloaded: bool) -> OfPolicy<'_> {
        let before = std::mem::take(&mut self.frozen);
        OfPolicy { before, trained, is_offloaded, parameters: Vec::new(), num_read: &mut self.num_read }
    }
}

/// One pass over all parameters, which computes their digests or finds them in the cache.
struct OfPolicy<'a> {
    before: BTreeMap<String, CachedDigest>,
    trained: BTreeSet<String>,
    is_offloaded: bool,
    parameters: Vec<ParameterDigest>,
    num_read: &'a mut usize,
}

/// The digest of one parameter. For a tensor on a GPU it is missing until the pass finishes.
struct ParameterDigest {
    name: String,
    digest: Option<u64>,
    /// The tensor, if its digest is missing or to be cached.
    tensor: Option<Tensor>,
}

impl OfPolicy<'_> {
    /// Adds a parameter. Its digest comes from the cache or is computed here, but tensors on a GPU are
    /// digested all together in [`Self::finish`].
    fn see(&mut self, name: &str, tensor: &Tensor) -> Result<(), DigestError> {
        let known = self.before.remove(name).filter(|known| known.is_of(tensor));
        *self.num_read += usize::from(known.is_none());
        let digest = match known {
            Some(known) => Some(known.digest),
            None if tensor.device().is_cuda() => None,
            None => Some(digest_of(name, tensor)?),
        };
        let is_kept = !self.is_offloaded && !self.trained.contains(name);
        let tensor = (is_kept || digest.is_none()).then(|| tensor.detach());
        self.parameters.push(ParameterDigest { name: name.to_owned(), digest, tensor });
        Ok(())
    }

    /// Computes the missing digests. Returns all digests in order, and the cache entries of frozen
    /// parameters.
    fn finish(self) -> Result<(Vec<u64>, BTreeMap<String, CachedDigest>), DigestError> {
        let absent = |parameter: &&ParameterDigest| parameter.digest.is_none();
        let unread: Vec<Tensor> = self
            .parameters
            .iter()
            .filter(absent)
            .filter_map(|parameter| parameter.tensor.as_ref())
            .map(Tensor::detach)
            .collect();
        let mut read = on_device(&unread)?.into_iter();
        let (mut digests, mut frozen) = (Vec::with_capacity(self.parameters.len()), BTreeMap::new());
        for ParameterDigest { name, digest, tensor } in self.parameters {
            let digest = digest.or_else(|| read.next()).unwrap_or_default();
            digests.push(digest);
            if let Some(tensor) = tensor.filter(|_| !self.is_offloaded && !self.trained.contains(&name)) {
                let version = tensor.internal_version();
                frozen.insert(name, CachedDigest { tensor, version, digest });
            }
        }
        Ok((digests, frozen))
    }
}

/// Digests of tensors on one GPU, computed there; the digests are copied to the host by one copy.
fn on_device(tensors: &[Tensor]) -> Result<Vec<u64>, DigestError> {
    let failed = |source| DigestError::Tensor { what: "the weights on the GPU".into(), source };
    let Some(Device::Cuda(index)) = tensors.first().map(Tensor::device) else { return Ok(Vec::new()) };
    let digests = || {
        let kernels = Kernels::load(index)?;
        let words = Tensor::zeros([tensors.len() as i64], (Kind::Int64, Device::Cuda(index)));
        for (at, tensor) in tensors.iter().enumerate() {
            let (tensor, out) = (numbers_of(&tensor.contiguous()), words.narrow(0, at as i64, 1));
            DeviceDigest { tensor: &tensor, out: &out }.launch(&kernels)?;
        }
        let here = words.to_device(Device::Cpu);
        Ok(rlt_torch::i64_slice(&here)?.iter().map(|word| word.cast_unsigned()).collect())
    };
    digests().map_err(failed)
}

/// Returns a tensor as the kernel reads it: 8-bit codes are viewed as f32, four codes in each, or cast to f32
/// if their number is not a multiple of four.
fn numbers_of(tensor: &Tensor) -> Tensor {
    if !matches!(tensor.kind(), Kind::Uint8 | Kind::Int8) {
        return tensor.shallow_clone();
    }
    let in_a_float = size_of::<f32>();
    if !tensor.numel().is_multiple_of(in_a_float) {
        return tensor.to_kind(Kind::Float);
    }
    let is_aligned = tensor.data_ptr().addr().is_multiple_of(in_a_float);
    let flat = tensor.view([-1]);
    (if is_aligned { flat } else { flat.copy() }).view_dtype(Kind::Float)
}

/// The digest of a tensor; `what` names it in errors.
pub fn digest_of(what: &str, tensor: &Tensor) -> Result<u64, DigestError> {
    if tensor.device().is_cuda() {
        return Ok(on_device(&[tensor.detach()])?.swap_remove(0));
    }
    let flat = tensor.detach().contiguous().view([-1]);
    let in_a_float = (size_of::<f32>() / flat.kind().elt_size_in_bytes().min(size_of::<f32>())) as i64;
    let is_viewable = flat.size1().is_ok_and(|len| len % in_a_float == 0);
    // Several narrower values are viewed as one f32. If their number does not allow that, all are cast to
    // f32, which is lossless.
    let values = if is_viewable { flat.view_dtype(Kind::Float) } else { flat.to_kind(Kind::Float) };
    let digest = rlt_torch::f32_slice(&values).map(digest64);
    digest.map_err(|source| DigestError::Tensor { what: what.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use rlt_api::spec::LoraSpec;
    use rlt_decoder::{Decoder, LoadOptions, LoraConfig};
    use rlt_models::ModelConfig;
    use serde_json::json;

    use super::*;

    fn adapted() -> Decoder {
        let config = ModelConfig::from_json(&json!({
            "architectures": ["Qwen2ForCausalLM"], "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2
        }));
        let mut decoder = Decoder::from_config(&config.unwrap(), 7, &LoadOptions::default()).unwrap();
        decoder.attach_lora(&LoraConfig::from_spec(&LoraSpec::default()), 1).unwrap();
        decoder
    }

    fn nudge(decoder: &Decoder, name: &str) {
        let (_, tensor) = decoder.named_parameters().into_iter().find(|(own, _)| own == name).unwrap();
        tch::no_grad(|| drop(tensor.view([-1]).narrow(0, 0, 1).g_add_scalar_(0.5)));
    }

    #[test]
    fn a_sync_of_an_adapted_model_reads_the_adapter_alone_and_yet_finds_any_change() {
        let decoder = adapted();
        let mut known = DigestCache::default();
        let mut digest = || {
            let before = known.num_read;
            let digest = WeightDigest::with_cache((&decoder).into(), &mut known).unwrap();
            assert_eq!(digest, WeightDigest::of(&decoder).unwrap(), "as if nothing were known");
            (digest, known.num_read - before)
        };
        let (num_all, num_trained) = (decoder.named_parameters().len(), decoder.trainable_parameters().len());
        let (mut last, num_read) = digest();
        assert_eq!(num_read, num_all);
        assert_eq!(digest(), (last.clone(), num_trained));
        for (name, _) in decoder.named_parameters() {
            nudge(&decoder, &name);
            let (now, num_read) = digest();
            assert_eq!(last.first_difference(&now), Some(name.as_str()));
            let is_frozen = !name.contains("lora_");
            assert_eq!(num_read, num_trained + usize::from(is_frozen), "{name}");
            last = now;
        }
    }

    #[test]
    fn another_model_is_read_anew() {
        let mut known = DigestCache::default();
        for num_read in 1..3 {
            let decoder = adapted();
            WeightDigest::with_cache((&decoder).into(), &mut known).unwrap();
            assert_eq!(known.num_read, num_read * decoder.named_parameters().len());
        }
    }
}
