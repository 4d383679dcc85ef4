//! Libraries of a machine on which two of NVIDIA's are missing, for tests of how errors name them.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{BuildError, failed, run};

/// Source of every library here.
const SOURCE: &str = "empty.c";

/// A library without code, and the libraries that it needs.
struct Library {
    file: &'static str,
    needs: &'static [&'static str],
    is_missing: bool,
}

/// Libraries in the order of linking: each follows those that it needs.
const LIBRARIES: [Library; 4] = [
    Library { file: "libcublas.so.13", needs: &[], is_missing: true },
    Library { file: "libcusparse.so.12", needs: &[], is_missing: true },
    Library { file: "libcusolver.so.12", needs: &["libcusparse.so.12"], is_missing: false },
    Library { file: "libtorch_cuda.so", needs: &["libcublas.so.13", "libcusolver.so.12"], is_missing: false },
];

/// Makes `folder` with the driver and a `libtorch_cuda.so`. That library needs one missing library itself,
/// and another one through an existing library.
pub(super) fn make(folder: &Path, driver: &Path) -> Result<(), BuildError> {
    fs::create_dir(folder).map_err(failed("making", folder))?;
    if let Some(name) = driver.file_name() {
        fs::copy(driver, folder.join(name)).map_err(failed("copying", driver))?;
    }
    let source = folder.join(SOURCE);
    fs::write(&source, "int rlt_nothing(void) { return 0; }\n").map_err(failed("writing", &source))?;
    for library in &LIBRARIES {
        link(library, folder)?;
    }
    let missing = LIBRARIES.iter().filter(|library| library.is_missing).map(|library| library.file);
    for file in missing.chain([SOURCE]) {
        let path = folder.join(file);
        fs::remove_file(&path).map_err(failed("removing", &path))?;
    }
    Ok(())
}

/// Links a library in `folder`.
fn link(library: &Library, folder: &Path) -> Result<(), BuildError> {
    let mut link = Command::new("cc");
    link.current_dir(folder);
    link.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", "-L."]);
    link.arg(format!("-Wl,-soname,{}", library.file));
    link.args(["-o", library.file, SOURCE]);
    link.args(library.needs.iter().map(|name| format!("-l:{name}")));
    run(&mut link)
}
