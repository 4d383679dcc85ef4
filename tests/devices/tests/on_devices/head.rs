//! The vocabulary head on a device whose weight rows are sharded over tensor-parallel ranks.

use std::cell::RefCell;
use std::ops::Range;

use rlt_torch::collectives::CollectiveError;
use rlt_torch::{DeviceHead, HeadWeight, HostCallbacks, VocabularyShard};
use tch::{Device, Kind, Tensor};

use crate::asked::asked_by;
use crate::process::on_device;

const GPU: Device = Device::Cuda(0);
const VOCABULARY: usize = 50;
/// Tokens of each rank.
const SHARDS: [Range<usize>; 2] = [0..20, 20..VOCABULARY];

fn numbers(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.to_kind(Kind::Float).contiguous().view([-1])).unwrap()
}

fn assert_near(got: &Tensor, expected: &Tensor) {
    assert_eq!(got.size(), expected.size());
    for (got, expected) in numbers(got).iter().zip(numbers(expected)) {
        assert!((got - expected).abs() < 1e-5, "{got} {expected}");
    }
}

/// Builds the head of hidden states and predicted tokens, in chunks of four tokens.
fn head<'a>((hidden_cd, targets_c): (&'a Tensor, &'a Tensor), weight: HeadWeight<'a>) -> DeviceHead<'a> {
    DeviceHead { hidden_cd, weight, targets_c, temperature: 0.7, chunk: 4 }
}

/// Computes log-probs and entropies, and the gradients of hidden states and weight.
fn computed(head: DeviceHead<'_>) -> [Tensor; 3] {
    let grad_weight = head.weight.weight_vd.zeros_like();
    let mut calls = HostCallbacks::new();
    let grad_hidden = head.forward_backward(Some(grad_weight.shallow_clone()), &mut calls, |_| {
        Box::new(|_, [by_logprob, by_entropy]| {
            by_logprob.fill(0.5);
            by_entropy.fill(-0.2);
        })
    });
    calls.wait().unwrap();
    [head.forward().unwrap(), grad_hidden.unwrap(), grad_weight]
}

#[test]
fn a_sharded_head_has_the_values_of_the_full_head() {
    on_device("head::a_sharded_head_has_the_values_of_the_full_head", || {
        tch::manual_seed(3);
        let random = |size: [i64; 2]| (Tensor::randn(size, (Kind::Float, Device::Cpu)) * 0.8).to_device(GPU);
        let (hidden, weight) = (random([9, 16]), random([VOCABULARY as i64, 16]));
        let targets = Tensor::from_slice(&[0_i64, 19, 20, 49, 7, 33, 25, 1, 48]).to_device(GPU);
        let full = computed(head((&hidden, &targets), HeadWeight::from(&weight)));

        let rows = SHARDS.map(|own| weight.narrow(0, own.start as i64, own.len() as i64).copy());
        let of_rank = |rank: usize, gather: &dyn Fn(&Tensor) -> Result<Tensor, CollectiveError>| {
            let shard = VocabularyShard { first: SHARDS[rank].start, vocab_size: VOCABULARY, gather };
            let weight = HeadWeight { weight_vd: &rows[rank], shard: Some(shard) };
            computed(head((&hidden, &targets), weight))
        };
        // A rank's statistics depend only on its own logits, so one process can run the ranks in turn.
        let sent = [0, 1].map(|rank| {
            let sent = RefCell::new(Vec::new());
            let _ = of_rank(rank, &|own| {
                sent.borrow_mut().push(own.copy());
                Ok(Tensor::stack(&[own, own], 0))
            });
            sent.into_inner()
        });
        let (ranks, asked) = asked_by(|| {
            [0, 1].map(|rank| {
                let next = RefCell::new(0..sent[0].len());
                of_rank(rank, &|_| {
                    let chunk = next.borrow_mut().next().unwrap();
                    Ok(Tensor::stack(&[&sent[0][chunk], &sent[1][chunk]], 0))
                })
            })
        });
        // One copy for the loss of each chunk, and none for statistics.
        assert_eq!(asked.device_to_host, 2 * 3, "{asked:?}");
        let [one, other] = &ranks;
        assert_eq!(numbers(&one[0]), numbers(&other[0]), "both ranks have the same bits");
        assert_near(&one[0], &full[0]);
        assert_near(&(&one[1] + &other[1]), &full[1]);
        assert_near(&Tensor::cat(&[&one[2], &other[2]], 0), &full[2]);
    });
}
