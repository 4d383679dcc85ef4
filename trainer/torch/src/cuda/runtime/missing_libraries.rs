//! The missing dependencies of a library: all of them, whereas the dynamic linker names only the first.

use std::collections::BTreeSet;
use std::env;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::driver::open;
use super::libraries::loaded_from;

/// Library of libtorch that every process has loaded; the CUDA library is in the same folder.
const NEIGHBOUR: &str = "libtorch_cpu.so";

/// Returns the missing direct and transitive dependencies of `file`, sorted. Empty if `file` itself is not
/// found, or is not a library.
pub(in crate::cuda) fn missing_for(file: &str) -> Vec<String> {
    let folders = searched();
    let mut search = Search { folders, seen: BTreeSet::new(), missing: BTreeSet::new() };
    if let Some(path) = search.find(file, &[]) {
        search.visit(&path);
    }
    search.missing.into_iter().collect()
}

/// Folders that are searched in addition to the system's own, which only the linker knows.
fn searched() -> Vec<PathBuf> {
    let neighbour = loaded_from(NEIGHBOUR).and_then(|path| Some(path.parent()?.to_owned()));
    let variable = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty()).chain(neighbour).collect()
}

struct Search {
    folders: Vec<PathBuf>,
    seen: BTreeSet<String>,
    missing: BTreeSet<String>,
}

impl Search {
    fn find(&self, name: &str, own: &[PathBuf]) -> Option<PathBuf> {
        self.folders.iter().chain(own).map(|folder| folder.join(name)).find(|path| path.exists())
    }

    /// Visits all dependencies of the library at `path`.
    fn visit(&mut self, path: &Path) {
        // For a file that cannot be read, the linker's message suffices.
        let Ok(dynamic) = Dynamic::of(path) else { return };
        let folders = dynamic.folders(path);
        for name in dynamic.needed {
            if !self.seen.insert(name.clone()) || loads(&name) {
                continue;
            }
            match self.find(&name, &folders) {
                Some(found) => self.visit(&found),
                None => {
                    self.missing.insert(name);
                }
            }
        }
    }
}

/// Whether the linker finds a library with all its dependencies.
fn loads(name: &str) -> bool {
    CString::new(name).is_ok_and(|name| open(&name).is_ok())
}

/// The dynamic section of an ELF file: its dependencies and search paths.
#[derive(Debug, Default, PartialEq)]
struct Dynamic {
    needed: Vec<String>,
    run_paths: Vec<String>,
}

impl Dynamic {
    const NEEDED: u64 = 1;
    const STRING_TABLE: u64 = 5;
    const RPATH: u64 = 15;
    const RUNPATH: u64 = 29;

    /// Reads the section of a little-endian ELF file for 64 bits, the only kind that CUDA has.
    fn of(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let segments = Segment::all(&file)?;
        let Some(dynamic) = segments.iter().find(|segment| segment.kind == Segment::DYNAMIC) else {
            return Ok(Self::default());
        };
        let bytes = read(&file, dynamic.offset, dynamic.size)?;
        let entries: Vec<(u64, u64)> =
            bytes.chunks_exact(16).map(|entry| (number(entry, 0, 8), number(entry, 8, 8))).collect();
        let address =
            entries.iter().find(|(tag, _)| *tag == Self::STRING_TABLE).map_or(0, |(_, value)| *value);
        let loaded = segments.iter().find(|segment| segment.holds(address));
        let table = loaded.map_or(address, |segment| segment.offset + (address - segment.address));
        let texts = |tags: &[u64]| -> io::Result<Vec<String>> {
            let of_tags = entries.iter().filter(|(tag, _)| tags.contains(tag));
            of_tags.map(|(_, value)| text(&file, table + value)).collect()
        };
        let run_paths = texts(&[Self::RPATH, Self::RUNPATH])?;
        let run_paths = run_paths.iter().flat_map(|paths| paths.split(':')).map(str::to_owned).collect();
        Ok(Self { needed: texts(&[Self::NEEDED])?, run_paths })
    }

    /// Folders in which the library at `path` looks for its dependencies.
    fn folders(&self, path: &Path) -> Vec<PathBuf> {
        let origin = path.parent().unwrap_or(Path::new(".")).display().to_string();
        let place =
            |path: &String| PathBuf::from(path.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin));
        self.run_paths.iter().map(place).collect()
    }
}

/// A segment of an ELF file, and the address at which it is loaded.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    size: u64,
}

impl Segment {
    const LOAD: u64 = 1;
    const DYNAMIC: u64 = 2;

    fn all(file: &File) -> io::Result<Vec<Self>> {
        const MAGIC: &[u8] = b"\x7fELF\x02\x01";
        let header = read(file, 0, 64)?;
        if !header.starts_with(MAGIC) {
            return Err(io::Error::other("no ELF file for 64 bits"));
        }
        let (offset, size, count) = (number(&header, 32, 8), number(&header, 54, 2), number(&header, 56, 2));
        (0..count).map(|idx| Ok(Self::parse(&read(file, offset + idx * size, 56)?))).collect()
    }

    fn parse(bytes: &[u8]) -> Self {
        let at = |offset| number(bytes, offset, 8);
        Self { kind: number(bytes, 0, 4), offset: at(8), address: at(16), size: at(32) }
    }

    fn holds(&self, address: u64) -> bool {
        self.kind == Self::LOAD && (self.address..self.address.saturating_add(self.size)).contains(&address)
    }
}

fn read(file: &File, offset: u64, size: u64) -> io::Result<Vec<u8>> {
    /// Largest number of bytes to read; no table of a library is larger.
    const MOST: u64 = 1 << 20;
    let mut bytes = vec![0; size.min(MOST) as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn number(bytes: &[u8], offset: usize, width: usize) -> u64 {
    let own = bytes.get(offset..offset + width).unwrap_or_default();
    own.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

/// Reads the text at `offset`, up to its NUL.
fn text(file: &File, offset: u64) -> io::Result<String> {
    let mut bytes = [0; 4096];
    let length = file.read_at(&mut bytes, offset)?;
    let text = bytes[..length].split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dependencies_of_a_library_are_read_from_its_file() {
        let libtorch = loaded_from(NEIGHBOUR).unwrap();
        let dynamic = Dynamic::of(&libtorch).unwrap();
        assert!(dynamic.needed.iter().any(|name| name == "libc10.so"), "{dynamic:?}");
        let folder = libtorch.parent().unwrap();
        assert!(dynamic.folders(&libtorch).iter().any(|path| path == folder), "$ORIGIN: {dynamic:?}");
        assert!(Dynamic::of(&std::env::current_exe().unwrap()).unwrap().needed.len() > 3);
        assert!(Dynamic::of(Path::new("/etc/passwd")).is_err());
    }

    #[test]
    fn a_loadable_library_and_a_missing_one_have_no_missing_dependencies() {
        assert_eq!(missing_for(NEIGHBOUR), [""; 0]);
        assert_eq!(missing_for("librlt-is-nowhere.so"), [""; 0]);
    }
}
