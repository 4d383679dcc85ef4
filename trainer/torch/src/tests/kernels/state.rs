//! The batch's state between steps, digests, and dropout masks.

use rlt_core::digest::digest64;
use rlt_core::permutation::splitmix64;
use tch::{Device, Kind, Tensor};

use super::{KINDS, floats, in_every_order, ints, randn, words};
use crate::cuda::{Advance, ApplyUpdates, DeviceDigest, DropoutMask, EmbedGather, MarkSeen};

#[test]
fn embeddings_are_gathered_and_scaled() {
    in_every_order(|kernels| {
        for (width, scale) in [(24, 1.0), (7, 3.0), (1100, 1.0)] {
            for kind in KINDS {
                let embedding = randn(&[11, width], width).to_kind(kind);
                let out = Tensor::zeros([4, width], (kind, Device::Cpu));
                let tokens = ints(&[10, 0, 3, 11]);
                EmbedGather { tokens: &tokens, embedding: &embedding, scale, out: &out }
                    .launch(kernels)
                    .unwrap();
                let rows = embedding.index_select(0, &Tensor::from_slice(&[10i64, 0, 3])) * scale;
                assert_eq!(out.narrow(0, 0, 3), rows);
                assert_eq!(out.get(3), out.get(3).zeros_like(), "outside of the vocabulary");
            }
        }
    });
}

#[test]
fn a_step_follows_from_the_tokens_drawn() {
    in_every_order(|kernels| {
        // Within a block, into the next, beyond the table, into a missing block, and an idle row.
        let lens = ints(&[1, 4, 8, 4, 103]);
        // After an image in the prompt, positions are less than the number of tokens.
        let positions = ints(&[0, 1, 7, 2, -1]);
        let tables = [[5, 6], [2, 9], [1, 8], [4, -1], [7, 7]].concat();
        let [tokens, slots, steps] = [0; 3].map(|_| ints(&[100, 101, 102, 103, 104]));
        let advance = Advance {
            drawn: &ints(&[20, 21, 22, 23, 24]),
            block_tables: &ints(&tables).view([5, 2]),
            block_size: 4,
            tokens: &tokens,
            positions: &positions,
            slots: &slots,
            context_lens: &lens,
            steps: &steps,
        };
        advance.launch(kernels).unwrap();
        assert_eq!(words(&tokens), [20, 21, 22, 23, 104]);
        assert_eq!(words(&positions), [1, 2, 8, 3, -1]);
        assert_eq!(words(&slots), [21, 36, -1, -1, 104]);
        assert_eq!(words(&lens), [2, 5, 9, 5, 103]);
        assert_eq!(words(&steps), [101, 102, 103, 104, 104]);
    });
}

/// Buckets of a decoder's rows and numbers between them.
#[test]
fn any_number_of_rows_is_gathered_and_advanced() {
    in_every_order(|kernels| {
        let embedding = randn(&[11, 24], 2);
        for num_rows in [1_i32, 2, 7, 64, 255, 256] {
            let of_rows = |value: fn(i32) -> i32| ints(&(0..num_rows).map(value).collect::<Vec<_>>());
            let tokens = of_rows(|row| row % 11);
            let out = Tensor::full([i64::from(num_rows), 24], f64::NAN, (Kind::Float, Device::Cpu));
            EmbedGather { tokens: &tokens, embedding: &embedding, scale: 1.0, out: &out }
                .launch(kernels)
                .unwrap();
            assert_eq!(out, embedding.index_select(0, &tokens.to_kind(Kind::Int64)));

            // Row i has the blocks 2 i and 2 i + 1.
            let blocks: Vec<i32> = (0..2 * num_rows).collect();
            let (positions, context_lens) = (of_rows(|row| row % 7), of_rows(|row| row % 7 + 1));
            let [slots, steps] = [0; 2].map(|_| of_rows(|_| 0));
            let drawn = of_rows(|row| 1000 + row);
            Advance {
                drawn: &drawn,
                block_tables: &ints(&blocks).view([i64::from(num_rows), 2]),
                block_size: 4,
                tokens: &tokens,
                positions: &positions,
                slots: &slots,
                context_lens: &context_lens,
                steps: &steps,
            }
            .launch(kernels)
            .unwrap();
            assert_eq!(words(&tokens), words(&drawn));
            assert_eq!(words(&positions), words(&of_rows(|row| row % 7 + 1)));
            assert_eq!(words(&context_lens), words(&of_rows(|row| row % 7 + 2)));
            assert_eq!(words(&slots), words(&of_rows(|row| 8 * row + row % 7 + 1)));
            assert_eq!(words(&steps), words(&of_rows(|_| 1)));
        }
    });
}

