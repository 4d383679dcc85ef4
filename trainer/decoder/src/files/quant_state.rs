//! Quantized weights as bitsandbytes stores them. They are checked before any is read, and shards are read at
//! their offsets.
//!
//! ```text
//! 4 bits  X.weight, X.weight.absmax, X.weight.quant_map [16]
//!         X.weight.quant_state.bitsandbytes__nf4: JSON with quant_type, blocksize, dtype, shape
//! nested  X.weight.nested_absmax, X.weight.nested_quant_map [256]
//!         in the JSON nested_blocksize, nested_dtype, nested_offset
//! int8    X.weight, X.SCB, X.weight_format (0: row by row)
//! ```

use rlt_api::spec::{Precision, QuantizationFormat};
use rlt_layout::TensorRun;
use rlt_models::{ModelConfig, Quantization, QuantizedPart, QuantizedTensor};
use rlt_torch::{NESTED_BLOCK, QuantFormat, dynamic_map};
use safetensors::Dtype;
use serde_json::Value;
use tch::{Kind, Tensor, no_grad};

use super::super::error::ModelError;
use super::checkpoint::WeightFiles;

/// Stored tensors of a 4-bit weight other than its codes, by their names inside the module.
const OF_FOUR_BITS: [&str; 6] = [
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4",
];
const OF_INT8: [&str; 2] = ["SCB", "weight_format"];

/// Quantized linear layers of a model, with their shapes [out, in].
pub(crate) fn modules(config: &ModelConfig) -> Vec<(String, [usize; 2])> {
    let of_layer = |layer_idx| {
        let shapes = config.projections(layer_idx).into_iter();
        shapes.map(move |shape| {
            let module = format!("model.layers.{layer_idx}.{}", shape.name);
            (module, [shape.out_features, shape.in_features])
        })
    };
    let all = (0..config.num_layers).flat_map(of_layer);
    all.filter(|(module, _)| config.quantization_of(module).is_some()).collect()
}

/// Whether a stored tensor belongs to the quantized weight of `module`.
pub(crate) fn is_part(module: &str, name: &str) -> bool {
    let rest = name.strip_prefix(module).and_then(|rest| rest.strip_prefix('.'));
    rest.is_some_and(|rest| rest == "weight" || OF_FOUR_BITS.contains(&rest) || OF_INT8.contains(&rest))
}

/// Checks all quantized weights of the files against the configuration. Sets the configuration's block size
/// and dtype, which `config.json` lacks.
pub(crate) fn check(config: &mut ModelConfig, files: &WeightFiles) -> Result<(), ModelError> {
    let modules = modules(config);
    let Some(quantization) = &mut config.quantization else { return Ok(()) };
    quantization.stored = Some(Precision::Fp32);
    if quantization.format != QuantizationFormat::Int8
        && let Some((first, _)) = modules.first()
    {
        let state = State::read(files, first, quantization.format)?;
        quantization.block_size = state.block_size()?;
        quantization.stored = Some(state.dtype()?);
    }
    let quantization = &*quantization;
    modules.iter().try_for_each(|(module, size)| check_module(files, quantization, module, *size))
}

fn check_module(
    files: &WeightFiles,
    quantization: &Quantization,
    module: &str,
    size: [usize; 2],
) -> Result<(), ModelError> {
    let is_int8 = quantization.format == QuantizationFormat::Int8;
    for tensor in quantization.tensors(module, size) {
        if tensor.part == QuantizedPart::NestedOffset {
            continue;
        }
        let missing = || ModelError::MissingTensor {
            path: files.dir().to_owned(),
            tensor: tensor.name.clone(),
            expected: tensor.shape.clone(),
        };
        let (path, dtype, num_bytes) = files.find(&tensor.name).ok_or_else(missing)?;
        let expected = tensor.shape.iter().product::<usize>() * tensor.width;
        let is_known = match (tensor.part, tensor.width) {
            // 4-bit codes may be stored in a tensor of another dtype.
            (QuantizedPart::Codes, _) => (dtype == Dtype::I8) == is_int8,
            (_, 1) => dtype == Dtype::U8,
            _ => dtype == Dtype::F32,
        };
        if num_bytes != expected || !is_known {
            return Err(ModelError::QuantState {
                path: path.to_owned(),
                tensor: tensor.name.clone(),
                field: "shape".to_owned(),
                mismatch: format!(
                    "expected {expected} bytes, {} each, got {num_bytes} bytes of {dtype:?}",
                    tensor.width
                ),
            });
        }
    }
    if is_int8 {
        return check_int8(files, module);
    }
    State::read(files, module, quantization.format)?.check(quantization, size)?;
    check_table(files, &format!("{module}.weight.quant_map"), table_of(quantization.format))?;
    if quantization.double {
        check_table(files, &format!("{module}.weight.nested_quant_map"), dynamic_map())?;
    }
    Ok(())
}

