//! Weights of 4 and 8 bits: dequantized as on the CPU to the bit, and products of few rows.

use tch::{Kind, Tensor};

use super::{KINDS, assert_near, in_every_order, ints, randn};
use crate::cuda::{Dequantize, QuantizedLinear, QuantizedRows};
use crate::{NestedScales, QuantFormat, QuantLayout, QuantizedMatrix};

fn layout(format: QuantFormat, block_size: usize, nested: bool, stored: Kind) -> QuantLayout {
    QuantLayout { format, block_size, nested, stored }
}

fn quantized(outputs: i64, inputs: i64, layout: QuantLayout) -> QuantizedMatrix {
    let weight = randn(&[outputs, inputs], 7 * inputs + outputs) * 0.1;
    QuantizedMatrix::quantize(&weight.to_kind(layout.stored), layout).unwrap()
}

/// Weights in every format, nested and not, whose rows are and are not multiples of a block and of a chunk,
/// and are longer and shorter than what a block's threads read at once.
fn matrices() -> Vec<QuantizedMatrix> {
    let nf4 = |block, nested, stored| layout(QuantFormat::Nf4, block, nested, stored);
    vec![
        quantized(37, 128, nf4(64, false, Kind::Float)),
        quantized(8, 192, nf4(64, true, Kind::BFloat16)),
        quantized(3, 1088, nf4(64, true, Kind::Half)),
        quantized(5, 96, layout(QuantFormat::Fp4, 32, true, Kind::Half)),
        quantized(6, 72, layout(QuantFormat::Fp4, 64, false, Kind::BFloat16)),
        quantized(11, 45, nf4(64, false, Kind::Float)),
        quantized(9, 77, layout(QuantFormat::Int8, 64, false, Kind::Float)),
        quantized(66, 128, layout(QuantFormat::Int8, 64, false, Kind::BFloat16)),
    ]
}

/// Compares bytes, so that -0 is not 0.
fn assert_same_bits(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!((got.kind(), got.size()), (expected.kind(), expected.size()), "{what}");
    let bytes = |tensor: &Tensor| {
        Vec::<u8>::try_from(tensor.contiguous().view([-1]).view_dtype(Kind::Uint8)).unwrap()
    };
    assert!(bytes(got) == bytes(expected), "{what}");
}

#[test]
fn dequantized_numbers_are_the_cpus_to_the_bit() {
    let matrices = matrices();
    in_every_order(|kernels| {
        for matrix in &matrices {
            for kind in KINDS {
                let expected = matrix.dequantize(kind);
                let out = expected.full_like(9.0);
                Dequantize { parts: &[QuantizedRows { matrix, rows: None }], out: &out }
                    .launch(kernels)
                    .unwrap();
                assert_same_bits(&out, &expected, &format!("{:?} {:?}", matrix.layout(), matrix.size()));
            }
        }
    });
}

/// Every code of a nested scale, with values for which a fused multiply-add would give another result.
#[test]
fn every_nested_scale_is_the_cpus() {
    let own = layout(QuantFormat::Nf4, 32, true, Kind::Float);
    let size = [256, 32];
    let codes = Tensor::arange(256 * 16, (Kind::Int64, tch::Device::Cpu)).to_kind(Kind::Uint8).unsqueeze(1);
    let absmax = Tensor::arange(256, (Kind::Int64, tch::Device::Cpu)).to_kind(Kind::Uint8);
    let nested =
        NestedScales { absmax: Tensor::from_slice(&[0.37_f32]), offset: Tensor::from_slice(&[0.113_f32]) };
    let matrix = QuantizedMatrix::new(size, own, codes, absmax, Some(nested));
    let expected = matrix.dequantize(Kind::Float);
    in_every_order(|kernels| {
        let out = expected.zeros_like();
        Dequantize { parts: &[QuantizedRows { matrix: &matrix, rows: None }], out: &out }
            .launch(kernels)
            .unwrap();
        assert_same_bits(&out, &expected, "nested scales");
    });
}

/// Dequantizes the given rows of `matrix` by one launch, in this order.
fn ordered(matrix: &QuantizedMatrix, rows: &[i32], kind: Kind) -> Tensor {
    let numbers = matrix.dequantize(kind);
    let row = |&row: &i32| match row {
        -1 => numbers.get(0).zeros_like(),
        row => numbers.get(row.into()),
    };
    Tensor::stack(&rows.iter().map(row).collect::<Vec<_>>(), 0)
}

