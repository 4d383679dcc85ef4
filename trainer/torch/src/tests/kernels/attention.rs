//! Kernels between a fused projection and the attention over the paged cache.

use tch::{Device, Kind, Tensor};

use super::{KINDS, assert_near, in_every_order, ints, randn};
use crate::cuda::{
    Kernels, PagedDecodeAttention, RopeAndWriteKv, attention_splits, attention_workspace_bytes,
};

/// Heads, key heads, width of a head.
type Heads = (i64, i64, i64);

fn rotated(x_thd: &Tensor, positions: &[i32], inverse: &Tensor, factor: f64) -> Tensor {
    let angles = ints(positions).to_kind(Kind::Float).unsqueeze(1) * inverse.unsqueeze(0);
    let table = |t: Tensor| (t * factor).to_kind(x_thd.kind());
    crate::apply_rope(x_thd, &table(angles.cos()), &table(angles.sin()))
}

#[test]
fn rope_and_write_is_norm_rotation_and_write() {
    // A token that is not written, and positions far apart.
    const POSITIONS: [i32; 5] = [0, 3, 17, 1000, 70_001];
    const SLOTS: [i32; 5] = [4, -1, 0, 11, 7];
    in_every_order(|kernels| {
        for (idx, (heads, kv_heads, dim)) in
            [(2, 1, 8), (4, 4, 16), (8, 2, 64), (3, 1, 128), (2, 2, 256), (2, 1, 80)].into_iter().enumerate()
        {
            for kind in KINDS {
                let qkv = randn(&[5, (heads + 2 * kv_heads) * dim], dim).to_kind(kind);
                let inverse = (Tensor::arange(dim / 2, (Kind::Float, Device::Cpu)) * -0.1).exp();
                let norms = [1, 2].map(|seed| (randn(&[dim], seed) * 0.1 + 1.0).to_kind(kind));
                let has_norms = idx % 2 == 0;
                let caches = [3, 4].map(|seed| randn(&[3, 4, kv_heads, dim], seed).to_kind(kind));
                let (q_out, [k_cache, v_cache]) = (
                    Tensor::zeros([5, heads, dim], (kind, Device::Cpu)),
                    caches.each_ref().map(Tensor::copy),
                );
                RopeAndWriteKv {
                    qkv: &qkv,
                    inverse_frequencies: &inverse,
                    rope_factor: 1.1,
                    positions: &ints(&POSITIONS),
                    axes: None,
                    slots: &ints(&SLOTS),
                    qk_norms: has_norms.then_some((&norms[0], &norms[1])),
                    norm_width: dim as usize,
                    eps: 1e-6,
                    offset: 0.0,
                    k_cache: &k_cache,
                    v_cache: &v_cache,
                    q_out: &q_out,
                }
                .launch(kernels)
                .unwrap();
                let heads_of =
                    |start: i64, count: i64| qkv.narrow(1, start * dim, count * dim).reshape([5, count, dim]);
                let normed = |x: Tensor, weight: &Tensor| {
                    if has_norms { crate::rms_norm(&x, weight, 1e-6, 0.0) } else { x }
                };
                let turned = |x: Tensor, weight| rotated(&normed(x, weight), &POSITIONS, &inverse, 1.1);
                let [mut k_expected, mut v_expected] = caches;
                let keys = turned(heads_of(heads, kv_heads), &norms[1]);
                let slots = SLOTS.map(i64::from);
                let values = heads_of(heads + kv_heads, kv_heads);
                crate::write_kv(&mut k_expected, &mut v_expected, &keys, &values, &slots);
                assert_near("queries", &q_out, &turned(heads_of(0, heads), &norms[0]));
                assert_near("keys", &k_cache, &k_expected);
                assert_eq!(v_cache, v_expected, "values are copied");
            }
        }
    });
}

