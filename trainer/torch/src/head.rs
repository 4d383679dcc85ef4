//! The language-model head in chunks of tokens: log-probs, entropies and their gradients without the full
//! `[T, V]` logits. The caller supplies the loss. The formulas are in `csrc/kernels/head.inl`.

use crate::Error;
use crate::ffi::{ChunkRows, check, raw, rlt_head_chunk_backward, rlt_head_chunk_forward};
use crate::vocabulary_shard::HeadWeight;
use std::ops::Range;
use tch::Tensor;

/// Callback that returns the loss's derivatives by log-probs and by entropies for a range of tokens, given
/// both; one value per token. The ranges of successive calls tile all tokens in order. Tokens without a
/// target have zeros, and their derivatives are ignored.
pub type PerChunk<'a> = dyn FnMut(Range<usize>, &[f32], &[f32]) -> (Vec<f32>, Vec<f32>) + 'a;

/// How products z of hidden states and head become a token's distribution: `softmax(z / temperature)`, where
/// z is replaced by `c tanh(z / c)` if there is a softcap c.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenDistribution {
    /// Divisor of the logits, above 0.
    pub temperature: f64,
    /// Softcap of the logits (Gemma 2).
    pub softcap: Option<f64>,
}

impl From<f64> for TokenDistribution {
    /// Makes a distribution with a temperature and no softcap.
    fn from(temperature: f64) -> Self {
        Self { temperature, softcap: None }
    }
}

/// Computes the log-probs of `targets` and the entropies under the distribution `by` of `hidden weight^T`,
/// without gradients.
///
/// `hidden_td` is `[T, D]` and `weight_vd` is `[V, D]` of the same dtype. `targets` has T ids, -1 for tokens
/// without a prediction (both values are then 0 and no product is computed). `chunk` is the number of rows of
/// logits that exist at once: peak memory is `chunk * V`, for any T. Returns two vectors of T values, in
/// nats; sums are float32 or wider. If ranks share a weight ([`HeadWeight`]), all ranks get the same values.
///
/// # Errors
/// When shapes do not fit, a target is outside the vocabulary, or temperature or softcap is not positive.
pub fn head_forward<'a>(
    hidden_td: &Tensor,
    weight_vd: impl Into<HeadWeight<'a>>,
    targets: &[i64],
    by: impl Into<TokenDistribution>,
    chunk: usize,
) -> Result<(Vec<f32>, Vec<f32>), Error> {
    let head = Head::new(hidden_td, weight_vd.into(), targets, by.into(), chunk)?;
    let mut logprobs = vec![0.0; targets.len()];
    let mut entropies = vec![0.0; targets.len()];
    for tokens in head.chunks() {
        let chunk = head.forward(tokens.clone())?;
        chunk.scatter(&chunk.logprobs, tokens.start, &mut logprobs[tokens.clone()]);
        chunk.scatter(&chunk.entropies, tokens.start, &mut entropies[tokens]);
    }
    Ok((logprobs, entropies))
}

/// Computes [`head_forward`] and its backward pass in one pass: each chunk's logits are computed once, passed
/// to `per_chunk` as log-probs and entropies, and overwritten by their gradient. Returns the gradient of
/// `hidden_td`; that of the weight is added to `grad_weight` (`[V, D]`) unless the head is frozen. Chunks
/// whose derivatives are all zero need no backward products. If ranks share a weight, the gradient of
/// `hidden_td` is this rank's summand.
///
/// # Errors
/// The errors of [`head_forward`], and when `per_chunk` returns another number of values than the range has
/// tokens.
pub fn head_forward_backward<'a>(
    hidden_td: &Tensor,
    weight_vd: impl Into<HeadWeight<'a>>,
    targets: &[i64],
    by: impl Into<TokenDistribution>,
    chunk: usize,
    mut grad_weight: Option<&mut Tensor>,
    per_chunk: &mut PerChunk<'_>,
) -> Result<Tensor, Error> {
    let weight_vd = weight_vd.into();
    let head = Head::new(hidden_td, weight_vd, targets, by.into(), chunk)?;
    let weight_vd = weight_vd.weight_vd;
    if let Some(grad) = &grad_weight
        && grad.size() != weight_vd.size()
    {
        return Err(argument(
            format!("a weight gradient of {:?}", weight_vd.size()),
            format!("{:?}", grad.size()),
        ));
    }
    let mut grad_hidden = hidden_td.detach().zeros_like();
    for tokens in head.chunks() {
        let mut chunk = head.forward(tokens.clone())?;
        let mut logprobs = vec![0.0; tokens.len()];
        let mut entropies = vec![0.0; tokens.len()];
        chunk.scatter(&chunk.logprobs, tokens.start, &mut logprobs);
        chunk.scatter(&chunk.entropies, tokens.start, &mut entropies);
        let (grad_logprobs, grad_entropies) = per_chunk(tokens.clone(), &logprobs, &entropies);
        if grad_logprobs.len() != tokens.len() || grad_entropies.len() != tokens.len() {
            let got = format!("{} and {}", grad_logprobs.len(), grad_entropies.len());
            return Err(argument(
                format!("{} derivatives of each kind for tokens {tokens:?}", tokens.len()),
                got,
            ));
        }
        chunk.gather(tokens.start, &grad_logprobs, &grad_entropies);
        if chunk.has_gradient() {
            head.backward(&mut chunk, &mut grad_hidden, grad_weight.as_deref_mut())?;
        }
    }
    Ok(grad_hidden)
}

