//! Cases of the kernels of an update: layers, the vocabulary head, the optimizer, and weight digests.

use rlt_core::permutation::splitmix64;
use rlt_torch::cuda::{
    AdamWTable, AdamWTensor, DeviceDigest, DropoutMask, FusedAdamW, GatedRows, HeadBackward, HeadForward,
    Kernels, NormOfSquares, NormRows, RopeRows, SquaresTable, SumsOfSquares,
};
use rlt_torch::{Activation, AdamWStep};
use tch::{Kind, Tensor};

use super::super::shapes::on_device;
use super::super::{Failure, Report};
use super::{Case, Cost, GPU, bytes, empty, random, wide};

/// Blocks of the norm's backward launch, each of which writes a partial gradient of the weight.
const NORM_BLOCKS: i64 = 264;

pub(super) fn check(kernels: &Kernels, report: &mut Report<'_>) -> Result<(), Failure> {
    let [rows, width, inner] = on_device([4096, 1536, 8960], [3, 64, 128]);
    norm(kernels, [rows, width], report)?;
    gated(kernels, [rows, inner], report)?;
    rope(kernels, on_device([4096, 12, 128], [3, 4, 16]), report)?;
    head(kernels, on_device([1024, 151_936], [3, 160]), report)?;
    dropout(kernels, on_device([4096, 1536], [3, 64]), report)?;
    grad_norm(kernels, on_device(64 << 20, 5000), report)?;
    optimizer(kernels, on_device(64 << 20, 5000), report)?;
    digest(kernels, on_device(64 << 20, 5000), report)
}

fn norm(kernels: &Kernels, size @ [rows, width]: [i64; 2], report: &mut Report<'_>) -> Result<(), Failure> {
    let (x, weight, grad) = (random(&size), random(&[width]), random(&size));
    let (out, rstd) = (empty(&size, Kind::BFloat16), empty(&[rows], Kind::Float));
    let forward = NormRows { x: &x, weight: &weight, offset: 0.0, rstd: &rstd, out: &out };
    let inverse = (wide(&x).square().mean_dim([-1_i64].as_slice(), true, None::<Kind>) + 1e-6).rsqrt();
    let normed = wide(&x) * &inverse;
    Case {
        kernel: "rms_norm_rows",
        shape: size.to_vec(),
        cost: bytes(2 * rows * width),
        launch: Box::new(|| Ok(forward.launch(kernels, 1e-6)?)),
        result: Box::new(|| out.copy()),
        truth: &normed * wide(&weight),
        libtorch: Some(Box::new(|| drop(x.rms_norm([width], Some(&weight), Some(1e-6))))),
    }
    .report(report)?;
    let (grad_x, partial) = (empty(&size, Kind::BFloat16), empty(&[NORM_BLOCKS, width], Kind::Float));
    let backward = NormRows { out: &grad_x, ..forward };
    let scaled = wide(&grad) * wide(&weight);
    let along = (&scaled * &normed).mean_dim([-1_i64].as_slice(), true, None::<Kind>);
    let inverse_peer = inverse.to_kind(Kind::BFloat16);
    Case {
        kernel: "rms_norm_rows_backward",
        shape: size.to_vec(),
        cost: bytes(3 * rows * width),
        launch: Box::new(|| Ok(backward.launch_backward(kernels, &grad, &partial)?)),
        // Appends the weight's gradient, scaled to the size of the input's.
        result: Box::new(|| {
            Tensor::cat(&[wide(&grad_x), scaled_sum(&wide(&partial), rows)], 0).to_kind(Kind::BFloat16)
        }),
        truth: Tensor::cat(
            &[(&scaled - &normed * along) * &inverse, scaled_sum(&(wide(&grad) * &normed), rows)],
            0,
        ),
        libtorch: Some(Box::new(|| drop(norm_backward_by_libtorch([&x, &weight, &grad, &inverse_peer])))),
    }
    .report(report)
}

/// Computes the gradients of the norm's input and weight in bf16 by libtorch's operators.
fn norm_backward_by_libtorch([x, weight, grad, inverse]: [&Tensor; 4]) -> [Tensor; 2] {
    let (scaled, normed) = (grad * weight, x * inverse);
    let along = (&scaled * &normed).mean_dim([-1_i64].as_slice(), true, None::<Kind>);
    let of_weight = (grad * &normed).sum_dim_intlist([0_i64].as_slice(), false, None::<Kind>);
    [(scaled - normed * along) * inverse, of_weight]
}

