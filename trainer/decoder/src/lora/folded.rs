//! Adapters that are folded into a model's weights as these are read: `W + scaling * B A` in f32, a chunk at
//! a time. Adapters that change a model in other ways (DoRA, `modules_to_save`, experts' parameters) are
//! refused.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use rlt_layout::TensorRun;
use rlt_models::{ModelConfig, TensorShape};
use tch::{Device, Kind, Tensor, no_grad};

use super::names::{CONFIG_FILE, peft_names};
use super::peft_files::{open_weights, read_adapter_config};
use super::targets::projection_sizes;
use super::{LoraConfig, LoraError};
use crate::checkpoint::WeightFiles;
use crate::error::ModelError;

/// Number of a weight's rows that are multiplied at once.
const BLOCK: usize = 64;

/// An adapter's folder, open for reading.
#[derive(Debug)]
pub(crate) struct FoldedAdapter {
    files: WeightFiles,
    /// Updates of weights, by the names of the weights.
    products: BTreeMap<String, Product>,
}

/// The update of a weight, `scaling * B A`, whose matrices are read when needed.
#[derive(Debug)]
struct Product {
    /// Names of A [rank, inputs] and B [outputs, rank].
    names: [String; 2],
    shape_b: [i64; 2],
    inputs: usize,
    scaling: f64,
}

impl FoldedAdapter {
    /// Opens the PEFT adapter in `dir` for a model.
    ///
    /// # Errors
    /// [`LoraError`] with the file, and the field or the matrix, when it is not one for linear layers of this
    /// model.
    pub(crate) fn open(dir: &Path, model: &ModelConfig) -> Result<Self, LoraError> {
        let stored = read_adapter_config(dir)?;
        check_foldable(&stored, dir)?;
        let sizes = projection_sizes(model);
        let available: Vec<String> = sizes.keys().cloned().collect();
        let stored = stored.in_own_names(&available);
        let (mut products, mut expected) = (BTreeMap::new(), Vec::new());
        for module in stored.matched(&available)? {
            let Some([outputs, inputs]) = sizes.get(&module).copied() else { continue };
            let (rank, scaling) = stored.rank_and_scaling(&module)?;
            let names = peft_names(&module);
            let shapes = [[rank, inputs as usize], [outputs as usize, rank]];
            let shapes = names.iter().cloned().zip(shapes.map(|shape| shape.to_vec()));
            expected.extend(shapes.map(|(name, shape)| TensorShape { name, shape }));
            let shape_b = [outputs, rank as i64];
            let product = Product { names, shape_b, inputs: inputs as usize, scaling };
            products.insert(format!("{module}.weight"), product);
        }
        let files = open_weights(dir)?;
        files.check(&expected, |_| false)?;
        Ok(Self { files, products })
    }

    /// Whether the adapter changes this weight.
    pub(crate) fn changes(&self, weight: &str) -> bool {
        self.products.contains_key(weight)
    }

    /// Adds the adapter's update to a run of a weight: `values`, [len], f32, on the CPU.
    ///
    /// # Errors
    /// [`ModelError`], with file and matrix, if it cannot be read, or holds values that are not finite.
    pub(crate) fn add_to(&self, run: &TensorRun<'_>, values: &Tensor) -> Result<(), ModelError> {
        let Some(product) = self.products.get(run.name) else { return Ok(()) };
        let a = self.files.read(&product.names[0])?.to_kind(Kind::Float);
        product.blocks(&run.range).try_for_each(|block| {
            let rows = product.rows_of_b(&self.files, &block)?;
            let numbers = block.start * product.inputs..block.end * product.inputs;
            let (start, end) = (numbers.start.max(run.range.start), numbers.end.min(run.range.end));
            let part = |of: &Tensor, offset| of.narrow(0, (start - offset) as i64, (end - start) as i64);
            no_grad(|| {
                let product = part(&rows.matmul(&a).view(-1), numbers.start) * product.scaling;
                let _ = part(values, run.range.start).g_add_(&product);
            });
            Ok(())
        })
    }
}

impl Product {
    /// Blocks of rows that overlap `range`. Their boundaries do not depend on `range`, so that a value is the
    /// same to the bit in every shard.
    fn blocks(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let outputs = self.shape_b[0] as usize;
        let rows = range.start / self.inputs..range.end.div_ceil(self.inputs);
        let blocks = rows.start / BLOCK..rows.end.div_ceil(BLOCK);
        blocks.map(move |block| block * BLOCK..outputs.min((block + 1) * BLOCK))
    }

    /// Reads some rows of B in f32.
    fn rows_of_b(&self, files: &WeightFiles, rows: &Range<usize>) -> Result<Tensor, ModelError> {
        let rank = self.shape_b[1] as usize;
        let shape = [rows.len() as i64, self.shape_b[1]];
        let b = Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        let range = rows.start * rank..rows.end * rank;
        files.read_into(&TensorRun { name: &self.names[1], shape: &self.shape_b, range }, &b.view(-1))?;
        Ok(b)
    }
}

/// Refuses an adapter that is more than updates of linear layers.
fn check_foldable(stored: &LoraConfig, dir: &Path) -> Result<(), LoraError> {
    let [dora, parameters, modules] =
        [stored.dora, !stored.target_parameters.is_empty(), !stored.modules_to_save.is_empty()];
    let refused = [(dora, "use_dora"), (parameters, "target_parameters"), (modules, "modules_to_save")];
    match refused.into_iter().find(|(is_set, _)| *is_set) {
        None => Ok(()),
        Some((_, field)) => Err(LoraError::BadConfig {
            path: dir.join(CONFIG_FILE),
            field: field.to_owned(),
            expected: "nothing, as an adapter of model.adapters is folded into linear layers alone"
                .to_owned(),
            got: "something".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests;
