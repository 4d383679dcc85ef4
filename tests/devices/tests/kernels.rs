//! Our kernels, streams, graphs and the driver's bindings on stand-in devices, each test in a process of its
//! own.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rlt_devices::StandIn;
use rlt_torch::Activation;
use rlt_torch::cuda::{Event, Graph, Kernels, RmsNormResidual, Stream, SwiGlu};
use tch::{Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);
/// Set in the process in which a test's body runs.
const INSIDE: &str = "RLT_DEVICES_TEST_INSIDE";

/// Runs this test again in a process with emulated devices.
fn again(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).envs(StandIn::build().unwrap().env()).env(INSIDE, "1");
    command.envs(variables.iter().copied()).output().unwrap()
}

/// Runs `body` in a process with emulated devices.
fn on_device(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        assert!(rlt_torch::load_cuda().unwrap(), "the stand-in is found");
        return body();
    }
    let output = again(test, variables);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("1 passed"), "{}", text(&output.stdout));
}

fn random(seed: i64) -> Tensor {
    tch::manual_seed(seed);
    Tensor::randn([3, 64], (Kind::Float, Device::Cpu))
}

fn pinned(like: &Tensor) -> Tensor {
    Tensor::zeros_like(like).to_device(Device::Cpu).pin_memory(GPU)
}

/// `norm(swiglu(gate_up) + residual)` on the device, as two launches of ours.
struct Work {
    gate_up: Tensor,
    middle: Tensor,
    residual: Tensor,
    weight: Tensor,
    out: Tensor,
}

impl Work {
    fn new() -> Self {
        let zeros = || Tensor::zeros([3, 32], (Kind::Float, GPU));
        let weight = Tensor::ones([32], (Kind::Float, GPU));
        let (middle, residual, out) = (zeros(), zeros(), zeros());
        Self { gate_up: random(1).to_device(GPU), middle, residual, weight, out }
    }

    fn launch(&self, kernels: &Kernels) -> Result<(), rlt_torch::Error> {
        let activation = Activation::Silu;
        SwiGlu { gate_up: &self.gate_up, activation, out: &self.middle }.launch(kernels)?;
        let (residual, weight, out) = (&self.residual, &self.weight, &self.out);
        RmsNormResidual { x: Some(&self.middle), residual, weight, eps: 1e-6, offset: 0.0, out }
            .launch(kernels)
    }

    fn expected(gate_up: &Tensor, residual: &Tensor) -> Tensor {
        let sum = rlt_torch::gated_activation_packed(gate_up, Activation::Silu) + residual;
        rlt_torch::rms_norm(&sum, &Tensor::ones([32], (Kind::Float, Device::Cpu)), 1e-6, 0.0)
    }
}

fn assert_near(got: &Tensor, expected: &Tensor) {
    let difference = (got.to_device(Device::Cpu) - expected).abs().max().double_value(&[]);
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn a_graph_repeats_what_was_launched_with_new_numbers() {
    on_device("a_graph_repeats_what_was_launched_with_new_numbers", &[], || {
        let kernels = Kernels::load(0).unwrap();
        let work = Work::new();
        work.launch(&kernels).unwrap();
        assert_near(&work.out, &Work::expected(&random(1), &random(1).narrow(1, 0, 32).zeros_like()));
        let stream = Stream::from_pool(0).unwrap();
        let graph = {
            let _scope = stream.enter().unwrap();
            Graph::capture(&stream, || work.launch(&kernels)).unwrap()
        };
        for seed in 2..5 {
            let mut residual = work.residual.shallow_clone();
            residual.copy_(&random(seed + 10).narrow(1, 0, 32));
            let mut gate_up = work.gate_up.shallow_clone();
            gate_up.copy_(&random(seed));
            graph.launch(&stream).unwrap();
            stream.synchronize().unwrap();
            assert_near(&work.out, &Work::expected(&random(seed), &random(seed + 10).narrow(1, 0, 32)));
        }
    });
}

#[test]
fn copies_kernels_and_calls_happen_in_the_streams_order() {
    on_device("copies_kernels_and_calls_happen_in_the_streams_order", &[], || {
        let kernels = Kernels::load(0).unwrap();
        let stream = Stream::from_pool(0).unwrap();
        let _scope = stream.enter().unwrap();
        let work = Work::new();
        let mut from = pinned(&random(7));
        from.copy_(&random(7));
        let into = pinned(&work.out);
        let calls = Arc::new(AtomicUsize::new(0));
        let done = Event::new(0).unwrap();
        stream.copy_to_device(&work.gate_up, &from).unwrap();
        work.launch(&kernels).unwrap();
        stream.copy_to_host(&into, &work.out).unwrap();
        let (seen, counted) = (into.shallow_clone(), Arc::clone(&calls));
        // The copy was queued before the call, so it is complete when the call runs.
        let copied = move || seen.abs().max().double_value(&[]) > 0.0;
        stream
            .call(move || {
                let _ = counted.fetch_add(if copied() { 1 } else { 100 }, Ordering::SeqCst);
            })
            .unwrap();
        done.record(&stream).unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 0, "no wait yet");
        done.synchronize().unwrap();
        assert!(done.has_happened().unwrap());
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_near(&into, &Work::expected(&random(7), &random(7).narrow(1, 0, 32).zeros_like()));
    });
}

#[test]
fn a_copy_that_a_stream_cannot_do_is_refused() {
    on_device("a_copy_that_a_stream_cannot_do_is_refused", &[], || {
        let stream = Stream::current(0).unwrap();
        let work = Work::new();
        let short = pinned(&random(1).narrow(0, 0, 2));
        let error = stream.copy_to_device(&work.gate_up, &short).unwrap_err().to_string();
        assert!(error.contains("dense tensors of one kind and size") && error.contains("[2, 64]"), "{error}");
        assert!(stream.copy_to_host(&work.out, &work.middle).is_err(), "both on the device");
    });
}

#[test]
fn an_architecture_that_is_not_built_is_named_with_those_that_are() {
    let variables = [("RLT_STAND_IN_ARCH", "75")];
    on_device("an_architecture_that_is_not_built_is_named_with_those_that_are", &variables, || {
        let error = Kernels::load(0).unwrap_err().to_string();
        assert!(error.contains("compute capability 7.5"), "{error}");
        assert!(error.contains("built for sm_80, sm_90, sm_100, compute_100 (PTX)"), "{error}");
    });
}

#[test]
fn missing_kernels_are_named_with_where_they_were_looked_for() {
    let variables = [("RLT_KERNELS", "/nowhere/rlt-kernels.fatbin")];
    on_device("missing_kernels_are_named_with_where_they_were_looked_for", &variables, || {
        let error = Kernels::load(0).unwrap_err().to_string();
        assert!(error.contains("/nowhere/rlt-kernels.fatbin") && error.contains("make kernels"), "{error}");
    });
}

#[test]
fn an_error_of_the_driver_carries_its_name() {
    let variables = [("RLT_STAND_IN_FAILURE", "30:719")];
    on_device("an_error_of_the_driver_carries_its_name", &variables, || {
        let failure = (|| {
            let kernels = Kernels::load(0)?;
            let work = Work::new();
            (0..40).try_for_each(|_| work.launch(&kernels))?;
            Stream::current(0)?.synchronize()
        })();
        let error = failure.unwrap_err().to_string();
        assert!(error.contains("CUDA_ERROR_LAUNCH_FAILED"), "{error}");
    });
}
