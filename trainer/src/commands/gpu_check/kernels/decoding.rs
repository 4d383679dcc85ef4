//! Cases of the kernels of a decoding step.

use rlt_core::sampling::SamplingParams;
use rlt_torch::cuda::{
    Dequantize, EmbedGather, Kernels, QuantizedLinear, QuantizedRows, RmsNormResidual, RopeAndWriteKv,
    SAMPLING_ROW_WORDS, Sample, SamplingRow, SwiGlu, sampling_workspace_bytes,
};
use rlt_torch::{Activation, QuantFormat, QuantLayout, QuantizedMatrix};
use tch::{Kind, Tensor};

use super::super::paged::Batch;
use super::super::shapes::on_device;
use super::super::{Failure, Report};
use super::{Case, Cost, GPU, bytes, empty, random, wide};

/// Rows and context tokens: a full batch, and the few rows that remain at the end of a rollout.
const CONTEXTS: [(usize, i32); 3] = [(64, 512), (8, 4000), (1, 16_000)];
/// Query heads, KV heads and head dimension of Qwen2.5 1.5B.
const HEADS: [i64; 3] = [12, 2, 128];

pub(super) fn check(kernels: &Kernels, report: &mut Report<'_>) -> Result<(), Failure> {
    let [rows, width, inner] = on_device([256, 1536, 8960], [3, 64, 128]);
    norm(kernels, rows, width).report(report)?;
    gated(kernels, rows, inner).report(report)?;
    embedding(kernels, rows, on_device([151_936, 1536], [160, 64])).report(report)?;
    rope(kernels, rows).report(report)?;
    for (rows, context) in on_device(CONTEXTS, [(3, 20), (2, 40), (1, 70)]) {
        let batch = Batch::new(HEADS, Kind::BFloat16, &vec![context; rows]);
        attention(kernels, &batch, rows, context)?.report(report)?;
    }
    for params in [SamplingParams::default(), SamplingParams { top_p: 0.9, ..SamplingParams::default() }] {
        sampling(kernels, on_device([64, 151_936], [3, 160]), &params).report(report)?;
    }
    quantized(kernels, on_device([8960, 1536], [24, 64]), report)
}

fn norm(kernels: &Kernels, rows: i64, width: i64) -> Case<'_> {
    let (x, weight, residual) = (random(&[rows, width]), random(&[width]), random(&[rows, width]));
    let out = empty(&[rows, width], Kind::BFloat16);
    // The kernel rounds the sum to bf16, because the next layer reads it.
    let sum = wide(&(&residual + &x));
    let mean = sum.square().mean_dim([-1_i64].as_slice(), true, None::<Kind>);
    let truth = &sum * (mean + 1e-6).rsqrt() * wide(&weight);
    let [x_peer, weight_peer, residual_peer] = [&x, &weight, &residual].map(Tensor::copy);
    let result = out.shallow_clone();
    Case {
        kernel: "rms_norm_residual",
        shape: vec![rows, width],
        cost: bytes(4 * rows * width),
        launch: Box::new(move || {
            let launch = RmsNormResidual {
                x: Some(&x),
                residual: &residual,
                weight: &weight,
                eps: 1e-6,
                offset: 0.0,
                out: &out,
            };
            Ok(launch.launch(kernels)?)
        }),
        result: Box::new(move || result.copy()),
        truth,
        libtorch: Some(Box::new(move || {
            let sum = &residual_peer + &x_peer;
            drop(sum.rms_norm([width], Some(&weight_peer), Some(1e-6)));
        })),
    }
}

fn gated(kernels: &Kernels, rows: i64, width: i64) -> Case<'_> {
    let (gate_up, out) = (random(&[rows, 2 * width]), empty(&[rows, width], Kind::BFloat16));
    let halves = wide(&gate_up).chunk(2, -1);
    let truth = halves[0].silu() * &halves[1];
    let (gate_up_peer, result) = (gate_up.shallow_clone(), out.shallow_clone());
    Case {
        kernel: "swiglu",
        shape: vec![rows, width],
        cost: bytes(3 * rows * width),
        launch: Box::new(move || {
            Ok(SwiGlu { gate_up: &gate_up, activation: Activation::Silu, out: &out }.launch(kernels)?)
        }),
        result: Box::new(move || result.copy()),
        truth,
        libtorch: Some(Box::new(move || {
            let halves = gate_up_peer.chunk(2, -1);
            drop(halves[0].silu() * &halves[1]);
        })),
    }
}

