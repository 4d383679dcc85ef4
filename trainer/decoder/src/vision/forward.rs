//! Forward pass of a vision tower over one image.
//!
//! Shapes as in [`super`].

use rlt_core::images::PromptImage;
use rlt_models::TOWER;
use tch::{Kind, Tensor};

use super::order::{MergeUnits, PatchOrder};
use super::tower::VisionTower;
use crate::projection::{Adapter, Dropout};

/// Settings of a forward pass over images.
#[derive(Clone, Copy)]
pub(super) struct Forward<'a> {
    pub(super) tower: &'a VisionTower,
    pub(super) adapter: Adapter,
    /// Dropout of the adapters; `None` drops nothing.
    pub(super) dropout: Option<Dropout>,
}

impl Forward<'_> {
    /// Computes the features of an image, `[n, k * hidden]`.
    pub(super) fn compute(&self, image: &PromptImage) -> Tensor {
        let VisionTower { config, options, .. } = self.tower;
        let order = PatchOrder::new(config, image.grid);
        let patches = rlt_torch::upload_f32(&image.patches, options.device);
        let patches = patches.view([image.grid.num_patches() as i64, -1]).to_kind(options.compute);
        let units = order.to_device(options.device);
        let mut hidden_pd = self.with_positions(units.sort(&self.embed(&patches)), &units);
        let rotary = units.rotary(config);
        let mut added = Vec::new();
        for block_idx in 0..config.depth {
            let sees = if config.sees_all(block_idx) { &units.frames } else { &units.windows };
            hidden_pd = self.block(block_idx, &hidden_pd, &rotary, sees);
            if let Some(idx) = config.deepstack_blocks.iter().position(|block| *block == block_idx) {
                added.push(self.merge(&format!("deepstack_merger_list.{idx}"), &hidden_pd));
            }
        }
        added.insert(0, self.merge("merger", &hidden_pd));
        units.restore(&Tensor::cat(&added, 1))
    }

    /// Embeds patches, `[p, pixels]` to `[p, d]`.
    fn embed(&self, patches: &Tensor) -> Tensor {
        let weight = self.tensor("patch_embed.proj.weight").flatten(1, -1);
        patches.linear(&weight, self.find("patch_embed.proj.bias"))
    }

    /// Adds position embeddings, if the tower has a table of them.
    fn with_positions(&self, hidden_pd: Tensor, units: &MergeUnits) -> Tensor {
        match self.tower.config.position_side {
            Some(side) => {
                let positions = units.positions(&self.tensor("pos_embed.weight"), side as i64);
                &hidden_pd + positions.to_kind(hidden_pd.kind())
            }
            None => hidden_pd,
        }
    }

    /// Merges the patches of each token by two linear layers, `[p, d]` to `[n, hidden]`. The mergers of inner
    /// blocks normalise the patches of a token together.
    fn merge(&self, merger: &str, hidden_pd: &Tensor) -> Tensor {
        let config = &self.tower.config;
        let names = config.blocks.names();
        let norm = format!("{merger}.{}", names.merger_norm);
        let width = config.merged_width() as i64;
        let merged = match merger {
            "merger" => self.norm(&norm, hidden_pd).view([-1, width]),
            _ => self.norm(&norm, &hidden_pd.view([-1, width])),
        };
        let [first, second] = names.merger_linears.map(|linear| format!("{merger}.{linear}"));
        self.linear(&second, &self.linear(&first, &merged).gelu("none"))
    }

    /// Applies the linear layer `name`. The layer exists, because all names of the configuration were read.
    pub(super) fn linear(&self, name: &str, x: &Tensor) -> Tensor {
        let is_it = |full: &str| full.strip_prefix(TOWER) == Some(name);
        let found = self.tower.projections.iter().find(|projection| is_it(&projection.name));
        let found = found.map(|projection| projection.forward(x, self.adapter, self.dropout));
        found.unwrap_or_else(|| x.narrow(-1, 0, 0))
    }

    /// Applies a layer norm if norms of the tower have biases, else an RMS norm.
    pub(super) fn norm(&self, name: &str, x: &Tensor) -> Tensor {
        const EPS: f64 = 1e-6;
        let weight = self.tensor(&format!("{name}.weight"));
        match self.find(&format!("{name}.bias")) {
            Some(bias) => x.layer_norm(weight.size(), Some(&weight), Some(&bias), EPS, false),
            None => {
                // Rounds as transformers does: normalised in f32, then times the weight in the dtype of `x`.
                let wide = if x.kind() == Kind::Double { x.shallow_clone() } else { x.to_kind(Kind::Float) };
                let mean = wide.square().mean_dim([-1i64].as_slice(), true, None);
                weight * (&wide * (mean + EPS).rsqrt()).to_kind(x.kind())
            }
        }
    }

    /// Returns the weight `name` in the compute dtype. The weight exists, because all names of the
    /// configuration were read.
    fn tensor(&self, name: &str) -> Tensor {
        let options = &self.tower.options;
        self.find(name).unwrap_or_else(|| Tensor::empty([0], (options.compute, options.device)))
    }

    fn find(&self, name: &str) -> Option<Tensor> {
        let found = self.tower.other_tensors.iter().find(|(full, _)| full.strip_prefix(TOWER) == Some(name));
        found.map(|(_, tensor)| tensor.to_kind(self.tower.options.compute))
    }
}
