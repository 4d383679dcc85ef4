//! Collectives of a machine without NCCL, and with a GPU every operation between a rank and itself.

use tch::Device;

use super::*;
use crate::collectives::{Membership, Rendezvous, serve_store};

fn join(rendezvous: &Rendezvous) -> Result<NcclGroup, CollectiveError> {
    let member = rendezvous.member("gpus", &[0], 0);
    NcclGroup::join(rendezvous.store(), 3, Arc::new(member), 0)
}

fn alone() -> (Store, Rendezvous) {
    let store = serve_store(0, 3, 1).unwrap();
    let timeout = std::time::Duration::from_secs(20);
    let membership = Membership {
        host: "localhost".into(),
        port: store.port(),
        rank: 0,
        world_size: 1,
        attempt: 3,
        key: None,
        join_timeout: timeout,
        operation_timeout: timeout,
    };
    (store, Rendezvous::join(membership).unwrap())
}

#[test]
fn a_machine_without_nccl_says_so() {
    if crate::load_cuda().unwrap() {
        return;
    }
    let (_store, rendezvous) = alone();
    let error = join(&rendezvous).unwrap_err();
    let expected = "group gpus: NCCL cannot be loaded: libnccl.so.2: cannot open shared object file";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn every_operation_between_a_rank_and_itself_on_a_gpu() {
    if !crate::load_cuda().unwrap() {
        rlt_skipped::skip_also_under_ci("NCCL needs a GPU");
        return;
    }
    let (_store, rendezvous) = alone();
    let mut group = join(&rendezvous).unwrap();
    assert!(link::version().unwrap() >= 21800);
    for kind in [Kind::Float, Kind::BFloat16, Kind::Int64] {
        let numbers = Tensor::arange(12, (Kind::Int64, Device::Cuda(0))).to_kind(kind).view([6, 2]);
        let output = || numbers.zeros_like();
        let reduced = numbers.copy();
        group.all_reduce(&reduced, Reduction::Sum).unwrap().wait().unwrap();
        let (gathered, scattered, exchanged, sent) = (output(), output(), output(), numbers.copy());
        group.all_gather(&gathered, &numbers).unwrap().wait().unwrap();
        group.reduce_scatter(&scattered, &numbers).unwrap().wait().unwrap();
        group.all_to_all(&exchanged, &numbers, &[6], &[6]).unwrap().wait().unwrap();
        group.broadcast(&sent, 0).unwrap().wait().unwrap();
        for result in [reduced, gathered, scattered, exchanged, sent] {
            assert_eq!(result, numbers);
        }
    }
    group.barrier().unwrap();
    // Work enqueued before, during and after the collectives keeps its order, although no thread waits for
    // the GPU.
    let big = Tensor::ones([1 << 22], (Kind::Float, Device::Cuda(0))) * 2.0;
    let gathered = big.zeros_like();
    let pending = group.all_gather(&gathered, &big).unwrap();
    let meanwhile = big.sum(Kind::Float);
    pending.wait().unwrap();
    assert_eq!((gathered.sum(Kind::Float) + meanwhile).double_value(&[]), f64::from(1 << 24));
    assert_eq!(
        rendezvous.traffic(),
        crate::collectives::Traffic::default(),
        "nothing leaves a rank that is alone"
    );
}
