//! Samples with their rewards as one array of bytes, as ranks exchange them.
//!
//! ```text
//! u64   groups, samples, tokens, function names, parts: how many of each
//! u64   samples of each group; tokens of each sample; parts of each sample
//! u32   tokens of all samples           f32   their log-probs under the rollout
//! f64   scores, then values             u8    finish reasons, then statuses
//! u32   the name of each part           f64   the value of each part
//! u64   bytes of each name, and of each sample's text, answer and message; `u64::MAX` where it has none
//! u8    these texts in UTF-8
//! ```
//! Numbers are little endian and keep every bit. Nothing is padded: see [`num_bytes`]. Names ascend and each
//! is that of some part; the parts of a sample ascend. So samples have exactly one encoding, and other bytes
//! are rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::vec::IntoIter;

use crate::types::{Completion, FinishReason, Reward, RewardStatus};

/// The samples of one prompt with their rewards.
pub type JudgedGroup = Vec<(Completion, Reward)>;

/// Length that marks a missing text.
const ABSENT: u64 = u64::MAX;

/// Samples that cannot be packed, or bytes that are not an encoding of samples.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackedSamplesError {
    /// The bytes end before a field does.
    #[error("{field}: expected {expected} bytes, got {got}")]
    Truncated {
        /// Name of the field.
        field: &'static str,
        /// Number of bytes that the field takes.
        expected: u64,
        /// Number of bytes that are left.
        got: u64,
    },
    /// The lengths of a field do not have the expected sum.
    #[error("{field}: expected lengths with the sum {expected}, got {got}")]
    Lengths {
        /// Name of the field.
        field: &'static str,
        /// Sum that the header gives.
        expected: u64,
        /// Sum of the lengths that were read.
        got: u64,
    },
    /// A number has no meaning in its field.
    #[error("{field}: expected a number below {below}, got {got}")]
    Code {
        /// Name of the field.
        field: &'static str,
        /// Upper bound of the meaningful numbers, exclusive.
        below: u32,
        /// Number that was read.
        got: u32,
    },
    /// A text is not UTF-8.
    #[error("{field}: expected UTF-8, got other bytes")]
    Text {
        /// Name of the text.
        field: &'static str,
    },
    /// A sample has no completion text. An empty text would have the length 0.
    #[error("{field}: expected a length, got none")]
    Missing {
        /// Name of the text.
        field: &'static str,
    },
    /// Names, or the parts of a sample, are not in ascending order.
    #[error("{field}: expected each once, in ascending order")]
    Order {
        /// Name of the list.
        field: &'static str,
    },
    /// A name belongs to no reward part.
    #[error("names of reward parts: expected the names of the samples' parts, got {name:?} beside them")]
    Unused {
        /// Name that is not used.
        name: String,
    },
    /// Bytes follow the last text.
    #[error("expected nothing after the last text, got {got} bytes")]
    Trailing {
        /// Number of bytes that follow.
        got: u64,
    },
}

/// Number of bytes that [`pack`] needs for so many groups, samples, tokens, function names, parts, and bytes
/// of text.
pub fn num_bytes([groups, samples, tokens, names, parts, text]: [usize; 6]) -> usize {
    5 * 8 + 8 * groups + (2 * 8 + 2 * 8 + 2 + 3 * 8) * samples + 8 * tokens + 8 * names + 12 * parts + text
}