fn argument(expected: String, got: String) -> Error {
    Error::Argument { act: "the vocabulary head", expected, got }
}

/// Inputs of one call, with the only buffer for logits.
struct Head<'a> {
    hidden: Tensor,
    weight: HeadWeight<'a>,
    targets: &'a [i64],
    /// Indices of the tokens that have a target, ascending.
    active: Vec<i64>,
    by: TokenDistribution,
    chunk: usize,
    logits: Tensor,
}

/// Rows with a target of one range of tokens, with their logits and results.
pub(crate) struct Chunk {
    rows: Vec<i64>,
    hidden: Tensor,
    /// Logits after the softcap.
    pub(crate) logits: Tensor,
    /// Column of each row's target in the logits; -1 if it is a column of another rank.
    pub(crate) targets: Vec<i64>,
    pub(crate) max: Vec<f32>,
    pub(crate) log_sum: Vec<f32>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) entropies: Vec<f32>,
    grad_logprobs: Vec<f32>,
    grad_entropies: Vec<f32>,
}

impl<'a> Head<'a> {
    fn new(
        hidden_td: &Tensor,
        weight: HeadWeight<'a>,
        targets: &'a [i64],
        by: TokenDistribution,
        chunk: usize,
    ) -> Result<Head<'a>, Error> {
        let weight_vd = weight.weight_vd;
        let (hidden_size, weight_size) = (hidden_td.size(), weight_vd.size());
        let fits = hidden_size.len() == 2
            && weight_size.len() == 2
            && hidden_size[0] == targets.len() as i64
            && hidden_size[1] == weight_size[1]
            && hidden_td.kind() == weight_vd.kind();
        if !fits {
            let kinds = (hidden_td.kind(), weight_vd.kind());
            return Err(argument(
                format!("hidden [{}, D] and weight [V, D] of one dtype", targets.len()),
                format!("{hidden_size:?} and {weight_size:?} of {kinds:?}"),
            ));
        }
        let numbers = [("a positive temperature", Some(by.temperature)), ("a positive cap", by.softcap)];
        let is_legal = |number: f64| number > 0.0 && number.is_finite();
        if let Some((expected, Some(got))) = numbers.into_iter().find(|(_, n)| !n.is_none_or(is_legal)) {
            return Err(argument(expected.into(), got.to_string()));
        }
        if let Some(at) = targets.iter().position(|&target| target >= weight.vocab_size()) {
            return Err(argument(
                format!("targets below the vocabulary's {}", weight.vocab_size()),
                format!("{} at token {at}", targets[at]),
            ));
        }
        let active: Vec<i64> = (0..targets.len()).filter(|&t| targets[t] >= 0).map(|t| t as i64).collect();
        let chunk = chunk.max(1);
        let rows = chunk.min(active.len()) as i64;
        let logits = Tensor::empty([rows, weight_size[0]], (hidden_td.kind(), hidden_td.device()));
        let hidden = hidden_td.detach();
        Ok(Head { hidden, weight, targets, active, by, chunk, logits })
    }

    /// Splits all tokens into ranges with at most `chunk` targets each.
    fn chunks(&self) -> Vec<Range<usize>> {
        let mut starts: Vec<usize> = self.active.iter().step_by(self.chunk).map(|&t| t as usize).collect();
        if starts.is_empty() && !self.targets.is_empty() {
            starts.push(0);
        }
        if let Some(first) = starts.first_mut() {
            *first = 0;
        }
        let ends = starts.iter().skip(1).copied().chain([self.targets.len()]);
        starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
    }

    fn forward(&self, tokens: Range<usize>) -> Result<Chunk, Error> {
        let first = self.active.partition_point(|&t| (t as usize) < tokens.start);
        let last = self.active.partition_point(|&t| (t as usize) < tokens.end);
        let rows = self.active[first..last].to_vec();
        let n = rows.len();
        let hidden = match rows.first() {
            Some(&start) if rows[n - 1] - start + 1 == n as i64 => self.hidden.narrow(0, start, n as i64),
            _ => self.hidden.index_select(0, &Tensor::from_slice(&rows).to_device(self.hidden.device())),
        };
        let mut chunk = Chunk {
            targets: rows.iter().map(|&t| self.weight.own_target(self.targets[t as usize])).collect(),
            rows,
            hidden,
            logits: self.logits.narrow(0, 0, n as i64),
            max: vec![0.0; n],
            log_sum: vec![0.0; n],
            logprobs: vec![0.0; n],
            entropies: vec![0.0; n],
            grad_logprobs: vec![0.0; n],
            grad_entropies: vec![0.0; n],
        };
        if n > 0 {
            let rows = chunk.c_rows();
            // SAFETY: borrowed tensors and arrays of one entry a row that live for the call.
            check("the head's forward", unsafe {
                let (hidden, weight, logits) =
                    (raw(&chunk.hidden), raw(self.weight.weight_vd), raw(&chunk.logits));
                let TokenDistribution { temperature, softcap } = self.by;
                rlt_head_chunk_forward(hidden, weight, logits, &rows, temperature, softcap.unwrap_or(0.0))
            })?;
            if let Some(shard) = self.weight.shard {
                shard.complete(&mut chunk, self.by.temperature)?;
            }
        }
        Ok(chunk)
    }

    fn backward(
        &self,
        chunk: &mut Chunk,
        grad_hidden: &mut Tensor,
        grad_weight: Option<&mut Tensor>,
    ) -> Result<(), Error> {
        let grad = chunk.hidden.empty_like();
        let rows = chunk.c_rows();
        let grad_weight = grad_weight.map_or(std::ptr::null_mut(), |grad| raw(grad));
        // SAFETY: borrowed tensors (the weight's gradient may be null) and arrays of one entry a row.
        check("the head's backward", unsafe {
            let (hidden, weight, logits) =
                (raw(&chunk.hidden), raw(self.weight.weight_vd), raw(&chunk.logits));
            let TokenDistribution { temperature, softcap } = self.by;
            let (softcap, grad) = (softcap.unwrap_or(0.0), raw(&grad));
            rlt_head_chunk_backward(hidden, weight, logits, &rows, temperature, softcap, grad, grad_weight)
        })?;
        let index = Tensor::from_slice(&chunk.rows).to_device(grad_hidden.device());
        let _ = grad_hidden.index_copy_(0, &index, &grad);
        Ok(())
    }
}

impl Chunk {
    fn c_rows(&mut self) -> ChunkRows {
        ChunkRows {
            targets: self.targets.as_ptr(),
            max: self.max.as_mut_ptr(),
            log_sum: self.log_sum.as_mut_ptr(),
            logprob: self.logprobs.as_mut_ptr(),
            entropy: self.entropies.as_mut_ptr(),
            grad_logprob: self.grad_logprobs.as_ptr(),
            grad_entropy: self.grad_entropies.as_ptr(),
        }
    }

    fn scatter(&self, values: &[f32], start: usize, out: &mut [f32]) {
        for (&token, &value) in self.rows.iter().zip(values) {
            out[token as usize - start] = value;
        }
    }

    fn gather(&mut self, start: usize, grad_logprobs: &[f32], grad_entropies: &[f32]) {
        for (row, &token) in self.rows.iter().enumerate() {
            self.grad_logprobs[row] = grad_logprobs[token as usize - start];
            self.grad_entropies[row] = grad_entropies[token as usize - start];
        }
    }

    fn has_gradient(&self) -> bool {
        self.grad_logprobs.iter().chain(&self.grad_entropies).any(|&grad| grad != 0.0)
    }
}
