//! The vocabulary head on a GPU, chunk by chunk as in [`crate::head_forward_backward`]: the host computes the
//! loss between the two products, in stream order, so that the launching thread does not wait.

use std::ops::Range;

use tch::{Kind, Tensor, no_grad};

use crate::Error;
use crate::cuda::{HeadBackward, HeadForward, Kernels};
use crate::host_callbacks::HostCallbacks;
use crate::vocabulary_shard::HeadWeight;

/// Loss of one chunk: gets log-probs and entropies of the chunk's tokens, and writes the derivatives with
/// respect to both.
pub type ChunkLoss = Box<dyn FnOnce([&[f32]; 2], [&mut [f32]; 2]) + Send>;

/// Inputs of the head for one micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct DeviceHead<'a> {
    /// Hidden states after the final norm, `[c, d]`.
    pub hidden_cd: &'a Tensor,
    /// Weight of the head in the dtype of the hidden states, `[v, d]`: the full weight, or this rank's rows.
    /// With a shard the calls are collective, because ranks exchange statistics for each chunk.
    pub weight: HeadWeight<'a>,
    /// Predicted tokens, i64 `[c]` on the device, as ids of the full vocabulary.
    pub targets_c: &'a Tensor,
    /// Divisor of the logits.
    pub temperature: f64,
    /// Number of tokens whose logits exist at the same time.
    pub chunk: usize,
}

/// Rows of one chunk, with four statistics per row: log-prob, entropy, maximum, and log of the sum.
struct Chunk {
    tokens: Range<i64>,
    logits: Tensor,
    /// Column of each target in `logits`; out of range if another rank has the target's logit.
    targets: Tensor,
    /// Statistics, f32 `[4, rows]`.
    numbers: Tensor,
}

impl Chunk {
    fn forward<'a>(&'a self, rows: &'a [Tensor], temperature: f64) -> HeadForward<'a> {
        let [logprob, entropy, max, log_sum] = [&rows[0], &rows[1], &rows[2], &rows[3]];
        let Self { logits, targets, .. } = self;
        HeadForward { logits, targets, temperature, logprob, entropy, max, log_sum }
    }
}

