//! Experts that a checkpoint holds in MXFP4 (GPT-OSS), dequantized as they are read.
//!
//! ```text
//! X_blocks [e, out, in / 32, 16] u8   two numbers a byte, the first in the lower half
//! X_scales [e, out, in / 32] u8       2^(scale - 127) of 32 numbers
//! in memory [e, in, out]
//! ```
//! The product of a value and its scale is exact in bf16.

use rlt_layout::TensorRun;
use rlt_models::{ExpertForm, ModelConfig, ParameterShape};
use safetensors::Dtype;
use tch::{Tensor, no_grad};

use super::super::error::ModelError;
use super::checkpoint::WeightFiles;

/// Number of values that share a scale.
const BLOCK: usize = 32;
/// Values of the lower three bits of a code; the fourth is the sign (OCP Microscaling Formats, E2M1).
const NUMBERS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The names of the two stored tensors of a parameter: blocks and scales.
fn parts(name: &str) -> [String; 2] {
    ["blocks", "scales"].map(|part| format!("{name}_{part}"))
}

/// Whether files hold a parameter in MXFP4.
pub(crate) fn is_stored(files: &WeightFiles, name: &str) -> bool {
    !files.contains(name) && parts(name).iter().all(|part| files.contains(part))
}

/// The parameters of a model that files hold in MXFP4.
pub(crate) fn parameters(config: &ModelConfig, files: &WeightFiles) -> Vec<ParameterShape> {
    let has_some = |config: &ModelConfig| {
        config.experts.as_ref().is_some_and(|experts| experts.form == ExpertForm::Clamped)
    };
    if !has_some(config) {
        return Vec::new();
    }
    let parameters = config.parameters().into_iter();
    parameters.filter(|parameter| is_stored(files, &parameter.name)).collect()
}

/// Whether a stored tensor holds blocks or scales of one of `parameters`.
pub(crate) fn is_part(parameters: &[ParameterShape], name: &str) -> bool {
    let stem = name.strip_suffix("_blocks").or_else(|| name.strip_suffix("_scales"));
    stem.is_some_and(|stem| parameters.iter().any(|parameter| parameter.name == stem))
}

/// Checks shapes and types of blocks and scales against the parameter's shape `[e, in, out]`.
///
/// # Errors
/// [`ModelError::WrongShape`] and [`ModelError::WrongDtype`].
pub(crate) fn check(parameters: &[ParameterShape], files: &WeightFiles) -> Result<(), ModelError> {
    for parameter in parameters {
        let [num, inputs, outputs] = sizes(&parameter.shape);
        let blocks = vec![num, outputs, inputs / BLOCK, BLOCK / 2];
        let scales = blocks[..3].to_vec();
        for (name, expected) in parts(&parameter.name).into_iter().zip([blocks, scales]) {
            let (path, dtype, _) = files.find(&name).ok_or_else(|| files.missing(&name, &expected))?;
            let (path, got) = (path.to_owned(), files.shape(&name).unwrap_or_default().to_vec());
            if got != expected || inputs % BLOCK != 0 {
                return Err(ModelError::WrongShape { path, tensor: name, expected, got });
            }
            if dtype != Dtype::U8 {
                return Err(ModelError::WrongDtype { path, tensor: name, got: format!("{dtype:?}") });
            }
        }
    }
    Ok(())
}

fn sizes(shape: &[usize]) -> [usize; 3] {
    [0, 1, 2].map(|dim| shape.get(dim).copied().unwrap_or(1))
}

/// Writes the run `tensor_run` of a parameter `[e, in, out]` into `values`, `[len]`. In addition to
/// `values`, at most one expert is in memory.
///
/// # Errors
/// [`ModelError`], with file and tensor, when a file cannot be read, or holds scales that are not finite.
pub(crate) fn fill(
    files: &WeightFiles,
    tensor_run: &TensorRun<'_>,
    values: &Tensor,
) -> Result<(), ModelError> {
    let shape: Vec<usize> = tensor_run.shape.iter().map(|dim| *dim as usize).collect();
    let [_, inputs, outputs] = sizes(&shape);
    let of_expert = inputs * outputs;
    let wanted = &tensor_run.range;
    for expert in wanted.start / of_expert..wanted.end.div_ceil(of_expert) {
        let first = expert * of_expert;
        let (start, end) = (first.max(wanted.start), (first + of_expert).min(wanted.end));
        let numbers = expert_of(files, tensor_run.name, expert, of_expert)?;
        let laid = Tensor::from_slice(&numbers).view([outputs as i64, inputs as i64]).tr().contiguous();
        let own = laid.view(-1).narrow(0, (start - first) as i64, (end - start) as i64);
        no_grad(|| {
            values.narrow(0, (start - wanted.start) as i64, (end - start) as i64).f_copy_(&own).map(drop)
        })
        .map_err(|source| ModelError::Torch {
            tensor: tensor_run.name.to_owned(),
            device: format!("{:?}", values.device()),
            source,
        })?;
    }
    Ok(())
}

/// The values of one expert, [out, in] in row-major order.
fn expert_of(
    files: &WeightFiles,
    name: &str,
    expert: usize,
    num_values: usize,
) -> Result<Vec<f32>, ModelError> {
    let [of_blocks, of_scales] = parts(name);
    let bytes = |part: &str, num: usize| files.read_bytes(part, expert * num..(expert + 1) * num);
    let (blocks, scales) = (bytes(&of_blocks, num_values / 2)?, bytes(&of_scales, num_values / BLOCK)?);
    let numbers: Vec<f32> =
        blocks.chunks(BLOCK / 2).zip(&scales).flat_map(|(bytes, scale)| of_block(bytes, *scale)).collect();
    let num_bad = numbers.iter().filter(|number| !number.is_finite()).count() as i64;
    match files.find(&of_scales) {
        Some((path, ..)) if num_bad > 0 => {
            Err(ModelError::NotFinite { path: path.to_owned(), tensor: of_scales, num_bad, num_values })
        }
        _ => Ok(numbers),
    }
}

fn of_block(bytes: &[u8], scale: u8) -> impl Iterator<Item = f32> {
    let scale = 2_f32.powi(i32::from(scale) - 127);
    bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).map(move |code| {
        let number = NUMBERS[usize::from(code & 7)];
        (if code & 8 == 0 { number } else { -number }) * scale
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_half_of_a_byte_comes_first_and_scales_are_powers_of_two() {
        let numbers: Vec<f32> = of_block(&[0x21, 0xf9], 128).collect();
        assert_eq!(numbers, [1.0, 2.0, -1.0, -12.0]);
        assert_eq!(of_block(&[0x07], 127).next(), Some(6.0));
        let smallest = of_block(&[0x01], 1).next();
        assert_eq!(smallest, Some(2_f32.powi(-127)), "below the normal numbers, exact in bf16 too");
    }
}
