//! Arithmetic of the optimizer: one AdamW step of a tensor, and the norm of many gradients. Schedules,
//! clipping rules and parameter groups belong to the caller.

use crate::Error;
use crate::cuda::{Kernels, NormOfSquares, SquaresTable, SumsOfSquares};
use crate::ffi::{AdamWSettings, check, raw, rlt_adamw, rlt_sum_of_squares};
use crate::upload;
use tch::{Device, Kind, TchError, Tensor};

/// Hyperparameters of one AdamW step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWStep {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay rates of the first and second moment.
    pub betas: (f64, f64),
    /// Epsilon, added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay: the parameter shrinks by `learning_rate * weight_decay` of its value.
    pub weight_decay: f64,
    /// Factor of the gradient, applied first (a clipping coefficient); 1 for none.
    pub grad_scale: f64,
    /// Number of the step, from 1.
    pub step: i64,
}

/// Applies one step of decoupled AdamW in place, by torch.optim.AdamW's formula (no amsgrad). `param`,
/// `grad`, `exp_avg` and `exp_avg_sq` have the same number of elements; contiguous f32 on the CPU needs one
/// pass over memory. The result does not depend on the number of threads.
///
/// # Errors
/// When sizes differ or the step is below 1.
pub fn adamw_step(
    param: &mut Tensor,
    grad: &Tensor,
    exp_avg: &mut Tensor,
    exp_avg_sq: &mut Tensor,
    step: &AdamWStep,
) -> Result<(), Error> {
    let settings = AdamWSettings {
        lr: step.learning_rate,
        beta1: step.betas.0,
        beta2: step.betas.1,
        eps: step.epsilon,
        weight_decay: step.weight_decay,
        grad_scale: step.grad_scale,
        step: step.step,
    };
    // SAFETY: borrowed tensors and a structure that lives for the call.
    check("an AdamW step", unsafe {
        rlt_adamw(raw(param), raw(grad), raw(exp_avg), raw(exp_avg_sq), &settings)
    })
}

/// Computes the L2 norm of all elements of `tensors` together, accumulated in f64 in an order that does not
/// depend on the number of threads. It is not finite exactly if some element is not, or its square overflows
/// f64. For tensors on a GPU, a single number is copied to the host and waited for.
///
/// # Errors
/// When libtorch fails on a tensor.
pub fn global_norm<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<f64, Error> {
    let tensors: Vec<&Tensor> = tensors.into_iter().collect();
    if let Some(Device::Cuda(index)) = tensors.first().map(|first| first.device()) {
        return tch::no_grad(|| norm_on_device(&tensors, index));
    }
    let mut total = 0.0;
    for tensor in tensors {
        let mut sum = 0.0;
        // SAFETY: a borrowed tensor and a place for the sum.
        check("a gradient norm", unsafe { rlt_sum_of_squares(raw(tensor), &mut sum) })?;
        total += sum;
    }
    Ok(total.sqrt())
}

/// Gradient dtypes that the device kernels support.
const KINDS: [Kind; 3] = [Kind::Float, Kind::BFloat16, Kind::Half];

/// Sums the squares without copies: libtorch's norm in f64 may copy each gradient to f64 first.
fn norm_on_device(tensors: &[&Tensor], index: usize) -> Result<f64, Error> {
    let failed = |source: TchError| Error::Libtorch { act: "a gradient norm", message: source.to_string() };
    let (kernels, device) = (Kernels::load(index)?, Device::Cuda(index));
    let with_numbers = tensors.iter().filter(|tensor| tensor.numel() > 0);
    let dense = with_numbers.map(|tensor| tensor.detach().f_contiguous()).collect::<Result<Vec<_>, _>>();
    let dense = dense.map_err(failed)?;
    if let Some(other) = dense.iter().find(|tensor| !KINDS.contains(&tensor.kind())) {
        let expected = "gradients of Float, BFloat16 or Half".into();
        return Err(Error::Argument { act: "a gradient norm", expected, got: format!("{:?}", other.kind()) });
    }
    let mut tables = Vec::new();
    for kind in KINDS {
        let of_kind: Vec<&Tensor> = dense.iter().filter(|tensor| tensor.kind() == kind).collect();
        if !of_kind.is_empty() {
            tables.push(SquaresTable::new(&kernels, &of_kind)?);
        }
    }
    let words: Vec<&[i64]> = tables.iter().map(SquaresTable::words).collect();
    let num_partials = tables.iter().map(|table| table.num_partials() as i64);
    let options = (Kind::Double, device);
    let partials = Tensor::f_empty([num_partials.sum::<i64>()], options).map_err(failed)?;
    let mut start = 0;
    for (table, words) in tables.iter().zip(&upload(&words, device)) {
        let len = table.num_partials() as i64;
        let partials = &partials.narrow(0, start, len);
        SumsOfSquares { table, words, partials }.launch(&kernels)?;
        start += len;
    }
    let out = Tensor::f_empty([1], options).map_err(failed)?;
    NormOfSquares { partials: &partials, out: &out }.launch(&kernels)?;
    out.f_double_value(&[0]).map_err(failed)
}