#[test]
fn parts_are_side_by_side_with_rows_in_any_order() {
    let own = layout(QuantFormat::Nf4, 32, true, Kind::BFloat16);
    let [q, k, v] = [10, 4, 5].map(|outputs| quantized(outputs, 96, own));
    let [of_q, of_v] = [vec![4, 0, -1, 9, 3, 3, -1], vec![2]];
    let [rows_q, rows_v] = [ints(&of_q), ints(&of_v)];
    let parts = [
        QuantizedRows { matrix: &q, rows: Some(&rows_q) },
        QuantizedRows { matrix: &k, rows: None },
        QuantizedRows { matrix: &v, rows: Some(&rows_v) },
    ];
    in_every_order(|kernels| {
        for kind in KINDS {
            let numbers =
                [ordered(&q, &of_q, kind), ordered(&k, &[0, 1, 2, 3], kind), ordered(&v, &of_v, kind)];
            let expected = Tensor::cat(&numbers, 0);
            let out = expected.full_like(9.0);
            Dequantize { parts: &parts, out: &out }.launch(kernels).unwrap();
            assert_same_bits(&out, &expected, "parts one below the other");
            let (x, bias) = (randn(&[3, 96], 1).to_kind(kind), randn(&[12], 2).to_kind(kind));
            // The output is a slice of wider rows, whose other values must not change.
            let wide = Tensor::full([3, 20], 5.0, (kind, tch::Device::Cpu));
            let out = wide.narrow(1, 4, 12);
            QuantizedLinear { parts: &parts, x: &x, bias: Some(&bias), out: &out }.launch(kernels).unwrap();
            let wide_of = |tensor: &Tensor| tensor.to_kind(Kind::Float);
            let product = wide_of(&x).linear(&wide_of(&expected), Some(&wide_of(&bias)));
            assert_near("parts side by side", &out, &product.to_kind(kind));
            let beside = Tensor::cat(&[wide.narrow(1, 0, 4), wide.narrow(1, 16, 4)], 1);
            assert_eq!(beside, beside.full_like(5.0));
        }
    });
}

#[test]
fn a_product_of_few_rows_equals_that_of_the_dequantized_weight_in_any_batch() {
    let matrices = matrices();
    in_every_order(|kernels| {
        for matrix in &matrices {
            let [outputs, inputs] = matrix.size();
            for kind in KINDS {
                let x = randn(&[17, inputs], 1).to_kind(kind);
                let weight = matrix.dequantize(kind).to_kind(Kind::Float);
                let expected = x.to_kind(Kind::Float).linear(&weight, None::<Tensor>).to_kind(kind);
                let parts = [QuantizedRows { matrix, rows: None }];
                let of = |start: i64, len: i64| {
                    let out = Tensor::zeros([len, outputs], (kind, tch::Device::Cpu));
                    let x = x.narrow(0, start, len);
                    QuantizedLinear { parts: &parts, x: &x, bias: None, out: &out }.launch(kernels).unwrap();
                    out
                };
                let all = of(0, 17);
                assert_near("a product of few rows", &all, &expected);
                for (start, len) in [(0, 1), (3, 2), (5, 3), (9, 8), (16, 1)] {
                    assert_same_bits(&of(start, len), &all.narrow(0, start, len), "rows beside others");
                }
            }
        }
    });
}

/// Rows of a decoder's batches up to the largest.
#[test]
fn a_product_of_any_number_of_rows_equals_that_of_the_dequantized_weight() {
    let matrix = quantized(12, 64, layout(QuantFormat::Nf4, 32, true, Kind::Float));
    let weight = matrix.dequantize(Kind::Float);
    in_every_order(|kernels| {
        for rows in [31, 64, 255, 256] {
            let x = randn(&[rows, 64], rows);
            let out = Tensor::full([rows, 12], f64::NAN, (Kind::Float, tch::Device::Cpu));
            let parts = [QuantizedRows { matrix: &matrix, rows: None }];
            QuantizedLinear { parts: &parts, x: &x, bias: None, out: &out }.launch(kernels).unwrap();
            assert_near("a product of many rows", &out, &x.linear(&weight, None::<Tensor>));
        }
    });
}

#[test]
fn weights_that_do_not_fit_each_other_are_named() {
    let nf4 = quantized(4, 64, layout(QuantFormat::Nf4, 64, false, Kind::Float));
    let int8 = quantized(4, 64, layout(QuantFormat::Int8, 64, false, Kind::Float));
    in_every_order(|kernels| {
        let parts = [&nf4, &int8].map(|matrix| QuantizedRows { matrix, rows: None });
        let out = Tensor::zeros([8, 64], (Kind::Float, tch::Device::Cpu));
        let error = Dequantize { parts: &parts, out: &out }.launch(kernels).unwrap_err().to_string();
        assert!(error.contains("one layout"), "{error}");
        let (x, out) = (randn(&[2, 64], 1), Tensor::zeros([2, 5], (Kind::Float, tch::Device::Cpu)));
        let product = QuantizedLinear { parts: &parts[..1], x: &x, bias: None, out: &out };
        let error = product.launch(kernels).unwrap_err().to_string();
        assert!(error.contains("out as Float [2, 4]") && error.contains("[2, 5]"), "{error}");
    });
}
