//! Sets the run-time path by which the trainer's binary and tests find libtorch. Nothing is compiled here.
//! A build script's link arguments reach only its own package, so this one repeats the rule of `rlt-torch`.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    // An image puts the libraries beside the binary; a checkout finds them where `make libtorch` left them.
    println!("cargo:rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    }
}
