//! Generates the messages and the service from `proto/channel.proto`, without a `protoc` on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["channel.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
