//! Compares attention over a paged cache with dense attention over the tokens in its pages, in fp64 on the
//! CPU.

use rlt_torch::cuda::driver::{Attribute, Driver};
use rlt_torch::cuda::{Kernels, PagedDecodeAttention, attention_splits, attention_workspace_bytes};
use serde_json::json;
use tch::{Device, IndexOp, Kind, Tensor};

use super::operators::{BF16_TOLERANCE, FP32_TOLERANCE};
use super::{Failure, Finding, Report};

const GPU: Device = Device::Cuda(0);
const BLOCK_SIZE: i64 = 16;
/// Number of cached tokens of each sequence: one token, a full block, many blocks.
const LENS: [i32; 4] = [1, 16, 150, 700];
/// Query heads, KV heads and head dimension: grouped as in the 135M Llama, Qwen2.5 0.5B and 1.5B, and not
/// grouped.
const HEADS: [[i64; 3]; 4] = [[9, 3, 64], [14, 2, 64], [12, 2, 128], [4, 4, 80]];

pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    let (_no_grad, kernels) = (tch::no_grad_guard(), Kernels::load(0)?);
    for heads in HEADS {
        for (kind, tolerance) in [(Kind::Float, FP32_TOLERANCE), (Kind::BFloat16, BF16_TOLERANCE)] {
            for window in [None, Some(100)] {
                let error = Batch::new(heads, kind, &LENS).error(&kernels, window)?;
                let [query_heads, kv_heads, head_dim] = heads;
                let figures = [
                    ("heads", json!(query_heads)),
                    ("kvHeads", json!(kv_heads)),
                    ("headDim", json!(head_dim)),
                    ("dtype", json!(if kind == Kind::Float { "fp32" } else { "bf16" })),
                    ("window", json!(window)),
                    ("error", json!(error)),
                    ("tolerance", json!(tolerance)),
                ];
                report(Finding::new(error <= tolerance, figures))?;
            }
        }
    }
    Ok(())
}

/// Queries and a cache on the CPU, in which the blocks of a sequence are scattered.
pub(super) struct Batch {
    lens: Vec<i32>,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    /// Block tables of the rows, `[rows, blocks of the longest sequence]`.
    tables: Vec<i32>,
    max_blocks: i64,
}

impl Batch {
    pub(super) fn new([heads, kv_heads, head_dim]: [i64; 3], kind: Kind, lens: &[i32]) -> Self {
        tch::manual_seed(heads * head_dim);
        let max_blocks = lens.iter().map(|len| (i64::from(*len) + BLOCK_SIZE - 1) / BLOCK_SIZE).max();
        let max_blocks = max_blocks.unwrap_or(1);
        let (rows, draw) =
            (lens.len() as i64, |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu)));
        // 7 and the number of blocks have no common divisor, so no block is in two tables.
        let num_blocks = rows * max_blocks + 1;
        let num_blocks = if num_blocks % 7 == 0 { num_blocks + 1 } else { num_blocks };
        let tables = (0..rows * max_blocks).map(|i| (i * 7 % num_blocks) as i32).collect();
        let cache = || draw(&[num_blocks, BLOCK_SIZE, kv_heads, head_dim]).to_kind(kind);
        let q = draw(&[rows, heads, head_dim]).to_kind(kind);
        Self { lens: lens.to_vec(), q, k_cache: cache(), v_cache: cache(), tables, max_blocks }
    }

    /// Returns the largest difference, relative to the largest value.
    fn error(&self, kernels: &Kernels, window: Option<i64>) -> Result<f64, Failure> {
        let on_device = self.on_device()?;
        on_device.launch(kernels, window)?;
        let found = on_device.out.to_device(Device::Cpu).to_kind(Kind::Double);
        let truth = self.truth(window);
        Ok((found - &truth).abs().max().double_value(&[]) / truth.abs().max().double_value(&[]))
    }

    fn scale(&self) -> f64 {
        (self.q.size()[2] as f64).powf(-0.5)
    }

    /// Computes the attention of every row in fp64 on the CPU.
    pub(super) fn truth(&self, window: Option<i64>) -> Tensor {
        let rows: Vec<Tensor> = (0..self.lens.len()).map(|row| self.dense(row, window)).collect();
        Tensor::stack(&rows, 0)
    }

    /// Copies the batch to the GPU.
    pub(super) fn on_device(&self) -> Result<OnDevice, Failure> {
        let [rows, heads, head_dim] = self.q.size()[..] else { return Err("queries have three dims".into()) };
        let kv_heads = self.k_cache.size()[2];
        let multiprocessors = Driver::get()?.attribute(0, Attribute::MultiprocessorCount)?.max(1) as usize;
        let splits = attention_splits(rows as usize, kv_heads as usize, multiprocessors);
        let sizes = [rows, heads, kv_heads, head_dim].map(|n| n as usize);
        let bytes = attention_workspace_bytes(sizes[0], sizes[1], sizes[2], sizes[3], splits);
        let q = self.q.to_device(GPU);
        Ok(OnDevice {
            out: q.full_like(f64::NAN),
            q,
            k_cache: self.k_cache.to_device(GPU),
            v_cache: self.v_cache.to_device(GPU),
            block_tables: Tensor::from_slice(&self.tables).view([rows, self.max_blocks]).to_device(GPU),
            context_lens: Tensor::from_slice(&self.lens).to_device(GPU),
            scale: self.scale(),
            splits,
            workspace: Tensor::zeros([bytes as i64], (Kind::Uint8, GPU)),
        })
    }

    /// Computes the attention of one row over its contiguous tokens: `[heads, head_dim]` in fp64.
    fn dense(&self, row: usize, window: Option<i64>) -> Tensor {
        let len = i64::from(self.lens[row]);
        let blocks = &self.tables[row * self.max_blocks as usize..][..self.max_blocks as usize];
        let blocks = Tensor::from_slice(&blocks.iter().map(|&block| i64::from(block)).collect::<Vec<_>>());
        let seen = window.map_or(len, |window| window.min(len));
        let (q, groups) = (self.q.i(row as i64), self.q.size()[1] / self.k_cache.size()[2]);
        let tokens = |cache: &Tensor| {
            let all = cache.index_select(0, &blocks).flatten(0, 1).narrow(0, len - seen, seen);
            all.repeat_interleave_self_int(groups, 1, None).to_kind(Kind::Double)
        };
        let (keys, values) = (tokens(&self.k_cache), tokens(&self.v_cache));
        let scores = Tensor::einsum("hd,thd->ht", &[&q.to_kind(Kind::Double), &keys], None::<&[i64]>);
        let weights = (scores * self.scale()).softmax(-1, Kind::Double);
        Tensor::einsum("ht,thd->hd", &[&weights, &values], None::<&[i64]>)
    }
}

/// A batch on the GPU.
pub(super) struct OnDevice {
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: f64,
    splits: usize,
    workspace: Tensor,
    pub(super) out: Tensor,
}

impl OnDevice {
    pub(super) fn launch(&self, kernels: &Kernels, window: Option<i64>) -> Result<(), Failure> {
        let launch = PagedDecodeAttention {
            q: &self.q,
            k_cache: &self.k_cache,
            v_cache: &self.v_cache,
            block_tables: &self.block_tables,
            context_lens: &self.context_lens,
            scale: self.scale,
            window,
            splits: self.splits,
            workspace: &self.workspace,
            out: &self.out,
        };
        Ok(launch.launch(kernels)?)
    }
}
