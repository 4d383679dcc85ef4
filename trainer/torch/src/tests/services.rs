//! The services around the kernels: packed linear layers, the optimizer's step, memory access, precision.

use super::{largest_difference, leaf, on_every_isa, randn, relative_difference};
use crate::{AdamWStep, Error, PackedLinear, Profile, adamw_step, backward_many, global_norm};
use std::sync::Arc;
use tch::{Kind, Tensor};

#[test]
fn the_elements_of_a_tensor_of_any_strides_are_copied_in_order() {
    let tensor = Tensor::from_slice(&[1_i64, 2, 3, 4, 5, 6]).view([2, 3]).tr();
    assert_eq!(crate::to_vec::<i64>(&tensor), [1, 4, 2, 5, 3, 6]);
    assert!(crate::to_vec::<i64>(&tensor.narrow(0, 0, 0)).is_empty());
    assert_eq!(crate::to_vec::<f32>(&Tensor::from(0.5_f32)), [0.5]);
}

#[test]
fn backward_of_several_outputs_adds_their_gradients() {
    let x = leaf(&randn(&[4], 1));
    let (a, b) = (&x * 2.0, &x * &x);
    let (ga, gb) = (randn(&[4], 2), randn(&[4], 3));
    backward_many(&[&a, &b], &[&ga, &gb]);
    let expected = &ga * 2.0 + gb * x.detach() * 2.0;
    assert!(largest_difference(&x.grad(), &expected) < 1e-6);
}

#[test]
#[should_panic(expected = "backward failed in libtorch")]
fn an_exception_becomes_a_rust_panic_with_its_text() {
    crate::backward(&randn(&[2], 1), &randn(&[3], 2));
}

#[test]
fn a_packed_linear_layer_multiplies_like_a_plain_one() {
    for (kind, tolerance) in [(Kind::Float, 1e-6), (Kind::BFloat16, 0.01), (Kind::Double, 1e-12)] {
        let (weight, bias) = (randn(&[96, 64], 1).to_kind(kind), randn(&[96], 2).to_kind(kind));
        for bias in [None, Some(&bias)] {
            let layer = PackedLinear::new(&weight, bias, 16, None).unwrap();
            for rows in [1, 16, 33] {
                let x = randn(&[rows, 64], 3).to_kind(kind);
                assert!(relative_difference(&layer.forward(&x), &x.linear(&weight, bias)) < tolerance);
            }
        }
    }
    let error = PackedLinear::new(&randn(&[3, 2], 1), Some(&randn(&[2], 1)), 1, None).unwrap_err();
    assert!(matches!(error, Error::Argument { .. }));
}

/// Bitwise, not to a tolerance: decoding alone and in a batch must draw the same tokens.
#[test]
fn a_row_of_a_packed_product_has_the_same_bits_in_any_batch() {
    on_every_isa(|| {
        for (outputs, inputs) in [(96, 64), (50, 7), (33, 129), (1, 5)] {
            let (weight, bias) = (randn(&[outputs, inputs], 1), randn(&[outputs], 2));
            let layer = PackedLinear::new(&weight, Some(&bias), 16, None).unwrap();
            let x = randn(&[131, inputs], 3);
            let together = layer.forward(&x);
            assert!(relative_difference(&together, &x.linear(&weight, Some(&bias))) < 1e-6);
            for (start, len) in [(0, 1), (5, 1), (130, 1), (3, 2), (40, 12), (90, 13), (7, 100)] {
                let part = layer.forward(&x.narrow(0, start, len));
                assert_eq!(part, together.narrow(0, start, len), "{len} rows from {start}");
            }
        }
    });
}

/// Training and sampling use the same products: rollout and actor must compute the same values.
#[test]
fn a_row_in_bfloat16_has_the_same_bits_packed_or_not_in_any_batch_where_the_cpu_multiplies_in_bfloat16() {
    let has_run = std::cell::Cell::new(false);
    on_every_isa(|| {
        if !crate::has_one_order(Kind::BFloat16) {
            return;
        }
        has_run.set(true);
        for (outputs, inputs) in [(96, 64), (50, 7), (33, 129), (1, 5), (40, 1536), (17, 4864), (1200, 576)] {
            let of = |shape: &[i64], seed| randn(shape, seed).to_kind(Kind::BFloat16);
            let (weight, bias) = (of(&[outputs, inputs], 1), of(&[outputs], 2));
            let layer = PackedLinear::new(&weight, Some(&bias), 16, None).unwrap();
            let x = of(&[1031, inputs], 3);
            let together = crate::linear(&x, &weight, Some(&bias));
            let wide = |t: &Tensor| t.to_kind(Kind::Float);
            let exact = wide(&x).linear(&wide(&weight), Some(wide(&bias)));
            // Half a step of a bfloat16 value, which has 8 significant bits.
            assert!(relative_difference(&wide(&together), &exact) < 1.0 / 256.0);
            for (start, len) in [(0, 1), (5, 1), (1030, 1), (3, 2), (40, 12), (90, 33), (7, 300), (0, 1031)] {
                let rows = x.narrow(0, start, len);
                let expected = together.narrow(0, start, len);
                assert_eq!(layer.forward(&rows), expected, "{len} rows from {start}, packed");
                assert_eq!(crate::linear(&rows, &weight, Some(&bias)), expected, "{len} rows from {start}");
            }
        }
    });
    if !has_run.get() {
        rlt_skipped::skip_also_under_ci("one order of sums in bfloat16 needs a CPU with AVX512_BF16");
    }
}

