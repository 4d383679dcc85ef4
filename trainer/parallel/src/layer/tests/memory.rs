//! Peak memory of a layer forward and backward, as the allocator of an emulated device counts it. The test
//! starts itself again in a process that has such a device.

use std::env;
use std::process::Command;

use rlt_decoder::{Adapter, Decoder, LoadOptions, PackedInput, Weights};
use rlt_devices::StandIn;
use rlt_models::ModelConfig;
use tch::{Device, Tensor};

use super::dense;
use crate::RankError;
use crate::layer::style::{Exchange, ParallelStyle};
use crate::layer::{Boundary, LayerPass, Styles};

/// Environment variable that tells the test that its process has the emulated device.
const INSIDE: &str = "RLT_TEST_LAYER_MEMORY";
const DEVICE: Device = Device::Cuda(0);
const NUM_TOKENS: usize = 256;
/// Width of the feed-forward block, next to which all other widths are small.
const WIDTH: usize = 2048;

/// A style that cuts the graph at every boundary of a layer and exchanges nothing.
#[derive(Debug)]
struct CutsInPlace;

#[derive(Debug)]
struct NoExchange;

impl<'a> ParallelStyle<'a> for CutsInPlace {
    fn exchange(&self, at: Boundary) -> Option<Box<dyn Exchange + 'a>> {
        match at {
            Boundary::Embedding | Boundary::HeadInput => None,
            _ => Some(Box::new(NoExchange)),
        }
    }
}

impl Exchange for NoExchange {
    fn forward(&self, end: &Tensor) -> Result<Tensor, RankError> {
        Ok(end.detach())
    }

    fn backward(&self, grad: &Tensor) -> Result<Tensor, RankError> {
        Ok(grad.shallow_clone())
    }
}

fn decoder() -> Decoder {
    let mut config = dense();
    let sizes = [("hidden_size", 32), ("intermediate_size", WIDTH), ("head_dim", 16)];
    for (name, size) in sizes {
        config[name] = size.into();
    }
    let weights = Weights::random_init(&ModelConfig::from_json(&config).unwrap(), 7);
    let options = LoadOptions { device: DEVICE, trainable: true, ..LoadOptions::default() };
    Decoder::from_weights(&weights, &options).unwrap()
}

/// Returns the peak bytes of tensors during a forward and backward pass over the layer.
fn peak(decoder: &Decoder, styles: &Styles<'_>) -> u64 {
    let tokens: Vec<u32> = (0..NUM_TOKENS as u32).map(|at| at % 11).collect();
    let input = PackedInput::new(&[&tokens], DEVICE);
    let context = decoder.context(&input, Adapter::On);
    let input_td = decoder.embed(&input.tokens, Adapter::On).detach();
    let grad_td = &input_td * 0.5 + 0.1;
    let pass = || {
        let leaf_td = input_td.detach().set_requires_grad(true);
        let pass = LayerPass::run(&decoder.layers()[0], leaf_td, &context, styles).unwrap();
        drop(pass.backward(Some(&grad_td)).unwrap());
    };
    // The first pass allocates the gradients of weights, so that the measured pass does not.
    pass();
    rlt_torch::reset_peak_device_bytes(DEVICE).unwrap();
    pass();
    rlt_torch::peak_device_bytes(DEVICE).unwrap().unwrap()
}

fn run_again(name: &str) {
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.arg(format!("{module}::{name}")).args(["--exact", "--nocapture"]).env(INSIDE, "1");
    let output = command.envs(StandIn::build().unwrap().with_devices(1)).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn cuts_of_a_graph_keep_no_wide_tensor_longer_than_one_graph_does() {
    if env::var_os(INSIDE).is_none() {
        return run_again("cuts_of_a_graph_keep_no_wide_tensor_longer_than_one_graph_does");
    }
    rlt_torch::skip_destructors_at_exit();
    assert_eq!(rlt_torch::missing_cuda().unwrap(), None);
    let decoder = decoder();
    let one_graph = peak(&decoder, &Styles::default());
    let cut = peak(&decoder, &Styles::default().with(Some(CutsInPlace)));
    let wide = (4 * NUM_TOKENS * WIDTH) as u64;
    assert!(one_graph > 3 * wide, "{one_graph} bytes have no room for gate, up and their product");
    assert!(cut < one_graph + wide, "{cut} bytes at most, {one_graph} in one graph");
}
