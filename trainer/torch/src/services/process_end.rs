//! Exit of the process without libtorch's static destructors. They take a tenth of a second of a core to free
//! memory that the kernel frees anyway.

use crate::ffi::rlt_skip_destructors;

/// Makes a normal exit of this process skip the exit handlers and static destructors that were registered so
/// far, which are those of the libraries that it was started with. The exit code is unchanged and output is
/// flushed. Handlers that are registered later still run, such as those of CUDA's libraries, which are loaded
/// on demand.
///
/// Destructors of Rust are not affected: values are dropped, or not, as before. Nothing is skipped if
/// `LD_PRELOAD` is set, because a preloaded library such as a profiler may write its results in a handler.
pub fn skip_destructors_at_exit() {
    if std::env::var_os("LD_PRELOAD").is_some() {
        return;
    }
    // SAFETY: registers a function of this library, and takes no pointer.
    unsafe { rlt_skip_destructors() }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::io::Write as _;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    unsafe extern "C" {
        safe fn atexit(handler: extern "C" fn()) -> c_int;
    }

    /// Environment variable with the folder in which the test process records which of its handlers ran.
    const FOLDER: &str = "RLT_TEST_EXIT_FOLDER";
    /// Number of bytes of output before the exit: more than a buffer holds, less than a pipe holds.
    const NUM_BYTES: usize = 50_000;
    const EXIT_CODE: i32 = 80;

    extern "C" fn note_earlier() {
        note("earlier");
    }

    extern "C" fn note_later() {
        note("later");
    }

    fn note(name: &str) {
        let folder = std::env::var_os(FOLDER).unwrap();
        std::fs::write(Path::new(&folder).join(name), "").unwrap();
    }

    /// Ends this process while standard output still buffers an incomplete line.
    fn end_process(skips: bool) {
        assert_eq!(atexit(note_earlier), 0);
        if skips {
            skip_destructors_at_exit();
        }
        assert_eq!(atexit(note_later), 0);
        std::io::stdout().write_all("x".repeat(NUM_BYTES).as_bytes()).unwrap();
        std::io::stdout().write_all(b"\nlast words").unwrap();
        std::process::exit(EXIT_CODE);
    }

    #[test]
    fn exit_code_and_output_remain_without_destructors() {
        if let Some(folder) = std::env::var_os(FOLDER) {
            return end_process(Path::new(&folder).ends_with("skips"));
        }
        let test = "services::process_end::tests::exit_code_and_output_remain_without_destructors";
        let parent = tempfile::tempdir().unwrap();
        // The C library of mathematical functions, which writes nothing.
        let preloaded = Some("libm.so.6");
        for (name, preloaded) in [("ends", None), ("skips", None), ("preloaded/skips", preloaded)] {
            let folder = parent.path().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args([test, "--exact", "--nocapture"]).env(FOLDER, &folder).env_remove("LD_PRELOAD");
            child.envs(preloaded.map(|library| ("LD_PRELOAD", library)));
            let output = child.output().unwrap();
            assert_eq!(output.status.code(), Some(EXIT_CODE), "{output:?}");
            let expected = format!("{}\nlast words", "x".repeat(NUM_BYTES));
            assert!(output.stdout.ends_with(expected.as_bytes()), "{} bytes", output.stdout.len());
            assert!(folder.join("later").exists());
            assert_eq!(folder.join("earlier").exists(), name != "skips", "{name}");
        }
    }
}
