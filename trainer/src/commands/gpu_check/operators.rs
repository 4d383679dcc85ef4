//! Compares operators on the GPU with those of the CPU in fp64.

use rlt_torch::{Activation, apply_rope, gated_activation, rms_norm};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::{Failure, Finding, Report, experts};

/// Largest allowed error of an fp32 operator, relative to the largest value of the result: sums of a few
/// hundred products, in any order.
pub(super) const FP32_TOLERANCE: f64 = 2e-5;
/// Largest allowed error in bf16, which rounds inputs and results to 8 bits: a few roundings of at most 2^-8.
pub(super) const BF16_TOLERANCE: f64 = 3e-2;

type Operator = fn(&Tensor, &Tensor) -> Tensor;

/// Operators of libtorch, each of which takes `x` and `y` of `[24, 64]`.
const OPERATORS: [(&str, Operator); 14] = [
    ("matmul", |x, y| x.matmul(&y.tr())),
    ("add", |x, y| x + y),
    ("mul", |x, y| x * y),
    ("softmax", |x, _| x.softmax(-1, None::<Kind>)),
    ("log_softmax", |x, _| x.log_softmax(-1, None::<Kind>)),
    ("logsumexp", |x, _| x.logsumexp([-1_i64].as_slice(), false)),
    ("silu", |x, _| x.silu()),
    ("gelu", |x, _| x.gelu("tanh")),
    ("sum", |x, _| x.sum_dim_intlist([0_i64].as_slice(), false, None::<Kind>)),
    ("cumsum", |x, _| x.cumsum(-1, None::<Kind>)),
    ("sort", |x, _| x.sort(-1, true).0),
    ("attention", |x, y| {
        let heads = |t: &Tensor| t.view([1, 24, 4, 16]).transpose(1, 2);
        Tensor::scaled_dot_product_attention(
            &heads(x),
            &heads(y),
            &heads(x),
            None::<Tensor>,
            0.0,
            true,
            None,
            false,
        )
    }),
    ("gated_activation", |x, y| x.silu() * y),
    ("gradient", |x, y| {
        let leaf = x.detach().set_requires_grad(true);
        // Scaled as attention scales: an exponential turns the rounding of large logits into large errors.
        let out = (leaf.matmul(&y.tr()) / 8.0).softmax(-1, None::<Kind>).square().sum(None::<Kind>);
        out.backward();
        leaf.grad()
    }),
];

/// Our own operators, each with a reference formula.
const OWN: [(&str, Operator, Operator); 9] = [
    (
        "own experts",
        |x, y| experts::output(experts::by_kernels, x, y),
        |x, y| experts::output(experts::by_formula, x, y),
    ),
    (
        "own experts, gradient of rows",
        |x, y| experts::gradient_of_rows(experts::by_kernels, x, y),
        |x, y| experts::gradient_of_rows(experts::by_formula, x, y),
    ),
    (
        "own experts, gradient of weights",
        |x, y| experts::gradient_of_weights(experts::by_kernels, x, y),
        |x, y| experts::gradient_of_weights(experts::by_formula, x, y),
    ),
    ("own rms_norm", own::norm, formula::norm),
    ("own rms_norm, gradients", |x, y| gradients(own::norm, x, y), |x, y| gradients(formula::norm, x, y)),
    ("own gated_activation", own::gated, formula::gated),
    (
        "own gated_activation, gradients",
        |x, y| gradients(own::gated, x, y),
        |x, y| gradients(formula::gated, x, y),
    ),
    ("own apply_rope", own::rope, formula::rope),
    ("own apply_rope, gradient", |x, y| gradients(own::rope, x, y), |x, y| gradients(formula::rope, x, y)),
];

/// Our row operations of a decoder layer, as operators of `x` and `y`.
mod own {
    use super::{Activation, Tensor, angles, apply_rope, gated_activation, rms_norm};

