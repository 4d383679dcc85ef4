//! The emulated device itself: it must refuse, and expose, errors that fail on a GPU.

use std::ffi::c_int;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rlt_devices::driver::{counts, function};
use rlt_torch::cuda::driver::{Attribute, Driver};
use rlt_torch::cuda::{Event, Graph, Stream};
use tch::{Device, Kind, Tensor};

use crate::process::{again, is_inside, on_device, on_devices, text, variables};

const GPU: Device = Device::Cuda(0);

fn numbers(values: &[f32]) -> Tensor {
    Tensor::from_slice(values)
}

fn pinned(tensor: &Tensor) -> Tensor {
    tensor.pin_memory(GPU)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

#[test]
fn a_read_of_device_memory_by_the_host_is_a_fault() {
    let name = "device::a_read_of_device_memory_by_the_host_is_a_fault";
    if is_inside(name) {
        assert!(rlt_torch::load_cuda().unwrap());
        let tensor = numbers(&[1.0]).to_device(GPU);
        // SAFETY: it is not: the fault is what the test is about.
        let read = unsafe { tensor.data_ptr().cast::<f32>().read_volatile() };
        panic!("the host has read {read}");
    }
    let output = again(name, &variables(1, &[])).output().unwrap();
    assert_eq!(output.status.signal(), Some(11), "{}", text(&output));
}

#[test]
fn tensors_of_two_devices_do_not_meet_in_one_operator() {
    on_devices("device::tensors_of_two_devices_do_not_meet_in_one_operator", 2, &[], || {
        let [host, one, other] =
            [Device::Cpu, GPU, Device::Cuda(1)].map(|d| numbers(&[1.0, 2.0]).to_device(d));
        for (a, b) in [(&one, &host), (&one, &other)] {
            let error = a.f_add(b).unwrap_err().to_string();
            assert!(error.contains("Expected all tensors to be on the same device"), "{error}");
        }
        assert_eq!(values(&(&one + &other.to_device(GPU))), [2.0, 4.0]);
        // A scalar tensor on the host may be an operand, as in libtorch.
        assert_eq!(values(&(&one + Tensor::from(0.5_f32))), [1.5, 2.5]);
    });
}

#[test]
fn a_device_copy_is_visible_only_after_a_wait() {
    on_device("device::a_device_copy_is_visible_only_after_a_wait", || {
        let stream = Stream::current(0).unwrap();
        let (on_device, host) = (numbers(&[1.0, 2.0]).to_device(GPU), pinned(&numbers(&[0.0, 0.0])));
        let copied = Event::new(0).unwrap();
        stream.copy_to_host(&host, &on_device).unwrap();
        copied.record(&stream).unwrap();
        assert_eq!(values(&host), [0.0, 0.0], "no wait yet");
        copied.synchronize().unwrap();
        assert_eq!(values(&host), [1.0, 2.0]);
        // In the other direction, a value that the host writes before the copy runs is copied.
        stream.copy_to_device(&on_device, &host).unwrap();
        let _ = host.shallow_clone().fill_(7.0);
        assert_eq!(values(&on_device), [7.0, 7.0]);
    });
}

#[test]
fn streams_are_ordered_by_events_alone() {
    on_device("device::streams_are_ordered_by_events_alone", || {
        let (one, other) = (Stream::from_pool(0).unwrap(), Stream::from_pool(0).unwrap());
        let (on_device, filled) = (Tensor::zeros([2], (Kind::Float, GPU)), Event::new(0).unwrap());
        let (source, first, second) =
            (numbers(&[3.0, 4.0]), pinned(&numbers(&[0.0; 2])), pinned(&numbers(&[0.0; 2])));
        let source = pinned(&source);
        one.copy_to_device(&on_device, &source).unwrap();
        filled.record(&one).unwrap();
        other.copy_to_host(&first, &on_device).unwrap();
        other.wait_for(&filled).unwrap();
        other.copy_to_host(&second, &on_device).unwrap();
        other.synchronize().unwrap();
        assert_eq!((values(&first), values(&second)), (vec![0.0, 0.0], vec![3.0, 4.0]));
    });
}

#[test]
fn the_host_is_called_in_the_order_of_the_stream_and_may_not_call_the_driver() {
    on_device("device::the_host_is_called_in_the_order_of_the_stream_and_may_not_call_the_driver", || {
        let stream = Stream::current(0).unwrap();
        let (host, seen) = (pinned(&numbers(&[0.0])), Arc::new(AtomicU32::new(0)));
        let on_device = numbers(&[5.0]).to_device(GPU);
        stream.copy_to_host(&host, &on_device).unwrap();
        let (address, result) = (host.data_ptr() as usize, Arc::clone(&seen));
        stream
            .call(move || {
                // SAFETY: pinned memory, which lives until the stream is done, holding one number.
                let read = unsafe { (address as *const f32).read_volatile() };
                type Version = unsafe extern "C" fn(*mut std::ffi::c_void) -> c_int;
                // SAFETY: the function's type; no context is made current by the call, which is refused.
                let refused =
                    unsafe { function::<Version>(c"cuCtxSetCurrent").unwrap()(std::ptr::null_mut()) };
                result.store(read as u32 + if refused == 800 { 100 } else { 0 }, Ordering::SeqCst);
            })
            .unwrap();
        assert_eq!(seen.load(Ordering::SeqCst), 0);
        stream.synchronize().unwrap();
        assert_eq!(seen.load(Ordering::SeqCst), 105);
    });
}

#[test]
fn a_graph_does_again_what_was_recorded_and_counts_once() {
    on_device("device::a_graph_does_again_what_was_recorded_and_counts_once", || {
        let stream = Stream::from_pool(0).unwrap();
        let scope = stream.enter().unwrap();
        let (a, b) = (numbers(&[1.0, 2.0]).to_device(GPU), numbers(&[10.0, 20.0]).to_device(GPU));
        let sum = Tensor::zeros([2], (Kind::Float, GPU));
        let stream = Stream::current(0).unwrap();
        let graph = Graph::capture(&stream, || {
            let _ = a.f_add_out(&sum, &b).map(drop);
            let _ = a.shallow_clone().f_mul_(&b).map(drop);
            Ok::<(), rlt_torch::Error>(())
        })
        .unwrap();
        assert_eq!(values(&sum), [0.0, 0.0], "nothing is done while it is recorded");
        let before = counts().unwrap();
        graph.launch(&stream).unwrap();
        graph.launch(&stream).unwrap();
        let after = counts().unwrap();
        assert_eq!((after.graph_launches - before.graph_launches, after.launches - before.launches), (2, 0));
        assert_eq!(
            values(&sum),
            [20.0, 60.0],
            "1 * 10 + 10 and 2 * 20 + 20, as the second launch finds them"
        );
        drop(scope);
    });
}

#[test]
fn a_capture_refuses_memory_and_waiting() {
    on_device("device::a_capture_refuses_memory_and_waiting", || {
        let stream = Stream::from_pool(0).unwrap();
        let _scope = stream.enter().unwrap();
        let stream = Stream::current(0).unwrap();
        let one = numbers(&[1.0]).to_device(GPU);
        type Work<'a> = &'a dyn Fn() -> Result<(), tch::TchError>;
        let refused = |work: Work| {
            let mut said = String::new();
            let captured = Graph::capture(&stream, || {
                said = work().unwrap_err().to_string();
                Ok::<(), rlt_torch::Error>(())
            });
            (said, captured.is_ok())
        };
        let (square, beside) = (one.view([1, 1]), Stream::from_pool(0).unwrap());
        let (product, grown) = (square.zeros_like(), one.zeros_like());
        let works: [(&str, Work); 9] = [
            ("a new tensor", &|| one.f_add(&one).map(drop)),
            ("a tensor of another stream", &|| {
                let _beside = beside.enter().unwrap();
                Tensor::f_empty([1], (Kind::Float, GPU)).map(drop)
            }),
            ("a copy to the host", &|| one.f_to_device(Device::Cpu).map(drop)),
            ("a number that is read", &|| one.f_double_value(&[0]).map(drop)),
            ("memory that grows", &|| grown.shallow_clone().f_resize_([2]).map(drop)),
            ("pinned memory", &|| Tensor::from_slice(&[1.0_f32]).f_pin_memory(GPU).map(drop)),
            ("scratch memory", &|| one.f_cumsum_out(&one.shallow_clone(), 0, Kind::Float).map(drop)),
            ("a result of a size that is known later", &|| {
                one.f_masked_select_out(&one.shallow_clone(), &one).map(drop)
            }),
            ("the first product of a stream", &|| square.f_mm_out(&product, &square).map(drop)),
        ];
        for (name, work) in works {
            let (said, was_captured) = refused(work);
            assert!(said.contains("operation not permitted when stream is capturing"), "{name}: {said}");
            assert!(!was_captured, "{name} makes the capture invalid");
        }
        let _ = square.f_mm_out(&product, &square).unwrap();
        let captured = Graph::capture(&stream, || {
            let _ = square.f_mm_out(&product, &square).expect("cuBLAS has its workspace");
            Ok::<(), rlt_torch::Error>(())
        });
        assert!(captured.is_ok(), "cuBLAS has its workspace");
        // The stream still works after the refused captures.
        assert_eq!(values(&(&one + &one)), [2.0]);
    });
}

/// A query or a wait ends the capture of the thread that makes it, whichever stream it is about.
#[test]
fn a_capture_refuses_queries_and_waits() {
    type Act<'a> = &'a dyn Fn() -> Result<(), rlt_torch::Error>;
    on_device("device::a_capture_refuses_queries_and_waits", || {
        let [stream, other] = [0; 2].map(|device| Stream::from_pool(device).unwrap());
        let event = Event::new(0).unwrap();
        event.record(&other).unwrap();
        let acts: [(&str, Act<'_>); 4] = [
            ("the query of an event", &|| event.has_happened().map(drop)),
            ("a wait for an event", &|| event.synchronize()),
            ("a wait for another stream", &|| other.synchronize()),
            ("a wait for the captured stream", &|| stream.synchronize()),
        ];
        for (name, act) in acts {
            let mut refusal = None;
            let captured = Graph::capture(&stream, || {
                refusal = act().err().map(|error| error.to_string());
                Ok::<(), rlt_torch::Error>(())
            });
            let refusal = refusal.unwrap_or_else(|| panic!("{name} is not refused"));
            assert!(
                refusal.contains("operation not permitted when stream is capturing"),
                "{name}: {refusal}"
            );
            assert!(captured.is_err(), "{name} makes the capture invalid");
        }
        event.synchronize().unwrap();
        assert!(event.has_happened().unwrap(), "outside of captures all of them work");
        stream.synchronize().unwrap();
    });
}

#[test]
fn memory_ends_where_the_device_is_configured_to_end() {
    let name = "device::memory_ends_where_the_device_is_configured_to_end";
    on_devices(name, 1, &[("RLT_STAND_IN_MEMORY", "8388608"), ("RLT_STAND_IN_TAKEN", "1048576")], || {
        let options = (Kind::Float, GPU);
        let kept = Tensor::zeros([1 << 20], options);
        let error = Tensor::f_zeros([1 << 20], options).unwrap_err().to_string();
        let said = "CUDA out of memory. Tried to allocate 4.00 MiB. GPU 0 has a total capacity of 8.00 MiB of which 3.00 \
                    MiB is free";
        assert!(error.contains(said), "{error}");
        drop(kept);
        drop(Tensor::zeros([1 << 20], options));
        assert_eq!(rlt_torch::peak_device_bytes(GPU).unwrap(), Some(4 << 20));
        assert_eq!(rlt_torch::peak_reserved_device_bytes(GPU).unwrap(), Some(4 << 20));
        assert_eq!(counts().unwrap().peak_bytes, [4 << 20]);
    });
}

#[test]
fn freed_memory_is_reused_unless_its_use_on_another_stream_was_recorded() {
    on_device("device::freed_memory_is_reused_unless_its_use_on_another_stream_was_recorded", || {
        let source = || numbers(&[1.0, 2.0, 3.0, 4.0]).to_device(GPU);
        let (beside, host) = (Stream::from_pool(0).unwrap(), pinned(&numbers(&[0.0; 4])));
        let tensor = source();
        beside.copy_to_host(&host, &tensor).unwrap();
        drop(tensor);
        let next = Tensor::zeros([4], (Kind::Float, GPU));
        beside.synchronize().unwrap();
        assert_eq!(values(&host), [0.0; 4], "it reads what another tensor has written there");
        drop(next);
        // Offloading a tensor records its use, so that its memory is not reused too early.
        let folder = tempfile::tempdir().unwrap();
        let offloaded =
            rlt_torch::OffloadStorage::new(folder.path(), GPU).unwrap().offload(&source()).unwrap();
        let _next = Tensor::zeros([4], (Kind::Float, GPU));
        assert_eq!(values(&offloaded.prefetch_new().unwrap().wait().unwrap()), [1.0, 2.0, 3.0, 4.0]);
    });
}

#[test]
fn freed_memory_is_kept_for_its_own_stream_until_the_cache_is_emptied() {
    on_device("device::freed_memory_is_kept_for_its_own_stream_until_the_cache_is_emptied", || {
        const BYTES: u64 = 4 << 20;
        let tensor = || Tensor::zeros([BYTES as i64], (Kind::Uint8, GPU));
        let free = || rlt_torch::device_memory(GPU).unwrap().unwrap().free_bytes;
        let peaks = || {
            let allocated = rlt_torch::peak_device_bytes(GPU).unwrap().unwrap();
            (allocated, rlt_torch::peak_reserved_device_bytes(GPU).unwrap().unwrap())
        };
        let before = free();
        drop(tensor());
        drop(tensor());
        assert_eq!((before - free(), peaks()), (BYTES, (BYTES, BYTES)), "reused");
        let scope = Stream::from_pool(0).unwrap().enter().unwrap();
        drop(tensor());
        assert_eq!((before - free(), peaks()), (2 * BYTES, (BYTES, 2 * BYTES)), "another stream");
        // Two halves are split from a cached block, and merge again once both are free.
        let half = || Tensor::zeros([BYTES as i64 / 2], (Kind::Uint8, GPU));
        drop((half(), half()));
        drop(tensor());
        assert_eq!(before - free(), 2 * BYTES);
        drop(scope);
        assert_eq!(counts().unwrap().peak_bytes, [BYTES]);
        assert_eq!(counts().unwrap().peak_reserved_bytes, [2 * BYTES]);
        rlt_torch::release_free_memory();
        assert_eq!(free(), before);
    });
}

#[test]
fn an_operator_without_a_deterministic_implementation_is_refused_where_one_is_asked_for() {
    let name = "device::an_operator_without_a_deterministic_implementation_is_refused_where_one_is_asked_for";
    on_device(name, || {
        let (one, whole) =
            (numbers(&[1.0, 2.0]).to_device(GPU), Tensor::from_slice(&[1_i64, 2]).to_device(GPU));
        assert_eq!(values(&one.cumsum(0, Kind::Float)), [1.0, 3.0]);
        rlt_torch::set_deterministic(true).unwrap();
        let error = one.f_cumsum(0, Kind::Float).unwrap_err().to_string();
        assert!(error.contains("aten::cumsum does not have a deterministic implementation"), "{error}");
        assert!(one.f_histc(2).is_err() && one.f_kthvalue(1, 0, false).is_err());
        assert!(whole.f_cumsum(0, Kind::Int64).is_ok(), "sums of integers have one order");
        assert!(one.view([1, 2]).f_mm(&one.view([2, 1])).is_ok(), "cuBLAS is configured");
    });
}

/// libtorch reads cuBLAS's workspace at the first product of a process and keeps the answer.
#[test]
fn determinism_is_refused_if_it_is_asked_for_after_the_first_product() {
    on_device("device::determinism_is_refused_if_it_is_asked_for_after_the_first_product", || {
        let one = numbers(&[1.0, 2.0]).to_device(GPU);
        let product = || one.view([1, 2]).f_mm(&one.view([2, 1]));
        assert!(product().is_ok());
        rlt_torch::set_deterministic(true).unwrap();
        let error = product().unwrap_err().to_string();
        assert!(error.contains("CUBLAS_WORKSPACE_CONFIG"), "{error}");
    });
}

#[test]
fn copies_launches_and_waits_are_counted_exactly() {
    on_device("device::copies_launches_and_waits_are_counted_exactly", || {
        let host = numbers(&[1.0; 6]);
        let before = counts().unwrap();
        let on_device = host.to_device(GPU);
        let sum = (&on_device * 2.0).sum(Kind::Float);
        assert_eq!(sum.double_value(&[]), 12.0);
        let _ = on_device.to_device(Device::Cpu);
        let _ = on_device.copy();
        let after = counts().unwrap();
        assert_eq!(after.host_to_device - before.host_to_device, 1);
        assert_eq!(after.bytes_host_to_device - before.bytes_host_to_device, 24);
        assert_eq!(after.device_to_host - before.device_to_host, 2);
        assert_eq!(after.bytes_device_to_host - before.bytes_device_to_host, 4 + 24);
        assert_eq!(
            (after.launches - before.launches, after.device_to_device - before.device_to_device),
            (3, 1)
        );
        assert_eq!(after.waits - before.waits, 3);
    });
}

/// Kernels split their work by this number, which is an H100's by default.
#[test]
fn a_device_has_132_multiprocessors_unless_it_is_told_otherwise() {
    const VARIABLE: &str = "RLT_STAND_IN_MULTIPROCESSORS";
    for given in [None, Some("7")] {
        let others: Vec<(&str, &str)> = given.iter().map(|number| (VARIABLE, *number)).collect();
        let name = "device::a_device_has_132_multiprocessors_unless_it_is_told_otherwise";
        on_devices(name, 1, &others, || {
            let expected = std::env::var(VARIABLE).map_or(132, |number| number.parse().unwrap());
            let got = Driver::get().unwrap().attribute(0, Attribute::MultiprocessorCount).unwrap();
            assert_eq!(got, expected);
        });
    }
}

#[test]
fn a_device_that_fails_says_so_at_every_later_call() {
    let name = "device::a_device_that_fails_says_so_at_every_later_call";
    on_devices(name, 1, &[("RLT_STAND_IN_FAILURE", "3:214")], || {
        let one = Tensor::zeros([1], (Kind::Float, GPU));
        let mut said = String::new();
        for _ in 0..4 {
            said = one.f_add(&one).err().map(|error| error.to_string()).unwrap_or_default();
        }
        assert!(said.contains("CUDA error: uncorrectable ECC error encountered"), "{said}");
        assert!(Stream::current(0).unwrap().synchronize().unwrap_err().to_string().contains("ECC"));
    });
}

#[test]
fn an_old_driver_has_no_devices() {
    let name = "device::an_old_driver_has_no_devices";
    if is_inside(name) {
        assert!(rlt_torch::missing_cuda().unwrap().is_some());
        assert_eq!(tch::Cuda::device_count(), 0);
        return;
    }
    let output = again(name, &variables(1, &[("RLT_STAND_IN_DRIVER", "12040")])).output().unwrap();
    assert!(output.status.success() && text(&output).contains("too old"), "{}", text(&output));
}
