//! Tells the linker where the binary finds libtorch at run time, as every binary with the trainer in it does.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    // An image puts the libraries beside the binary; a checkout finds them where `make libtorch` left them.
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    }
}
