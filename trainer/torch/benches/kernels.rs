//! Times the fused kernels and the same work by ATen operations, in turn, on the layer shape of a 135M Llama
//! (hidden 576, 9 heads and 3 KV heads of 64, intermediate 1536, vocabulary 49152) over 1438 packed tokens,
//! and compares the memory of the chunked head with that of dense autograd. `cargo bench -p rlt-torch`;
//! OMP_NUM_THREADS sets the threads.

use rlt_torch::{
    Activation, AdamWStep, AttentionScores, MatmulPrecision, PackedLinear, QuantFormat, QuantLayout,
    QuantizedMatrix, Segments,
};
use std::sync::LazyLock;
use std::time::Instant;
use tch::{Device, Kind, Tensor};

const LENS: [i32; 16] = [278, 210, 171, 133, 110, 96, 82, 70, 60, 50, 42, 36, 32, 32, 32, 4];
const ROUNDS: usize = 7;

fn randn(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu))
}

fn leaf(tensor: &Tensor) -> Tensor {
    tensor.detach().copy().set_requires_grad(true)
}

fn cu_seqlens() -> Vec<i32> {
    std::iter::once(0)
        .chain(LENS.iter().scan(0, |at, len| {
            Some({
                *at += len;
                *at
            })
        }))
        .collect()
}

/// Returns a clock's time in milliseconds. On one thread the clock counts the thread's CPU time, which other
/// load on the machine disturbs least; otherwise it is the wall clock.
fn clock() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let on_cpu = || {
        std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse::<f64>().ok()
    };
    let alone = tch::get_num_threads() == 1;
    on_cpu().filter(|_| alone).map_or_else(|| START.elapsed().as_secs_f64() * 1e3, |ns| ns / 1e6)
}

/// Times two variants in turn, and reports the fastest round of each, because other load can only add time.
fn compare(name: &str, flops: f64, ours: impl FnMut(), composed: impl FnMut()) {
    compare_rounds(ROUNDS, name, flops, ours, ("ATen", composed));
}

fn compare_rounds(
    rounds: usize,
    name: &str,
    flops: f64,
    mut ours: impl FnMut(),
    (peer, mut composed): (&str, impl FnMut()),
) {
    let mut times = [Vec::new(), Vec::new()];
    // CPU time is counted in ticks of some milliseconds, so short work is repeated until one tick is
    // insignificant.
    let mut repeats = [1, 1];
    for round in 0..rounds + 2 {
        for (way, run) in [&mut ours as &mut dyn FnMut(), &mut composed].into_iter().enumerate() {
            let (start, wall) = (clock(), Instant::now());
            (0..repeats[way]).for_each(|_| run());
            let time = (clock() - start) / f64::from(repeats[way]);
            if round == 1 {
                repeats[way] = (60.0 / (wall.elapsed().as_secs_f64() * 1e3)).ceil().clamp(1.0, 2000.0) as u32;
            } else if round > 1 {
                times[way].push(time);
            }
        }
    }
    let best = |v: Vec<f64>| v.into_iter().fold(f64::INFINITY, f64::min);
    let [a, b] = times.map(best);
    let rate =
        |ms: f64| if flops > 0.0 { format!("{:7.1} GFLOP/s", flops / ms / 1e6) } else { " ".repeat(15) };
    println!("{name:34} ours {a:8.3} ms {}   {peer} {b:8.3} ms {}   {:5.2}x", rate(a), rate(b), b / a);
}

/// Attention by ATen's operations, segment by segment.
fn segments(q: &Tensor, k: &Tensor, v: &Tensor, cu: &[i32]) -> Tensor {
    let segment = |w: &[i32]| {
        let part = |t: &Tensor, groups: i64| {
            let t = t.narrow(0, i64::from(w[0]), i64::from(w[1] - w[0]));
            t.repeat_interleave_self_int(groups, 1, None).transpose(0, 1).unsqueeze(0)
        };
        let (q, k, v, none) = (part(q, 1), part(k, 3), part(v, 3), None::<&Tensor>);
        let out = Tensor::scaled_dot_product_attention(&q, &k, &v, none, 0.0, true, 0.125, false);
        out.squeeze_dim(0).transpose(0, 1)
    };
    Tensor::cat(&cu.windows(2).map(segment).collect::<Vec<_>>(), 0)
}

