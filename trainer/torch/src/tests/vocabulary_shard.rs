//! A vocabulary-sharded head against the head with the full weight.

use std::ops::Range;
use std::sync::{Barrier, Mutex};

use super::{on_every_isa, randn, relative_difference};
use crate::collectives::CollectiveError;
use crate::{
    HeadWeight, TokenDistribution, VocabularyShard, head_forward, head_forward_backward, sum_of_squares,
};
use tch::{Device, Kind, Tensor};

const NUM_TOKENS: usize = 17;
const HIDDEN: i64 = 24;

/// All-gather of statistics between ranks that are threads.
struct Exchange {
    sent: Mutex<Vec<Option<Tensor>>>,
    barrier: Barrier,
}

impl Exchange {
    fn gather(&self, place: usize, own: &Tensor) -> Result<Tensor, CollectiveError> {
        self.sent.lock().unwrap()[place] = Some(own.copy());
        self.barrier.wait();
        let all = {
            let sent = self.sent.lock().unwrap();
            Tensor::stack(&sent.iter().flatten().collect::<Vec<_>>(), 0)
        };
        self.barrier.wait();
        Ok(all)
    }
}

/// Runs `body` with each rank's rows of the weight, which rows these are, and its part of the vocabulary.
fn on_ranks<T: Send>(
    num_ranks: usize,
    weight: &Tensor,
    body: impl Fn(&Tensor, Range<usize>, VocabularyShard<'_>) -> T + Sync,
) -> Vec<T> {
    let exchange = Exchange {
        sent: Mutex::new((0..num_ranks).map(|_| None).collect()),
        barrier: Barrier::new(num_ranks),
    };
    let vocab_size = weight.size()[0] as usize;
    let longest = vocab_size.div_ceil(num_ranks);
    std::thread::scope(|scope| {
        let run = |place: usize| {
            let own = place * longest..((place + 1) * longest).min(vocab_size);
            let rows = weight.narrow(0, own.start as i64, own.len() as i64).copy();
            let (exchange, body) = (&exchange, &body);
            scope.spawn(move || {
                let gather = |statistics: &Tensor| exchange.gather(place, statistics);
                body(&rows, own.clone(), VocabularyShard { first: own.start, vocab_size, gather: &gather })
            })
        };
        let ranks: Vec<_> = (0..num_ranks).map(run).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn targets(vocab_size: usize) -> Vec<i64> {
    let target = |t: usize| if t % 5 == 3 { -1 } else { (t * 311 % vocab_size) as i64 };
    (0..NUM_TOKENS).map(target).collect()
}

#[test]
fn values_and_gradients_equal_those_of_the_full_head() {
    on_every_isa(|| {
        for (num_ranks, vocab_size, softcap, chunk) in
            [(2, 4200, None, 4), (3, 1000, None, 100), (4, 81, Some(5.0), 3)]
        {
            let by = TokenDistribution { temperature: 0.7, softcap };
            let hidden = randn(&[NUM_TOKENS as i64, HIDDEN], 1);
            let weight = randn(&[vocab_size as i64, HIDDEN], 2) * 0.4;
            let targets = targets(vocab_size);
            let slope = |t: usize| ((t as f32 * 0.7).sin(), if t.is_multiple_of(2) { 0.3 } else { 0.0 });
            let mut per_chunk = |tokens: Range<usize>, _: &[f32], _: &[f32]| tokens.map(slope).unzip();
            let mut grad_weight = weight.zeros_like();
            let (logprobs, entropies) = head_forward(&hidden, &weight, &targets, by, chunk).unwrap();
            let grad = head_forward_backward(
                &hidden,
                &weight,
                &targets,
                by,
                chunk,
                Some(&mut grad_weight),
                &mut per_chunk,
            )
            .unwrap();
            let ranks = on_ranks(num_ranks, &weight, |rows, own, shard| {
                let hidden = randn(&[NUM_TOKENS as i64, HIDDEN], 1);
                let weight = HeadWeight { weight_vd: rows, shard: Some(shard) };
                let values = head_forward(&hidden, weight, &targets, by, chunk).unwrap();
                let mut per_chunk = |tokens: Range<usize>, _: &[f32], _: &[f32]| tokens.map(slope).unzip();
                let mut grad_rows = rows.zeros_like();
                let grad = head_forward_backward(
                    &hidden,
                    weight,
                    &targets,
                    by,
                    chunk,
                    Some(&mut grad_rows),
                    &mut per_chunk,
                )
                .unwrap();
                (values, grad, grad_rows, own)
            });
            let mut sum = hidden.zeros_like();
            for (values, grad, grad_rows, own) in &ranks {
                assert_eq!(values, &ranks[0].0, "all ranks have the same bits");
                let close = |got: &[f32], expected: &[f32]| {
                    got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 2e-5)
                };
                assert!(close(&values.0, &logprobs) && close(&values.1, &entropies), "{vocab_size}");
                let expected = grad_weight.narrow(0, own.start as i64, own.len() as i64);
                assert!(relative_difference(grad_rows, &expected) < 1e-5, "{vocab_size}");
                sum += grad;
            }
            assert!(relative_difference(&sum, &grad) < 1e-5, "{vocab_size}");
        }
    });
}

#[test]
fn squared_probabilities_equal_those_of_all_logits() {
    let logits = randn(&[5, 90], 4) * 3.0;
    let expected = logits.softmax(-1, Kind::Float).square().sum_dim_intlist(-1, false, Kind::Float);
    for sums in on_ranks(3, &logits.tr().contiguous(), |rows, _, shard| {
        sum_of_squares(&rows.tr(), shard.gather).unwrap()
    }) {
        assert!(relative_difference(&sums, &expected) < 1e-5);
    }
    assert_eq!(expected.device(), Device::Cpu);
}

#[test]
fn a_target_beyond_the_vocabulary_of_all_ranks_is_refused() {
    let (hidden, weight) = (randn(&[1, HIDDEN], 1), randn(&[10, HIDDEN], 2));
    let gather = |own: &Tensor| Ok(Tensor::stack(&[own], 0));
    let shard = VocabularyShard { first: 10, vocab_size: 20, gather: &gather };
    let weight = HeadWeight { weight_vd: &weight, shard: Some(shard) };
    let error = head_forward(&hidden, weight, &[20], 1.0, 2).unwrap_err();
    assert!(error.to_string().contains("targets below the vocabulary's 20"), "{error}");
    assert!(head_forward(&hidden, weight, &[19], 1.0, 2).is_ok());
}
