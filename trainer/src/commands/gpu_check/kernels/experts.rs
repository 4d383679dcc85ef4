//! Cases of the kernels of a mixture-of-experts layer, at the sizes of Qwen3-30B-A3B.

use std::ops::Range;

use rlt_torch::cuda::{
    CombineRows, ExpertScores, GroupedLinear, GroupedLinearDw, GroupedLinearDx, Kernels, RouteExperts,
    RouteRule, SortRows,
};
use tch::{Kind, Tensor};

use super::super::shapes::on_device;
use super::super::{Failure, Report};
use super::{Case, Cost, GPU, bytes, empty, random, wide};

/// Sizes of a mixture-of-experts layer.
struct Layer {
    tokens: i64,
    experts: i64,
    per_token: i64,
    width: i64,
    inner: i64,
}

pub(super) fn check(kernels: &Kernels, report: &mut Report<'_>) -> Result<(), Failure> {
    // A micro-batch of training, and a decoding step.
    for tokens in on_device([4096, 64], [12, 3]) {
        let [experts, per_token, width, inner] = on_device([128, 8, 2048, 768], [4, 2, 32, 16]);
        let layer = Layer { tokens, experts, per_token, width, inner };
        let choices = layer.route(kernels, report)?;
        let (inverse, ends) = layer.sort(kernels, &choices, report)?;
        layer.products(kernels, &ends, report)?;
        layer.combine(kernels, &inverse, report)?;
    }
    Ok(())
}

impl Layer {
    fn rows(&self) -> i64 {
        self.tokens * self.per_token
    }

    /// Returns the number of rows of each expert in libtorch's batched products, which have the same number
    /// for all.
    fn even_rows(&self) -> i64 {
        (self.rows() / self.experts).max(1)
    }

    /// Checks routing by the weights of the chosen experts; returns the choices.
    fn route(&self, kernels: &Kernels, report: &mut Report<'_>) -> Result<Tensor, Failure> {
        let Self { tokens, experts, per_token, .. } = *self;
        let logits = random(&[tokens, experts]);
        let choices = Tensor::full([tokens, per_token], -1, (Kind::Int, GPU));
        let weights = empty(&[tokens, per_token], Kind::Float);
        let rule = RouteRule { scores: ExpertScores::Softmax, normalises: true, rounds: false, scale: 1.0 };
        let launch = RouteExperts {
            logits: &logits,
            bias: None,
            rule,
            choices: &choices,
            weights: &weights,
            digests: None,
        };
        let best = wide(&logits).softmax(-1, None::<Kind>).topk(per_token, -1, true, true).0;
        let truth = &best / best.sum_dim_intlist([-1_i64].as_slice(), true, None::<Kind>);
        Case {
            kernel: "route_experts",
            shape: vec![tokens, experts, per_token],
            cost: Cost::Bytes(tokens * (2 * experts + 8 * per_token)),
            launch: Box::new(|| Ok(launch.launch(kernels)?)),
            result: Box::new(|| weights.copy()),
            truth,
            libtorch: Some(Box::new(|| {
                drop(logits.softmax(-1, Kind::Float).topk(per_token, -1, true, true));
            })),
        }
        .report(report)?;
        Ok(choices)
    }

    /// Checks the sort of rows by expert; returns the row of each (token, choice), and the end of the rows of
    /// each expert.
    fn sort(
        &self,
        kernels: &Kernels,
        choices: &Tensor,
        report: &mut Report<'_>,
    ) -> Result<(Tensor, Tensor), Failure> {
        let choices = choices.view([-1]);
        let index = || Tensor::full([self.rows()], -1, (Kind::Int, GPU));
        let (order, inverse) = (index(), index());
        let ends = Tensor::zeros([self.experts], (Kind::Int, GPU));
        let launch = SortRows { choices: &choices, order: &order, inverse: &inverse, ends: &ends };
        Case {
            kernel: "sort_rows",
            shape: vec![self.rows(), self.experts],
            cost: Cost::Bytes(12 * self.rows()),
            launch: Box::new(|| Ok(launch.launch(kernels)?)),
            result: Box::new(|| order.copy()),
            truth: wide(&choices.sort_stable(true, 0, false).1),
            libtorch: Some(Box::new(|| drop(choices.sort_stable(true, 0, false)))),
        }
        .report(report)?;
        Ok((inverse, ends))
    }

    /// Checks the grouped products of the experts, in a training's micro-batch with their gradients.
    fn products(&self, kernels: &Kernels, ends: &Tensor, report: &mut Report<'_>) -> Result<(), Failure> {
        let Self { experts, width, inner, .. } = *self;
        let n = self.rows();
        // A decoding step is bound by reading weights: of all experts, because 512 rows choose nearly all.
        let flop = Cost::Flop(2 * n * width * inner);
        let ends_i64: Vec<i64> = Vec::try_from(ends.to_kind(Kind::Int64).to_device(tch::Device::Cpu))?;
        let starts = std::iter::once(0).chain(ends_i64.iter().copied());
        let products = GroupedProducts {
            layer: self,
            kernels,
            ends,
            ranges: starts.zip(ends_i64.iter().copied()).map(|(start, end)| start..end).collect(),
            rows: random(&[n, width]),
            grad: random(&[n, inner]),
            weight: random(&[experts, inner, width]),
            cost: if self.tokens >= 1024 { flop } else { bytes(experts * width * inner) },
        };
        products.check_forward(report)?;
        if self.tokens < on_device(1024, 12) {
            return Ok(());
        }
        products.check_input_gradient(report)?;
        products.check_weight_gradient(report)
    }