fn attention() {
    let cu = cu_seqlens();
    let num_tokens = i64::from(cu[cu.len() - 1]);
    let [q, k, v] = [9, 3, 3].map(|h| leaf(&randn(&[num_tokens, h, 64])));
    let grad = randn(&[num_tokens, 9, 64]);
    let flops = LENS.iter().map(|&l| f64::from(l) * f64::from(l + 1) / 2.0 * 64.0 * 9.0 * 4.0).sum::<f64>();
    let composed = || segments(&q, &k, &v, &cu);
    let fused =
        || rlt_torch::varlen_attention(&q, &k, &v, Segments::alone(&cu), AttentionScores::new(0.125, None));
    compare(
        "varlen attention forward",
        flops,
        || tch::no_grad(|| drop(fused())),
        || tch::no_grad(|| drop(composed())),
    );
    let backward = |out: Tensor| rlt_torch::backward(&out, &grad);
    compare("varlen attention forward+backward", flops * 3.5, || backward(fused()), || backward(composed()));
}

fn rows() {
    let num_tokens = 1438;
    let (x, w, grad) = (leaf(&randn(&[num_tokens, 576])), leaf(&randn(&[576])), randn(&[num_tokens, 576]));
    let composed = || {
        let mean = x.square().mean_dim([-1i64].as_slice(), true, Kind::Float);
        &w * (&x * (mean + 1e-5).rsqrt())
    };
    compare(
        "rms_norm forward+backward",
        0.0,
        || rlt_torch::backward(&rlt_torch::rms_norm(&x, &w, 1e-5, 0.0), &grad),
        || rlt_torch::backward(&composed(), &grad),
    );
    let (gate, up) = (leaf(&randn(&[num_tokens, 1536])), leaf(&randn(&[num_tokens, 1536])));
    let grad = randn(&[num_tokens, 1536]);
    compare(
        "gated silu forward+backward",
        0.0,
        || rlt_torch::backward(&rlt_torch::gated_activation(&gate, &up, Activation::Silu), &grad),
        || rlt_torch::backward(&(gate.silu() * &up), &grad),
    );
    let (heads, angles) = (leaf(&randn(&[num_tokens, 9, 64])), randn(&[num_tokens, 64]));
    let (cos, sin, grad) = (angles.cos(), angles.sin(), randn(&[num_tokens, 9, 64]));
    let composed = || {
        let rotated = Tensor::cat(&[-heads.narrow(2, 32, 32), heads.narrow(2, 0, 32)], 2);
        &heads * cos.unsqueeze(1) + rotated * sin.unsqueeze(1)
    };
    compare(
        "rope forward+backward",
        0.0,
        || rlt_torch::backward(&rlt_torch::apply_rope(&heads, &cos, &sin), &grad),
        || rlt_torch::backward(&composed(), &grad),
    );
}

/// A decoder layer of the benchmark's shape, whose forward pass uses our kernels or ATen's operations.
struct Layer {
    norms: [Tensor; 2],
    /// Weights of q, k, v, o, gate, up and down.
    weights: [Tensor; 7],
    cos: Tensor,
    sin: Tensor,
    cu: Vec<i32>,
}

impl Layer {
    fn new(num_tokens: i64) -> Layer {
        let angles = randn(&[num_tokens, 32]);
        let angles = Tensor::cat(&[&angles, &angles], 1);
        let shapes = [[576, 576], [192, 576], [192, 576], [576, 576], [1536, 576], [1536, 576], [576, 1536]];
        let weights = shapes.map(|shape| leaf(&(randn(&shape) * 0.05)));
        let norms = [(); 2].map(|()| leaf(&randn(&[576])));
        Layer { norms, weights, cos: angles.cos(), sin: angles.sin(), cu: cu_seqlens() }
    }

    fn product(&self, x: &Tensor, idx: usize) -> Tensor {
        x.linear(&self.weights[idx], None::<&Tensor>)
    }