fn table_of(format: QuantizationFormat) -> &'static [f32] {
    match format {
        QuantizationFormat::Nf4 => QuantFormat::Nf4.table(),
        QuantizationFormat::Fp4 => QuantFormat::Fp4.table(),
        QuantizationFormat::Int8 => &[],
    }
}

/// Checks that an int8 weight is stored row by row.
fn check_int8(files: &WeightFiles, module: &str) -> Result<(), ModelError> {
    let name = format!("{module}.weight_format");
    let Some((path, _, num_bytes)) = files.find(&name) else { return Ok(()) };
    let bytes = files.read_bytes(&name, 0..num_bytes)?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(ModelError::QuantState {
        path: path.to_owned(),
        tensor: name,
        field: "weight_format".to_owned(),
        mismatch: format!("expected 0, row by row, got {bytes:?}"),
    })
}

/// Checks that a stored table of values by code is the one that kernels use.
fn check_table(files: &WeightFiles, name: &str, expected: &[f32]) -> Result<(), ModelError> {
    let Some((path, dtype, num_bytes)) = files.find(name) else {
        let (path, expected) = (files.dir().to_owned(), vec![expected.len()]);
        return Err(ModelError::MissingTensor { path, tensor: name.to_owned(), expected });
    };
    let refused = |expected: String, got: String| ModelError::QuantState {
        path: path.to_owned(),
        tensor: name.to_owned(),
        field: "quant_map".to_owned(),
        mismatch: format!("expected {expected}, got {got}"),
    };
    if dtype != Dtype::F32 || num_bytes != 4 * expected.len() {
        return Err(refused(format!("{} of F32", expected.len()), format!("{num_bytes} bytes of {dtype:?}")));
    }
    let bytes = files.read_bytes(name, 0..num_bytes)?;
    let numbers =
        bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    match numbers.zip(expected).enumerate().find(|(_, (got, expected))| got != *expected) {
        None => Ok(()),
        Some((code, (got, expected))) => Err(refused(format!("{expected} for code {code}"), got.to_string())),
    }
}

/// The JSON state of a 4-bit weight.
struct State<'a> {
    files: &'a WeightFiles,
    name: String,
    json: Value,
}

impl<'a> State<'a> {
    fn read(files: &'a WeightFiles, module: &str, format: QuantizationFormat) -> Result<Self, ModelError> {
        let kind = if format == QuantizationFormat::Nf4 { "nf4" } else { "fp4" };
        let name = format!("{module}.weight.quant_state.bitsandbytes__{kind}");
        let Some((path, _, num_bytes)) = files.find(&name) else {
            let path = files.dir().to_owned();
            return Err(ModelError::MissingTensor { path, tensor: name, expected: Vec::new() });
        };
        let bytes = files.read_bytes(&name, 0..num_bytes)?;
        let json = serde_json::from_slice(&bytes).map_err(|error| ModelError::QuantState {
            path: path.to_owned(),
            tensor: name.clone(),
            field: "quant_state".to_owned(),
            mismatch: format!("expected JSON, got {error}"),
        })?;
        Ok(Self { files, name, json })
    }