    fn combine(&self, kernels: &Kernels, inverse: &Tensor, report: &mut Report<'_>) -> Result<(), Failure> {
        let Self { tokens, per_token, width, .. } = *self;
        let rows = random(&[self.rows(), width]);
        let weights = Tensor::rand([tokens, per_token], (Kind::Float, GPU));
        let out = empty(&[tokens, width], Kind::BFloat16);
        let launch = CombineRows {
            rows: &rows,
            weights: &weights,
            inverse,
            shared_expert: None,
            gate: None,
            out: &out,
        };
        let index = inverse.to_kind(Kind::Int64);
        let sum = |rows: &Tensor, weights: &Tensor| {
            let of_token = rows.index_select(0, &index).view([tokens, per_token, width]);
            (of_token * weights.unsqueeze(-1)).sum_dim_intlist([1_i64].as_slice(), false, None::<Kind>)
        };
        Case {
            kernel: "combine_rows",
            shape: vec![tokens, per_token, width],
            cost: bytes((per_token + 1) * tokens * width),
            launch: Box::new(|| Ok(launch.launch(kernels)?)),
            result: Box::new(|| out.copy()),
            truth: sum(&wide(&rows), &wide(&weights)),
            libtorch: Some(Box::new(|| drop(sum(&rows, &weights.to_kind(Kind::BFloat16))))),
        }
        .report(report)
    }
}

/// Operands of the products of all experts with their rows, and of the gradients of these products.
struct GroupedProducts<'a> {
    layer: &'a Layer,
    kernels: &'a Kernels,
    /// End of the rows of each expert.
    ends: &'a Tensor,
    /// Rows of each expert.
    ranges: Vec<Range<i64>>,
    rows: Tensor,
    /// Gradient of the output.
    grad: Tensor,
    weight: Tensor,
    cost: Cost,
}

impl GroupedProducts<'_> {
    fn shape(&self) -> Vec<i64> {
        let Layer { experts, width, inner, .. } = *self.layer;
        vec![self.layer.rows(), experts, width, inner]
    }

    /// Returns `product` of the index and the rows of every expert.
    fn by_expert(&self, product: impl Fn(i64, &Range<i64>) -> Tensor) -> Vec<Tensor> {
        (0..).zip(&self.ranges).map(|(expert, range)| product(expert, range)).collect()
    }

    fn check_forward(&self, report: &mut Report<'_>) -> Result<(), Failure> {
        let Layer { experts, width, inner, .. } = *self.layer;
        let Self { kernels, ends, .. } = *self;
        let (rows, weight) = (&self.rows, &self.weight);
        let out = &empty(&[self.layer.rows(), inner], Kind::BFloat16);
        let truth = self.by_expert(|expert, range| part(rows, range).matmul(&wide(&weight.get(expert)).tr()));
        let even = random(&[experts, self.layer.even_rows(), width]);
        Case {
            kernel: "grouped_linear",
            shape: self.shape(),
            cost: self.cost,
            launch: Box::new(|| Ok(GroupedLinear { rows, places: None, weight, ends, out }.launch(kernels)?)),
            result: Box::new(|| out.copy()),
            truth: Tensor::cat(&truth, 0),
            libtorch: Some(Box::new(|| drop(even.bmm(&weight.transpose(1, 2))))),
        }
        .report(report)
    }

    fn check_input_gradient(&self, report: &mut Report<'_>) -> Result<(), Failure> {
        let Layer { experts, width, inner, .. } = *self.layer;
        let Self { kernels, ends, .. } = *self;
        let (grad, weight) = (&self.grad, &self.weight);
        let out = &empty(&[self.layer.rows(), width], Kind::BFloat16);
        let even = random(&[experts, self.layer.even_rows(), inner]);
        let truth = self.by_expert(|expert, range| part(grad, range).matmul(&wide(&weight.get(expert))));
        Case {
            kernel: "grouped_linear_dx",
            shape: self.shape(),
            cost: self.cost,
            launch: Box::new(|| Ok(GroupedLinearDx { grad, weight, ends, out }.launch(kernels)?)),
            result: Box::new(|| out.copy()),
            truth: Tensor::cat(&truth, 0),
            libtorch: Some(Box::new(|| drop(even.bmm(weight)))),
        }
        .report(report)
    }

    fn check_weight_gradient(&self, report: &mut Report<'_>) -> Result<(), Failure> {
        let Layer { experts, width, inner, .. } = *self.layer;
        let Self { kernels, ends, .. } = *self;
        let (grad, rows) = (&self.grad, &self.rows);
        let out = &empty(&[experts, inner, width], Kind::BFloat16);
        let even = [inner, width].map(|columns| random(&[experts, self.layer.even_rows(), columns]));
        let truth = self.by_expert(|_, range| part(grad, range).tr().matmul(&part(rows, range)));
        Case {
            kernel: "grouped_linear_dw",
            shape: self.shape(),
            cost: self.cost,
            launch: Box::new(|| Ok(GroupedLinearDw { grad, rows, ends, out }.launch(kernels)?)),
            result: Box::new(|| out.copy()),
            truth: Tensor::stack(&truth, 0),
            libtorch: Some(Box::new(|| drop(even[0].transpose(1, 2).bmm(&even[1])))),
        }
        .report(report)
    }
}

/// Rows `range` of a tensor in f64.
fn part(tensor: &Tensor, range: &Range<i64>) -> Tensor {
    wide(&tensor.narrow(0, range.start, range.end - range.start))
}
