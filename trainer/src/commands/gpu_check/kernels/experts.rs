//! Cases of the kernels of a mixture-of-experts layer, at the sizes of Qwen3-30B-A3B.

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

    fn products(&self, kernels: &Kernels, ends: &Tensor, report: &mut Report<'_>) -> Result<(), Failure> {
        let Self { experts, width, inner, .. } = *self;
        let n = self.rows();
        let (rows, grad) = (random(&[n, width]), random(&[n, inner]));
        let weight = random(&[experts, inner, width]);
        let (out, grad_rows) = (empty(&[n, inner], Kind::BFloat16), empty(&[n, width], Kind::BFloat16));
        let grad_weight = empty(&[experts, inner, width], Kind::BFloat16);
        let shape = vec![n, experts, width, inner];
        // A decoding step is bound by reading weights: of all experts, because 512 rows choose nearly all.
        let flop = Cost::Flop(2 * n * width * inner);
        let cost = if self.tokens >= 1024 { flop } else { bytes(experts * width * inner) };
        let ends_i64: Vec<i64> = Vec::try_from(ends.to_kind(Kind::Int64).to_device(tch::Device::Cpu))?;
        let ranges: Vec<(i64, i64)> =
            std::iter::once(0).chain(ends_i64.iter().copied()).zip(ends_i64.iter().copied()).collect();
        let by_expert = |product: &dyn Fn(i64, i64, i64) -> Tensor| -> Vec<Tensor> {
            (0..).zip(&ranges).map(|(expert, &(start, end))| product(expert, start, end - start)).collect()
        };
        let part = |tensor: &Tensor, start, len| wide(&tensor.narrow(0, start, len));
        let truth = Tensor::cat(
            &by_expert(&|expert, start, len| part(&rows, start, len).matmul(&wide(&weight.get(expert)).tr())),
            0,
        );
        // libtorch's peer: a batched product with the same number of rows for every expert.
        let each = (n / experts).max(1);
        let even = random(&[experts, each, width]);
        Case {
            kernel: "grouped_linear",
            shape: shape.clone(),
            cost,
            launch: Box::new(|| {
                let (rows, weight, out) = (&rows, &weight, &out);
                Ok(GroupedLinear { rows, places: None, weight, ends, out }.launch(kernels)?)
            }),
            result: Box::new(|| out.copy()),
            truth,
            libtorch: Some(Box::new(|| drop(even.bmm(&weight.transpose(1, 2))))),
        }
        .report(report)?;
        if self.tokens < on_device(1024, 12) {
            return Ok(());
        }
        let truth =
            by_expert(&|expert, start, len| part(&grad, start, len).matmul(&wide(&weight.get(expert))));
        Case {
            kernel: "grouped_linear_dx",
            shape: shape.clone(),
            cost,
            launch: Box::new(|| {
                let launch = GroupedLinearDx { grad: &grad, weight: &weight, ends, out: &grad_rows };
                Ok(launch.launch(kernels)?)
            }),
            result: Box::new(|| grad_rows.copy()),
            truth: Tensor::cat(&truth, 0),
            libtorch: None,
        }
        .report(report)?;
        let truth = by_expert(&|_, start, len| part(&grad, start, len).tr().matmul(&part(&rows, start, len)));
        Case {
            kernel: "grouped_linear_dw",
            shape,
            cost,
            launch: Box::new(|| {
                let launch = GroupedLinearDw { grad: &grad, rows: &rows, ends, out: &grad_weight };
                Ok(launch.launch(kernels)?)
            }),
            result: Box::new(|| grad_weight.copy()),
            truth: Tensor::stack(&truth, 0),
            libtorch: None,
        }
        .report(report)
    }

    fn combine(&self, kernels: &Kernels, inverse: &Tensor, report: &mut Report<'_>) -> Result<(), Failure> {
        let Self { tokens, per_token, width, .. } = *self;
        let rows = random(&[self.rows(), width]);
        let weights = Tensor::rand([tokens, per_token], (Kind::Float, GPU));
        let out = empty(&[tokens, width], Kind::BFloat16);
        let launch =
            CombineRows { rows: &rows, weights: &weights, inverse, beside: None, gate: None, out: &out };
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