    pub(super) fn norm(x: &Tensor, y: &Tensor) -> Tensor {
        rms_norm(x, &y.get(0), 1e-6, 0.0)
    }

    pub(super) fn gated(x: &Tensor, y: &Tensor) -> Tensor {
        gated_activation(x, y, Activation::Silu)
    }

    pub(super) fn rope(x: &Tensor, y: &Tensor) -> Tensor {
        apply_rope(&x.view([24, 4, 16]), &angles(y).cos(), &angles(y).sin()).view([24, 64])
    }
}

/// Reference formulas of the row operations, by operators of libtorch.
mod formula {
    use super::{Kind, Tensor, angles};

    pub(super) fn norm(x: &Tensor, y: &Tensor) -> Tensor {
        let mean = x.square().mean_dim([-1_i64].as_slice(), true, None::<Kind>);
        x * (mean + 1e-6).rsqrt() * y.get(0)
    }

    pub(super) fn gated(x: &Tensor, y: &Tensor) -> Tensor {
        x.silu() * y
    }

    pub(super) fn rope(x: &Tensor, y: &Tensor) -> Tensor {
        let x = x.view([24, 4, 16]);
        let halves = x.chunk(2, -1);
        let rotated = Tensor::cat(&[-&halves[1], halves[0].shallow_clone()], -1);
        let (cos, sin) = (angles(y).cos().unsqueeze(1), angles(y).sin().unsqueeze(1));
        (&x * cos + rotated * sin).view([24, 64])
    }
}

/// Returns the gradients with respect to `x` and `y` of an operator's weighted output: `[48, 64]`. They are 0
/// for `y` if the operator does not use it.
fn gradients(of: Operator, x: &Tensor, y: &Tensor) -> Tensor {
    let [x, y] = [x, y].map(|input| input.detach().copy().set_requires_grad(true));
    (of(&x, &y) * y.detach().flip([0])).sum(None::<Kind>).backward();
    let gradient = |leaf: &Tensor| if leaf.grad().defined() { leaf.grad() } else { leaf.zeros_like() };
    tch::no_grad(|| Tensor::cat(&[gradient(&x), gradient(&y)], 0))
}

/// Returns an angle for each position and pair of a head's values, the same for both halves: `[24, 16]`.
fn angles(y: &Tensor) -> Tensor {
    let half = y.detach().narrow(-1, 0, 8);
    Tensor::cat(&[&half, &half], -1)
}

pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    tch::manual_seed(7);
    let draw = || Tensor::randn([24, 64], (Kind::Double, Device::Cpu));
    let (x, y) = (draw(), draw());
    let plain = OPERATORS.iter().map(|(name, operator)| (*name, *operator, *operator));
    for (name, operator, formula) in plain.chain(OWN) {
        for (kind, tolerance) in [(Kind::Float, FP32_TOLERANCE), (Kind::BFloat16, BF16_TOLERANCE)] {
            let error = error(operator, formula, &x, &y, kind);
            let figures = [
                ("operator", json!(name)),
                ("dtype", json!(if kind == Kind::Float { "fp32" } else { "bf16" })),
                ("error", json!(error)),
                ("tolerance", json!(tolerance)),
            ];
            report(Finding::new(error <= tolerance, figures))?;
        }
    }
    Ok(())
}

/// Returns the largest difference from the formula in fp64 on the same inputs, relative to its largest value.
fn error(operator: Operator, formula: Operator, x: &Tensor, y: &Tensor, kind: Kind) -> f64 {
    let (x, y) = (x.to_kind(kind), y.to_kind(kind));
    let truth = formula(&x.to_kind(Kind::Double), &y.to_kind(Kind::Double));
    let found = operator(&x.to_device(Device::Cuda(0)), &y.to_device(Device::Cuda(0)));
    let difference = (found.to_device(Device::Cpu).to_kind(Kind::Double) - &truth).abs().max();
    difference.double_value(&[]) / truth.abs().max().double_value(&[])
}
