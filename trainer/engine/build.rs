//! Sets the run-time path by which tests find libtorch: a build script's link arguments reach only its own
//! package. Nothing is compiled here.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{libtorch}/lib");
    }
}