#[test]
fn a_linear_layer_in_bfloat16_has_the_gradients_of_libtorchs() {
    let of = |shape: &[i64], seed| leaf(&randn(shape, seed).to_kind(Kind::BFloat16));
    for shape in [&[37, 48][..], &[3, 5, 48], &[48]] {
        let tensors = || (of(shape, 1), of(&[29, 48], 2), of(&[29], 3));
        let (ours, theirs) = (tensors(), tensors());
        let y = crate::linear(&ours.0, &ours.1, Some(&ours.2));
        let expected = theirs.0.linear(&theirs.1, Some(&theirs.2));
        let grad = randn(&y.size(), 4).to_kind(Kind::BFloat16);
        crate::backward(&y, &grad);
        crate::backward(&expected, &grad);
        for (own, other) in [(&ours.0, &theirs.0), (&ours.1, &theirs.1), (&ours.2, &theirs.2)] {
            assert!(relative_difference(&own.grad(), &other.grad()) < 0.01, "{shape:?}");
        }
    }
}

/// torch.optim.AdamW's single-tensor step, operation for operation.
fn plain_adamw(p: &mut Tensor, g: &Tensor, m: &mut Tensor, v: &mut Tensor, s: &AdamWStep) {
    let (b1, b2) = s.betas;
    let (bias1, bias2) = (1.0 - b1.powi(s.step as i32), 1.0 - b2.powi(s.step as i32));
    let _ = p.g_mul_scalar_(1.0 - s.learning_rate * s.weight_decay);
    let _ = m.lerp_(g, 1.0 - b1);
    let _ = v.g_mul_scalar_(b2);
    let _ = v.g_add_(&(g * g * (1.0 - b2)));
    let denom = v.sqrt() / bias2.sqrt() + s.epsilon;
    let _ = p.g_sub_(&(&*m / denom * (s.learning_rate / bias1)));
}

#[test]
fn adamw_equals_torch_over_several_steps() {
    on_every_isa(|| {
        let num = 40_003;
        let mut p = randn(&[num], 1);
        let zeros = || Tensor::zeros([num], (Kind::Float, tch::Device::Cpu));
        let (mut m, mut v) = (zeros(), zeros());
        for step in 1..=4 {
            let settings = AdamWStep {
                learning_rate: 1e-2,
                betas: (0.9, 0.999),
                epsilon: 1e-8,
                weight_decay: 0.1,
                grad_scale: 0.5,
                step,
            };
            let grad = randn(&[num], 10 + step);
            let (mut pr, mut mr, mut vr) = (p.copy(), m.copy(), v.copy());
            adamw_step(&mut p, &grad, &mut m, &mut v, &settings).unwrap();
            plain_adamw(&mut pr, &(&grad * 0.5), &mut mr, &mut vr, &settings);
            // Two units in the last place of the largest value: the reference divides and scales in another
            // order.
            let off = [(&p, &pr), (&m, &mr), (&v, &vr)].map(|(a, b)| relative_difference(a, b));
            assert!(off.iter().all(|&off| off < 2.4e-7), "parameter and moments {off:?} at step {step}");
        }
        let mut wide = p.to_kind(Kind::Double);
        let (mut wm, mut wv) = (m.to_kind(Kind::Double), v.to_kind(Kind::Double));
        let (grad, settings) = (randn(&[num], 20), AdamWStep { step: 5, ..last_settings() });
        adamw_step(&mut wide, &grad, &mut wm, &mut wv, &settings).unwrap();
        adamw_step(&mut p, &grad, &mut m, &mut v, &settings).unwrap();
        assert!(largest_difference(&wide, &p) < 5e-7, "the composed path follows the same formula");
    });
}