impl DeviceHead<'_> {
    /// Computes log-probs of the targets and entropies, f32 `[2, c]` on the device, without waiting for it.
    ///
    /// # Errors
    /// When shapes do not fit, memory is short, or the kernels cannot be launched.
    pub fn forward(&self) -> Result<Tensor, Error> {
        let kernels = self.kernels()?;
        let logits = self.logits()?;
        let mut numbers = vec![empty(&[2, 0], Kind::Float, self.hidden_cd)?];
        for tokens in self.chunks() {
            let chunk = self.chunk_forward(&kernels, &logits, tokens)?;
            numbers.push(chunk.numbers.narrow(0, 0, 2));
        }
        Ok(no_grad(|| Tensor::cat(&numbers, 1)))
    }

    /// Computes the forward and the backward pass together. The statistics of each chunk are copied to the
    /// host, where the stream calls the function that `loss_of` returns for the chunk, and the derivatives
    /// are copied back. Returns the gradient of the hidden states; that of the weight is added to
    /// `grad_weight` unless the head is frozen.
    ///
    /// # Errors
    /// As of [`Self::forward`], and of [`HostCallbacks::compute`].
    pub fn forward_backward(
        &self,
        mut grad_weight: Option<Tensor>,
        calls: &mut HostCallbacks,
        mut loss_of: impl FnMut(Range<usize>) -> ChunkLoss,
    ) -> Result<Tensor, Error> {
        let kernels = self.kernels()?;
        let logits = self.logits()?;
        let grad_hidden = empty(&self.hidden_cd.size(), self.hidden_cd.kind(), self.hidden_cd)?;
        for tokens in self.chunks() {
            let chunk = self.chunk_forward(&kernels, &logits, tokens.clone())?;
            let (start, len) = (tokens.start, tokens.end - tokens.start);
            let loss = loss_of(start as usize..tokens.end as usize);
            let rows = len as usize;
            let grads = calls.compute(&chunk.numbers.narrow(0, 0, 2), 2 * rows, move |numbers, grads| {
                let (logprobs, entropies) = numbers.split_at(rows);
                let (by_logprob, by_entropy) = grads.split_at_mut(rows);
                loss([logprobs, entropies], [by_logprob, by_entropy]);
            })?;
            let rows = chunk.numbers.unbind(0);
            let forward = chunk.forward(&rows, self.temperature);
            let [grad_logprob, grad_entropy] = [0, len].map(|from| grads.narrow(0, from, len));
            HeadBackward { forward, grad_logprob: &grad_logprob, grad_entropy: &grad_entropy }
                .launch(&kernels)?;
            self.products(&chunk, &grad_hidden, grad_weight.as_mut())?;
        }
        Ok(grad_hidden)
    }

    fn kernels(&self) -> Result<Kernels, Error> {
        match self.hidden_cd.device() {
            tch::Device::Cuda(index) => Kernels::load(index),
            device => Err(Error::Argument {
                act: "the vocabulary head on a device",
                expected: "hidden states on a GPU".into(),
                got: format!("{device:?}"),
            }),
        }
    }

    /// Allocates a buffer for the logits of one chunk.
    fn logits(&self) -> Result<Tensor, Error> {
        let rows = self.hidden_cd.size()[0].min(self.chunk.max(1) as i64);
        empty(&[rows, self.weight.weight_vd.size()[0]], self.hidden_cd.kind(), self.hidden_cd)
    }

    fn chunks(&self) -> impl Iterator<Item = Range<i64>> + use<> {
        let (num_tokens, chunk) = (self.hidden_cd.size()[0], self.chunk.max(1) as i64);
        (0..num_tokens).step_by(chunk as usize).map(move |start| start..num_tokens.min(start + chunk))
    }

    fn chunk_forward(&self, kernels: &Kernels, logits: &Tensor, tokens: Range<i64>) -> Result<Chunk, Error> {
        let len = tokens.end - tokens.start;
        let logits = logits.narrow(0, 0, len);
        let hidden = self.hidden_cd.detach().narrow(0, tokens.start, len);
        let weight_dv = self.weight.weight_vd.detach().tr();
        let _ = no_grad(|| hidden.f_mm_out(&logits, &weight_dv)).map_err(failed)?;
        let mut targets = self.targets_c.narrow(0, tokens.start, len);
        if let Some(shard) = self.weight.shard {
            targets = no_grad(|| targets.f_sub_scalar(shard.first as i64)).map_err(failed)?;
        }
        let numbers = empty(&[4, len], Kind::Float, self.hidden_cd)?;
        let chunk = Chunk { tokens, logits, targets, numbers };
        chunk.forward(&chunk.numbers.unbind(0), self.temperature).launch(kernels)?;
        if let Some(shard) = self.weight.shard {
            let Chunk { logits, targets, numbers, .. } = &chunk;
            no_grad(|| shard.complete_on_device(logits, targets, self.temperature, numbers))?;
        }
        Ok(chunk)
    }

    /// Computes the products of the logits' gradient with the weight and with the hidden states.
    fn products(
        &self,
        chunk: &Chunk,
        grad_hidden: &Tensor,
        grad_weight: Option<&mut Tensor>,
    ) -> Result<(), Error> {
        let Chunk { tokens, logits, .. } = chunk;
        let len = tokens.end - tokens.start;
        let hidden = self.hidden_cd.detach().narrow(0, tokens.start, len);
        no_grad(|| {
            let _ = logits
                .f_mm_out(&grad_hidden.narrow(0, tokens.start, len), &self.weight.weight_vd.detach())?;
            match grad_weight {
                Some(grad) if grad.kind() == logits.kind() => grad.f_addmm_(&logits.tr(), &hidden).map(drop),
                Some(grad) => grad.f_add_(&logits.tr().f_mm(&hidden)?).map(drop),
                None => Ok(()),
            }
        })
        .map_err(failed)
    }
}

fn empty(size: &[i64], kind: Kind, beside: &Tensor) -> Result<Tensor, Error> {
    Tensor::f_empty(size, (kind, beside.device())).map_err(failed)
}

fn failed(source: tch::TchError) -> Error {
    Error::Libtorch { act: "the vocabulary head on a device", message: source.to_string() }
}