    fn invalid(&self, field: &str, expected: impl std::fmt::Display) -> ModelError {
        let path = self.files.find(&self.name).map_or_else(|| self.files.dir(), |(path, ..)| path);
        let got = self.json.get(field).map_or_else(|| "nothing".to_owned(), Value::to_string);
        ModelError::QuantState {
            path: path.to_owned(),
            tensor: self.name.clone(),
            field: field.to_owned(),
            mismatch: format!("expected {expected}, got {got}"),
        }
    }

    fn block_size(&self) -> Result<usize, ModelError> {
        let sizes = rlt_api::spec::BLOCK_SIZES;
        let size =
            self.json["blocksize"].as_u64().filter(|size| sizes.iter().any(|one| u64::from(*one) == *size));
        size.map(|size| size as usize).ok_or_else(|| self.invalid("blocksize", format!("one of {sizes:?}")))
    }

    fn dtype(&self) -> Result<Precision, ModelError> {
        match self.json["dtype"].as_str() {
            Some("float32") => Ok(Precision::Fp32),
            Some("float16") => Ok(Precision::Fp16),
            Some("bfloat16") => Ok(Precision::Bf16),
            _ => Err(self.invalid("dtype", "float32, float16 or bfloat16")),
        }
    }

    /// Offset that is added to every nested scale.
    fn offset(&self) -> Result<f32, ModelError> {
        let offset = self.json["nested_offset"].as_f64().map(|offset| offset as f32);
        let finite = offset.filter(|offset| offset.is_finite());
        finite.ok_or_else(|| self.invalid("nested_offset", "a finite number"))
    }

    fn check(&self, quantization: &Quantization, size: [usize; 2]) -> Result<(), ModelError> {
        let is = |field: &str, expected: Value| match self.json.get(field) == Some(&expected) {
            true => Ok(()),
            false => Err(self.invalid(field, expected)),
        };
        is("quant_type", if quantization.format == QuantizationFormat::Nf4 { "nf4" } else { "fp4" }.into())?;
        is("blocksize", quantization.block_size.into())?;
        is("shape", size.to_vec().into())?;
        if Some(self.dtype()?) != quantization.stored {
            return Err(self.invalid("dtype", "the dtype of the first layer"));
        }
        if quantization.double {
            is("nested_blocksize", NESTED_BLOCK.into())?;
            is("nested_dtype", "float32".into())?;
            self.offset()?;
        }
        Ok(())
    }
}

/// Writes a shard of a stored tensor of the quantized weight of `module` into `values`.
pub(crate) fn fill(
    files: &WeightFiles,
    quantization: &Quantization,
    module: &str,
    tensor: &QuantizedTensor,
    tensor_run: &TensorRun<'_>,
    values: &Tensor,
) -> Result<(), ModelError> {
    let torch_error =
        |source| ModelError::Torch { tensor: tensor.name.clone(), device: "the CPU".to_owned(), source };
    if tensor.part == QuantizedPart::NestedOffset {
        let offset = State::read(files, module, quantization.format)?.offset()?;
        return no_grad(|| values.detach().f_fill_(f64::from(offset))).map(drop).map_err(torch_error);
    }
    for chunk in tensor_run.chunks(rlt_models::READ_CHUNK_NUMBERS as usize) {
        let range = chunk.range.start * tensor.width..chunk.range.end * tensor.width;
        let bytes = files.read_bytes(&tensor.name, range)?;
        let (start, len) = (chunk.range.start - tensor_run.range.start, chunk.range.len() as i64);
        let numbers = Tensor::f_from_data_size(&bytes, &[len], values.kind()).map_err(torch_error)?;
        if values.kind() == Kind::Float && bool::try_from(numbers.isfinite().all()).ok() != Some(true) {
            let num_bad = numbers.isfinite().logical_not().sum(Kind::Int64).int64_value(&[]);
            let path = files.find(&tensor.name).map_or_else(|| files.dir(), |(path, ..)| path).to_owned();
            let (tensor, num_values) = (tensor.name.clone(), len as usize);
            return Err(ModelError::NotFinite { path, tensor, num_bad, num_values });
        }
        let copied = no_grad(|| values.f_narrow(0, start as i64, len)?.f_copy_(&numbers));
        copied.map(drop).map_err(torch_error)?;
    }
    Ok(())
}
