//! Compares training's attention of packed tokens, forward and backward, with dense attention in fp64.
//!
//! bf16 uses flash attention and fp32 the memory-efficient kernel. Several completions continue the same
//! prompt and share its keys, so the gradients of these keys are sums over the completions.

use rlt_torch::{DeviceSegments, Segments, packed_attention};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::operators::BF16_TOLERANCE;
use super::shapes::on_device;
use super::{Failure, Finding, Report};

const GPU: Device = Device::Cuda(0);
/// Largest error in fp32 relative to the largest value: sums of about a thousand terms in any order.
const FP32_TOLERANCE: f64 = 1e-4;
/// Query heads, KV heads and head dimension of the 135M Llama, Qwen2.5 0.5B and Qwen2.5 1.5B.
const HEADS: [[i64; 3]; 3] = [[9, 3, 64], [14, 2, 64], [12, 2, 128]];
/// Sliding windows: none, and one that begins within the prompts.
const WINDOWS: [Option<i64>; 2] = [None, Some(100)];

/// Segments: the number of tokens, and the index of the earlier segment that it continues.
type Layout = [(i32, Option<usize>); 7];

const FULL: Layout =
    [(300, None), (200, Some(0)), (170, Some(0)), (1, Some(0)), (513, None), (64, Some(4)), (129, None)];
const TINY: Layout =
    [(9, None), (7, Some(0)), (5, Some(0)), (1, Some(0)), (13, None), (4, Some(4)), (3, None)];

pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    let packed = Packed::new(&on_device(FULL, TINY));
    for heads @ [query_heads, kv_heads, head_dim] in HEADS {
        for (dtype, kind, tolerance) in
            [("bf16", Kind::BFloat16, BF16_TOLERANCE), ("fp32", Kind::Float, FP32_TOLERANCE)]
        {
            for window in WINDOWS {
                let [out, q, k, v] = packed.errors(heads, kind, window.map(|width| on_device(width, 6)));
                let holds = [out, q, k, v].iter().all(|error| *error <= tolerance);
                let figures = [
                    ("operator", json!("packed attention")),
                    ("dtype", json!(dtype)),
                    ("heads", json!(query_heads)),
                    ("kvHeads", json!(kv_heads)),
                    ("headDim", json!(head_dim)),
                    ("window", json!(window)),
                    ("error", json!(out)),
                    ("errorOfGradients", json!({ "q": q, "k": k, "v": v })),
                    ("tolerance", json!(tolerance)),
                ];
                report(Finding::new(holds, figures))?;
            }
        }
    }
    Ok(())
}

/// A micro-batch of packed tokens.
struct Packed {
    /// Index of each segment's first token, and the number of tokens at the end.
    cu_seqlens: Vec<i32>,
    /// Segment that each segment continues.
    prefixes: Vec<Option<usize>>,
    /// Segment of each token.
    segments: Vec<i64>,
    /// Segment that each token's segment continues, or -1.
    prefix_segments: Vec<i64>,
    /// Position of each token, its prefix included.
    positions: Vec<i64>,
}

impl Packed {
    fn new(layout: &[(i32, Option<usize>)]) -> Self {
        let mut packed = Self {
            cu_seqlens: vec![0],
            prefixes: Vec::new(),
            segments: Vec::new(),
            prefix_segments: Vec::new(),
            positions: Vec::new(),
        };
        for (idx, &(len, prefix)) in layout.iter().enumerate() {
            let start = prefix.map_or(0, |prefix| i64::from(layout[prefix].0));
            packed.cu_seqlens.push(packed.segments.len() as i32 + len);
            packed.prefixes.push(prefix);
            packed.segments.extend((0..len).map(|_| idx as i64));
            packed.prefix_segments.extend((0..len).map(|_| prefix.map_or(-1, |prefix| prefix as i64)));
            packed.positions.extend((0..len).map(|at| start + i64::from(at)));
        }
        packed
    }

    /// Returns which keys each query attends to, bool `[tokens, tokens]`.
    fn visible(&self, window: Option<i64>) -> Tensor {
        let column = |values: &[i64]| Tensor::from_slice(values).unsqueeze(1);
        let row = |values: &[i64]| Tensor::from_slice(values).unsqueeze(0);
        let back = column(&self.positions) - row(&self.positions);
        let in_segment = column(&self.segments).eq_tensor(&row(&self.segments)).logical_and(&back.ge(0));
        let in_prefix = column(&self.prefix_segments).eq_tensor(&row(&self.segments));
        let visible = in_segment.logical_or(&in_prefix);
        window.map_or(visible.shallow_clone(), |window| visible.logical_and(&back.lt(window)))
    }

    /// Returns the largest errors of the output and of the gradients of queries, keys and values.
    fn errors(&self, [heads, kv_heads, head_dim]: [i64; 3], kind: Kind, window: Option<i64>) -> [f64; 4] {
        tch::manual_seed(heads * head_dim);
        let (num_tokens, scale) = (self.segments.len() as i64, (head_dim as f64).powf(-0.5));
        let draw =
            |heads| Tensor::randn([num_tokens, heads, head_dim], (Kind::Float, Device::Cpu)).to_kind(kind);
        let (inputs, weights) = ([draw(heads), draw(kv_heads), draw(kv_heads)], draw(heads));
        let segments = Segments { cu_seqlens: &self.cu_seqlens, prefixes: &self.prefixes };
        let on_device = DeviceSegments::new(segments, GPU);
        let found = with_gradients(&inputs, &weights, kind, |q, k, v| {
            packed_attention(q, k, v, &on_device, scale, window)
        });
        let hidden = self.visible(window).logical_not().to_device(GPU);
        let truth = with_gradients(&inputs, &weights, Kind::Double, |q, k, v| {
            let widen = |tensor: &Tensor| {
                tensor.repeat_interleave_self_int(heads / kv_heads, 1, None).transpose(0, 1)
            };
            let scores = q.transpose(0, 1).matmul(&widen(k).transpose(1, 2)) * scale;
            let weights = scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, None::<Kind>);
            weights.matmul(&widen(v)).transpose(0, 1)
        });
        let error = |idx: usize| {
            let difference = (found[idx].to_kind(Kind::Double) - &truth[idx]).abs().max();
            difference.double_value(&[]) / truth[idx].abs().max().double_value(&[])
        };
        [error(0), error(1), error(2), error(3)]
    }
}

/// Returns the output of attention on the GPU, and the gradients of the output's sum weighted by `weights`.
fn with_gradients(
    inputs: &[Tensor; 3],
    weights: &Tensor,
    kind: Kind,
    attention: impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor,
) -> [Tensor; 4] {
    let leaf = |tensor: &Tensor| tensor.to_device(GPU).to_kind(kind).detach().set_requires_grad(true);
    let [q, k, v] = inputs.each_ref().map(leaf);
    let out = attention(&q, &k, &v);
    (&out * weights.to_device(GPU).to_kind(kind)).sum(None::<Kind>).backward();
    [out.detach(), q.grad(), k.grad(), v.grad()]
}
