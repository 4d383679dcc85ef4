//! The references for operators of attention that only CUDA has, against the formula on the CPU, forward and
//! backward.

use std::ffi::{CStr, c_char};

use rlt_devices::driver::function_of;
use tch::{Device, IndexOp as _, Kind, Tensor};
use torch_sys::C_tensor;

use crate::process::on_device;

const GPU: Device = Device::Cuda(0);

/// Arguments of the probe: `Arguments` in probe.cpp.
#[repr(C)]
struct Arguments {
    q: *const C_tensor,
    k: *const C_tensor,
    v: *const C_tensor,
    cu_q: *const C_tensor,
    cu_k: *const C_tensor,
    max_q: i64,
    max_k: i64,
    window: i64,
    mask: i64,
}

type Call = unsafe extern "C" fn(*const Arguments, *mut *mut C_tensor, *mut *mut C_tensor) -> *const c_char;

/// Returns output and log-sum-exp of one of the operators, or libtorch's error message.
fn call(
    name: &CStr,
    [q, k, v]: [&Tensor; 3],
    [cu_q, cu_k]: [&Tensor; 2],
    (longest, window, mask): (i64, i64, i64),
) -> Result<(Tensor, Tensor), String> {
    let [q, k, v, cu_q, cu_k] = [q, k, v, cu_q, cu_k].map(Tensor::as_ptr);
    let arguments = Arguments { q, k, v, cu_q, cu_k, max_q: longest, max_k: longest, window, mask };
    let (mut out, mut lse) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the type in probe.cpp; borrowed tensors, places for the results, and an error text that is
    // leaked.
    unsafe {
        let said = function_of::<Call>(c"libtorch_cuda.so", name).unwrap()(&arguments, &mut out, &mut lse);
        if said.is_null() {
            return Ok((Tensor::from_ptr(out), Tensor::from_ptr(lse)));
        }
        Err(CStr::from_ptr(said).to_string_lossy().into_owned())
    }
}

const FLASH: &CStr = c"rlt_stand_in_flash_attention";
const EFFICIENT: &CStr = c"rlt_stand_in_efficient_attention";

/// Returns reproducible random values on the CPU.
fn random(size: &[i64], seed: i64) -> Tensor {
    tch::manual_seed(seed);
    Tensor::randn(size, (Kind::Float, Device::Cpu))
}

/// Lengths of queries and keys of each segment, the window (0: none), and whether positions are aligned at
/// the end of queries and keys.
struct Case {
    lens: Vec<(i64, i64)>,
    heads: (i64, i64),
    window: i64,
    from_end: bool,
}

/// Computes the attention of all segments by matrix products on the CPU.
fn formula(case: &Case, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
    let (mut outs, mut q_at, mut k_at) = (Vec::new(), 0, 0);
    for &(q_len, k_len) in &case.lens {
        let [k, v] = [k, v].map(|t| {
            t.narrow(0, k_at, k_len)
                .repeat_interleave_self_int(case.heads.0 / case.heads.1, 1, None)
                .transpose(0, 1)
        });
        let q = q.narrow(0, q_at, q_len).transpose(0, 1);
        let scores = q.matmul(&k.transpose(1, 2)) / (q.size()[2] as f64).sqrt();
        let offset = if case.from_end { k_len - q_len } else { 0 };
        let place = |len: i64| Tensor::arange(len, (Kind::Int64, Device::Cpu));
        let back = (place(q_len) + offset).unsqueeze(1) - place(k_len).unsqueeze(0);
        let mut hidden = back.lt(0);
        if case.window > 0 {
            hidden = hidden.logical_or(&back.ge(case.window));
        }
        let p = scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Float);
        outs.push(p.matmul(&v).transpose(0, 1));
        (q_at, k_at) = (q_at + q_len, k_at + k_len);
    }
    Tensor::cat(&outs, 0)
}

impl Case {
    /// Returns the cumulative lengths of the segments of queries and of keys.
    fn bounds(&self) -> [Tensor; 2] {
        let of = |len: fn(&(i64, i64)) -> i64| {
            let mut at = vec![0_i32];
            self.lens.iter().for_each(|lens| at.push(at.last().unwrap() + len(lens) as i32));
            Tensor::from_slice(&at).to_device(GPU)
        };
        [of(|lens| lens.0), of(|lens| lens.1)]
    }
}

/// Returns inputs that require gradients, and the derivative of the output.
fn inputs(case: &Case, kind: Kind) -> ([Tensor; 3], Tensor) {
    let (num_q, num_k) = case.lens.iter().fold((0, 0), |(q, k), (a, b)| (q + a, k + b));
    let make = |len, heads, seed| random(&[len, heads, 16], seed).to_kind(kind).to_kind(Kind::Float);
    let (q, k, v) =
        (make(num_q, case.heads.0, 1), make(num_k, case.heads.1, 2), make(num_k, case.heads.1, 3));
    ([q, k, v].map(|t| t.set_requires_grad(true)), make(num_q, case.heads.0, 4))
}

