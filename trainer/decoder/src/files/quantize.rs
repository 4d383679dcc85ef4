//! Quantization of weights as they are read or drawn. A linear layer's full weight exists briefly in the
//! compute dtype, as in transformers before bitsandbytes quantizes it. That is so with FSDP too, because
//! scales depend on elements of other ranks' shards.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rlt_layout::TensorRun;
use rlt_models::{ModelConfig, Quantization, QuantizedPart, QuantizedTensor};
use rlt_torch::{QuantLayout, QuantizedMatrix};
use tch::{Device, Kind, Tensor, no_grad};

use super::super::base_weight::layout_of;
use super::super::error::ModelError;
use super::super::quant_state;

/// One tensor of a linear layer's quantized weight: codes, scales or offset.
#[derive(Clone, Debug)]
pub(crate) struct PartOf {
    pub(crate) module: String,
    /// Shape of the weight, [out, in].
    pub(crate) size: [usize; 2],
    pub(crate) tensor: QuantizedTensor,
}

/// The tensors of all quantized weights, and a cache of the weight that was quantized last, because its
/// tensors are requested consecutively.
#[derive(Debug, Default)]
pub(crate) struct QuantizedParts {
    parts: BTreeMap<String, PartOf>,
    last: Mutex<Option<(String, QuantizedMatrix)>>,
}

impl QuantizedParts {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let mut parts = BTreeMap::new();
        for (module, size) in quant_state::modules(config) {
            let tensors = config.quantization_of(&module).map(|own| own.tensors(&module, size));
            for tensor in tensors.into_iter().flatten() {
                let part = PartOf { module: module.clone(), size, tensor: tensor.clone() };
                parts.insert(tensor.name, part);
            }
        }
        Self { parts, last: Mutex::new(None) }
    }

    /// The quantized tensor with this name; `None` if it belongs to no quantized weight.
    pub(crate) fn get(&self, name: &str) -> Option<&PartOf> {
        self.parts.get(name)
    }

    /// Writes the run `tensor_run` of `part` into `values`; `read` reads the full weight.
    pub(crate) fn fill(
        &self,
        config: &ModelConfig,
        part: &PartOf,
        tensor_run: &TensorRun<'_>,
        values: &Tensor,
        read: impl FnOnce(&TensorRun<'_>, &Tensor) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = last.as_ref().is_some_and(|(module, _)| *module == part.module);
        if !is_last && let Some(quantization) = config.quantization_of(&part.module) {
            *last = None;
            let layout = layout_of(quantization, Kind::Float);
            let size = part.size.map(|width| width as i64);
            *last = Some((part.module.clone(), quantized(&part.module, size, layout, read)?));
        }
        let Some((_, matrix)) = &*last else { return Ok(()) };
        let nested = matrix.nested.as_ref();
        let whole = match part.tensor.part {
            QuantizedPart::Codes => Some(&matrix.codes),
            QuantizedPart::Absmax => Some(&matrix.absmax),
            QuantizedPart::NestedAbsmax => nested.map(|nested| &nested.absmax),
            QuantizedPart::NestedOffset => nested.map(|nested| &nested.offset),
        };
        let Some(whole) = whole else { return Ok(()) };
        let (start, len) = (tensor_run.range.start as i64, tensor_run.range.len() as i64);
        let copied = no_grad(|| values.detach().f_copy_(&whole.f_reshape([-1])?.f_narrow(0, start, len)?));
        copied.map(drop).map_err(failed(part.tensor.name.clone()))
    }
}

/// Reads the full weight of a module, [out, in], and quantizes it.
fn quantized(
    module: &str,
    size: [i64; 2],
    layout: QuantLayout,
    read: impl FnOnce(&TensorRun<'_>, &Tensor) -> Result<(), ModelError>,
) -> Result<QuantizedMatrix, ModelError> {
    let weight = dense(module, size, layout.stored, read)?;
    Ok(QuantizedMatrix::quantize(&weight, layout)?)
}

/// The quantization error of a module's weight: the weight minus its dequantized values, f32 on the CPU.
pub(crate) fn error(
    quantization: &Quantization,
    module: &str,
    size: [i64; 2],
    read: impl Fn(&TensorRun<'_>, &Tensor) -> Result<(), ModelError>,
) -> Result<Tensor, ModelError> {
    let quantized = quantized(module, size, layout_of(quantization, Kind::Float), &read)?;
    let weight = dense(module, size, Kind::Float, read)?;
    let difference = no_grad(|| weight.f_sub(&quantized.dequantize(Kind::Float)));
    difference.map_err(failed(format!("{module}.weight")))
}

/// Reads the full weight of a module with `read`, on the CPU.
fn dense(
    module: &str,
    size: [i64; 2],
    kind: Kind,
    read: impl FnOnce(&TensorRun<'_>, &Tensor) -> Result<(), ModelError>,
) -> Result<Tensor, ModelError> {
    let name = format!("{module}.weight");
    let weight = Tensor::f_empty(size, (kind, Device::Cpu)).map_err(failed(name.clone()))?;
    read(&TensorRun::full(&name, &size), &weight.view(-1))?;
    Ok(weight)
}

/// The error that libtorch failed on `tensor` on the CPU.
fn failed(tensor: String) -> impl FnOnce(tch::TchError) -> ModelError {
    move |source| ModelError::Torch { tensor, device: "the CPU".to_owned(), source }
}