/// Returns the sum of rows divided by the root of their number, `[1, width]`.
fn scaled_sum(rows: &Tensor, num_rows: i64) -> Tensor {
    rows.sum_dim_intlist([0_i64].as_slice(), true, None::<Kind>) / (num_rows as f64).sqrt()
}

fn gated(kernels: &Kernels, size @ [rows, width]: [i64; 2], report: &mut Report<'_>) -> Result<(), Failure> {
    let [gate, up, grad] = [random(&size), random(&size), random(&size)];
    let [out, grad_gate, grad_up] = [0; 3].map(|_| empty(&size, Kind::BFloat16));
    let launch = GatedRows { gate: &gate, up: &up, activation: Activation::Silu };
    Case {
        kernel: "gated_rows",
        shape: size.to_vec(),
        cost: bytes(3 * rows * width),
        launch: Box::new(|| Ok(launch.launch(kernels, &out)?)),
        result: Box::new(|| out.copy()),
        truth: wide(&gate).silu() * wide(&up),
        libtorch: Some(Box::new(|| drop(gate.silu() * &up))),
    }
    .report(report)?;
    let sigmoid = wide(&gate).sigmoid();
    let slope = &sigmoid * (wide(&gate) * (1.0 - &sigmoid) + 1.0);
    Case {
        kernel: "gated_rows, backward",
        shape: size.to_vec(),
        cost: bytes(5 * rows * width),
        launch: Box::new(|| Ok(launch.launch_backward(kernels, &grad, [&grad_gate, &grad_up])?)),
        result: Box::new(|| Tensor::cat(&[&grad_gate, &grad_up], 0)),
        truth: Tensor::cat(&[wide(&grad) * wide(&up) * slope, wide(&grad) * wide(&gate).silu()], 0),
        libtorch: Some(Box::new(|| drop((gate.silu_backward(&(&grad * &up)), &grad * gate.silu())))),
    }
    .report(report)
}

fn rope(
    kernels: &Kernels,
    size @ [tokens, heads, head_dim]: [i64; 3],
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let (x, out) = (random(&size), empty(&size, Kind::BFloat16));
    let angles = Tensor::randn([tokens, head_dim / 2], (Kind::Double, GPU));
    let both = |half: Tensor| Tensor::cat(&[&half, &half], -1);
    let [cos, sin] = [both(angles.cos()), both(angles.sin())].map(|table| table.to_kind(Kind::BFloat16));
    for is_backward in [false, true] {
        let sign = if is_backward { -1.0 } else { 1.0 };
        let rotated = |x: &Tensor, kind: Kind| {
            let [cos, sin] = [&cos, &sin].map(|table| table.to_kind(kind).unsqueeze(1));
            let halves = x.chunk(2, -1);
            x * cos + Tensor::cat(&[-&halves[1], halves[0].shallow_clone()], -1) * sin * sign
        };
        let launch = RopeRows { x: &x, cos: &cos, sin: &sin, out: &out };
        Case {
            kernel: if is_backward { "rope_rows, backward" } else { "rope_rows" },
            shape: size.to_vec(),
            cost: bytes(2 * tokens * heads * head_dim),
            launch: Box::new(|| Ok(launch.launch(kernels, is_backward)?)),
            result: Box::new(|| out.copy()),
            truth: rotated(&wide(&x), Kind::Double),
            libtorch: Some(Box::new(|| drop(rotated(&x, Kind::BFloat16)))),
        }
        .report(report)?;
    }
    Ok(())
}

fn head(
    kernels: &Kernels,
    size @ [rows, vocabulary]: [i64; 2],
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let logits = random(&size);
    let targets = (Tensor::arange(rows, (Kind::Int64, GPU)) * 104_729).remainder(vocabulary);
    let [logprob, entropy, max, log_sum] = [0; 4].map(|_| empty(&[rows], Kind::Float));
    let at_target = |all: &Tensor| all.gather(-1, &targets.unsqueeze(1), false).squeeze_dim(-1);
    let logprobs = wide(&logits).log_softmax(-1, None::<Kind>);
    let probs = logprobs.exp();
    let entropies = -(&probs * &logprobs).sum_dim_intlist([-1_i64].as_slice(), false, None::<Kind>);
    let forward = HeadForward {
        logits: &logits,
        targets: &targets,
        temperature: 1.0,
        logprob: &logprob,
        entropy: &entropy,
        max: &max,
        log_sum: &log_sum,
    };
    Case {
        kernel: "head_forward",
        shape: size.to_vec(),
        cost: bytes(rows * vocabulary),
        launch: Box::new(|| Ok(forward.launch(kernels)?)),
        result: Box::new(|| Tensor::cat(&[&logprob, &entropy], 0)),
        truth: Tensor::cat(&[at_target(&logprobs), entropies.shallow_clone()], 0),
        libtorch: Some(Box::new(|| drop(at_target(&logits.log_softmax(-1, Kind::Float))))),
    }
    .report(report)?;
    head_backward(kernels, forward, &logprobs, report)
}