fn embedding(kernels: &Kernels, rows: i64, [vocabulary, width]: [i64; 2]) -> Case<'_> {
    let (embedding, out) = (random(&[vocabulary, width]), empty(&[rows, width], Kind::BFloat16));
    let ids = Tensor::arange(rows, (Kind::Int64, GPU)) * 7919;
    let ids = ids.remainder(vocabulary);
    let tokens = ids.to_kind(Kind::Int);
    let truth = wide(&embedding.index_select(0, &ids));
    let (embedding_peer, result) = (embedding.shallow_clone(), out.shallow_clone());
    Case {
        kernel: "embed_gather",
        shape: vec![rows, vocabulary, width],
        cost: bytes(2 * rows * width),
        launch: Box::new(move || {
            let launch = EmbedGather { tokens: &tokens, embedding: &embedding, scale: 1.0, out: &out };
            Ok(launch.launch(kernels)?)
        }),
        result: Box::new(move || result.copy()),
        truth,
        libtorch: Some(Box::new(move || drop(embedding_peer.index_select(0, &ids)))),
    }
}

/// Creates the case of `rope_and_write_kv`. It compares queries only: `graphs` covers the keys and values in
/// the cache.
fn rope(kernels: &Kernels, rows: i64) -> Case<'_> {
    const BLOCK_SIZE: i64 = 16;
    let [heads, kv_heads, head_dim] = HEADS;
    let qkv = random(&[rows, (heads + 2 * kv_heads) * head_dim]);
    let blocks = rows / BLOCK_SIZE + 1;
    let cache = || Tensor::zeros([blocks, BLOCK_SIZE, kv_heads, head_dim], (Kind::BFloat16, GPU));
    let (k_cache, v_cache) = (cache(), cache());
    let positions = Tensor::arange(rows, (Kind::Int, GPU));
    let exponents =
        Tensor::arange(head_dim / 2, (Kind::Float, GPU)) * (-2.0 / head_dim as f64 * 1e6_f64.ln());
    let frequencies = exponents.exp();
    let q_out = empty(&[rows, heads, head_dim], Kind::BFloat16);
    let angles = wide(&positions).unsqueeze(1) * wide(&frequencies).unsqueeze(0);
    let rotation = |kind: Kind| {
        let both = |half: Tensor| Tensor::cat(&[&half, &half], -1).unsqueeze(1).to_kind(kind);
        (both(angles.cos()), both(angles.sin()))
    };
    let rotated = |q: &Tensor, (cos, sin): &(Tensor, Tensor)| {
        let halves = q.chunk(2, -1);
        q * cos + Tensor::cat(&[-&halves[1], halves[0].shallow_clone()], -1) * sin
    };
    let q = qkv.narrow(1, 0, heads * head_dim).unflatten(1, [heads, head_dim]);
    let truth = rotated(&wide(&q), &rotation(Kind::Double));
    let (table, result, q_peer) = (rotation(Kind::BFloat16), q_out.shallow_clone(), q.shallow_clone());
    Case {
        kernel: "rope_and_write_kv",
        shape: vec![rows, heads, kv_heads, head_dim],
        cost: bytes(2 * rows * (heads + 2 * kv_heads) * head_dim),
        launch: Box::new(move || {
            let launch = RopeAndWriteKv {
                qkv: &qkv,
                inverse_frequencies: &frequencies,
                rope_factor: 1.0,
                positions: &positions,
                axes: None,
                slots: &positions,
                qk_norms: None,
                norm_width: head_dim as usize,
                eps: 1e-6,
                offset: 0.0,
                k_cache: &k_cache,
                v_cache: &v_cache,
                q_out: &q_out,
            };
            Ok(launch.launch(kernels)?)
        }),
        result: Box::new(move || result.copy()),
        truth,
        libtorch: Some(Box::new(move || drop(rotated(&q_peer, &table)))),
    }
}

fn attention<'a>(
    kernels: &'a Kernels,
    batch: &Batch,
    rows: usize,
    context: i32,
) -> Result<Case<'a>, Failure> {
    let [heads, kv_heads, head_dim] = HEADS;
    let (operands, len) = (batch.on_device()?, i64::from(context));
    let result = operands.out.shallow_clone();
    let q = random(&[rows as i64, heads, 1, head_dim]);
    let keys = random(&[rows as i64, kv_heads, len, head_dim]);
    let cache = 2 * rows as i64 * len * kv_heads * head_dim;
    Ok(Case {
        kernel: "paged_decode_attention",
        shape: vec![rows as i64, len, heads, kv_heads, head_dim],
        cost: bytes(cache + 2 * rows as i64 * heads * head_dim),
        launch: Box::new(move || operands.launch(kernels, None)),
        result: Box::new(move || result.copy()),
        truth: batch.truth(None).to_device(GPU),
        libtorch: Some(Box::new(move || {
            let none = None::<Tensor>;
            drop(Tensor::scaled_dot_product_attention(&q, &keys, &keys, none, 0.0, false, None, true));
        })),
    })
}

