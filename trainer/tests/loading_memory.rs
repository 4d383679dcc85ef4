//! A rank's memory while it loads its shard of a model, syncs the engine's weights, exports, and resumes; in
//! a separate process, because the peak counts everything in it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use rlt_decoder::{Decoder, Export, ExportOptions, LoadOptions, Weights};
use rlt_engine::{Engine, EngineOptions};
use rlt_models::{ModelConfig, TensorShape};
use rlt_parallel::{DecoderUnits, RankEnvironment, RankError, Ranks, ShardedParameters, WeightDtype};
use rlt_storage::checkpoint::{Checkpoint, CheckpointContent, CheckpointStore};
use rlt_torch::collectives::serve_store;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

/// The folder of the model of which this process loads its shard, and its rank.
const FOLDER: &str = "RLT_TEST_LOAD_A_PART_OF";

/// The measured operation: one of the following.
const ACT: &str = "RLT_TEST_MEASURED_ACT";
const LOADING: &str = "loading";
const TAKING_OVER: &str = "taking over";
const TAKING_A_SHARD: &str = "taking a slice";
const EXPORTING: &str = "exporting";
const RESUMING: &str = "resuming";

/// Allowance for exchange buffers of a few threads and heap fragmentation.
const SLACK: u64 = 4 << 20;

fn model(hidden: u32, feed_forward: u32, num_layers: u32, vocab: u32) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": hidden,
        "intermediate_size": feed_forward, "num_hidden_layers": num_layers, "num_attention_heads": 8,
        "num_key_value_heads": 8, "tie_word_embeddings": false
    })
}

/// Writes a model folder of zeros, as a sparse file that takes no space on the disk.
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

/// Path of the file into which a rank writes by how many bytes its peak has grown.
fn answer(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("peak-of-{rank}"))
}

/// Loads this rank's shard of the model in `folder`, or initializes it if there are no weights, runs the
/// measured operation, and reports.
fn measure(folder: &Path, act: &str) {
    let environment = RankEnvironment::of_process().unwrap().unwrap();
    let ranks = Ranks::join(&environment, Duration::from_secs(60)).unwrap();
    let mesh = Rc::new(ranks.on_mesh(environment.world_size).unwrap());
    rlt_torch::reuse_large_buffers();
    let begin = || {
        rlt_torch::reset_peak_rss().unwrap();
        rlt_torch::peak_own_bytes().unwrap()
    };
    let mut before = begin();
    let weights = if folder.join("model.safetensors").exists() {
        Weights::open(folder).unwrap()
    } else {
        Weights::random_init(&rlt_decoder::read_config(folder).unwrap(), 1)
    };
    let compute = if folder.join("half").exists() { Kind::BFloat16 } else { Kind::Float };
    let options = LoadOptions { trainable: true, compute, ..LoadOptions::default() };
    let decoder = Decoder::meta(weights.config(), &options).unwrap();
    let shards = ShardedParameters::new(&decoder, mesh, None).unwrap();
    shards.read(&weights).unwrap();
    let parts = DecoderUnits::new(&decoder, Some(&shards));
    let slices =
        ranks.rollout_tp_group(if act == TAKING_A_SHARD { environment.world_size } else { 1 }).unwrap();
    let mut engine = Engine::new(EngineOptions::default()).with_tp_group(slices);
    if act != LOADING {
        rlt_torch::release_free_memory();
        before = begin();
    }
    match act {
        TAKING_OVER | TAKING_A_SHARD => drop(engine.sync_weights(parts, 0).unwrap()),
        EXPORTING => export(&ranks, parts, &folder.join("export")),
        RESUMING => {
            let checkpoint = Checkpoint::open(&folder.join("checkpoints/step-000001")).unwrap();
            shards.load_shards(|tensor_run, local_shard| checkpoint.fill(tensor_run, local_shard)).unwrap();
        }
        _ => {}
    }
    let raised_by = rlt_torch::peak_own_bytes().unwrap() - before;
    fs::write(answer(folder, ranks.rank()), raised_by.to_string()).unwrap();
    ranks.all_reduce_max(0).unwrap();
}

fn export(ranks: &Ranks, parts: DecoderUnits<'_>, folder: &Path) {
    let options = ExportOptions { merge_lora: false, dtype: Kind::Float };
    let mut export = ranks.is_leader().then(|| Export::begin(parts.decoder(), folder, &options).unwrap());
    let visited = parts.visit(WeightDtype::Master, |unit| {
        export.iter_mut().for_each(|export| export.write(unit.layer_idx()).unwrap());
        Ok::<(), RankError>(())
    });
    visited.unwrap();
    export.into_iter().for_each(|export| export.finish().unwrap());
}

