//! Our own kernels on a device, launched as the product launches them: in the order of their stream, recorded
//! in graphs, and refused where they were not built for the device.

use rlt_devices::driver::counts;
use rlt_torch::cuda::{Graph, Kernels, Stream, SwiGlu};
use rlt_torch::{Activation, gated_activation_packed};
use tch::{Device, Kind, Tensor};

use crate::process::{on_device, on_devices};

const GPU: Device = Device::Cuda(0);

/// Gates and values on the CPU.
fn random() -> Tensor {
    tch::manual_seed(3);
    Tensor::randn([5, 48], (Kind::Float, Device::Cpu))
}

fn launch(gate_up: &Tensor, out: &Tensor) -> Result<(), rlt_torch::Error> {
    SwiGlu { gate_up, activation: Activation::Silu, out }.launch(&Kernels::load(0)?)
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor) {
    let off = (found.to_device(Device::Cpu) - expected).abs().max().double_value(&[]);
    assert!(off < 1e-5, "off by {off}");
}

#[test]
fn a_kernel_computes_in_the_order_of_its_stream_and_again_in_a_graph() {
    on_device("kernels::a_kernel_computes_in_the_order_of_its_stream_and_again_in_a_graph", || {
        let host = random();
        let _scope = Stream::from_pool(0).unwrap().enter().unwrap();
        let stream = Stream::current(0).unwrap();
        let (gate_up, out) = (host.to_device(GPU), Tensor::zeros([5, 24], (Kind::Float, GPU)));
        let before = counts().unwrap();
        launch(&gate_up, &out).unwrap();
        // libtorch's next operator reads the kernel's result, and the next kernel reads what libtorch has
        // written.
        let doubled = &out * 2.0;
        let _ = gate_up.shallow_clone().neg_();
        launch(&gate_up, &out).unwrap();
        let after = counts().unwrap();
        assert_eq!((after.launches - before.launches, after.waits - before.waits), (4, 0));
        let expected = |x: &Tensor| gated_activation_packed(x, Activation::Silu);
        assert_close(&doubled, &(expected(&host) * 2.0));
        assert_close(&out, &expected(&host.neg()));
        let graph = Graph::capture(&stream, || launch(&gate_up, &out)).unwrap();
        gate_up.shallow_clone().copy_(&(&host * 0.5));
        graph.launch(&stream).unwrap();
        assert_close(&out, &expected(&(&host * 0.5)));
    });
}

#[test]
fn kernels_for_other_architectures_are_refused_with_the_list() {
    let name = "kernels::kernels_for_other_architectures_are_refused_with_the_list";
    on_devices(name, 1, &[("RLT_STAND_IN_ARCH", "75")], || {
        drop(Tensor::zeros([1], (Kind::Float, GPU)));
        let said = Kernels::load(0).unwrap_err().to_string();
        assert!(said.contains("compute capability 7.5") && said.contains("sm_80"), "{said}");
    });
}
