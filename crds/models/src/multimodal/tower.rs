//! Tensors of a vision tower: the kinds of its blocks, and all tensors with their names on disk. Never here:
//! reading a configuration.

use super::super::{TOWER, TensorShape, VisionBlocks, VisionConfig};

/// Module names of a tower.
#[derive(Clone, Copy, Debug)]
pub struct TowerNames {
    /// Linear layers of a feed-forward block from the residual stream to the inner width.
    pub inner: &'static [&'static str],
    /// Linear layer of a feed-forward block from the inner width back to the residual stream.
    pub outer: &'static str,
    /// Norm of a merger.
    pub merger_norm: &'static str,
    /// Linear layers of a merger.
    pub merger_linears: [&'static str; 2],
}

impl VisionBlocks {
    /// Module names that checkpoints use for this kind of blocks.
    pub fn names(self) -> TowerNames {
        let old = TowerNames {
            inner: &["fc1"],
            outer: "fc2",
            merger_norm: "ln_q",
            merger_linears: ["mlp.0", "mlp.2"],
        };
        match self {
            Self::Plain => old,
            Self::Gated => TowerNames { inner: &["gate_proj", "up_proj"], outer: "down_proj", ..old },
            Self::Positioned => TowerNames {
                inner: &["linear_fc1"],
                outer: "linear_fc2",
                merger_norm: "norm",
                merger_linears: ["linear_fc1", "linear_fc2"],
            },
        }
    }

    fn norms_have_biases(self) -> bool {
        self != Self::Gated
    }
}

impl VisionConfig {
    /// Returns all tensors of the tower with their names on disk, for a text model of width `text_size`.
    pub fn tensors(&self, text_size: usize) -> Vec<TensorShape> {
        let patch = [self.in_channels, self.temporal_patch_size, self.patch_size, self.patch_size];
        let patch_embedding = [[self.hidden_size].as_slice(), &patch].concat();
        let mut tensors = vec![tensor("patch_embed.proj.weight", &patch_embedding)];
        if let Some(side) = self.position_side {
            tensors.push(tensor("patch_embed.proj.bias", &[self.hidden_size]));
            tensors.push(tensor("pos_embed.weight", &[side * side, self.hidden_size]));
        }
        for block_idx in 0..self.depth {
            self.push_block(&format!("blocks.{block_idx}"), &mut tensors);
        }
        self.push_merger("merger", self.hidden_size, text_size, &mut tensors);
        for idx in 0..self.deepstack_blocks.len() {
            let merger = format!("deepstack_merger_list.{idx}");
            self.push_merger(&merger, self.merged_width(), text_size, &mut tensors);
        }
        tensors
    }

    fn push_block(&self, block: &str, tensors: &mut Vec<TensorShape>) {
        let (width, inner, names) = (self.hidden_size, self.intermediate_size, self.blocks.names());
        self.push_norm(&format!("{block}.norm1"), width, tensors);
        self.push_norm(&format!("{block}.norm2"), width, tensors);
        push_linear(&format!("{block}.attn.qkv"), [3 * width, width], tensors);
        push_linear(&format!("{block}.attn.proj"), [width, width], tensors);
        for name in names.inner {
            push_linear(&format!("{block}.mlp.{name}"), [inner, width], tensors);
        }
        push_linear(&format!("{block}.mlp.{}", names.outer), [width, inner], tensors);
    }

    fn push_merger(&self, name: &str, norm: usize, text_size: usize, tensors: &mut Vec<TensorShape>) {
        let (merged, names) = (self.merged_width(), self.blocks.names());
        let [first, second] = names.merger_linears;
        self.push_norm(&format!("{name}.{}", names.merger_norm), norm, tensors);
        push_linear(&format!("{name}.{first}"), [merged, merged], tensors);
        push_linear(&format!("{name}.{second}"), [text_size, merged], tensors);
    }

    fn push_norm(&self, name: &str, width: usize, tensors: &mut Vec<TensorShape>) {
        tensors.push(tensor(&format!("{name}.weight"), &[width]));
        if self.blocks.norms_have_biases() {
            tensors.push(tensor(&format!("{name}.bias"), &[width]));
        }
    }
}

fn push_linear(name: &str, shape: [usize; 2], tensors: &mut Vec<TensorShape>) {
    tensors.push(tensor(&format!("{name}.weight"), &shape));
    tensors.push(tensor(&format!("{name}.bias"), &shape[..1]));
}

fn tensor(name: &str, shape: &[usize]) -> TensorShape {
    TensorShape { name: format!("{TOWER}{name}"), shape: shape.to_vec() }
}
