//! One block of a vision tower: attention and feed-forward block, each behind a norm and added to the
//! residual stream.

use rlt_models::VisionBlocks;
use tch::Tensor;

use super::attention::{AttentionWindows, Rotary, attend};
use super::forward::Forward;

impl Forward<'_> {
    /// Runs block `block_idx`, `[p, d]` to `[p, d]`; patches attend to those of their span.
    pub(super) fn block(
        &self,
        block_idx: usize,
        hidden_pd: &Tensor,
        rotary: &Rotary,
        spans: &AttentionWindows,
    ) -> Tensor {
        let name = |module: &str| format!("blocks.{block_idx}.{module}");
        let normed_pd = self.norm(&name("norm1"), hidden_pd);
        let num_heads = self.tower.config.num_heads as i64;
        let qkv = self.linear(&name("attn.qkv"), &normed_pd).unflatten(-1, [3, num_heads, -1]);
        let [q_phw, k_phw, v_phw] = [0, 1, 2].map(|part| qkv.select(1, part));
        let attended = attend([&rotary.rotate(&q_phw), &rotary.rotate(&k_phw), &v_phw], spans);
        let hidden_pd = hidden_pd + self.linear(&name("attn.proj"), &attended.flatten(1, 2));
        let normed_pd = self.norm(&name("norm2"), &hidden_pd);
        hidden_pd + self.feed_forward(block_idx, &normed_pd)
    }

    fn feed_forward(&self, block_idx: usize, x: &Tensor) -> Tensor {
        let linear = |name: &str, x: &Tensor| self.linear(&format!("blocks.{block_idx}.mlp.{name}"), x);
        match self.tower.config.blocks {
            VisionBlocks::Plain => {
                let inner = linear("fc1", x);
                // This activation is the quick GELU.
                linear("fc2", &(&inner * (&inner * 1.702).sigmoid()))
            }
            VisionBlocks::Positioned => linear("linear_fc2", &linear("linear_fc1", x).gelu("tanh")),
            VisionBlocks::Gated => {
                linear("down_proj", &(linear("gate_proj", x).silu() * linear("up_proj", x)))
            }
        }
    }
}
