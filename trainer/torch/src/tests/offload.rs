//! Offloaded tensors are prefetched unchanged, under any order of operations.

use tch::{Device, Kind, Tensor};

use super::randn;
use crate::{Error, OffloadStorage};

/// Offloads tensors of all dtypes, overwrites one, and prefetches them in another order.
fn assert_comes_back(device: Device) {
    let folder = tempfile::tempdir().unwrap();
    let mut storage = OffloadStorage::new(folder.path(), device).unwrap();
    let on_device = |tensor: Tensor| tensor.to_device(device);
    let tensors = [
        on_device(randn(&[3, 5], 1)),
        on_device(randn(&[0], 1)),
        on_device(randn(&[1 << 18], 2).to_kind(Kind::BFloat16)),
        on_device(randn(&[7], 3)),
    ];
    let offloaded = tensors.each_ref().map(|tensor| storage.offload(tensor).unwrap());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    drop(storage);
    let replaced = on_device(randn(&[3, 5], 4));
    offloaded[0].write(&replaced).unwrap();
    let expected = [&replaced, &tensors[1], &tensors[2], &tensors[3]];
    // The next prefetch is in flight while this one completes.
    let mut coming = offloaded[3].prefetch_new().unwrap();
    for at in [2, 1, 0] {
        let fetched = coming.wait().unwrap();
        coming = offloaded[at].prefetch_new().unwrap();
        assert!(fetched.equal(expected[at + 1]), "tensor {}", at + 1);
    }
    let target = Tensor::zeros([3, 5], (Kind::Float, device));
    drop(offloaded[0].prefetch(&target).unwrap().wait().unwrap());
    assert!(target.equal(&replaced) && coming.wait().unwrap().equal(&replaced));
    for (offloaded, expected) in offloaded.iter().zip(expected) {
        assert!(offloaded.in_place().unwrap().equal(&expected.to_device(Device::Cpu)));
    }
}

#[test]
fn tensors_offloaded_to_a_file_are_prefetched_unchanged() {
    assert_comes_back(Device::Cpu);
}

#[test]
fn tensors_offloaded_to_pinned_memory_are_prefetched_unchanged() {
    if crate::load_cuda().unwrap() {
        return assert_comes_back(Device::Cuda(0));
    }
    rlt_skipped::skip_also_under_ci("copies to pinned memory need a GPU");
}

#[test]
fn a_tensor_of_another_size_or_with_gaps_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let offloaded =
        OffloadStorage::new(folder.path(), Device::Cpu).unwrap().offload(&randn(&[2, 3], 1)).unwrap();
    for other in [randn(&[3, 2], 1), randn(&[3, 2], 1).tr(), randn(&[2, 3], 1).to_kind(Kind::Double)] {
        assert!(matches!(offloaded.write(&other), Err(Error::Argument { .. })), "{other:?}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = OffloadStorage::new(&missing, Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("making an unlinked file in") && error.contains("missing"), "{error}");
}
