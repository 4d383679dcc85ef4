//! Quantized weights are those of bitsandbytes, bit for bit (`trainer/tests/fixtures/quantized`), and
//! products with them those of the dequantized weight.

use std::collections::BTreeMap;
use std::path::Path;

use super::{leaf, on_every_isa, randn, relative_difference};
use crate::{QuantFormat, QuantLayout, QuantizedMatrix, dynamic_map};
use tch::{Kind, Tensor};

fn fixtures() -> BTreeMap<String, Tensor> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/quantized");
    Tensor::read_safetensors(folder.join("weights.safetensors")).unwrap().into_iter().collect()
}

/// Parses the name of a fixture's case: weight, format, block size, whether scales are nested, dtype.
fn layout(case: &str) -> QuantLayout {
    let parts: Vec<&str> = case.split('.').collect();
    let format = match parts[1] {
        "nf4" => QuantFormat::Nf4,
        "fp4" => QuantFormat::Fp4,
        _ => QuantFormat::Int8,
    };
    QuantLayout {
        format,
        block_size: parts.get(2).map_or(64, |size| size.parse().unwrap()),
        nested: parts.get(3) == Some(&"nested"),
        stored: match parts.get(4) {
            Some(&"bf16") => Kind::BFloat16,
            Some(&"f16") => Kind::Half,
            _ => Kind::Float,
        },
    }
}

fn cases(fixtures: &BTreeMap<String, Tensor>) -> Vec<String> {
    fixtures.keys().filter_map(|name| name.strip_suffix(".weight")).map(str::to_owned).collect()
}

/// Compares bytes, so that -0 is not 0.
fn assert_same(one: &Tensor, other: &Tensor, what: &str) {
    assert_eq!((one.kind(), one.numel()), (other.kind(), other.numel()), "{what}");
    let bytes = |tensor: &Tensor| {
        let flat = tensor.contiguous().view([-1]);
        Vec::<u8>::try_from(flat.view_dtype(Kind::Uint8)).unwrap()
    };
    assert!(bytes(one) == bytes(other), "{what}");
}

#[test]
fn codes_and_scales_are_those_of_bitsandbytes() {
    let fixtures = fixtures();
    let cases = cases(&fixtures);
    assert_eq!(cases.len(), 14);
    for case in cases {
        let of = |part: &str| &fixtures[&format!("{case}.{part}")];
        let quantized = QuantizedMatrix::quantize(of("weight"), layout(&case)).unwrap();
        assert_same(&quantized.codes, of("codes"), &format!("codes of {case}"));
        assert_same(&quantized.absmax, of("absmax"), &format!("scales of {case}"));
        if let Some(nested) = &quantized.nested {
            assert_same(&nested.absmax, of("nested_absmax"), &format!("scales of scales of {case}"));
            assert_same(&nested.offset, of("nested_offset"), &format!("offset of {case}"));
        }
    }
    let map = Tensor::from_slice(dynamic_map());
    assert_same(&map, &fixtures["dynamic_map"], "the dynamic map");
}

#[test]
fn dequantized_numbers_are_those_of_bitsandbytes_on_every_isa() {
    let fixtures = fixtures();
    on_every_isa(|| {
        for case in cases(&fixtures) {
            let of = |part: &str| &fixtures[&format!("{case}.{part}")];
            let layout = layout(&case);
            let quantized = QuantizedMatrix::quantize(of("weight"), layout).unwrap();
            assert_eq!(&quantized.dequantize(layout.stored), of("dequantized"), "{case}");
            let wide = of("dequantized").to_kind(Kind::Float);
            assert_eq!(quantized.dequantize(Kind::Float), wide, "{case} in f32");
            let narrow = wide.to_kind(Kind::BFloat16);
            assert_eq!(quantized.dequantize(Kind::BFloat16), narrow, "{case} in bf16");
        }
    });
}

