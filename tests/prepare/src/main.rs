//! `rlt-prepare` makes what tests need and must not download or compile themselves: programs of clusters,
//! Python packages, the sandbox's Python and example, emulated devices and images. What is there already is
//! kept.

#![expect(clippy::print_stdout, reason = "it talks to people")]

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use rlt_devices::StandIn;
use rlt_tests::{PythonPackage, image_of_built_binary, python_module};

/// Name of a thing that is made, and what makes it.
type Task = (&'static str, fn() -> Result<(), Box<dyn Error>>);

const TASKS: [Task; 6] = [
    ("programs of clusters", programs),
    ("Python packages", python_packages),
    ("Python for the sandbox", sandbox_python),
    ("example for the sandbox", sandbox_example),
    ("emulated devices", emulated_devices),
    ("images", images),
];

const USAGE: &str = "\
Make what tests need and must not download or compile themselves. What is there already is kept.

Usage: rlt-prepare

It makes programs of clusters, Python packages, the sandbox's Python and example, emulated devices and images, and
prints how many seconds each took.

Exit codes:
   0 all of them are there
   1 one of them cannot be made
   2 an argument was given";

fn main() -> ExitCode {
    if let Some(argument) = std::env::args().nth(1) {
        println!("{USAGE}");
        let is_question = ["-h", "--help"].contains(&argument.as_str());
        return if is_question { ExitCode::SUCCESS } else { ExitCode::from(2) };
    }
    let mut is_whole = true;
    for (name, make) in TASKS {
        let started = Instant::now();
        match make() {
            Ok(()) => println!("prepare: {name}: {} s", started.elapsed().as_secs()),
            Err(error) => {
                println!("prepare: {name}: {error}");
                is_whole = false;
            }
        }
    }
    if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Programs that Go builds. A machine on which no cluster can run needs none: its tests skip.
fn programs() -> Result<(), Box<dyn Error>> {
    if let Some(reason) = rlt_cluster::Options::control_plane().unavailable() {
        println!("prepare: no cluster can run here: {reason}");
        return Ok(());
    }
    Ok(rlt_cluster::build_programs(|name| println!("prepare: building {name}"))?)
}

fn python_packages() -> Result<(), Box<dyn Error>> {
    for package in PythonPackage::ALL {
        package.installed()?;
    }
    Ok(())
}

fn sandbox_python() -> Result<(), Box<dyn Error>> {
    python_module().map(drop).ok_or_else(|| "cannot be fetched".into())
}

/// The example's reward as a module. Without Rust's library for WebAssembly there is none: its test skips.
fn sandbox_example() -> Result<(), Box<dyn Error>> {
    if rlt_tests::reward_module()?.is_none() {
        println!("prepare: no module is compiled here: `rustup target add wasm32-unknown-unknown`");
    }
    Ok(())
}

fn emulated_devices() -> Result<(), Box<dyn Error>> {
    StandIn::build()?;
    Ok(())
}

/// Images of the binaries under test, for clusters with a real node, and the image for GPUs.
fn images() -> Result<(), Box<dyn Error>> {
    match rlt_tests::cuda_image_lacks() {
        Some(reason) => println!("prepare: no image for GPUs is built: {reason}"),
        None => drop(image_of_built_binary("rlt-trainer-cuda")),
    }
    let node =
        rlt_cluster::Options::control_plane().with_real_node().with_tool("buildah").with_tool("debootstrap");
    if let Some(reason) = node.unavailable() {
        println!("prepare: no cluster with a node can run here: {reason}");
        return Ok(());
    }
    for name in ["rlt-operator", "rlt-trainer"] {
        image_of_built_binary(name);
    }
    Ok(())
}