#[test]
fn seen_tokens_are_bits_of_their_row() {
    in_every_order(|kernels| {
        let seen = Tensor::zeros([3, 2], (Kind::Int, Device::Cpu));
        let (tokens, rows) = (ints(&[0, 31, 32, 5, 0, 64, 1]), ints(&[0, 0, 1, 2, 0, 1, -1]));
        MarkSeen { tokens: &tokens, rows: &rows, seen_tokens: &seen }.launch(kernels).unwrap();
        assert_eq!(words(&seen), [i32::MIN | 1, 0, 0, 1, 32, 0]);
    });
}

#[test]
fn the_digest_of_a_tensor_is_that_of_its_numbers_on_the_host() {
    in_every_order(|kernels| {
        for len in [0i64, 1, 2, 15, 16, 17, 4095, 4096, 4097, 150_003] {
            for kind in KINDS {
                let tensor = randn(&[len], len).to_kind(kind);
                let out = Tensor::zeros([1], (Kind::Int64, Device::Cpu));
                DeviceDigest { tensor: &tensor, out: &out }.launch(kernels).unwrap();
                let is_paired = kind != Kind::Float && len % 2 == 0;
                let numbers =
                    if is_paired { floats(&tensor.view_dtype(Kind::Float)) } else { floats(&tensor) };
                assert_eq!(out.int64_value(&[0]) as u64, digest64(&numbers), "{len} of {kind:?}");
            }
        }
    });
}

/// More changes than threads. Changes beyond the count or outside of the state have no effect.
#[test]
fn words_are_written_and_copied_by_the_list_of_changes() {
    in_every_order(|kernels| {
        let before: Vec<i32> = (0..20_000).collect();
        let mut expected = before.clone();
        let mut changes = vec![0];
        for at in 0..9_000 {
            // Words behind the ten thousandth are copied from, and none of them is written.
            let (pair, value) =
                if at % 3 == 0 { ([-1 - at, 10_000 + at], 10_000 + at) } else { ([at, -at], -at) };
            changes.extend(pair);
            expected[at as usize] = value;
        }
        changes.extend([20_000, 1, -1 - 9_500, 20_000]);
        changes[0] = (changes.len() as i32 - 1) / 2;
        changes.extend([9_600, 1]);
        let state = ints(&before);
        ApplyUpdates { changes: &ints(&changes), state: &state }.launch(kernels).unwrap();
        assert_eq!(words(&state), expected);
    });
}

#[test]
fn a_dropout_mask_has_the_numbers_that_the_host_draws() {
    in_every_order(|kernels| {
        for kind in KINDS {
            for (probability, size) in [(0.1, vec![3, 1000]), (0.5, vec![1]), (0.05, vec![2048, 2])] {
                let (key, first_idx) = (0x1234_5678_9abc_def0, (1 << 33) + 5);
                let (threshold, keep) =
                    ((2.0 * probability - 1.0) as f32, (1.0 / (1.0 - probability)) as f32);
                let out = Tensor::full(size.as_slice(), f64::NAN, (kind, Device::Cpu));
                DropoutMask { key, first_idx, threshold, keep }.launch(kernels, &out).unwrap();
                let number = |idx: u64| {
                    let unit = (splitmix64(key, first_idx + idx) >> 11) as f64 * (-53f64).exp2();
                    if ((2.0 * unit - 1.0) as f32) < threshold { 0.0 } else { keep }
                };
                let expected: Vec<f32> = (0..out.numel() as u64).map(number).collect();
                let expected = Tensor::from_slice(&expected).to_kind(kind);
                assert_eq!(out.view([-1]), expected, "{kind:?}, {probability}");
            }
        }
    });
}