fn matrices() -> Vec<QuantizedMatrix> {
    let weight = |outputs, inputs| randn(&[outputs, inputs], inputs) * 0.1;
    let layout = |format, block_size, nested, stored| QuantLayout { format, block_size, nested, stored };
    let quantized = |outputs, inputs, layout: QuantLayout| {
        QuantizedMatrix::quantize(&weight(outputs, inputs).to_kind(layout.stored), layout).unwrap()
    };
    vec![
        quantized(37, 128, layout(QuantFormat::Nf4, 64, false, Kind::Float)),
        quantized(8, 192, layout(QuantFormat::Nf4, 64, true, Kind::BFloat16)),
        quantized(5, 96, layout(QuantFormat::Fp4, 32, true, Kind::Half)),
        quantized(40, 192, layout(QuantFormat::Fp4, 64, false, Kind::Half)),
        quantized(33, 256, layout(QuantFormat::Nf4, 128, true, Kind::Float)),
        quantized(11, 45, layout(QuantFormat::Nf4, 64, false, Kind::Float)),
        quantized(9, 77, layout(QuantFormat::Int8, 64, false, Kind::Float)),
        quantized(66, 128, layout(QuantFormat::Int8, 64, false, Kind::Float)),
    ]
}

#[test]
fn a_product_is_that_of_the_dequantized_weight_and_rows_do_not_depend_on_each_other() {
    for matrix in matrices() {
        on_every_isa(|| {
            let [outputs, inputs] = matrix.size();
            let (x, bias) = (randn(&[70, inputs], 1), randn(&[outputs], 2));
            for kind in [Kind::Float, Kind::BFloat16] {
                let x = x.to_kind(kind);
                let all = matrix.product(&x, Some(&bias.to_kind(kind)));
                for (start, len) in [(0, 1), (3, 2), (60, 10), (0, 65), (69, 1)] {
                    let some = matrix.product(&x.narrow(0, start, len), Some(&bias.to_kind(kind)));
                    assert_same(&some, &all.narrow(0, start, len).contiguous(), "rows beside others");
                }
            }
            let all = matrix.product(&x, Some(&bias));
            let dense = x.linear(&matrix.dequantize(Kind::Float), Some(&bias));
            // Sums of a hundred terms in another order.
            assert!(relative_difference(&all, &dense) < 3e-6, "{:?}", matrix.layout());
            let narrow = matrix.product(&x.to_kind(Kind::BFloat16), None);
            let weight = matrix.dequantize(Kind::BFloat16).to_kind(Kind::Float);
            let wide = x.to_kind(Kind::BFloat16).to_kind(Kind::Float).linear(&weight, None::<Tensor>);
            // One rounding of the sum: another order of summation gives the other neighbour only next to a
            // tie.
            let others = narrow.not_equal_tensor(&wide.to_kind(Kind::BFloat16)).to_kind(Kind::Double);
            let share = others.mean(Kind::Double).double_value(&[]);
            assert!(share < 0.002, "{share} of the sums in bf16, {:?}", matrix.layout());
            assert!(relative_difference(&narrow, &wide) < 0.004, "{:?} in bf16", matrix.layout());
        });
    }
}

#[test]
fn the_gradient_of_an_input_is_that_of_the_dequantized_weight_to_the_bit() {
    for matrix in matrices() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let [outputs, inputs] = matrix.size();
            let x = randn(&[6, inputs], 3).to_kind(kind);
            let (ours, theirs) = (leaf(&x), leaf(&x));
            let got = matrix.linear(&ours, None);
            let expected = theirs.linear(&matrix.dequantize(kind), None::<Tensor>);
            assert_eq!(got, expected);
            let gradient = randn(&[6, outputs], 4).to_kind(kind);
            crate::backward(&got, &gradient);
            crate::backward(&expected, &gradient);
            assert_eq!(ours.grad(), theirs.grad());
            assert!(matrix.tensors().all(|tensor| !tensor.requires_grad()));
        }
    }
}
