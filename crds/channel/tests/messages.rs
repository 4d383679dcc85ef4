//! The committed messages are those of the proto file. A build compiles no generator.

use std::fs;
use std::path::Path;

use rlt_channel::limits;

/// The first line of the file: its other comments are those of the proto file.
const HEADER: &str = "//! Messages and service of `proto/channel.proto`, written by `make generate`.\n\n";

#[test]
fn the_committed_messages_are_those_of_the_proto_file() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let files = protox::compile(["channel.proto"], [package.join("proto")]).unwrap();
    tonic_prost_build::configure().out_dir(folder.path()).compile_fds(files).unwrap();
    let generated = fs::read_to_string(folder.path().join("rltraining.channel.v1alpha1.rs")).unwrap();
    let generated = format!("{HEADER}{generated}");

    let path = package.join("src/messages.rs");
    if std::env::var_os("UPDATE_CHANNEL").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let present = fs::read_to_string(&path).unwrap_or_default();
    assert!(present == generated, "crds/channel/src/messages.rs is old: run `make generate`");
}

/// Other languages read the proto file alone.
#[test]
fn the_proto_file_states_the_limits_that_the_operator_enforces() {
    let proto =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/channel.proto")).unwrap();
    let words: Vec<&str> = proto.split_whitespace().filter(|word| *word != "//").collect();
    let text = words.join(" ");
    for (what, limit) in [
        ("All complete checkpoints of the run that still exist, oldest first", limits::MAX_CHECKPOINTS),
        ("The commits at which models from the hub were read", limits::MAX_COMMITS),
        ("Warnings of a training that goes on", limits::MAX_MESSAGE_BYTES),
        ("The error with its causes", limits::MAX_MESSAGE_BYTES),
    ] {
        assert!(text.contains(&format!("{what}, at most {limit}")), "{what}: {limit}");
    }
}