/// Returns by how many bytes the peak of each rank grows.
fn peaks(folder: &Path, dp_shard: usize, act: &str) -> Vec<u64> {
    let store = serve_store(0, 1, dp_shard).unwrap();
    let start = |rank| {
        let environment = RankEnvironment {
            rank,
            world_size: dp_shard,
            local_world_size: dp_shard,
            master_address: "localhost".into(),
            master_port: store.port(),
            attempt: 1,
            key: None,
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("a_rank_that_loads_its_shard").env(FOLDER, folder).env(ACT, act);
        command.envs(environment.variables(0));
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let ranks: Vec<_> = (0..dp_shard).map(start).collect();
    ranks.into_iter().for_each(|mut rank| assert!(rank.wait().unwrap().success()));
    (0..dp_shard).map(|rank| fs::read_to_string(answer(folder, rank)).unwrap().parse().unwrap()).collect()
}

#[test]
fn a_rank_that_loads_its_shard_never_has_more_than_that_and_two_layers() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return measure(folder.as_ref(), &std::env::var(ACT).unwrap());
    }
    let (stored, drawn) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (large, small) = (model(768, 2048, 4, 12288), model(384, 1024, 4, 2048));
    write_zeros(stored.path(), &large);
    fs::write(drawn.path().join("config.json"), small.to_string()).unwrap();
    for (dir, config, dp_shard) in [(&stored, &large, 2), (&stored, &large, 4), (&drawn, &small, 4)] {
        let count = ModelConfig::from_json(config).unwrap().parameter_count();
        let unit = 4 * count.total().div_ceil(dp_shard);
        let bound = unit + 2 * 4 * count.per_layer + SLACK;
        assert!(bound < 4 * count.total(), "a rank that has all of the model is found");
        for peak in peaks(dir.path(), dp_shard as usize, LOADING) {
            assert!((unit..=bound).contains(&peak), "{peak} bytes for a part of {unit}, at most {bound}");
        }
    }
}

/// No rank ever holds the full model, except as the packed weights of its engine.
#[test]
fn an_engine_and_an_export_read_a_sharded_model_with_at_most_two_units_unsharded() {
    let (full, half) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = model(768, 2048, 8, 12288);
    let count = ModelConfig::from_json(&config).unwrap().parameter_count();
    let outer = count.embedding + count.final_norm + count.head;
    let two_parts = 4 * (count.per_layer + outer.max(count.per_layer));
    let mut whole_peaks = Vec::new();
    for (dir, width) in [(&full, 4), (&half, 2)] {
        write_zeros(dir.path(), &config);
        if width == 2 {
            fs::write(dir.path().join("half"), "").unwrap();
        }
        // The engine holds packed layers, a packed head and embeddings. It also holds one layer that is fused
        // before it is packed, or one head that is cast.
        let own = width * (count.total() + count.per_layer.max(count.head));
        // Whether a layer is gathered before or after the last one is freed is a race, and either of two
        // layers may leave a hole in the heap that no later allocation fits: peaks are 0, 1 or 2 layers
        // apart.
        let bound = own + two_parts + 2 * 4 * count.per_layer + SLACK;
        assert!(bound < own + 4 * count.total(), "a rank that has all of the model is found");
        for peak in peaks(dir.path(), 2, TAKING_OVER) {
            assert!((width * count.total() / 2..=bound).contains(&peak), "{peak} bytes, at most {bound}");
            whole_peaks.push(peak);
        }
    }
    // The shard has half of every layer and of the head, but all embeddings.
    let half = 4 * (count.per_layer * count.num_layers + count.head) / 2;
    for (whole, slice) in whole_peaks.into_iter().zip(peaks(full.path(), 2, TAKING_A_SHARD)) {
        let saved = whole.saturating_sub(slice) + 4 * count.per_layer;
        assert!(
            saved >= half,
            "{slice} bytes instead of {whole}: expected {half} fewer, but for a hole of a layer"
        );
    }
    // The leader converts one tensor at a time to bytes.
    let bound = two_parts + 2 * 4 * count.head + SLACK;
    assert!(bound < 4 * count.total(), "a rank that has all of the model is found");
    for peak in peaks(full.path(), 2, EXPORTING) {
        assert!((4 * count.per_layer..=bound).contains(&peak), "{peak} bytes, at most {bound}");
    }
}

#[test]
fn a_rank_that_resumes_reads_its_shard_of_a_checkpoint_into_the_memory_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let config = model(384, 1024, 4, 2048);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let tensors = ModelConfig::from_json(&config).unwrap().tensors().into_iter().map(|tensor| {
        let shape: Vec<i64> = tensor.shape.iter().map(|len| *len as i64).collect();
        (tensor.name, Tensor::zeros(&shape, (Kind::Float, Device::Cpu)))
    });
    let content = CheckpointContent { tensors: tensors.collect(), state: json!({}) };
    CheckpointStore::open(&dir.path().join("checkpoints"), 1).unwrap().save(1, &content).unwrap();
    let unit = 4 * ModelConfig::from_json(&config).unwrap().parameter_count().total() / 4;
    // The checkpoint store holds one chunk for verification and two for reading.
    let bound = SLACK + (3 << 20);
    assert!(bound < unit, "a rank that reads into memory of its own is found");
    for peak in peaks(dir.path(), 4, RESUMING) {
        assert!(peak <= bound, "{peak} bytes more than the part of {unit}");
    }
}