/// Encodes samples as bytes.
///
/// # Errors
/// [`PackedSamplesError::Lengths`] for a sample whose log-probs are not as many as its tokens.
pub fn pack(groups: &[JudgedGroup]) -> Result<Vec<u8>, PackedSamplesError> {
    let samples: Vec<&(Completion, Reward)> = groups.iter().flatten().collect();
    let (mut num_tokens, mut num_parts) = (0, 0);
    for (completion, reward) in &samples {
        let (expected, got) = (completion.tokens.len() as u64, completion.rollout_logprobs.len() as u64);
        if expected != got {
            return Err(PackedSamplesError::Lengths { field: "rollout log-probs", expected, got });
        }
        num_tokens += completion.tokens.len();
        num_parts += reward.parts.len();
    }
    let all_parts = samples.iter().flat_map(|(_, reward)| reward.parts.keys().map(String::as_str));
    let names: Vec<&str> = all_parts.collect::<BTreeSet<_>>().into_iter().collect();
    let mut packed = Packed::default();
    packed.lens([groups.len(), samples.len(), num_tokens, names.len(), num_parts]);
    packed.lens(groups.iter().map(Vec::len));
    packed.samples(&samples, &names);
    Ok(packed.0)
}

/// Decodes the bytes of [`pack`].
///
/// # Errors
/// [`PackedSamplesError`], which names the field.
pub fn unpack(bytes: &[u8]) -> Result<Vec<JudgedGroup>, PackedSamplesError> {
    let mut reader = Reader { rest: bytes };
    let [num_groups, num_samples, num_tokens, num_names, num_parts] =
        reader.take("counts", 5, u64::from_le_bytes)?.collect::<Vec<_>>().try_into().unwrap_or_default();
    let group_lens = reader.lengths("samples of a group", num_groups, num_samples)?;
    let token_lens = reader.lengths("tokens of a sample", num_samples, num_tokens)?;
    let part_lens = reader.lengths("reward parts of a sample", num_samples, num_parts)?;
    let mut columns = Columns::read(&mut reader, [num_samples, num_tokens, num_names, num_parts])?;
    let lens = token_lens.into_iter().zip(part_lens);
    let samples: Result<Vec<_>, _> =
        lens.map(|(num_tokens, num_parts)| columns.sample(&mut reader, num_tokens, num_parts)).collect();
    let mut samples = samples?.into_iter();
    match reader.rest.len() as u64 {
        0 => Ok(group_lens.into_iter().map(|len| samples.by_ref().take(len).collect()).collect()),
        got => Err(PackedSamplesError::Trailing { got }),
    }
}

/// The values of all samples, one iterator per kind, from which each sample takes its own in order.
struct Columns {
    tokens: IntoIter<u32>,
    logprobs: IntoIter<f32>,
    scores: IntoIter<f64>,
    values: IntoIter<f64>,
    finish_reasons: IntoIter<u8>,
    statuses: IntoIter<u8>,
    part_names: IntoIter<u32>,
    part_values: IntoIter<f64>,
    text_lens: IntoIter<u64>,
    names: Vec<String>,
}

impl Columns {
    fn read(
        reader: &mut Reader<'_>,
        [num_samples, num_tokens, num_names, num_parts]: [u64; 4],
    ) -> Result<Self, PackedSamplesError> {
        let mut columns = Self {
            tokens: reader.take("tokens", num_tokens, u32::from_le_bytes)?,
            logprobs: reader.take("rollout log-probs", num_tokens, f32::from_le_bytes)?,
            scores: reader.take("scores", num_samples, f64::from_le_bytes)?,
            values: reader.take("reward values", num_samples, f64::from_le_bytes)?,
            finish_reasons: reader.take("finish reasons", num_samples, u8::from_le_bytes)?,
            statuses: reader.take("reward statuses", num_samples, u8::from_le_bytes)?,
            part_names: reader.take("names of reward parts", num_parts, u32::from_le_bytes)?,
            part_values: reader.take("values of reward parts", num_parts, f64::from_le_bytes)?,
            text_lens: Vec::new().into_iter(),
            names: Vec::new(),
        };
        let name_lens = reader.take("lengths of names", num_names, u64::from_le_bytes)?;
        columns.text_lens =
            reader.take("lengths of texts", num_samples.saturating_mul(3), u64::from_le_bytes)?;
        columns.names = name_lens.map(|len| reader.text("a name", len)).collect::<Result<_, _>>()?;
        columns.check_names()?;
        Ok(columns)
    }

