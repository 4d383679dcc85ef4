//! Norm, gated activation and rotary embedding against their formulas, values and gradients.

use super::{leaf, on_every_isa, randn, relative_difference};
use crate::{Activation, apply_rope, backward, gated_activation, gated_activation_packed, rms_norm};
use tch::{Kind, Tensor};

fn plain_norm(x: &Tensor, weight: &Tensor, eps: f64, offset: f64) -> Tensor {
    let wide = x.to_kind(Kind::Float);
    let mean = (&wide * &wide).mean_dim([-1i64].as_slice(), true, Kind::Float);
    let normed = wide * (mean + eps).rsqrt();
    if offset == 0.0 {
        weight * normed.to_kind(x.kind())
    } else {
        (normed * (weight.to_kind(Kind::Float) + offset)).to_kind(x.kind())
    }
}

#[test]
fn rms_norm_equals_its_formula_with_gradients() {
    on_every_isa(|| {
        for (shape, offset) in
            [(vec![37, 67], 0.0), (vec![5, 3, 16], 1.0), (vec![301, 576], 0.0), (vec![1, 5], 1.0)]
        {
            let width = shape[shape.len() - 1];
            let (x0, w0, g) = (randn(&shape, 1), randn(&[width], 2), randn(&shape, 3));
            let (x, w, xr, wr) = (leaf(&x0), leaf(&w0), leaf(&x0), leaf(&w0));
            let (out, reference) = (rms_norm(&x, &w, 1e-5, offset), plain_norm(&xr, &wr, 1e-5, offset));
            backward(&out, &g);
            backward(&reference, &g);
            // Sums of a few hundred f32 terms in another order.
            assert!(relative_difference(&out, &reference) < 2e-6, "{shape:?}");
            assert!(relative_difference(&x.grad(), &xr.grad()) < 5e-6, "{shape:?}");
            assert!(relative_difference(&w.grad(), &wr.grad()) < 5e-6, "{shape:?}");
        }
    });
}

#[test]
fn rms_norm_reads_heads_out_of_a_fused_projection() {
    on_every_isa(|| {
        let fused = randn(&[11, 5 * 32], 4);
        let slice = fused.narrow(1, 32, 3 * 32).unflatten(1, [3, 32]);
        let weight = randn(&[32], 5);
        let (strided, copied) =
            (rms_norm(&slice, &weight, 1e-6, 0.0), rms_norm(&slice.contiguous(), &weight, 1e-6, 0.0));
        assert!(strided.equal(&copied));
    });
}

#[test]
fn rms_norm_in_bf16_rounds_where_transformers_does() {
    on_every_isa(|| {
        for offset in [0.0, 1.0] {
            let (x, w) =
                (randn(&[29, 96], 6).to_kind(Kind::BFloat16), randn(&[96], 7).to_kind(Kind::BFloat16));
            let (out, reference) = (rms_norm(&x, &w, 1e-6, offset), plain_norm(&x, &w, 1e-6, offset));
            // Statistics may differ in the last f32 bit, which moves a bf16 rounding now and then: one bf16
            // step at most.
            assert!(relative_difference(&out, &reference) < 0.005);
            let equal = out.eq_tensor(&reference).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
            assert!(equal > 0.995, "{equal}");
        }
    });
}

#[test]
fn gated_activation_equals_its_formula_with_gradients() {
    on_every_isa(|| {
        for (activation, width) in [
            (Activation::Silu, 35),
            (Activation::GeluTanh, 1536),
            (Activation::Silu, 128),
            (Activation::Gelu, 35),
        ] {
            // Beyond 88 the exponential saturates; the activation must not.
            let (a, b, g) = (randn(&[19, width], 1) * 40.0, randn(&[19, width], 2), randn(&[19, width], 3));
            let (gate, up, gate_r, up_r) = (leaf(&a), leaf(&b), leaf(&a), leaf(&b));
            let out = gated_activation(&gate, &up, activation);
            let activated = match activation {
                Activation::Silu => gate_r.silu(),
                Activation::GeluTanh => gate_r.gelu("tanh"),
                Activation::Gelu => gate_r.gelu("none"),
            };
            let reference = activated * &up_r;
            backward(&out, &g);
            backward(&reference, &g);
            let off = [(&out, &reference), (&gate.grad(), &gate_r.grad()), (&up.grad(), &up_r.grad())]
                .map(|(a, b)| relative_difference(a, b));
            assert!(
                off.iter().all(|&off| off < 2e-6),
                "{activation:?}: values, gate's and up's gradients {off:?}"
            );
        }
    });
}

#[test]
fn packed_gate_and_up_equal_separate_ones() {
    on_every_isa(|| {
        let (x0, g) = (randn(&[13, 2 * 70], 1), randn(&[13, 70], 2));
        let (packed, whole) = (leaf(&x0), leaf(&x0));
        let out = gated_activation_packed(&packed, Activation::Silu);
        let reference = gated_activation(&whole.narrow(1, 0, 70), &whole.narrow(1, 70, 70), Activation::Silu);
        backward(&out, &g);
        backward(&reference, &g);
        assert!(out.equal(&reference));
        assert!(packed.grad().equal(&whole.grad()));
    });
}

#[test]
fn rope_equals_rotate_half_with_gradients() {
    on_every_isa(|| {
        for width in [6, 64, 80] {
            let (x0, g) = (randn(&[17, 3, width], 1), randn(&[17, 3, width], 2));
            let angles = randn(&[17, width / 2], 3);
            let (cos_half, sin_half) = (angles.cos(), angles.sin());
            let (cos, sin) =
                (Tensor::cat(&[&cos_half, &cos_half], 1), Tensor::cat(&[&sin_half, &sin_half], 1));
            let (x, xr) = (leaf(&x0), leaf(&x0));
            let out = apply_rope(&x, &cos, &sin);
            let rotated = Tensor::cat(&[-xr.narrow(2, width / 2, width / 2), xr.narrow(2, 0, width / 2)], 2);
            let reference = &xr * cos.unsqueeze(1) + rotated * sin.unsqueeze(1);
            backward(&out, &g);
            backward(&reference, &g);
            assert!(relative_difference(&out, &reference) < 1e-6);
            assert!(relative_difference(&x.grad(), &xr.grad()) < 1e-6);
            assert!(apply_rope(&x, &cos_half, &sin_half).equal(&out));
        }
    });
}

#[test]
fn f64_takes_the_composed_formulas() {
    let (x, w) = (randn(&[5, 8], 1), randn(&[8], 2));
    let wide = |t: &Tensor| t.to_kind(Kind::Double);
    assert!(
        relative_difference(&rms_norm(&wide(&x), &wide(&w), 1e-5, 1.0), &rms_norm(&x, &w, 1e-5, 1.0)) < 1e-6
    );
    let (gate, up) = (randn(&[5, 8], 3), randn(&[5, 8], 4));
    let composed = gated_activation(&wide(&gate), &wide(&up), Activation::GeluTanh);
    assert!(relative_difference(&composed, &gated_activation(&gate, &up, Activation::GeluTanh)) < 1e-6);
    let (heads, angles) = (randn(&[5, 2, 8], 5), randn(&[5, 4], 6));
    let composed = apply_rope(&wide(&heads), &wide(&angles.cos()), &wide(&angles.sin()));
    assert!(relative_difference(&composed, &apply_rope(&heads, &angles.cos(), &angles.sin())) < 1e-6);
}