#[test]
fn pairs_are_turned_by_their_own_of_three_positions() {
    in_every_order(|kernels| {
        for kind in KINDS {
            let (dim, axes) = (16, [0, 1, 2, 0, 2, 2, 1, 0]);
            let positions = [[0, 3, 17], [5, 2, 1000], [9, 70, 4]];
            let qkv = randn(&[3, 3 * dim], 1).to_kind(kind);
            let inverse = (Tensor::arange(dim / 2, (Kind::Float, Device::Cpu)) * -0.1).exp();
            let [k_cache, v_cache] = [0; 2].map(|_| Tensor::zeros([1, 3, 1, dim], (kind, Device::Cpu)));
            let q_out = Tensor::zeros([3, 1, dim], (kind, Device::Cpu));
            RopeAndWriteKv {
                qkv: &qkv,
                inverse_frequencies: &inverse,
                rope_factor: 1.0,
                positions: &ints(&positions.concat()).view([3, 3]),
                axes: Some(&ints(&axes)),
                slots: &ints(&[0, 1, 2]),
                qk_norms: None,
                norm_width: dim as usize,
                eps: 1e-6,
                offset: 0.0,
                k_cache: &k_cache,
                v_cache: &v_cache,
                q_out: &q_out,
            }
            .launch(kernels)
            .unwrap();
            // Each dimension is taken from a rotation of all pairs by its axis.
            let expected = |start: i64| {
                let x = qkv.narrow(1, start * dim, dim).reshape([3, 1, dim]);
                let by_axis = positions.map(|positions| rotated(&x, &positions, &inverse, 1.0));
                let own =
                    (0..dim).map(|at| by_axis[axes[(at % (dim / 2)) as usize] as usize].narrow(2, at, 1));
                Tensor::cat(&own.collect::<Vec<_>>(), 2)
            };
            assert_near("queries", &q_out, &expected(0));
            assert_near("keys", &k_cache.view([3, 1, dim]), &expected(1));
        }
    });
}

/// Buckets of a decoder's rows and numbers between them.
#[test]
fn any_number_of_rows_is_rotated_and_written() {
    in_every_order(|kernels| {
        for num_rows in [1_i32, 2, 7, 64, 255, 256] {
            let (rows, dim) = (i64::from(num_rows), 8);
            let positions: Vec<i32> = (0..num_rows).map(|row| 3 * row).collect();
            let slots: Vec<i32> = (0..num_rows).rev().collect();
            let qkv = randn(&[rows, 4 * dim], rows);
            let inverse = (Tensor::arange(dim / 2, (Kind::Float, Device::Cpu)) * -0.1).exp();
            let options = (Kind::Float, Device::Cpu);
            let [k_cache, v_cache] = [0; 2].map(|_| Tensor::full([rows, 1, 1, dim], f64::NAN, options));
            let q_out = Tensor::full([rows, 2, dim], f64::NAN, options);
            RopeAndWriteKv {
                qkv: &qkv,
                inverse_frequencies: &inverse,
                rope_factor: 1.0,
                positions: &ints(&positions),
                axes: None,
                slots: &ints(&slots),
                qk_norms: None,
                norm_width: dim as usize,
                eps: 1e-6,
                offset: 0.0,
                k_cache: &k_cache,
                v_cache: &v_cache,
                q_out: &q_out,
            }
            .launch(kernels)
            .unwrap();
            let heads_of =
                |start: i64, count: i64| qkv.narrow(1, start * dim, count * dim).reshape([rows, count, dim]);
            let turned = |x: Tensor| rotated(&x, &positions, &inverse, 1.0);
            assert_near("queries", &q_out, &turned(heads_of(0, 2)));
            // The last row is in the first slot.
            assert_near("keys", &k_cache.view([rows, 1, dim]), &turned(heads_of(2, 1)).flip([0]));
            assert_eq!(v_cache.view([rows, 1, dim]), heads_of(3, 1).flip([0]), "values are copied");
        }
    });
}

/// One batch: lengths, width of the window, splits.
struct Batch {
    lens: Vec<i32>,
    window: Option<i64>,
    splits: usize,
    block_size: i64,
}

/// Compares with the CPU's attention, launching twice over the same workspace.
fn assert_is_the_cpus(kernels: &Kernels, heads: Heads, kind: Kind, batch: &Batch) {
    let workspace = workspace_for(heads, &[batch]);
    for _ in 0..2 {
        assert_is_the_cpus_in(&workspace, kernels, heads, kind, batch);
    }
}

/// Allocates a workspace of exactly the size that the largest of `batches` needs.
fn workspace_for((heads, kv_heads, dim): Heads, batches: &[&Batch]) -> Tensor {
    let [heads, kv_heads, dim] = [heads, kv_heads, dim].map(|n| n as usize);
    let bytes =
        |batch: &&Batch| attention_workspace_bytes(batch.lens.len(), heads, kv_heads, dim, batch.splits);
    let most = batches.iter().map(bytes).max().unwrap();
    Tensor::zeros([most as i64], (Kind::Uint8, Device::Cpu))
}

