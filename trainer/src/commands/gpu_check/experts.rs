//! A mixture of experts for the check of operators, computed by our kernels and by a reference formula.
//!
//! Shapes: 24 tokens of `x` and `y`, `[24, 64]`; each token uses two of eight experts with 16 outputs.

use rlt_torch::cuda::{ExpertScores, RouteRule};
use rlt_torch::{DeviceRoutes, ExpertRows};
use tch::{Kind, Tensor};

const EXPERTS: i64 = 8;
const PER_TOKEN: i64 = 2;
const OUTPUTS: i64 = 16;

/// Computes the mixture from rows, expert weights `[8, 16, 64]` and the router's logits `[24, 8]`.
type Mix = fn(&Tensor, &Tensor, &Tensor) -> Tensor;

/// Computes the mixture as the trainer does: routing, sorting, grouped products and weighted sums.
pub(super) fn by_kernels(x: &Tensor, weight: &Tensor, logits: &Tensor) -> Tensor {
    let rule = RouteRule { scores: ExpertScores::Softmax, normalises: false, rounds: false, scale: 1.0 };
    let routes = DeviceRoutes::new(logits, None, rule, PER_TOKEN as usize);
    let rows = ExpertRows::on_device(&routes.choices_tk, EXPERTS as usize);
    let choices = routes.choices_tk.to_kind(Kind::Int64);
    let weights = logits.softmax(-1, Kind::Float).gather(-1, &choices, false);
    rows.combine(&rows.linear(&rows.gather(x), weight), &weights)
}

/// Computes the mixture from the product of every expert with every token.
pub(super) fn by_formula(x: &Tensor, weight: &Tensor, logits: &Tensor) -> Tensor {
    let choices = logits.sort_stable(true, -1, true).1.narrow(-1, 0, PER_TOKEN);
    let weights = logits.softmax(-1, None::<Kind>).gather(-1, &choices, false);
    let of_all = x.unsqueeze(0).matmul(&weight.transpose(1, 2)).transpose(0, 1);
    let places = choices.unsqueeze(-1).expand([-1, -1, OUTPUTS], false);
    (of_all.gather(1, &places, false) * weights.unsqueeze(-1)).sum_dim_intlist(
        [1_i64].as_slice(),
        false,
        None,
    )
}

/// Returns the weights of the experts, overlapping rows of `y`.
fn weights(y: &Tensor) -> Tensor {
    Tensor::stack(&(0..EXPERTS).map(|expert| y.narrow(0, expert, OUTPUTS)).collect::<Vec<_>>(), 0)
}

pub(super) fn output(mix: Mix, x: &Tensor, y: &Tensor) -> Tensor {
    mix(x, &weights(y), &x.narrow(1, 0, EXPERTS).contiguous())
}

/// Computes the gradients of a weighted sum of the output with respect to the rows and the weights.
fn gradients(mix: Mix, x: &Tensor, y: &Tensor) -> [Tensor; 2] {
    let leaf = |tensor: &Tensor| tensor.detach().copy().set_requires_grad(true);
    let (rows, weight) = (leaf(x), leaf(&weights(y)));
    let out = mix(&rows, &weight, &x.narrow(1, 0, EXPERTS).contiguous());
    (out * y.narrow(1, 0, OUTPUTS)).sum(None::<Kind>).backward();
    [rows.grad(), weight.grad()]
}

pub(super) fn gradient_of_rows(mix: Mix, x: &Tensor, y: &Tensor) -> Tensor {
    let [of_rows, _] = gradients(mix, x, y);
    of_rows
}

pub(super) fn gradient_of_weights(mix: Mix, x: &Tensor, y: &Tensor) -> Tensor {
    let [_, of_weights] = gradients(mix, x, y);
    of_weights
}