/// Creates the case of `sample`. It compares the log-prob of each drawn token: `draws` compares tokens with
/// the CPU's.
fn sampling<'a>(kernels: &'a Kernels, [rows, vocabulary]: [i64; 2], params: &SamplingParams) -> Case<'a> {
    let logits = random(&[rows, vocabulary]) * 3.0;
    let words: Vec<i64> = (0..rows)
        .flat_map(|row| {
            SamplingRow {
                seed: row as u64,
                repetition_penalty: params.repetition_penalty,
                top_p: params.top_p,
                min_p: params.min_p,
                temperature: params.temperature as f32,
                top_k: 0,
            }
            .words()
        })
        .collect();
    let words = Tensor::from_slice(&words).view([rows, SAMPLING_ROW_WORDS as i64]).to_device(GPU);
    let steps = Tensor::zeros([rows], (Kind::Int, GPU));
    let floats = sampling_workspace_bytes(rows as usize, vocabulary as usize) / size_of::<f32>();
    let workspace = Tensor::empty([floats as i64], (Kind::Float, GPU));
    let tokens = Tensor::full([rows], -1, (Kind::Int, GPU));
    let logprobs = empty(&[rows], Kind::Float);
    let all = wide(&logits).log_softmax(-1, None::<Kind>);
    let (logits_peer, drawn, found) =
        (logits.shallow_clone(), tokens.shallow_clone(), logprobs.shallow_clone());
    // Differences from the log-probs of the drawn tokens, plus one, so that errors are relative to one.
    let result = move || {
        let of_drawn = all.gather(-1, &drawn.to_kind(Kind::Int64).unsqueeze(1), false).squeeze_dim(-1);
        wide(&found) - of_drawn + 1.0
    };
    Case {
        kernel: if params.top_p < 1.0 { "sample, top-p" } else { "sample" },
        shape: vec![rows, vocabulary],
        cost: bytes(rows * vocabulary),
        launch: Box::new(move || {
            let launch = Sample {
                logits: &logits,
                params: &words,
                steps: &steps,
                seen_tokens: None,
                banned: &[],
                workspace: &workspace,
                tokens: &tokens,
                logprobs: &logprobs,
            };
            Ok(launch.launch(kernels)?)
        }),
        result: Box::new(result),
        truth: Tensor::ones([rows], (Kind::Double, GPU)),
        libtorch: Some(Box::new(move || drop(logits_peer.softmax(-1, Kind::Float).multinomial(1, false)))),
    }
}

fn quantized(kernels: &Kernels, size: [i64; 2], report: &mut Report<'_>) -> Result<(), Failure> {
    let layout =
        QuantLayout { format: QuantFormat::Nf4, block_size: 64, nested: false, stored: Kind::BFloat16 };
    let weight = Tensor::randn(size, (Kind::Float, tch::Device::Cpu)).to_kind(Kind::BFloat16);
    let matrix = QuantizedMatrix::quantize(&weight, layout)?;
    let weights = matrix.dequantize(Kind::BFloat16).to_device(GPU);
    let matrix = matrix.map(|tensor| tensor.to_device(GPU));
    let [outputs, inputs] = size;
    // Half a byte for each weight, and a scale of 4 bytes for each block of 64.
    let code_bytes = outputs * inputs / 2 + outputs * inputs / 16;
    let parts = [QuantizedRows { matrix: &matrix, rows: None }];
    let out = empty(&size, Kind::BFloat16);
    Case {
        kernel: "dequantize, nf4",
        shape: size.to_vec(),
        cost: Cost::Bytes(code_bytes + 2 * outputs * inputs),
        launch: Box::new(|| Ok(Dequantize { parts: &parts, out: &out }.launch(kernels)?)),
        result: Box::new(|| out.copy()),
        truth: wide(&weights),
        libtorch: None,
    }
    .report(report)?;
    for rows in [1, 8, 16] {
        let (x, out) = (random(&[rows, inputs]), empty(&[rows, outputs], Kind::BFloat16));
        Case {
            kernel: "quantized_linear, nf4",
            shape: vec![rows, outputs, inputs],
            cost: Cost::Bytes(code_bytes + 2 * rows * (outputs + inputs)),
            launch: Box::new(|| {
                Ok(QuantizedLinear { parts: &parts, x: &x, bias: None, out: &out }.launch(kernels)?)
            }),
            result: Box::new(|| out.copy()),
            truth: wide(&x).matmul(&wide(&weights).tr()),
            libtorch: Some(Box::new(|| drop(x.matmul(&weights.tr())))),
        }
        .report(report)?;
    }
    Ok(())
}