/// Returns the output and gradients that `call` computes on the device with tensors of `kind`.
fn on_gpu(case: &Case, kind: Kind, call: impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor) -> Vec<Tensor> {
    let (inputs, grad) = inputs(case, kind);
    let leaves = inputs.map(|t| t.detach().to_device(GPU).to_kind(kind).set_requires_grad(true));
    let out = call(&leaves[0], &leaves[1], &leaves[2]);
    rlt_torch::backward(&out, &grad.to_device(GPU).to_kind(kind));
    std::iter::once(out.detach())
        .chain(leaves.iter().map(Tensor::grad))
        .map(|t| t.to_device(Device::Cpu))
        .collect()
}

fn on_cpu(case: &Case, kind: Kind) -> Vec<Tensor> {
    let ([q, k, v], grad) = inputs(case, kind);
    let out = formula(case, &q, &k, &v);
    rlt_torch::backward(&out, &grad);
    vec![out.detach(), q.grad(), k.grad(), v.grad()]
}

#[track_caller]
fn assert_close(found: &[Tensor], expected: &[Tensor], tolerance: f64) {
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found.to_kind(Kind::Float) - expected).abs().max().double_value(&[]);
        let scale = expected.abs().max().double_value(&[]);
        assert!(off <= tolerance * scale, "result {at} is off by {off} of {scale}");
    }
}

#[test]
fn flash_attention_over_segments_is_the_formula_with_its_gradients() {
    on_device("attention::flash_attention_over_segments_is_the_formula_with_its_gradients", || {
        for (lens, heads, window) in [
            (vec![(5, 5), (3, 3), (1, 1)], (4, 2), 0),
            (vec![(2, 7), (4, 9), (3, 3)], (4, 1), 0),
            (vec![(6, 6), (2, 8)], (2, 2), 3),
        ] {
            let case = Case { lens, heads, window, from_end: true };
            let bounds = case.bounds();
            let found = on_gpu(&case, Kind::BFloat16, |q, k, v| {
                let (out, lse) = call(FLASH, [q, k, v], [&bounds[0], &bounds[1]], (9, window, 0)).unwrap();
                assert_eq!((lse.size(), lse.kind()), (vec![case.heads.0, q.size()[0]], Kind::Float));
                out
            });
            // Inputs are bf16 values in both cases. The output and the derivatives are rounded to 8 bits of
            // mantissa.
            assert_close(&found, &on_cpu(&case, Kind::BFloat16), 1e-2);
        }
    });
}

#[test]
fn efficient_attention_over_segments_is_the_formula_with_its_gradients() {
    on_device("attention::efficient_attention_over_segments_is_the_formula_with_its_gradients", || {
        for (mask, window) in [(1, 0), (2, 0), (2, 3)] {
            let lens = if mask == 1 { vec![(5, 5), (3, 3)] } else { vec![(2, 7), (4, 4), (1, 6)] };
            let case = Case { lens, heads: (2, 2), window, from_end: mask == 2 };
            let bounds = case.bounds();
            let found = on_gpu(&case, Kind::Float, |q, k, v| {
                let [q, k, v] = [q, k, v].map(|t| t.unsqueeze(0));
                let sizes = (7, window, mask);
                let (out, lse) = call(EFFICIENT, [&q, &k, &v], [&bounds[0], &bounds[1]], sizes).unwrap();
                assert_eq!(lse.size(), [case.lens.len() as i64, 2, 32]);
                out.i(0)
            });
            // libtorch's derivative of this operator ignores the window.
            let num_right = if window > 0 { 1 } else { 4 };
            assert_close(&found[..num_right], &on_cpu(&case, Kind::Float)[..num_right], 1e-5);
        }
    });
}

#[test]
fn flash_attention_refuses_what_the_real_one_refuses() {
    on_device("attention::flash_attention_refuses_what_the_real_one_refuses", || {
        let says = |kind: Kind, dim: i64, bounds: &Tensor| {
            let [q, k, v] = [1, 2, 3].map(|seed| random(&[4, 2, dim], seed).to_kind(kind).to_device(GPU));
            call(FLASH, [&q, &k, &v], [bounds, bounds], (4, 0, 0)).err().unwrap_or_default()
        };
        let good = Tensor::from_slice(&[0_i32, 4]).to_device(GPU);
        assert_eq!(says(Kind::BFloat16, 16, &good), "");
        for (kind, dim, bounds, words) in [
            (Kind::Float, 16, good.shallow_clone(), "FlashAttention only support fp16 and bf16 data type"),
            (Kind::Half, 12, good.shallow_clone(), "in steps of 8, got 12"),
            (Kind::Half, 16, good.to_kind(Kind::Int64), "of int32"),
            (Kind::Half, 16, good.to_device(Device::Cpu), "on cuda:0"),
        ] {
            let said = says(kind, dim, &bounds);
            assert!(said.contains(words), "{said}");
        }
    });
}