    /// Checks that each part has a name, and that each name is used and in ascending order.
    fn check_names(&self) -> Result<(), PackedSamplesError> {
        if !self.names.is_sorted_by(|name, next| name < next) {
            return Err(PackedSamplesError::Order { field: "names of reward parts" });
        }
        let used: BTreeSet<usize> = self.part_names.as_slice().iter().map(|name| *name as usize).collect();
        let below = self.names.len() as u32;
        if let Some(got) = self.part_names.as_slice().iter().copied().find(|name| *name >= below) {
            return Err(PackedSamplesError::Code { field: "the name of a reward part", below, got });
        }
        match self.names.iter().enumerate().find(|(place, _)| !used.contains(place)) {
            Some((_, name)) => Err(PackedSamplesError::Unused { name: name.clone() }),
            None => Ok(()),
        }
    }

    /// Takes the next `num_parts` reward parts.
    fn parts(&mut self, num_parts: usize) -> Result<BTreeMap<String, f64>, PackedSamplesError> {
        let of_sample = self.part_names.as_slice().get(..num_parts).unwrap_or_default();
        if !of_sample.is_sorted_by(|name, next| name < next) {
            return Err(PackedSamplesError::Order { field: "reward parts of a sample" });
        }
        let named = self.part_names.by_ref().zip(self.part_values.by_ref()).take(num_parts);
        // Each name index is in range: see `check_names`.
        Ok(named.filter_map(|(name, value)| Some((self.names.get(name as usize)?.clone(), value))).collect())
    }

    /// Takes the next sample, with its number of tokens and of reward parts.
    fn sample(
        &mut self,
        reader: &mut Reader<'_>,
        num_tokens: usize,
        num_parts: usize,
    ) -> Result<(Completion, Reward), PackedSamplesError> {
        let parts = self.parts(num_parts)?;
        let mut text = |field| match self.text_lens.next().unwrap_or(ABSENT) {
            ABSENT => Ok(None),
            len => reader.text(field, len).map(Some),
        };
        let completion = Completion {
            tokens: self.tokens.by_ref().take(num_tokens).collect(),
            rollout_logprobs: self.logprobs.by_ref().take(num_tokens).collect(),
            text: text("a text")?.ok_or(PackedSamplesError::Missing { field: "a text" })?,
            finish_reason: decoded("a finish reason", self.finish_reasons.next(), &FinishReason::ALL)?,
        };
        let reward = Reward {
            score: self.scores.next().unwrap_or_default(),
            value: self.values.next().unwrap_or_default(),
            parts,
            answer: text("an answer")?,
            status: decoded("a reward's status", self.statuses.next(), &STATUSES)?,
            message: text("a message")?,
        };
        Ok((completion, reward))
    }
}

/// Returns text, answer and message of a sample, in the order of the encoding.
fn texts_of<'a>(completion: &'a Completion, reward: &'a Reward) -> [Option<&'a str>; 3] {
    [Some(&completion.text), reward.answer.as_deref(), reward.message.as_deref()]
}

/// Statuses in the order of their codes.
const STATUSES: [RewardStatus; 4] = RewardStatus::ALL;

/// Returns the index of `value` in `all`; `u8::MAX` if it is missing.
fn code<T: PartialEq>(value: T, all: &[T]) -> u8 {
    all.iter().position(|one| *one == value).map_or(u8::MAX, |place| place as u8)
}

fn decoded<T: Copy>(field: &'static str, code: Option<u8>, all: &[T]) -> Result<T, PackedSamplesError> {
    let got = code.unwrap_or(u8::MAX);
    let below = all.len() as u32;
    all.get(usize::from(got)).copied().ok_or(PackedSamplesError::Code { field, below, got: got.into() })
}

