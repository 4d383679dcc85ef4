//! Fused updates on a GPU: one launch for all parameters of a dtype with the same step count. A parameter
//! with offloaded moments has a launch of its own, of the same kernel, so that its bits are the same.

use std::collections::BTreeMap;

use rlt_torch::AdamWStep;
use rlt_torch::cuda::{AdamWTable, AdamWTensor, FusedAdamW, Kernels};
use tch::{Device, Kind, Tensor};

use super::moments::Moments;
use super::{AdamWOptions, Clipped, OptimError, Parameter};

impl Parameter {
    /// Whether one launch may update the parameter together with others: its moments must be on the device.
    pub(super) fn is_fusible(&self) -> bool {
        self.has_kernel() && matches!(self.moments, Moments::Resident(_))
    }

    /// Whether our kernel can update the parameter: a dense f32 master on a GPU.
    fn has_kernel(&self) -> bool {
        let leaf = &self.leaf;
        let is_dense = leaf.is_contiguous() && leaf.grad().is_contiguous() && leaf.numel() > 0;
        leaf.device().is_cuda() && leaf.kind() == Kind::Float && is_dense
    }

    /// Updates the parameter by its own launch, with prefetched moments. Returns whether the kernel supports
    /// the parameter.
    pub(super) fn step_by_kernel(
        &self,
        moments: &[Tensor; 2],
        step: AdamWStep,
    ) -> Result<bool, rlt_torch::Error> {
        let (true, Device::Cuda(index)) = (self.has_kernel(), self.leaf.device()) else { return Ok(false) };
        let moments = moments.each_ref().map(Tensor::shallow_clone);
        let (leaf, gradient) = (self.leaf.detach(), self.leaf.grad());
        let alone = Operands { leaf, gradient, moments, weight_decay: step.weight_decay };
        launch_together(index, &[alone], step).map(|()| true)
    }
}

/// Updates `parameters`, all of which are fusible.
pub(super) fn update(
    options: &AdamWOptions,
    clipped: &Clipped,
    parameters: Vec<&mut Parameter>,
) -> Result<(), OptimError> {
    let mut alike: BTreeMap<_, Vec<&mut Parameter>> = BTreeMap::new();
    for parameter in parameters {
        let Device::Cuda(index) = parameter.leaf.device() else { continue };
        let rate_factor = parameter.rate_factor(options).to_bits();
        let key = (index, parameter.leaf.grad().kind() as i8, parameter.num_steps, rate_factor);
        alike.entry(key).or_default().push(parameter);
    }
    alike.into_iter().try_for_each(|((index, ..), parameters)| launch(index, options, clipped, parameters))
}

/// Updates, in one launch, parameters with gradients of one dtype and the same step count.
fn launch(
    index: usize,
    options: &AdamWOptions,
    clipped: &Clipped,
    mut parameters: Vec<&mut Parameter>,
) -> Result<(), OptimError> {
    let Some(first) = parameters.first() else { return Ok(()) };
    let (name, step) = (first.name.clone(), first.next_step(options, clipped));
    let failed = |source| OptimError::Step { name, source };
    let read: Vec<_> = parameters.iter().filter_map(|parameter| Operands::of(parameter, options)).collect();
    launch_together(index, &read, step).map_err(failed)?;
    parameters.iter_mut().for_each(|parameter| parameter.num_steps = step.step);
    Ok(())
}

fn launch_together(index: usize, read: &[Operands], step: AdamWStep) -> Result<(), rlt_torch::Error> {
    let kernels = Kernels::load(index)?;
    let rows: Vec<AdamWTensor<'_>> = read.iter().map(Operands::row).collect();
    let table = AdamWTable::new(&kernels, &rows)?;
    let words = rlt_torch::upload(&[table.words()], Device::Cuda(index)).swap_remove(0);
    FusedAdamW { table: &table, words: &words, step, device_scale: None }.launch(&kernels)
}

/// Tensors of a parameter that a launch reads and writes.
struct Operands {
    leaf: Tensor,
    gradient: Tensor,
    moments: [Tensor; 2],
    weight_decay: f64,
}

impl Operands {
    fn of(parameter: &Parameter, options: &AdamWOptions) -> Option<Self> {
        let Moments::Resident(moments) = &parameter.moments else { return None };
        Some(Self {
            leaf: parameter.leaf.detach(),
            gradient: parameter.leaf.grad(),
            moments: moments.each_ref().map(Tensor::shallow_clone),
            weight_decay: if parameter.decays { options.weight_decay } else { 0.0 },
        })
    }

    fn row(&self) -> AdamWTensor<'_> {
        let Self { leaf, gradient, moments: [exp_avg, exp_avg_sq], weight_decay } = self;
        AdamWTensor {
            param: leaf,
            grad: gradient,
            exp_avg,
            exp_avg_sq,
            copy: None,
            rate_factor: 1.0,
            weight_decay: *weight_decay,
        }
    }
}