fn last_settings() -> AdamWStep {
    AdamWStep {
        learning_rate: 1e-2,
        betas: (0.9, 0.999),
        epsilon: 1e-8,
        weight_decay: 0.1,
        grad_scale: 0.5,
        step: 1,
    }
}

#[test]
fn the_norm_covers_all_elements_and_shows_non_finite_ones() {
    on_every_isa(|| {
        let tensors = [randn(&[70_000], 1), randn(&[3, 5], 2), randn(&[7], 3).to_kind(Kind::BFloat16)];
        let expected: f64 = tensors
            .iter()
            .map(|t| t.to_kind(Kind::Double).square().sum(Kind::Double).double_value(&[]))
            .sum();
        assert!((global_norm(&tensors).unwrap() / expected.sqrt() - 1.0).abs() < 1e-12);
        let bad = Tensor::from_slice(&[1.0f32, f32::NAN]);
        assert!(!global_norm([&tensors[0], &bad]).unwrap().is_finite());
        assert!(!global_norm([&Tensor::from_slice(&[f32::INFINITY])]).unwrap().is_finite());
    });
}

#[test]
fn slices_and_tensors_share_memory() {
    let mut tensor = crate::tensor_from_vec(vec![1.0f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    crate::f32_slice_mut(&mut tensor).unwrap()[3] = 9.0;
    assert_eq!(crate::f32_slice(&tensor).unwrap(), [1.0, 2.0, 3.0, 9.0]);
    assert_eq!(tensor.double_value(&[1, 1]), 9.0);
    assert!(crate::f32_slice(&tensor.tr()).is_err(), "gaps are refused");
    assert!(crate::i64_slice(&tensor).is_err(), "another dtype is refused");
    assert!(crate::tensor_from_vec(vec![1i64], &[2]).is_err());
    assert_eq!(crate::i64_slice(&crate::tensor_from_vec(vec![5i64], &[1]).unwrap()).unwrap(), [5]);
}

#[test]
fn bytes_outlive_their_last_other_owner() {
    struct Bytes(Vec<u8>);
    impl AsRef<[u8]> for Bytes {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let bytes = Arc::new(Bytes([0.0f32, 1.5, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect()));
    let tensor = crate::tensor_from_bytes(Arc::clone(&bytes), 4, &[2], Kind::Float).unwrap();
    assert!(crate::tensor_from_bytes(Arc::clone(&bytes), 8, &[2], Kind::Float).is_err(), "bytes end early");
    let unaligned = crate::tensor_from_bytes(Arc::clone(&bytes), 5, &[1], Kind::Float).unwrap();
    assert_eq!(unaligned.numel(), 1);
    assert_eq!(Arc::strong_count(&bytes), 2);
    drop(tensor);
    assert_eq!(Arc::strong_count(&bytes), 1, "the tensor let go of the bytes");
}

#[test]
fn a_block_hands_out_its_memory_once_and_lives_as_long_as_a_tensor() {
    on_every_isa(|| {
        let weight = randn(&[70, 9], 3);
        let mut arena = crate::WeightArena::new(PackedLinear::packed_bytes(70, 9) + 64).unwrap();
        let layer = PackedLinear::new(&weight, None, 16, Some(&mut arena)).unwrap();
        let kept = arena.keep(&randn(&[4], 5)).unwrap();
        let elsewhere = arena.keep(&randn(&[1000], 6)).unwrap();
        drop(arena);
        let x = randn(&[5, 9], 4);
        assert!(layer.forward(&x).equal(&PackedLinear::new(&weight, None, 16, None).unwrap().forward(&x)));
        assert!(
            kept.equal(&randn(&[4], 5)) && elsewhere.equal(&randn(&[1000], 6)),
            "what does not fit lies elsewhere"
        );
    });
}

#[test]
fn tensors_in_a_file_are_unchanged_after_their_memory_was_released() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = [randn(&[3, 5], 1), randn(&[0], 1), randn(&[1 << 18], 2).to_kind(Kind::BFloat16)];
    let (file, mapped) = crate::TensorFile::write(folder.path(), &tensors).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    for _ in 0..2 {
        assert!(tensors.iter().zip(&mapped).all(|(tensor, mapped)| tensor.equal(mapped)));
        file.release();
    }
    let (row, values) = (mapped[0].get(1), randn(&[5], 3));
    file.rewrite(&row, &values).unwrap();
    file.release();
    assert!(row.equal(&values) && mapped[0].get(0).equal(&tensors[0].get(0)), "the row and nothing else");
    for elsewhere in [&tensors[0].get(1), &mapped[2].narrow(0, 0, 5), &mapped[0].select(1, 0)] {
        let refused = file.rewrite(elsewhere, &values).unwrap_err();
        assert!(refused.to_string().contains("a contiguous tensor of it"), "{refused}");
    }
    file.rewrite(&mapped[0], &tensors[0]).unwrap();
    drop(file);
    assert!(tensors[0].equal(&mapped[0]), "a tensor keeps its file");
    let missing = crate::TensorFile::write(&folder.path().join("missing"), &tensors).unwrap_err();
    assert!(missing.to_string().contains("missing"), "{missing}");
}

#[test]
fn a_removed_gradient_is_allocated_by_the_next_backward_pass() {
    let leaf = super::leaf(&randn(&[3], 1));
    let given = Tensor::ones([3], (Kind::Float, tch::Device::Cpu));
    crate::set_grad(&leaf, Some(&given));
    crate::backward(&(&leaf * 2.0), &given);
    assert!(given.equal(&Tensor::from_slice(&[3f32; 3])), "what was given is added to");
    crate::set_grad(&leaf, None);
    assert!(!leaf.grad().defined());
    crate::backward(&(&leaf * 2.0), &Tensor::from_slice(&[1f32; 3]));
    assert!(leaf.grad().equal(&Tensor::from_slice(&[2f32; 3])));
}

#[test]
fn memory_can_be_freed_and_restored_between_forward_and_backward() {
    let (weight, x) = (randn(&[4, 3], 1), leaf(&randn(&[5, 3], 2)));
    let buffer = crate::FlatBuffer::new(20, (Kind::Float, tch::Device::Cpu)).unwrap();
    let mut parameter = leaf(&weight);
    tch::no_grad(|| parameter.set_data(&buffer.view(8, &[4, 3])));
    buffer.release().unwrap();
    let fill = || {
        buffer.take().unwrap();
        tch::no_grad(|| buffer.view(8, &[4, 3]).copy_(&weight));
    };
    fill();
    let y = x.linear(&parameter, None::<Tensor>);
    buffer.release().unwrap();
    fill();
    let grad = randn(&[5, 4], 3);
    crate::backward(&y, &grad);
    assert!(largest_difference(&parameter.grad(), &grad.tr().matmul(&x.detach())) < 1e-6);
    assert!(largest_difference(&x.grad(), &grad.matmul(&weight)) < 1e-6);
}

#[test]
fn a_gpu_has_a_peak_of_its_own_and_the_cpu_has_none() {
    assert_eq!(crate::peak_device_bytes(tch::Device::Cpu).unwrap(), None);
    if crate::load_cuda().unwrap() {
        let device = tch::Device::Cuda(0);
        drop(Tensor::ones([4 << 20], (Kind::Float, device)));
        let allocated = crate::peak_device_bytes(device).unwrap();
        assert!(allocated >= Some(16 << 20));
        assert!(crate::peak_reserved_device_bytes(device).unwrap() >= allocated);
    } else {
        rlt_skipped::skip_also_under_ci("the peak of a GPU's memory needs a GPU");
    }
}

#[test]
fn a_machine_without_a_driver_has_no_cuda() {
    let driver = std::path::Path::new("/dev/nvidiactl").exists();
    let missing = crate::missing_cuda().unwrap();
    assert_eq!(crate::load_cuda().unwrap(), missing.is_none());
    let missing = missing.unwrap_or_default();
    assert!(driver || missing.starts_with("libcuda.so.1 cannot be loaded: libcuda.so.1: "), "{missing}");
}

#[test]
fn the_kernels_name_their_instruction_set() {
    assert!(["baseline", "avx2", "avx512", "avx512_bf16", "amx"].contains(&crate::kernel_isa().as_str()));
}

#[test]
fn a_profile_has_the_operators_between_its_start_and_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let matrix = leaf(&randn(&[8, 8], 1));
    let _before = matrix.sin();
    let profile = Profile::start(false).unwrap();
    matrix.mm(&matrix).sum(Kind::Float).backward();
    profile.save(&path).unwrap();
    let _after = matrix.cos();
    let trace = std::fs::read_to_string(&path).unwrap();
    assert!(trace.contains("\"cat\": \"cpu_op\""), "{trace}");
    for (operator, expected) in [("aten::mm", true), ("MmBackward0", true), ("aten::sin", false)] {
        assert_eq!(trace.contains(operator), expected, "{operator}: {trace}");
    }
    assert!(!trace.contains("aten::cos"), "{trace}");
    // A dropped profile has ended, so another one can start.
    drop(Profile::start(false).unwrap());
    let profile = Profile::start(false).unwrap();
    let _recorded = matrix.cos();
    profile.save(&path).unwrap();
    let trace = std::fs::read_to_string(&path).unwrap();
    assert!(trace.contains("aten::cos") && !trace.contains("aten::mm"), "{trace}");
}