    fn fused(&self, x: &Tensor) -> Tensor {
        let normed = rlt_torch::rms_norm(x, &self.norms[0], 1e-5, 0.0);
        let [q, k, v] = [0, 1, 2].map(|idx| self.product(&normed, idx).unflatten(1, [-1, 64]));
        let [q, k] = [q, k].map(|t| rlt_torch::apply_rope(&t, &self.cos, &self.sin));
        let attended = rlt_torch::varlen_attention(
            &q,
            &k,
            &v,
            Segments::alone(&self.cu),
            AttentionScores::new(0.125, None),
        );
        let x = x + self.product(&attended.flatten(1, 2), 3);
        let normed = rlt_torch::rms_norm(&x, &self.norms[1], 1e-5, 0.0);
        let (gate, up) = (self.product(&normed, 4), self.product(&normed, 5));
        &x + self.product(&rlt_torch::gated_activation(&gate, &up, Activation::Silu), 6)
    }

    fn composed(&self, x: &Tensor) -> Tensor {
        let norm = |x: &Tensor, w: &Tensor| {
            w * (x * (x.square().mean_dim([-1i64].as_slice(), true, Kind::Float) + 1e-5).rsqrt())
        };
        let rope = |t: &Tensor| {
            let rotated = Tensor::cat(&[-t.narrow(2, 32, 32), t.narrow(2, 0, 32)], 2);
            t * self.cos.unsqueeze(1) + rotated * self.sin.unsqueeze(1)
        };
        let normed = norm(x, &self.norms[0]);
        let [q, k, v] = [0, 1, 2].map(|idx| self.product(&normed, idx).unflatten(1, [-1, 64]));
        let attended = segments(&rope(&q), &rope(&k), &v, &self.cu);
        let x = x + self.product(&attended.flatten(1, 2), 3);
        let normed = norm(&x, &self.norms[1]);
        &x + self.product(&(self.product(&normed, 4).silu() * self.product(&normed, 5)), 6)
    }
}

fn layer() {
    let num_tokens = i64::from(LENS.iter().sum::<i32>());
    let (layer, x, grad) = (Layer::new(num_tokens), randn(&[num_tokens, 576]), randn(&[num_tokens, 576]));
    let x = leaf(&x);
    let num_weights: i64 = layer.weights.iter().map(|w| w.numel() as i64).sum();
    let flops = 2.0 * (num_weights * num_tokens) as f64;
    let (fused, composed) = (|| drop(layer.fused(&x)), || drop(layer.composed(&x)));
    compare("layer forward, no gradient", flops, || tch::no_grad(fused), || tch::no_grad(composed));
    let (fused, composed) =
        (|| rlt_torch::backward(&layer.fused(&x), &grad), || rlt_torch::backward(&layer.composed(&x), &grad));
    compare("layer forward+backward", flops * 3.0, fused, composed);
    let (fused, products) = (
        || drop(layer.fused(&x)),
        || {
            for idx in [0, 1, 2, 3, 4, 5] {
                drop(layer.product(&x, idx));
            }
            drop(layer.product(&layer.product(&x, 4), 6));
        },
    );
    compare("layer forward beside its products", flops, || tch::no_grad(fused), || tch::no_grad(products));
}

fn linear() {
    for (rows, out, inp) in [(1, 1536, 576), (16, 1536, 576), (16, 49152, 576), (64, 576, 1536)] {
        let (x, weight) = (randn(&[rows, inp]), randn(&[out, inp]));
        let Ok(packed) = PackedLinear::new(&weight, None, rows, None) else { continue };
        let flops = 2.0 * (rows * out * inp) as f64;
        let plain = || drop(x.linear(&weight, None::<&Tensor>));
        compare(&format!("packed linear {rows}x{inp}x{out}"), flops, || drop(packed.forward(&x)), plain);
    }
}

/// Creates the weights of all layers of a 135M-parameter model in bfloat16, which exceed the CPU's caches.
fn layers() -> impl Iterator<Item = Tensor> {
    let shapes = [[576, 576], [192, 576], [192, 576], [576, 576], [1536, 576], [1536, 576], [576, 1536]];
    (0..30).flat_map(move |_| shapes).map(|shape| randn(&shape).to_kind(Kind::BFloat16))
}
/// Number of weights in [`layers`].
const LAYER_NUMBERS: i64 = 106_168_320;

