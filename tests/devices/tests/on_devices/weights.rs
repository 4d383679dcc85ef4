//! Cost of a weight sync on a device: only digests are copied from the device, and with an adapter only the
//! digests of the adapter.

use std::path::Path;

use rlt_api::spec::LoraSpec;
use rlt_decoder::{Decoder, LoadOptions, LoraConfig, ModuleMatch};
use rlt_engine::{Engine, EngineOptions};
use tch::{Device, Kind};

use crate::asked::{Asked, asked_by};
use crate::process::on_device;

fn decoder(device: Device, lora: Option<&[&str]>) -> Decoder {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../trainer/tests/fixtures/models/qwen3");
    let numbers = if lora.is_some() { Kind::BFloat16 } else { Kind::Float };
    let options = LoadOptions { device, param_dtype: numbers, compute: numbers, trainable: lora.is_none() };
    let mut decoder = Decoder::load(&folder, &options).unwrap();
    if let Some(names) = lora {
        let targets = ModuleMatch::Names(names.iter().map(|name| (*name).to_owned()).collect());
        let config =
            LoraConfig { targets, ..LoraConfig::from_spec(&LoraSpec { rank: 2, ..LoraSpec::default() }) };
        decoder.attach_lora(&config, 1).unwrap();
    }
    decoder
}

/// Returns counts of the work that the second sync requests of the device, after the first sync and an update
/// of all trained weights.
fn asked_by_sync(decoder: &Decoder) -> Asked {
    let mut engine = Engine::new(EngineOptions::default());
    let before = engine.sync_weights(decoder, 0).unwrap();
    engine.sleep();
    for (_, weight) in decoder.trainable_parameters() {
        tch::no_grad(|| drop(weight.shallow_clone().f_add_scalar_(0.5).unwrap()));
    }
    let (after, asked) = asked_by(|| engine.sync_weights(decoder, 1).unwrap());
    assert_ne!(before, after);
    asked
}

#[test]
fn a_sync_sends_one_word_for_each_weight_and_no_weight() {
    on_device("weights::a_sync_sends_one_word_for_each_weight_and_no_weight", || {
        let device = Device::Cuda(0);
        let decoder = decoder(device, None);
        let asked = asked_by_sync(&decoder);
        assert_eq!((asked.host_to_device, asked.device_to_host, asked.waits), (0, 1, 1));
        assert_eq!(asked.bytes_device_to_host, 8 * decoder.named_parameters().len() as i64);
    });
}

#[test]
fn a_sync_of_an_adapter_reads_and_folds_what_it_touches() {
    on_device("weights::a_sync_of_an_adapter_reads_and_folds_what_it_touches", || {
        let device = Device::Cuda(0);
        let [few, many] = [["q_proj"].as_slice(), &["q_proj", "k_proj", "v_proj", "o_proj"]].map(|names| {
            let decoder = decoder(device, Some(names));
            let asked = asked_by_sync(&decoder);
            let num_trained = decoder.trainable_parameters().len() as i64;
            assert_eq!(asked.bytes_device_to_host, 8 * num_trained, "{names:?}: the adapter's digests");
            assert_eq!((asked.host_to_device, asked.device_to_host), (0, 1), "{names:?}");
            (asked.launches, num_trained / 2)
        });
        // Each projection with an adapter costs two digests and a merge, and all others cost nothing.
        assert_eq!(many.1, 4 * few.1);
        let folded = (many.0 - few.0) as f64 / (many.1 - few.1) as f64;
        assert!((2.0..=12.0).contains(&folded), "{folded} launches a projection");
    });
}
