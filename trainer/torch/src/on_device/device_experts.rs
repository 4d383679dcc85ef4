//! A mixture of experts on a GPU inside a model's forward pass: routing, and the launches of grouped products
//! that autograd requests. Nothing here copies to the host or waits.

use std::ffi::{c_char, c_int};

use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use crate::Error;
use crate::cuda::{
    CombineRows, GroupedLinear, GroupedLinearDw, GroupedLinearDx, Kernels, RouteExperts, RouteRule, SortRows,
};
use crate::error::or_panic;

/// A router's choice of experts on a GPU.
#[derive(Debug)]
pub struct DeviceRoutes {
    /// Experts of each token, the best first: i32 `[t, k]`.
    pub choices_tk: Tensor,
    /// 16-bit digest of each token's experts, i32 `[t]`; see [`RouteExperts::digests`].
    pub digests_t: Tensor,
}

impl DeviceRoutes {
    /// Chooses the best `per_token` experts by the logits `[t, e]`, with an optional bias of the choice, f32
    /// `[e]`.
    ///
    /// # Panics
    /// When shapes do not fit, or the kernels cannot be launched.
    pub fn new(logits_te: &Tensor, bias_e: Option<&Tensor>, rule: RouteRule, per_token: usize) -> Self {
        or_panic(Self::routed(logits_te, bias_e, rule, per_token as i64))
    }

    fn routed(
        logits_te: &Tensor,
        bias: Option<&Tensor>,
        rule: RouteRule,
        per_token: i64,
    ) -> Result<Self, Error> {
        let kernels = kernels_of(logits_te)?;
        let logits = logits_te.detach().contiguous();
        let (tokens, device) = (logits.size()[0], logits.device());
        let choices_tk = Tensor::empty([tokens, per_token], (Kind::Int, device));
        let weights = Tensor::empty([tokens, per_token], (Kind::Float, device));
        let digests_t = Tensor::empty([tokens], (Kind::Int, device));
        let digests = Some(&digests_t);
        RouteExperts { logits: &logits, bias, rule, choices: &choices_tk, weights: &weights, digests }
            .launch(&kernels)?;
        Ok(Self { choices_tk, digests_t })
    }
}

/// Sorts (token, choice) pairs by their experts, i32 `[n]`. Returns the order and its inverse, i32 `[n]`, and
/// the ends of the experts' rows, i32 `[e]`.
pub(crate) fn sorted(choices: &Tensor, num_experts: usize) -> Result<[Tensor; 3], Error> {
    let (choices, ints) = (choices.contiguous().view(-1), (Kind::Int, choices.device()));
    let [order, inverse] = [0, 1].map(|_| Tensor::empty(choices.size(), ints));
    let ends = Tensor::empty([num_experts as i64], ints);
    SortRows { choices: &choices, order: &order, inverse: &inverse, ends: &ends }
        .launch(&kernels_of(&choices)?)?;
    Ok([order, inverse, ends])
}

fn kernels_of(tensor: &Tensor) -> Result<Kernels, Error> {
    match tensor.device() {
        Device::Cuda(index) => Kernels::load(index),
        device => Err(Error::Argument {
            act: "experts on a device",
            expected: "a tensor on a GPU".into(),
            got: format!("{device:?}"),
        }),
    }
}

/// Launches a kernel; autograd may call it from its own threads. An error is written as a NUL-terminated
/// message.
///
/// # Safety
/// The tensors are valid during the call, and so are `message_bytes` bytes of `message`.
pub(crate) unsafe extern "C" fn launch(
    kernel: c_int,
    first: *mut C_tensor,
    second: *mut C_tensor,
    ints: *mut C_tensor,
    out: *mut C_tensor,
    message: *mut c_char,
    message_bytes: usize,
) -> bool {
    // SAFETY: each becomes another reference to the same tensor, which is dropped here.
    let tensors = [first, second, ints, out].map(|tensor| unsafe { Tensor::clone_from_ptr(tensor) });
    let Err(error) = launched(kernel, &tensors) else { return true };
    // SAFETY: as this function's caller promises.
    unsafe { error.write_to(message, message_bytes) };
    false
}

/// Dispatches a kernel by its number, which is that of `Kernel` in experts_cuda.cpp.
fn launched(kernel: c_int, [first, second, ints, out]: &[Tensor; 4]) -> Result<(), Error> {
    let kernels = kernels_of(out)?;
    match kernel {
        0 => GroupedLinear { rows: first, places: None, weight: second, ends: ints, out }.launch(&kernels),
        1 => GroupedLinearDx { grad: first, weight: second, ends: ints, out }.launch(&kernels),
        2 => GroupedLinearDw { grad: first, rows: second, ends: ints, out }.launch(&kernels),
        _ => {
            let (shared_expert, gate) = (None, None);
            CombineRows { rows: first, weights: second, inverse: ints, shared_expert, gate, out }
                .launch(&kernels)
        }
    }
}