/// Times bfloat16 products with packed weights for decoding, with plain weights for training, and by
/// libtorch.
fn bf16() {
    let weights: Vec<Tensor> = layers().collect();
    for rows in [1, 4, 16, 64, 256, 1136] {
        let pack = |weight: &Tensor| PackedLinear::new(weight, None, rows, None);
        let Ok(packed) = weights.iter().map(pack).collect::<Result<Vec<_>, _>>() else { continue };
        let inputs = [576, 1536].map(|width| randn(&[rows, width]).to_kind(Kind::BFloat16));
        let input = |weight: &Tensor| &inputs[usize::from(weight.size()[1] == 1536)];
        let flops = 2.0 * (rows * LAYER_NUMBERS) as f64;
        let plain = || weights.iter().for_each(|weight| drop(input(weight).linear(weight, None::<&Tensor>)));
        let of_packed =
            || packed.iter().zip(&weights).for_each(|(layer, weight)| drop(layer.forward(input(weight))));
        let given = || weights.iter().for_each(|weight| drop(rlt_torch::linear(input(weight), weight, None)));
        compare(&format!("linear layers x{rows}, bf16, packed"), flops, of_packed, plain);
        compare(&format!("linear layers x{rows}, bf16"), flops, given, plain);
    }
}

/// Times the quantized products of all layers, compared with bfloat16.
fn quantized() {
    for (format, nested) in [(QuantFormat::Nf4, false), (QuantFormat::Nf4, true), (QuantFormat::Int8, false)]
    {
        let layout = QuantLayout { format, block_size: 64, nested, stored: Kind::BFloat16 };
        let quantize = |weight: Tensor| QuantizedMatrix::quantize(&weight, layout);
        let Ok(weights) = layers().map(quantize).collect::<Result<Vec<_>, _>>() else { continue };
        for rows in [1, 4, 16, 256] {
            let pack = |weight: Tensor| PackedLinear::new(&weight, None, rows, None);
            let Ok(packed) = layers().map(pack).collect::<Result<Vec<_>, _>>() else { continue };
            let inputs = [576, 1536].map(|width| randn(&[rows, width]).to_kind(Kind::BFloat16));
            let input = |width: i64| &inputs[usize::from(width == 1536)];
            let widths: Vec<i64> = weights.iter().map(|weight| weight.size()[1]).collect();
            let flops = 2.0 * (rows * LAYER_NUMBERS) as f64;
            let ours =
                || weights.iter().for_each(|weight| drop(weight.product(input(weight.size()[1]), None)));
            let composed =
                || packed.iter().zip(&widths).for_each(|(weight, width)| drop(weight.forward(input(*width))));
            let name = format!("{format:?}{} x{rows}, bf16", if nested { " nested" } else { "" });
            compare_rounds(ROUNDS, &name, flops, ours, ("bf16", composed));
        }
    }
}

fn decoding() {
    let (block_size, context, num) = (16, 100, 16);
    let num_blocks = num * (context / block_size + 1);
    let cache = || randn(&[num_blocks, block_size, 3, 64]);
    let (k_cache, v_cache, q) = (cache(), cache(), randn(&[num, 9, 64]));
    let blocks: Vec<Vec<i32>> =
        (0..num as i32).map(|b| (0..7).map(|j| (b * 7 + j * 5) % num_blocks as i32).collect()).collect();
    let tables: Vec<&[i32]> = blocks.iter().map(Vec::as_slice).collect();
    let lens = vec![context as i32; num as usize];
    let index = Tensor::from_slice(&blocks.concat());
    let gather = |cache: &Tensor| {
        let rows = cache.index_select(0, &index).view([num, 7 * block_size, 3, 64]).narrow(1, 0, context);
        rows.repeat_interleave_self_int(3, 2, None).transpose(1, 2)
    };
    let composed = || {
        let (k, v) = (gather(&k_cache), gather(&v_cache));
        let none = None::<&Tensor>;
        drop(Tensor::scaled_dot_product_attention(&q.unsqueeze(2), &k, &v, none, 0.0, false, 0.125, false));
    };
    let flops = (num * context * 9 * 64 * 4) as f64;
    let ours = || {
        drop(rlt_torch::paged_attention(
            &q,
            &k_cache,
            &v_cache,
            &tables,
            &lens,
            AttentionScores::new(0.125, None),
        ))
    };
    compare("paged attention, 16 x 100 keys", flops, ours, composed);
}

