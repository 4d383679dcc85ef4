//! Compiles csrc/ against libtorch: tensor code once, kernels once for each instruction set.

use std::env;
use std::path::PathBuf;

const AVX2: [&str; 2] = ["-mavx2", "-mfma"];
const AVX512: [&str; 7] =
    ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512"];
/// Compiler flags for AVX512-BF16, in addition to those for AVX-512.
const AVX512_BF16: [&str; 1] = ["-mavx512bf16"];
/// Compiler flags for AMX, in addition to those for AVX-512.
const AMX: [&str; 3] = ["-mavx512bf16", "-mamx-tile", "-mamx-bf16"];

fn build() -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(true).pic(true).std("c++17").define("_GLIBCXX_USE_CXX11_ABI", "1");
    build
}

fn kernels(isa: &str, flags: &[&str]) {
    let mut build = build();
    // Kernels are always optimised: a debug build that trains a hundred times slower is of no use. The
    // warning is about lanes that the compiler's own headers leave undefined on purpose.
    build
        .opt_level(3)
        .debug(false)
        .flag_if_supported("-Wno-maybe-uninitialized")
        .flag_if_supported("-Wno-psabi");
    for flag in flags {
        build.flag(flag);
    }
    build.file(format!("csrc/kernels/{isa}.cpp")).compile(&format!("rlt_kernels_{isa}"));
}

/// Watches the sources in csrc, except the kernels for GPUs, which this script does not compile.
fn watch_sources() {
    for entry in std::fs::read_dir("csrc").into_iter().flatten().flatten() {
        if entry.file_name() != "cuda" {
            println!("cargo:rerun-if-changed={}", entry.path().display());
        }
    }
}

fn main() {
    watch_sources();
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let Some(libtorch) = env::var_os("LIBTORCH").map(PathBuf::from) else {
        println!("cargo::error=LIBTORCH is not set; `make libtorch` prepares it");
        return;
    };
    let x86 = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");

    let mut tensors = build();
    // Low optimisation suffices here: the loops are in the kernels, and torch's headers already take long to
    // compile at this level.
    tensors.opt_level(1).debug(false).flag("-fopenmp").define("AT_PER_OPERATOR_HEADERS", None);
    for include in ["include", "include/torch/csrc/api/include"] {
        tensors.flag("-isystem").flag(libtorch.join(include).display().to_string());
    }
    // The folder that declares the few names of Gloo in c10d's header; libtorch does not include Gloo's
    // headers.
    tensors.include("csrc");
    // Compilers have supported these flags since 2020; with an older one the kernels are left out.
    let knows =
        |flags: &[&str]| x86 && flags.iter().all(|flag| build().is_flag_supported(flag).unwrap_or(false));
    let (has_avx512_bf16, has_amx) = (knows(&AVX512_BF16), knows(&AMX));
    if x86 {
        tensors.define("RLT_X86", None);
    }
    if has_avx512_bf16 {
        tensors.define("RLT_AVX512_BF16", None);
    }
    if has_amx {
        tensors.define("RLT_AMX", None);
    }
    tensors.file("csrc/tensors.cpp").compile("rlt_tensors");

    kernels("baseline", &[]);
    if x86 {
        kernels("avx2", &AVX2);
        kernels("avx512", &AVX512);
    }
    if has_avx512_bf16 {
        kernels("avx512_bf16", &[&AVX512[..], &AVX512_BF16[..]].concat());
    }
    if has_amx {
        kernels("amx", &[&AVX512[..], &AMX[..]].concat());
    }

    let lib = libtorch.join("lib");
    println!("cargo:rustc-link-search=native={}", lib.display());
    for library in ["torch_cpu", "c10", "gomp"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
}
