//! End of the process. Static destructors of libtorch take a tenth of a second of a core, to free memory that
//! the kernel frees anyway.

use crate::ffi::rlt_skip_destructors;

/// Makes the process end, once it exits by itself, without the handlers and static destructors that were
/// registered so far: those of the libraries that it started with. Its exit code stays, output is flushed,
/// and what is registered later still runs, such as destructors of CUDA's libraries, which are loaded on
/// demand.
///
/// Destructors of Rust are not affected: values are dropped, or not, as before. Nothing is skipped with a
/// library in `LD_PRELOAD`, such as a profiler's, which may write its results in a handler.
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

    /// The variable by which the test process notes in this folder which of its handlers ran.
    const FOLDER: &str = "RLT_TEST_EXIT_FOLDER";
    /// Bytes of output before the end, which are more than a buffer and less than a pipe holds.
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

    /// Ends this process, with a line on standard output that is not complete and so still buffered.
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
        // The C library's functions for numbers, which write nothing.
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
