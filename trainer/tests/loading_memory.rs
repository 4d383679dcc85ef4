//! A rank's memory while it loads its part of a model, in a process of its own: the peak counts everything that runs beside it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use rlt_api::plan::model_config::{ModelConfig, TensorShape};
use rlt_torch::collectives::serve_store;
use rlt_trainer::model::{Decoder, LoadOptions, Weights};
use rlt_trainer::parallel::{RankEnvironment, Ranks, ShardedParameters};
use serde_json::{Value, json};

/// The folder of the model that this process is to load its part of, and what makes it one of many.
const FOLDER: &str = "RLT_TEST_LOAD_A_PART_OF";

/// What the exchange buffers of a few threads and a heap in use may take besides.
const SLACK: u64 = 4 << 20;

fn model(hidden: u32, feed_forward: u32, num_layers: u32, vocab: u32) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": feed_forward, "num_hidden_layers": num_layers, "num_attention_heads": 8,
        "num_key_value_heads": 8, "tie_word_embeddings": false
    })
}

/// A model folder of zeros, which take no room on the disk.
fn write_zeros(dir: &Path, config: &Value) {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for TensorShape { name, shape } in ModelConfig::from_json(config).unwrap().tensors() {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}));
    }
    let header = Value::Object(header).to_string();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let path = dir.join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_len((8 + header.len() + end) as u64).unwrap();
}

/// Where a rank writes by how many bytes it has raised its peak.
fn answer(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("peak-of-{rank}"))
}

/// Loads this rank's part of the model in `folder`, or draws it where there are no weights, and answers.
fn load(folder: &Path) {
    let environment = RankEnvironment::of_process().unwrap().unwrap();
    let ranks = Ranks::join(&environment, Duration::from_secs(60)).unwrap();
    let mesh = Rc::new(ranks.on_mesh(environment.world_size).unwrap());
    rlt_torch::reuse_large_buffers();
    rlt_torch::reset_peak_rss().unwrap();
    let before = rlt_torch::peak_own_bytes().unwrap();
    let weights = if folder.join("model.safetensors").exists() {
        Weights::open(folder).unwrap()
    } else {
        Weights::fresh(&rlt_trainer::model::read_config(folder).unwrap(), 1)
    };
    let decoder =
        Decoder::outline(weights.config(), &LoadOptions { trainable: true, ..LoadOptions::default() });
    let shards = ShardedParameters::new(&decoder.unwrap(), mesh, None).unwrap();
    shards.read(&weights).unwrap();
    let raised_by = rlt_torch::peak_own_bytes().unwrap() - before;
    fs::write(answer(folder, ranks.rank()), raised_by.to_string()).unwrap();
    ranks.max(0).unwrap();
}

/// By how many bytes each of so many ranks has raised its peak.
fn peaks(folder: &Path, dp_shard: usize) -> Vec<u64> {
    let store = serve_store(0, 1, dp_shard).unwrap();
    let start = |rank| {
        let environment = RankEnvironment {
            rank,
            world_size: dp_shard,
            local_world_size: dp_shard,
            master_address: "localhost".into(),
            master_port: store.port(),
            attempt: 1,
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("a_rank_that_loads_its_part").env(FOLDER, folder).envs(environment.variables(0));
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let ranks: Vec<_> = (0..dp_shard).map(start).collect();
    ranks.into_iter().for_each(|mut rank| assert!(rank.wait().unwrap().success()));
    (0..dp_shard).map(|rank| fs::read_to_string(answer(folder, rank)).unwrap().parse().unwrap()).collect()
}

#[test]
fn a_rank_that_loads_its_part_never_has_more_than_that_and_two_layers() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return load(folder.as_ref());
    }
    let (stored, drawn) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (large, small) = (model(768, 2048, 4, 12288), model(384, 1024, 4, 2048));
    write_zeros(stored.path(), &large);
    fs::write(drawn.path().join("config.json"), small.to_string()).unwrap();
    for (dir, config, dp_shard) in [(&stored, &large, 2), (&stored, &large, 4), (&drawn, &small, 4)] {
        let count = ModelConfig::from_json(config).unwrap().parameter_count();
        let part = 4 * count.total().div_ceil(dp_shard);
        let bound = part + 2 * 4 * count.per_layer + SLACK;
        assert!(bound < 4 * count.total(), "a rank that has all of the model is found");
        for peak in peaks(dir.path(), dp_shard as usize) {
            assert!((part..=bound).contains(&peak), "{peak} bytes for a part of {part}, at most {bound}");
        }
    }
}