fn head() {
    let (num_tokens, width, vocabulary) = (1438, 576, 49152);
    let (hidden, weight) = (leaf(&(randn(&[num_tokens, width]) * 0.1)), leaf(&randn(&[vocabulary, width])));
    let targets: Vec<i64> = (0..num_tokens).map(|t| t * 31 % vocabulary).collect();
    let index = Tensor::from_slice(&targets).unsqueeze(1);
    let mut dense = || {
        let logp = hidden.matmul(&weight.tr()).log_softmax(-1, None);
        let loss =
            logp.gather(1, &index, false).sum(Kind::Float) - (logp.exp() * logp).sum(Kind::Float) * 0.01;
        rlt_torch::backward(&loss, &loss.ones_like());
    };
    let mut grad_weight = weight.zeros_like();
    let mut chunked = |chunk: usize| {
        let mut per_chunk = |tokens: std::ops::Range<usize>, _: &[f32], _: &[f32]| {
            (vec![1.0; tokens.len()], vec![0.01; tokens.len()])
        };
        let grad = Some(&mut grad_weight);
        let _ =
            rlt_torch::head_forward_backward(&hidden, &weight, &targets, 1.0, chunk, grad, &mut per_chunk);
    };
    let flops = 6.0 * (num_tokens * width * vocabulary) as f64;
    for chunk in [128, 512] {
        compare_rounds(
            3,
            &format!("head forward+backward, chunk {chunk}"),
            flops,
            || chunked(chunk),
            ("ATen", &mut dense),
        );
    }
    let peak_of = |run: &mut dyn FnMut()| {
        rlt_torch::release_free_memory();
        let before = rlt_torch::rss_bytes().unwrap_or(0);
        let _ = rlt_torch::reset_peak_rss();
        run();
        rlt_torch::peak_rss_bytes().unwrap_or(0).saturating_sub(before) >> 20
    };
    let (dense, chunked) = (peak_of(&mut dense), peak_of(&mut || chunked(256)));
    println!("head memory above inputs: chunk 256 {chunked} MiB, dense autograd {dense} MiB");
}

fn optimizer() {
    let num = 135_000_000 / 4;
    let (mut param, grad, mut m, mut v) =
        (randn(&[num]), randn(&[num]), randn(&[num]), randn(&[num]).square());
    let (mut param_c, mut m_c, mut v_c) = (param.copy(), m.copy(), v.copy());
    let step = AdamWStep {
        learning_rate: 1e-6,
        betas: (0.9, 0.999),
        epsilon: 1e-8,
        weight_decay: 0.01,
        grad_scale: 1.0,
        step: 3,
    };
    let composed = || {
        let _ = param_c.g_mul_scalar_(1.0 - 1e-8);
        let _ = m_c.lerp_(&grad, 0.1);
        let _ = v_c.g_mul_scalar_(0.999);
        let _ = v_c.addcmul_(&grad, &grad);
        let denom = v_c.sqrt() + 1e-8;
        let _ = param_c.addcdiv_(&m_c, &denom);
    };
    let ours = || drop(rlt_torch::adamw_step(&mut param, &grad, &mut m, &mut v, &step));
    compare("AdamW, 34M parameters", 0.0, ours, composed);
    compare(
        "gradient norm, 34M parameters",
        0.0,
        || drop(rlt_torch::global_norm([&grad])),
        || _ = grad.norm().double_value(&[]),
    );
}

fn main() {
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    println!("kernels {}, {} threads", rlt_torch::kernel_isa(), tch::get_num_threads());
    if std::env::var_os("REUSE").is_some() {
        rlt_torch::reuse_large_buffers();
    }
    for precision in [MatmulPrecision::Highest, MatmulPrecision::Medium] {
        let effective = rlt_torch::set_float32_matmul_precision(precision);
        println!("float32 products: {effective:?}");
        let parts: [(&str, fn()); 9] = [
            ("layer", layer),
            ("attention", attention),
            ("rows", rows),
            ("linear", linear),
            ("bf16", bf16),
            ("quantized", quantized),
            ("decoding", decoding),
            ("head", head),
            ("optimizer", optimizer),
        ];
        for (name, run) in parts {
            if only.as_deref().is_none_or(|only| only == name) {
                run();
            }
        }
    }
}