/// Creates the case of the head's backward pass, which overwrites the logits of `forward` with their
/// gradient.
fn head_backward(
    kernels: &Kernels,
    forward: HeadForward<'_>,
    logprobs: &Tensor,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let HeadForward { logits, targets, .. } = forward;
    let [rows, vocabulary] = logits.size()[..] else { return Err("logits are a matrix".into()) };
    let [grad_logprob, grad_entropy] = [0; 2].map(|_| Tensor::randn([rows], (Kind::Float, GPU)));
    let slopes = [&grad_logprob, &grad_entropy].map(|grad| wide(grad).unsqueeze(1));
    let probs = logprobs.exp();
    let entropies = -(&probs * logprobs).sum_dim_intlist([-1_i64].as_slice(), true, None::<Kind>);
    let is_target =
        Tensor::arange(vocabulary, (Kind::Int64, GPU)).unsqueeze(0).eq_tensor(&targets.unsqueeze(1));
    let truth = (wide(&is_target) - &probs) * &slopes[0] - &probs * (logprobs + &entropies) * &slopes[1];
    // The launch overwrites its input, so the result is copied before the timed launches.
    let input = logits.copy();
    forward.launch(kernels)?;
    let backward = HeadBackward { forward, grad_logprob: &grad_logprob, grad_entropy: &grad_entropy };
    backward.launch(kernels)?;
    let found = logits.copy();
    logits.shallow_clone().copy_(&input);
    let [is_target, of_logprob, of_entropy, entropies] =
        [&is_target, &slopes[0], &slopes[1], &entropies].map(|tensor| tensor.to_kind(Kind::BFloat16));
    Case {
        kernel: "head_backward",
        shape: vec![rows, vocabulary],
        cost: bytes(2 * rows * vocabulary),
        launch: Box::new(|| Ok(backward.launch(kernels)?)),
        result: Box::new(|| found.copy()),
        truth,
        libtorch: Some(Box::new(|| {
            let logprobs = input.log_softmax(-1, None::<Kind>);
            let probs = logprobs.exp();
            let by_entropy = &probs * (logprobs + &entropies) * &of_entropy;
            drop((&is_target - probs) * &of_logprob - by_entropy);
        })),
    }
    .report(report)
}

fn dropout(
    kernels: &Kernels,
    size @ [rows, width]: [i64; 2],
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let (probability, keep) = (0.1, 1.25);
    let mask = DropoutMask { key: 5, first_idx: 0, threshold: (2.0 * probability - 1.0) as f32, keep };
    let value = |idx: u64| {
        let draw = (splitmix64(mask.key, idx) >> 11) as f64 * (-53_f64).exp2();
        if ((2.0 * draw - 1.0) as f32) < mask.threshold { 0.0 } else { keep }
    };
    let values: Vec<f32> = (0..(rows * width) as u64).map(value).collect();
    let (x, out) = (super::random(&size), empty(&size, Kind::BFloat16));
    Case {
        kernel: "dropout_mask",
        shape: size.to_vec(),
        cost: bytes(rows * width),
        launch: Box::new(|| Ok(mask.launch(kernels, &out)?)),
        result: Box::new(|| out.copy()),
        truth: wide(&Tensor::from_slice(&values).view(size).to_device(GPU)),
        libtorch: Some(Box::new(|| drop(x.bernoulli_p(1.0 - probability)))),
    }
    .report(report)
}

fn grad_norm(kernels: &Kernels, count: i64, report: &mut Report<'_>) -> Result<(), Failure> {
    let grad = Tensor::randn([count], (Kind::Float, GPU));
    let table = SquaresTable::new(kernels, &[&grad])?;
    let words = Tensor::from_slice(table.words()).to_device(GPU);
    let partials = empty(&[table.num_partials() as i64], Kind::Double);
    let out = empty(&[1], Kind::Double);
    Case {
        kernel: "grad_norm",
        shape: vec![count],
        cost: Cost::Bytes(4 * count),
        launch: Box::new(|| {
            SumsOfSquares { table: &table, words: &words, partials: &partials }.launch(kernels)?;
            Ok(NormOfSquares { partials: &partials, out: &out }.launch(kernels)?)
        }),
        result: Box::new(|| out.copy()),
        truth: wide(&grad).norm().view([1]),
        libtorch: Some(Box::new(|| drop(grad.norm()))),
    }
    .report(report)
}