/// Compares one launch with the CPU's attention. The output holds NaN before, so that a row that is not
/// written fails.
fn assert_is_the_cpus_in(
    workspace: &Tensor,
    kernels: &Kernels,
    (heads, kv_heads, dim): Heads,
    kind: Kind,
    batch: &Batch,
) {
    let rows = batch.lens.len() as i64;
    let max_blocks =
        batch.lens.iter().map(|&len| (i64::from(len) + batch.block_size - 1) / batch.block_size).max();
    let (max_blocks, num_blocks) = (max_blocks.unwrap().max(1), 23);
    let [k_cache, v_cache] =
        [1, 2].map(|seed| randn(&[num_blocks, batch.block_size, kv_heads, dim], seed).to_kind(kind));
    let q = (randn(&[rows, heads, dim], 3) * 2.0).to_kind(kind);
    let tables: Vec<i32> = (0..(rows * max_blocks) as i32).map(|i| i * 7 % num_blocks as i32).collect();
    let out = q.full_like(f64::NAN);
    let scale = (dim as f64).powf(-0.5);
    PagedDecodeAttention {
        q: &q,
        k_cache: &k_cache,
        v_cache: &v_cache,
        block_tables: &ints(&tables).view([rows, max_blocks]),
        context_lens: &ints(&batch.lens),
        scale,
        window: batch.window,
        splits: batch.splits,
        workspace,
        out: &out,
    }
    .launch(kernels)
    .unwrap();
    let per_row: Vec<&[i32]> = tables.chunks(max_blocks as usize).collect();
    let wide = |t: &Tensor| if kind == Kind::Half { t.to_kind(Kind::Float) } else { t.shallow_clone() };
    let expected = crate::paged_attention(
        &wide(&q),
        &wide(&k_cache),
        &wide(&v_cache),
        &per_row,
        &batch.lens,
        crate::AttentionScores::new(scale, batch.window),
    );
    let name = format!("attention of {rows} rows, {heads}/{kv_heads} x {dim}");
    assert_near(&name, &out, &expected.to_kind(kind));
}

#[test]
fn paged_attention_is_the_cpus_for_every_group_and_width() {
    let heads: [Heads; 10] = [
        (1, 1, 8),
        (4, 1, 16),
        (6, 2, 32),
        (8, 2, 64),
        (8, 1, 64),
        (2, 2, 128),
        (8, 1, 128),
        (10, 1, 80),
        (2, 1, 256),
        (5, 5, 24),
    ];
    in_every_order(|kernels| {
        for heads in heads {
            for kind in KINDS {
                let batch = Batch { lens: vec![1, 37, 150], window: None, splits: 1, block_size: 16 };
                assert_is_the_cpus(kernels, heads, kind, &batch);
            }
        }
    });
}

#[test]
fn a_split_context_gives_the_same_attention_also_with_windows() {
    in_every_order(|kernels| {
        for (splits, window, block_size) in
            [(2, None, 16), (7, None, 5), (4, Some(9), 16), (3, Some(700), 64)]
        {
            for kind in [Kind::Float, Kind::BFloat16] {
                let batch = Batch { lens: vec![1, 900, 300, 64], window, splits, block_size };
                assert_is_the_cpus(kernels, (4, 2, 32), kind, &batch);
            }
        }
    });
}

/// Launches of several numbers of rows over one workspace: what a decoder does while its batch shrinks and
/// grows again.
#[test]
fn batches_that_shrink_and_grow_share_a_workspace() {
    let of_lens = |rows: usize, len: i32| Batch {
        lens: (0..rows as i32).map(|row| len - row).collect(),
        window: None,
        splits: 3,
        block_size: 16,
    };
    in_every_order(|kernels| {
        for (heads, len, numbers_of_rows) in [
            // The heads of Qwen2.5-0.5B.
            ((14, 2, 64), 600, vec![4, 2, 4]),
            ((4, 2, 16), 700, vec![4, 2, 4, 1, 3, 8, 1, 8]),
            ((4, 4, 8), 700, vec![2, 1, 32, 2, 32]),
        ] {
            let batches: Vec<Batch> = numbers_of_rows.iter().map(|&rows| of_lens(rows, len)).collect();
            let workspace = workspace_for(heads, &batches.iter().collect::<Vec<_>>());
            for batch in &batches {
                assert_is_the_cpus_in(&workspace, kernels, heads, Kind::Float, batch);
            }
        }
    });
}

