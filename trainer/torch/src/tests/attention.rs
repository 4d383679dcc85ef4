//! Packed and paged attention against dense masked softmax, values and gradients, on random lengths.

use super::{largest_difference, leaf, on_every_isa, randn, relative_difference};
use crate::{AttentionScores, Segments, backward, paged_attention, varlen_attention, write_kv};
use proptest::prelude::*;
use tch::{Device, Kind, Tensor};

/// Computes dense attention over all packed tokens with a mask of the visible keys.
fn dense([q, k, v]: [&Tensor; 3], cu_seqlens: &[i32], by: AttentionScores<'_>) -> Tensor {
    let (num_tokens, heads, kv_heads) = (q.size()[0], q.size()[1], k.size()[1]);
    let segment: Vec<i64> = cu_seqlens
        .windows(2)
        .enumerate()
        .flat_map(|(s, w)| std::iter::repeat_n(s as i64, (w[1] - w[0]) as usize))
        .collect();
    let (segment, at) =
        (Tensor::from_slice(&segment), Tensor::arange(num_tokens, (Kind::Int64, Device::Cpu)));
    let back = at.unsqueeze(1) - at.unsqueeze(0);
    let mut seen = segment.unsqueeze(1).eq_tensor(&segment.unsqueeze(0)).logical_and(&back.ge(0));
    if let Some(window) = by.window {
        seen = seen.logical_and(&back.lt(window));
    }
    let widen = |t: &Tensor| t.repeat_interleave_self_int(heads / kv_heads, 1, None).transpose(0, 1);
    let scores = q.transpose(0, 1).matmul(&widen(k).transpose(1, 2)) * by.scale;
    let scores = by.softcap.map_or(scores.shallow_clone(), |cap| (&scores / cap).tanh() * cap);
    let scores = scores.masked_fill(&seen.logical_not(), f64::NEG_INFINITY);
    let column = |sinks: &Tensor| sinks.view([-1, 1, 1]).expand([heads, num_tokens, 1], false);
    let scores = by.sinks.map_or(scores.shallow_clone(), |sinks| Tensor::cat(&[&scores, &column(sinks)], -1));
    let weights = scores.softmax(-1, None).narrow(-1, 0, num_tokens);
    weights.matmul(&widen(v)).transpose(0, 1)
}

fn check_against_dense(lens: &[i32], heads: i64, kv_heads: i64, dim: i64, window: Option<i64>) {
    for (softcap, has_sinks) in [(None, false), (Some(1.5), false), (None, true)] {
        check_scores_against_dense(lens, (heads, kv_heads, dim), window, (softcap, has_sinks));
    }
}

fn check_scores_against_dense(
    lens: &[i32],
    (heads, kv_heads, dim): (i64, i64, i64),
    window: Option<i64>,
    (softcap, has_sinks): (Option<f64>, bool),
) {
    let cu_seqlens: Vec<i32> = std::iter::once(0)
        .chain(lens.iter().scan(0, |at, len| {
            *at += len;
            Some(*at)
        }))
        .collect();
    let num_tokens = i64::from(*cu_seqlens.last().expect("a first entry"));
    let inputs = [heads, kv_heads, kv_heads].map(|h| randn(&[num_tokens, h, dim], 7 * h + dim));
    let grad = randn(&[num_tokens, heads, dim], 99);
    let scale = 1.0 / (dim as f64).sqrt();
    let [ours, plain] = [inputs.each_ref().map(leaf), inputs.each_ref().map(leaf)];
    let sinks = [0, 1].map(|_| leaf(&randn(&[heads], 5)));
    let by = |idx: usize| AttentionScores {
        softcap,
        sinks: has_sinks.then_some(&sinks[idx]),
        ..AttentionScores::new(scale, window)
    };
    let out = varlen_attention(&ours[0], &ours[1], &ours[2], Segments::alone(&cu_seqlens), by(0));
    let reference = dense([&plain[0], &plain[1], &plain[2]], &cu_seqlens, by(1));
    backward(&out, &grad);
    backward(&reference, &grad);
    assert!(relative_difference(&out, &reference) < 1e-5, "values, {lens:?} window {window:?}");
    let mut pairs = vec![("q", &ours[0], &plain[0]), ("k", &ours[1], &plain[1]), ("v", &ours[2], &plain[2])];
    pairs.extend(has_sinks.then_some(("sinks", &sinks[0], &sinks[1])));
    for (name, a, b) in pairs {
        // With a single visible key the gradient of q is exactly zero, and only rounding errors remain.
        let off = largest_difference(&a.grad(), &b.grad()) / b.grad().abs().max().double_value(&[]).max(1.0);
        assert!(
            off < 1e-5,
            "gradient of {name} off by {off}, {lens:?} {heads}/{kv_heads}x{dim} window {window:?} cap {softcap:?}"
        );
    }
}

