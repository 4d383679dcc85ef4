//! Reading fixtures, and the functions of logits that they were made with.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rlt_decoder::{Decoder, LoadOptions, PackedInput};
use tch::{Device, Kind, Tensor};

use super::models;

/// The tolerance between two f32 implementations: sums of a few hundred products, added in another order.
pub(crate) const TOLERANCE: f64 = 1e-4;

pub(crate) const TRAINABLE: LoadOptions =
    LoadOptions { device: Device::Cpu, param_dtype: Kind::Float, compute: Kind::Float, trainable: true };

pub(crate) struct Fixture {
    pub(crate) dir: PathBuf,
    tensors: BTreeMap<String, Tensor>,
}

impl Fixture {
    pub(crate) fn open(name: &str, file: &str) -> Self {
        let dir = models::folder(name);
        let tensors = Tensor::read_safetensors(dir.join(file)).unwrap().into_iter().collect();
        Self { dir, tensors }
    }

    pub(crate) fn expected(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.dir.display()))
    }

    /// The expected tensors whose names begin with `prefix`, without it.
    pub(crate) fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        self.tensors.iter().filter_map(move |(name, tensor)| Some((name.strip_prefix(prefix)?, tensor)))
    }

    pub(crate) fn load(&self) -> Decoder {
        Decoder::load(&self.dir, &TRAINABLE).unwrap()
    }

    /// The sequences whose values are expected, in order.
    pub(crate) fn sequences(&self) -> Vec<Vec<u32>> {
        let lengths = Vec::<i64>::try_from(self.expected("lengths")).unwrap();
        let tokens = Vec::<i64>::try_from(self.expected("tokens")).unwrap();
        let mut rest = tokens.iter().map(|token| *token as u32);
        lengths.iter().map(|len| rest.by_ref().take(*len as usize).collect()).collect()
    }
}

pub(crate) fn packed(sequences: &[Vec<u32>]) -> PackedInput {
    let slices: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    PackedInput::new(&slices, Device::Cpu)
}

/// Computes the log-probs of the next tokens and the entropies of their distributions, `len - 1` values per
/// sequence.
pub(crate) fn predictions(logits_tv: &Tensor, input: &PackedInput, temperature: f64) -> (Tensor, Tensor) {
    let (mut rows, mut targets) = (Vec::new(), Vec::new());
    for ends in input.cu_seqlens.windows(2) {
        rows.extend(i64::from(ends[0])..i64::from(ends[1]) - 1);
        targets.extend(i64::from(ends[0]) + 1..i64::from(ends[1]));
    }
    let targets = input.tokens.index_select(0, &Tensor::from_slice(&targets));
    let scaled = logits_tv.index_select(0, &Tensor::from_slice(&rows)) / temperature;
    let log_softmax = scaled.log_softmax(-1, Kind::Float);
    let entropies = -(log_softmax.exp() * &log_softmax).sum_dim_intlist(-1, false, None);
    (log_softmax.gather(1, &targets.unsqueeze(1), false).squeeze_dim(1), entropies)
}

/// Computes the loss of the fixtures' gradients: weighted log-probs at temperature 0.7 and an entropy bonus.
pub(crate) fn loss(logits_tv: &Tensor, input: &PackedInput, weights: &Tensor) -> Tensor {
    let (log_probs, entropies) = predictions(logits_tv, input, 0.7);
    (log_probs * weights).mean(None) - entropies.mean(None) * 0.1
}

pub(crate) fn max_error(got: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(got.size(), expected.size());
    (got.to_kind(Kind::Double) - expected.to_kind(Kind::Double)).abs().max().double_value(&[])
}