/// The bytes encoded so far.
#[derive(Default)]
struct Packed(Vec<u8>);

impl Packed {
    fn push<const N: usize>(&mut self, numbers: impl IntoIterator<Item = [u8; N]>) {
        numbers.into_iter().for_each(|number| self.0.extend_from_slice(&number));
    }

    fn lens(&mut self, lens: impl IntoIterator<Item = usize>) {
        self.push(lens.into_iter().map(|len| (len as u64).to_le_bytes()));
    }

    /// Appends everything from the lengths of samples on. `names` of reward parts ascend.
    fn samples(&mut self, samples: &[&(Completion, Reward)], names: &[&str]) {
        let completions = || samples.iter().map(|(completion, _)| completion);
        let rewards = || samples.iter().map(|(_, reward)| reward);
        let parts = || rewards().flat_map(|reward| &reward.parts);
        let name_idx = |name: &str| names.partition_point(|other| *other < name) as u32;
        self.lens(completions().map(|completion| completion.tokens.len()));
        self.lens(rewards().map(|reward| reward.parts.len()));
        self.push(completions().flat_map(|completion| &completion.tokens).map(|token| token.to_le_bytes()));
        self.push(completions().flat_map(|completion| &completion.rollout_logprobs).map(|p| p.to_le_bytes()));
        self.push(rewards().map(|reward| reward.score.to_le_bytes()));
        self.push(rewards().map(|reward| reward.value.to_le_bytes()));
        self.push(completions().map(|completion| [code(completion.finish_reason, &FinishReason::ALL)]));
        self.push(rewards().map(|reward| [code(reward.status, &STATUSES)]));
        self.push(parts().map(|(name, _)| name_idx(name).to_le_bytes()));
        self.push(parts().map(|(_, value)| value.to_le_bytes()));
        let of_samples = samples.iter().flat_map(|(completion, reward)| texts_of(completion, reward));
        let texts: Vec<Option<&str>> = names.iter().copied().map(Some).chain(of_samples).collect();
        self.push(texts.iter().map(|text| text.map_or(ABSENT, |text| text.len() as u64).to_le_bytes()));
        texts.into_iter().flatten().for_each(|text| self.0.extend_from_slice(text.as_bytes()));
    }
}

/// The bytes that are not read yet.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads the next `count` numbers of `N` bytes each.
    fn take<T, const N: usize>(
        &mut self,
        field: &'static str,
        count: u64,
        number: fn([u8; N]) -> T,
    ) -> Result<IntoIter<T>, PackedSamplesError> {
        let bytes = self.bytes(field, count.saturating_mul(N as u64))?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).collect::<Vec<_>>().into_iter())
    }

    /// Reads the next `count` lengths, whose sum must be `expected`.
    fn lengths(
        &mut self,
        field: &'static str,
        count: u64,
        expected: u64,
    ) -> Result<Vec<usize>, PackedSamplesError> {
        let lens: Vec<u64> = self.take(field, count, u64::from_le_bytes)?.collect();
        let got = lens.iter().fold(0_u64, |sum, len| sum.saturating_add(*len));
        if got != expected {
            return Err(PackedSamplesError::Lengths { field, expected, got });
        }
        Ok(lens.into_iter().map(|len| len as usize).collect())
    }

    fn text(&mut self, field: &'static str, len: u64) -> Result<String, PackedSamplesError> {
        let bytes = self.bytes(field, len)?.to_vec();
        String::from_utf8(bytes).map_err(|_| PackedSamplesError::Text { field })
    }

    fn bytes(&mut self, field: &'static str, expected: u64) -> Result<&'a [u8], PackedSamplesError> {
        let taken = usize::try_from(expected).ok().and_then(|len| self.rest.split_at_checked(len));
        let got = self.rest.len() as u64;
        let (taken, rest) = taken.ok_or(PackedSamplesError::Truncated { field, expected, got })?;
        self.rest = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests;
