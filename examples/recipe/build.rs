//! Sets the run-time path by which the binary finds libtorch, as every binary with the trainer needs.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    // An image puts the libraries beside the binary; a checkout finds them where `make libtorch` left them.
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    }
}