fn optimizer(kernels: &Kernels, count: i64, report: &mut Report<'_>) -> Result<(), Failure> {
    let single = |size: f64| Tensor::randn([count], (Kind::Float, GPU)) * size;
    let (param, grad, exp_avg) = (single(0.02), single(1e-3), single(1e-3));
    let exp_avg_sq = single(1e-3).square();
    let copy = empty(&[count], Kind::BFloat16);
    let first = wide(&exp_avg) * 0.9 + wide(&grad) * 0.1;
    let second = wide(&exp_avg_sq) * 0.999 + wide(&grad).square() * 0.001;
    let (bias1, bias2): (f64, f64) = (1.0 - 0.9_f64.powi(3), 1.0 - 0.999_f64.powi(3));
    let moved = (&first / bias1) / ((&second / bias2).sqrt() + 1e-8) * 1e-3;
    // The comparison is of changes: relative to the parameters, an error of the change would be small.
    let (before, truth) = (wide(&param), wide(&param) * (-1e-3 * 0.1) - moved);
    let tensor = AdamWTensor {
        param: &param,
        grad: &grad,
        exp_avg: &exp_avg,
        exp_avg_sq: &exp_avg_sq,
        copy: Some(&copy),
        rate_factor: 1.0,
        weight_decay: 0.1,
    };
    let table = AdamWTable::new(kernels, &[tensor])?;
    let words = Tensor::from_slice(table.words()).to_device(GPU);
    let step = AdamWStep {
        learning_rate: 1e-3,
        betas: (0.9, 0.999),
        epsilon: 1e-8,
        weight_decay: 0.0,
        grad_scale: 1.0,
        step: 3,
    };
    let launch = FusedAdamW { table: &table, words: &words, step, device_scale: None };
    let peers = [&param, &exp_avg, &exp_avg_sq].map(Tensor::copy);
    Case {
        kernel: "adamw",
        shape: vec![count],
        // Four tensors of f32 read, three of them and the copy written.
        cost: Cost::Bytes((4 * 4 + 3 * 4 + 2) * count),
        launch: Box::new(|| Ok(launch.launch(kernels)?)),
        result: Box::new(|| wide(&param) - &before),
        truth,
        libtorch: Some(Box::new(|| drop(adamw_by_libtorch(&peers, &grad, [bias1, bias2])))),
    }
    .report(report)
}

/// Changes a parameter and its moments as the case of AdamW does, by libtorch's operators; returns the copy
/// in bf16.
fn adamw_by_libtorch(tensors: &[Tensor; 3], grad: &Tensor, [bias1, bias2]: [f64; 2]) -> Tensor {
    let [mut param, mut exp_avg, mut exp_avg_sq] = tensors.each_ref().map(Tensor::shallow_clone);
    let _ = exp_avg.lerp_(grad, 0.1);
    let _ = exp_avg_sq.lerp_(&grad.square(), 0.001);
    let moved = (&exp_avg / bias1) / ((&exp_avg_sq / bias2).sqrt() + 1e-8) * 1e-3;
    let _ = param.g_mul_scalar_(1.0 - 1e-3 * 0.1);
    let _ = param.g_sub_(&moved);
    param.to_kind(Kind::BFloat16)
}

/// Checks the weight digest: equal values have equal digests, and other values have another one. Unit tests
/// compare digests with the CPU's.
fn digest(kernels: &Kernels, count: i64, report: &mut Report<'_>) -> Result<(), Failure> {
    let tensor = random(&[count]);
    let out = Tensor::zeros([1], (Kind::Int64, GPU));
    let digest = |tensor: &Tensor| -> Result<i64, Failure> {
        let out = Tensor::zeros([1], (Kind::Int64, GPU));
        DeviceDigest { tensor, out: &out }.launch(kernels)?;
        Ok(out.int64_value(&[0]))
    };
    let other = tensor.copy();
    let _ = other.narrow(0, count / 2, 1).fill_(77.0);
    let (first, again, changed) = (digest(&tensor)?, digest(&tensor.copy())?, digest(&other)?);
    let holds = f64::from(u8::from(first == again && first != changed));
    Case {
        kernel: "digest",
        shape: vec![count],
        cost: bytes(count),
        launch: Box::new(|| Ok(DeviceDigest { tensor: &tensor, out: &out }.launch(kernels)?)),
        result: Box::new(|| Tensor::from_slice(&[holds]).to_device(GPU)),
        truth: Tensor::ones([1], (Kind::Double, GPU)),
        libtorch: Some(Box::new(|| drop(tensor.sum(Kind::Float)))),
    }
    .report(report)
}