#[test]
fn long_segments_equal_dense_attention() {
    on_every_isa(|| {
        check_against_dense(&[300, 64, 1, 0, 17], 9, 3, 64, None);
        check_against_dense(&[530], 2, 1, 80, None);
        check_against_dense(&[530, 40], 4, 4, 16, Some(7));
        check_against_dense(&[600], 2, 2, 12, Some(300));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn packed_segments_equal_dense_attention(
        lens in prop::collection::vec(0i32..50, 1..6),
        (heads, kv_heads) in prop::sample::select(vec![(1i64, 1i64), (4, 2), (6, 1), (3, 3)]),
        dim in prop::sample::select(vec![8i64, 20, 64]),
        window in prop::option::of(1i64..40),
    ) {
        prop_assume!(lens.iter().sum::<i32>() > 0);
        on_every_isa(|| check_against_dense(&lens, heads, kv_heads, dim, window));
    }
}

#[test]
fn packed_equals_alone_and_a_fused_projection_needs_no_copy() {
    on_every_isa(|| {
        let fused = randn(&[90, (6 + 2 + 2) * 16], 3);
        let heads = |from: i64, num: i64| fused.narrow(1, from * 16, num * 16).unflatten(1, [num, 16]);
        let (q, k, v) = (heads(0, 6), heads(6, 2), heads(8, 2));
        let packed =
            varlen_attention(&q, &k, &v, Segments::alone(&[0, 31, 90]), AttentionScores::new(0.25, None));
        let part = |t: &Tensor| t.narrow(0, 31, 59).contiguous();
        let alone = varlen_attention(
            &part(&q),
            &part(&k),
            &part(&v),
            Segments::alone(&[0, 59]),
            AttentionScores::new(0.25, None),
        );
        assert!(relative_difference(&packed.narrow(0, 31, 59), &alone) < 1e-6);
    });
}

/// A trunk and the lengths of its branches.
type Lens = (i32, Vec<i32>);

/// Packed trees, each trunk before its branches.
struct Stream {
    cu_seqlens: Vec<i32>,
    prefixes: Vec<Option<usize>>,
}

impl Stream {
    fn of(trees: &[Lens]) -> Self {
        let mut stream = Self { cu_seqlens: vec![0], prefixes: Vec::new() };
        for (trunk, branches) in trees {
            let trunk_idx = stream.push(*trunk, None);
            for branch in branches {
                stream.push(*branch, Some(trunk_idx));
            }
        }
        stream
    }

    fn push(&mut self, len: i32, prefix: Option<usize>) -> usize {
        self.cu_seqlens.push(self.num_tokens() as i32 + len);
        self.prefixes.push(prefix);
        self.prefixes.len() - 1
    }

    fn num_tokens(&self) -> i64 {
        i64::from(*self.cu_seqlens.last().expect("a first entry"))
    }

    fn segments(&self) -> Segments<'_> {
        Segments { cu_seqlens: &self.cu_seqlens, prefixes: &self.prefixes }
    }

    /// Puts a copy of its prefix before every segment. Returns the segments, the original index of each token
    /// of the longer row, and the index in the longer row of each original token.
    fn with_copied_prefixes(&self) -> (Vec<i32>, Tensor, Tensor) {
        let span = |s: usize| i64::from(self.cu_seqlens[s])..i64::from(self.cu_seqlens[s + 1]);
        let (mut cu_seqlens, mut tokens, mut own) = (vec![0], Vec::new(), Vec::new());
        for (s, prefix) in self.prefixes.iter().enumerate() {
            tokens.extend(prefix.map_or(0..0, span));
            own.extend(tokens.len() as i64..tokens.len() as i64 + span(s).count() as i64);
            tokens.extend(span(s));
            cu_seqlens.push(tokens.len() as i32);
        }
        (cu_seqlens, Tensor::from_slice(&tokens), Tensor::from_slice(&own))
    }
}

/// Compares values and gradients of trees with those of branches that are packed after their own copies of
/// the trunk.
fn check_against_whole(
    trees: &[Lens],
    (heads, kv_heads, dim): (i64, i64, i64),
    window: Option<i64>,
    kind: Kind,
) {
    let stream = Stream::of(trees);
    let inputs =
        [heads, kv_heads, kv_heads].map(|h| randn(&[stream.num_tokens(), h, dim], 5 * h + dim).to_kind(kind));
    let grad = randn(&[stream.num_tokens(), heads, dim], 98).to_kind(kind);
    let scale = 1.0 / (dim as f64).sqrt();
    let [tree, plain] = [inputs.each_ref().map(leaf), inputs.each_ref().map(leaf)];
    let out = varlen_attention(
        &tree[0],
        &tree[1],
        &tree[2],
        stream.segments(),
        AttentionScores::new(scale, window),
    );
    let (cu_seqlens, tokens, own) = stream.with_copied_prefixes();
    let [q, k, v] = plain.each_ref().map(|t| t.index_select(0, &tokens));
    let reference =
        varlen_attention(&q, &k, &v, Segments::alone(&cu_seqlens), AttentionScores::new(scale, window));
    let reference = reference.index_select(0, &own);
    backward(&out, &grad);
    backward(&reference, &grad);
    let case = format!("{trees:?} {heads}/{kv_heads}x{dim} window {window:?}");
    // A row's sums run over the same keys in the same blocks of 256, shifted at most by a window.
    assert!(relative_difference(&out, &reference) < 1e-6, "values, {case}");
    for (name, i) in [("q", 0), ("k", 1), ("v", 2)] {
        let expected = plain[i].grad();
        let off =
            largest_difference(&tree[i].grad(), &expected) / expected.abs().max().double_value(&[]).max(1.0);
        // The gradient of a trunk is a sum of the same few hundred terms of about 1 in another order.
        assert!(off < 1e-5, "gradient of {name} off by {off}, {case}");
    }
}

#[test]
fn a_branch_equals_its_sequence_packed_whole() {
    let trees =
        [(70, vec![64; 8]), (1, vec![3, 0, 25]), (40, vec![]), (30, vec![1]), (0, vec![5, 9]), (9, vec![0])];
    on_every_isa(|| {
        for window in [None, Some(7), Some(90)] {
            check_against_whole(&trees, (6, 2, 16), window, Kind::Float);
        }
        check_against_whole(&[(300, vec![17, 290, 2])], (9, 3, 64), None, Kind::Float);
        check_against_whole(&[(300, vec![17, 290, 2])], (2, 1, 20), Some(280), Kind::Float);
    });
    check_against_whole(&trees, (4, 2, 8), Some(50), Kind::Double);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn branches_of_any_length_equal_their_sequences_packed_whole(
        trees in prop::collection::vec((0i32..40, prop::collection::vec(0i32..40, 0..5)), 1..4),
        (heads, kv_heads) in prop::sample::select(vec![(1i64, 1i64), (4, 2), (6, 1), (3, 3)]),
        dim in prop::sample::select(vec![8i64, 20, 64]),
        window in prop::option::of(1i64..60),
    ) {
        prop_assume!(Stream::of(&trees).num_tokens() > 0);
        on_every_isa(|| check_against_whole(&trees, (heads, kv_heads, dim), window, Kind::Float));
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_a_branch() {
    let stream = Stream::of(&[(33, vec![20, 5, 48, 31])]);
    let [q, k, v] = [6, 2, 2].map(|h| randn(&[stream.num_tokens(), h, 16], h));
    let run = |num_threads: i32| {
        let before = tch::get_num_threads();
        tch::set_num_threads(num_threads);
        let out = varlen_attention(&q, &k, &v, stream.segments(), AttentionScores::new(0.25, None));
        tch::set_num_threads(before);
        out
    };
    // With one thread a tree is one work item, with four its heads and branches are split.
    on_every_isa(|| assert!(run(1).equal(&run(4))));
}

#[test]
#[should_panic(
    expected = "segment 2 expected to continue an earlier segment that continues none itself, got segment 1"
)]
fn a_prefix_of_a_prefix_is_refused() {
    let [q, k, v] = [1, 1, 1].map(|h| randn(&[6, h, 8], h));
    let segments = Segments { cu_seqlens: &[0, 2, 4, 6], prefixes: &[None, Some(0), Some(1)] };
    let _ = varlen_attention(&q, &k, &v, segments, AttentionScores::new(1.0, None));
}

#[test]
fn bf16_stays_within_its_rounding_of_f32() {
    on_every_isa(|| {
        let [q, k, v] = [4, 2, 2].map(|h| randn(&[70, h, 32], h).to_kind(Kind::BFloat16));
        let wide = |t: &Tensor| t.to_kind(Kind::Float);
        let (a, b) = ([leaf(&q), leaf(&k), leaf(&v)], [leaf(&wide(&q)), leaf(&wide(&k)), leaf(&wide(&v))]);
        let out = varlen_attention(
            &a[0],
            &a[1],
            &a[2],
            Segments::alone(&[0, 70]),
            AttentionScores::new(0.17, Some(40)),
        );
        let reference = varlen_attention(
            &b[0],
            &b[1],
            &b[2],
            Segments::alone(&[0, 70]),
            AttentionScores::new(0.17, Some(40)),
        );
        backward(&out, &out.ones_like());
        backward(&reference, &reference.ones_like());
        // bf16 keeps 8 bits: half a step of the largest element, and the backward reads the rounded output
        // once more.
        assert!(relative_difference(&out, &reference) < 0.004);
        for i in 0..3 {
            assert!(relative_difference(&a[i].grad(), &b[i].grad()) < 0.02);
        }
    });
}

#[test]
fn f64_takes_the_composed_path() {
    let [q, k, v] = [4, 2, 2].map(|h| randn(&[33, h, 8], h));
    let wide = |t: &Tensor| t.to_kind(Kind::Double);
    let (sinks, segments) = (randn(&[4], 3), Segments::alone(&[0, 12, 33]));
    for window in [None, Some(5)] {
        for (softcap, sinks) in [(None, None), (Some(0.7), None), (Some(0.7), Some(&sinks))] {
            let by = AttentionScores { softcap, sinks, ..AttentionScores::new(0.3, window) };
            let ours = varlen_attention(&q, &k, &v, segments, by);
            let composed = varlen_attention(&wide(&q), &wide(&k), &wide(&v), segments, by);
            assert!(relative_difference(&ours, &composed) < 1e-6);
        }
    }
}

/// Writes two sequences into scattered blocks and compares decoding with the last row of packed attention.
fn paged_case(kind: Kind, dim: i64, window: Option<i64>, tolerance: f64) {
    let sinks = randn(&[6], 4);
    for (softcap, sinks) in [(None, None), (Some(0.7), None), (None, Some(&sinks))] {
        let by = AttentionScores { softcap, sinks, ..AttentionScores::new(0.2, window) };
        paged_case_of(kind, dim, by, tolerance);
    }
}

fn paged_case_of(kind: Kind, dim: i64, by: AttentionScores<'_>, tolerance: f64) {
    let (heads, kv_heads, block_size) = (6, 2, 4);
    let lens = [13usize, 5];
    let tables: [&[i32]; 2] = [&[7, 2, 9, 4], &[3, 0]];
    let [q, k, v] = [heads, kv_heads, kv_heads].map(|h| randn(&[18, h, dim], h + dim).to_kind(kind));
    let cache = || Tensor::full([10, block_size, kv_heads, dim], f64::NAN, (kind, Device::Cpu));
    let (mut k_cache, mut v_cache) = (cache(), cache());
    let slots: Vec<i64> = (0..2usize)
        .flat_map(|b| (0..lens[b]).map(move |j| (b, j)))
        .map(|(b, j)| i64::from(tables[b][j / 4]) * 4 + j as i64 % 4)
        .collect();
    write_kv(&mut k_cache, &mut v_cache, &k, &v, &slots);
    let last = |t: &Tensor| Tensor::cat(&[t.narrow(0, 12, 1), t.narrow(0, 17, 1)], 0);
    let out = paged_attention(&last(&q), &k_cache, &v_cache, &tables, &[13, 5], by);
    let reference = last(&varlen_attention(&q, &k, &v, Segments::alone(&[0, 13, 18]), by));
    assert!(relative_difference(&out, &reference) < tolerance, "{kind:?} {dim} {by:?}");
    // Several queries of one sequence: rows with one table and rising contexts.
    let rows: Vec<&[i32]> = vec![tables[0]; 3];
    let out = paged_attention(&q.narrow(0, 10, 3), &k_cache, &v_cache, &rows, &[11, 12, 13], by);
    let reference = varlen_attention(&q, &k, &v, Segments::alone(&[0, 13, 18]), by).narrow(0, 10, 3);
    assert!(relative_difference(&out, &reference) < tolerance, "{kind:?} {dim} {by:?}");
}

#[test]
fn paged_decoding_equals_packed_attention() {
    on_every_isa(|| {
        for window in [None, Some(6)] {
            paged_case(Kind::Float, 64, window, 2e-6);
            paged_case(Kind::Float, 12, window, 2e-6);
            paged_case(Kind::BFloat16, 32, window, 0.01);
        }
    });
    paged_case(Kind::Double, 8, Some(6), 1e-6);
}

#[test]
#[should_panic(expected = "names block 10")]
fn a_block_outside_the_cache_is_refused() {
    let cache = Tensor::zeros([10, 4, 1, 8], (Kind::Float, Device::Cpu));
    let _ = paged_attention(
        &randn(&[1, 1, 8], 1),
        &cache,
        &cache,
        &[&[10]],
        &[2],
        AttentionScores::new(1.0, None),
    );
}

#[test]
fn a_negative_slot_is_skipped() {
    let cache = || Tensor::zeros([1, 2, 1, 2], (Kind::Float, Device::Cpu));
    let (mut k_cache, mut v_cache) = (cache(), cache());
    let rows = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]).view([2, 1, 2]);
    write_kv(&mut k_cache, &mut v_cache, &rows, &rows, &[-1, 1]);
    assert_eq!(crate::f32_slice(&k_cache).unwrap(), [0.0, 0.0, 3.0, 4.0]);
}