/// The splits of a GPU with 132 multiprocessors, for contexts of several lengths.
#[test]
fn long_contexts_are_split_over_a_large_device() {
    in_every_order(|kernels| {
        for (heads, lens) in [((7, 1, 16), vec![4000]), ((4, 2, 8), vec![700, 1, 4000, 257])] {
            let splits = attention_splits(lens.len(), heads.1 as usize, 132);
            let batch = Batch { lens, window: None, splits, block_size: 16 };
            assert_is_the_cpus(kernels, heads, Kind::BFloat16, &batch);
        }
    });
}

#[test]
fn any_number_of_rows_is_computed() {
    in_every_order(|kernels| {
        for rows in [1, 2, 3, 5, 8, 31, 64, 129, 255, 256] {
            let lens = (0..rows).map(|row| if row % 50 == 0 { 330 } else { row % 40 + 1 }).collect();
            let splits = attention_splits(rows as usize, 1, 132);
            let batch = Batch { lens, window: None, splits, block_size: 16 };
            assert_is_the_cpus(kernels, (2, 1, 8), Kind::Float, &batch);
        }
    });
}

#[test]
fn a_launch_with_more_rows_than_counters_is_refused() {
    in_every_order(|kernels| {
        let (rows, heads) = ((1 << 12) + 1, 4);
        let q = Tensor::zeros([rows, heads, 8], (Kind::Float, Device::Cpu));
        let cache = Tensor::zeros([1, 16, heads, 8], (Kind::Float, Device::Cpu));
        let lens = Tensor::zeros([rows], (Kind::Int, Device::Cpu));
        let bytes = attention_workspace_bytes(rows as usize, heads as usize, heads as usize, 8, 2);
        let launch = PagedDecodeAttention {
            q: &q,
            k_cache: &cache,
            v_cache: &cache,
            block_tables: &lens.view([rows, 1]),
            context_lens: &lens,
            scale: 1.0,
            window: None,
            splits: 2,
            workspace: &Tensor::zeros([bytes as i64], (Kind::Uint8, Device::Cpu)),
            out: &q.zeros_like(),
        };
        let error = launch.launch(kernels).unwrap_err().to_string();
        assert!(error.contains("at most 16384 rows x groups"), "{error}");
    });
}

#[test]
fn queries_of_a_sequence_attend_to_the_tokens_before_them() {
    in_every_order(|kernels| {
        // Rows with one table and rising lengths, as a prompt in pieces has them.
        let batch = Batch { lens: vec![60, 61, 62, 63, 64, 65], window: Some(40), splits: 2, block_size: 32 };
        assert_is_the_cpus(kernels, (4, 4, 64), Kind::Float, &batch);
    });
}

#[test]
fn rows_without_a_context_are_zero() {
    in_every_order(|kernels| {
        let q = randn(&[2, 2, 16], 1);
        let cache = randn(&[2, 4, 1, 16], 2);
        let (out, table) = (q.full_like(f64::NAN), ints(&[0, 1, 1, 0]).view([2, 2]));
        let workspace = Tensor::zeros([1 << 17], (Kind::Uint8, Device::Cpu));
        let launch = PagedDecodeAttention {
            q: &q,
            k_cache: &cache,
            v_cache: &cache,
            block_tables: &table,
            context_lens: &ints(&[0, 1]),
            scale: 1.0,
            window: None,
            splits: 2,
            workspace: &workspace,
            out: &out,
        };
        launch.launch(kernels).unwrap();
        assert_eq!(out.get(0), q.get(0).zeros_like());
        assert_eq!(out.get(1), cache.get(1).get(0).expand([2, 16], false), "one key has all the weight");
        let error = PagedDecodeAttention { workspace: &workspace.narrow(0, 0, 8), ..launch }.launch(kernels);
        assert!(error.unwrap_err().to_string().contains("bytes of workspace"));
    });
}

#[test]
fn splits_fill_a_device_and_no_more() {
    assert_eq!(attention_splits(1, 2, 132), 64, "at most 64");
    assert_eq!(attention_splits(8, 8, 132), 5);
    assert_eq!(attention_splits(256, 8, 132), 1);
}
