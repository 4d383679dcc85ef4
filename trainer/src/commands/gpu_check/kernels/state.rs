//! Cases of the kernels between two decoding steps, which change some words of the batch's state. Their time
//! is the latency of a launch.

use rlt_torch::cuda::{Advance, ApplyUpdates, Kernels, MarkSeen};
use tch::{Kind, Tensor};

use super::super::shapes::on_device;
use super::super::{Failure, Report};
use super::{Case, Cost, GPU, wide};

pub(super) fn check(kernels: &Kernels, report: &mut Report<'_>) -> Result<(), Failure> {
    changes(kernels, on_device([1 << 18, 2048], [1000, 30])).report(report)?;
    advance(kernels, on_device([256, 256], [5, 3])).report(report)?;
    seen_tokens(kernels, on_device([64, 512, 151_936], [3, 9, 160])).report(report)
}

/// Creates the case of `apply_changes`: words at equal distances of the state get a value each.
fn changes(kernels: &Kernels, [words, count]: [i64; 2]) -> Case<'_> {
    let distance = words / count;
    let pairs = (0..count).flat_map(|idx| [(idx * distance) as i32, (idx + 1) as i32]);
    let pairs: Vec<i32> = std::iter::once(count as i32).chain(pairs).collect();
    let changes = Tensor::from_slice(&pairs).to_device(GPU);
    let state = Tensor::zeros([words], (Kind::Int, GPU));
    let index = Tensor::arange(count, (Kind::Int64, GPU)) * distance;
    let values = Tensor::arange_start(1, count + 1, (Kind::Int, GPU));
    let truth = wide(&state).index_copy_(0, &index, &wide(&values));
    let (peer, result) = (state.copy(), state.shallow_clone());
    Case {
        kernel: "apply_changes",
        shape: vec![words, count],
        cost: Cost::Bytes(12 * count),
        launch: Box::new(move || Ok(ApplyUpdates { changes: &changes, state: &state }.launch(kernels)?)),
        result: Box::new(move || result.copy()),
        truth,
        libtorch: Some(Box::new(move || drop(peer.shallow_clone().index_copy_(0, &index, &values)))),
    }
}

/// Creates the case of `advance`: each row has the next blocks of the cache, and one token more than the row
/// before.
fn advance(kernels: &Kernels, [rows, max_blocks]: [i64; 2]) -> Case<'_> {
    const BLOCK_SIZE: i64 = 16;
    let per_row = || Tensor::arange(rows, (Kind::Int, GPU));
    let block_tables = Tensor::arange(rows * max_blocks, (Kind::Int, GPU)).view([rows, max_blocks]);
    let (drawn, positions, context_lens) = (per_row() * 31, per_row(), per_row() + 1);
    let [tokens, slots, steps] = [0; 3].map(|_| Tensor::zeros([rows], (Kind::Int, GPU)));
    let next_slots = per_row() * (max_blocks * BLOCK_SIZE) + &context_lens;
    let next = [&drawn, &(&positions + 1), &next_slots, &(&context_lens + 1), &(&steps + 1)];
    let truth = wide(&Tensor::cat(&next, 0));
    let results = [&tokens, &positions, &slots, &context_lens, &steps].map(Tensor::shallow_clone);
    let [drawn_peer, tables_peer, positions_peer, lens_peer, steps_peer] =
        [&drawn, &block_tables, &positions, &context_lens, &steps].map(Tensor::copy);
    Case {
        kernel: "advance",
        shape: vec![rows, max_blocks],
        cost: Cost::Bytes(4 * 11 * rows),
        launch: Box::new(move || {
            let launch = Advance {
                drawn: &drawn,
                block_tables: &block_tables,
                block_size: BLOCK_SIZE as usize,
                tokens: &tokens,
                positions: &positions,
                slots: &slots,
                context_lens: &context_lens,
                steps: &steps,
            };
            Ok(launch.launch(kernels)?)
        }),
        result: Box::new(move || Tensor::cat(&results, 0)),
        truth,
        libtorch: Some(Box::new(move || {
            let blocks = lens_peer.divide_scalar_mode(BLOCK_SIZE, "floor").to_kind(Kind::Int64);
            let first = tables_peer.gather(1, &blocks.unsqueeze(1), false).squeeze_dim(1) * BLOCK_SIZE;
            let slots = first + lens_peer.remainder(BLOCK_SIZE);
            drop((drawn_peer.copy(), slots, &positions_peer + 1, &lens_peer + 1, &steps_peer + 1));
        })),
    }
}

/// Creates the case of `mark_seen`: the prompts of a batch with a repetition penalty.
fn seen_tokens(kernels: &Kernels, [rows, prompt_len, vocabulary]: [i64; 3]) -> Case<'_> {
    let words = (vocabulary + 31) / 32;
    let token = |at: i64| at * 7919 % vocabulary;
    let mut bits = vec![0_i32; (rows * words) as usize];
    let (mut tokens, mut rows_of_tokens) = (Vec::new(), Vec::new());
    for (row, at) in (0..rows).flat_map(|row| (0..prompt_len).map(move |at| (row, at + row))) {
        let token = token(at);
        bits[(row * words + token / 32) as usize] |= 1 << (token % 32);
        tokens.push(token as i32);
        rows_of_tokens.push(row as i32);
    }
    let on_gpu = |values: &[i32]| Tensor::from_slice(values).to_device(GPU);
    let (tokens, rows_of_tokens) = (on_gpu(&tokens), on_gpu(&rows_of_tokens));
    let seen = Tensor::zeros([rows, words], (Kind::Int, GPU));
    let peer = Tensor::zeros([rows, vocabulary], (Kind::Bool, GPU));
    let index = [&rows_of_tokens, &tokens].map(|index| Some(index.to_kind(Kind::Int64)));
    let (is_seen, result) = (Tensor::ones([1], (Kind::Bool, GPU)), seen.shallow_clone());
    Case {
        kernel: "mark_seen",
        shape: vec![rows, prompt_len, vocabulary],
        cost: Cost::Bytes(16 * rows * prompt_len),
        launch: Box::new(move || {
            Ok(MarkSeen { tokens: &tokens, rows: &rows_of_tokens, seen_tokens: &seen }.launch(kernels)?)
        }),
        result: Box::new(move || result.copy()),
        truth: wide(&on_gpu(&bits).view([rows, words])),
        libtorch: Some(Box::new(move || drop(peer.shallow_clone().index_put_(&index, &is_seen, false)))),
    }
}
