//! Tests with files of each kind, lengths at their limits, and paths that leave their folder.

use std::io::Cursor;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, mkfifoat};

use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn devices_pipes_sockets_and_folders_are_never_opened() {
    let folder = folder();
    let (pipe, socket, link) =
        (folder.path().join("pipe"), folder.path().join("socket"), folder.path().join("link"));
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    let _listener = UnixListener::bind(&socket).unwrap();
    symlink("/dev/zero", &link).unwrap();
    for (path, expected) in [
        (Path::new("/dev/zero"), "expected a regular file, found a device"),
        (link.as_path(), "expected a regular file, found a device"),
        // Opening a pipe for reading would wait for a writer.
        (pipe.as_path(), "expected a regular file, found a pipe"),
        (socket.as_path(), "expected a regular file, found a socket"),
        (folder.path(), "expected a regular file, found a folder"),
    ] {
        let error = open(path).unwrap_err();
        assert_eq!((error.to_string().as_str(), is_refusal(&error)), (expected, true), "{}", path.display());
        assert_eq!(read(path, 10).unwrap_err().to_string(), expected);
    }
    let missing = open(&folder.path().join("missing")).unwrap_err();
    assert_eq!((missing.kind(), is_refusal(&missing)), (io::ErrorKind::NotFound, false));
}

#[test]
fn a_file_is_read_up_to_its_bound_and_not_beyond() {
    let folder = folder();
    let path = folder.path().join("text");
    fs::write(&path, "12345").unwrap();
    assert_eq!(read(&path, 5).unwrap(), b"12345");
    assert_eq!(read_to_string(&path, 5).unwrap(), "12345");
    for error in [read(&path, 4).unwrap_err(), read_argument(&path, 4).unwrap_err()] {
        assert_eq!(error.to_string(), "expected at most 4 bytes, found more");
        assert!(is_refusal(&error));
    }
    // A sparse file; its length must be checked without reading it.
    File::create(&path).unwrap().set_len(1 << 33).unwrap();
    assert!(is_refusal(&read(&path, 1 << 20).unwrap_err()));
    fs::write(&path, [0xff]).unwrap();
    let error = read_to_string(&path, 5).unwrap_err();
    assert_eq!((error.kind(), is_refusal(&error)), (io::ErrorKind::InvalidData, false));
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_text_that_an_argument_names() {
    let folder = folder();
    let path = folder.path().join("job.yaml");
    for (content, text) in
        [("\u{feff}kind: a\r\n", "kind: a\r\n"), ("a\u{feff}b", "a\u{feff}b"), ("\u{feff}", "")]
    {
        fs::write(&path, content).unwrap();
        assert_eq!(read_argument(&path, 100).unwrap(), text);
    }
}

#[test]
fn a_file_without_a_stated_length_is_bounded_too() {
    // The kernel states a length of 0 for these files.
    assert_eq!(fs::metadata("/proc/self/status").unwrap().len(), 0);
    assert!(is_refusal(&read(Path::new("/proc/self/status"), 10).unwrap_err()));
    assert!(is_refusal(&read_argument(Path::new("/dev/zero"), 1000).unwrap_err()));
}

#[test]
fn lines_are_read_one_by_one_up_to_their_bound() {
    let mut stream = Cursor::new("one\n\ntwo\nthree");
    let lines: Vec<_> = std::iter::from_fn(|| Some(read_line(&mut stream, 5)))
        .map(Result::unwrap)
        .take_while(|line| !line.is_empty())
        .collect();
    assert_eq!(lines, ["one\n", "\n", "two\n", "three"]);
    assert!(is_refusal(&read_line(&mut Cursor::new("three\n"), 5).unwrap_err()));
    assert!(is_refusal(&read_line(&mut io::BufReader::new(io::repeat(0)), 1000).unwrap_err()));
    assert_eq!(read_rest(Cursor::new("123"), 3).unwrap(), "123");
    assert!(is_refusal(&read_rest(Cursor::new("1234"), 3).unwrap_err()));
}

#[test]
fn a_path_may_turn_and_follow_links_but_not_leave_the_folders() {
    let outer = folder();
    let (own, more, other) =
        (outer.path().join("own"), outer.path().join("more"), outer.path().join("ownmore"));
    for folder in [&own.join("inner"), &more, &other] {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("a"), "a").unwrap();
    }
    symlink(own.join("inner/a"), own.join("within")).unwrap();
    symlink(other.join("a"), own.join("without")).unwrap();
    symlink(&other, own.join("folder")).unwrap();
    symlink(&own, outer.path().join("alias")).unwrap();
    let leads = |path: &str, folders: &[&Path]| {
        let resolved = resolve_below(&outer.path().join(path), folders.iter().copied());
        resolved.map_err(|error| assert!(is_refusal(&error), "{error}")).is_ok()
    };
    for within in ["own/inner/a", "own/inner/../inner/a", "own/within", "alias/inner/a", "more/../own/within"]
    {
        assert!(leads(within, &[&own]), "{within}");
        assert!(leads(within, &[&outer.path().join("alias")]), "{within}");
    }
    for without in ["ownmore/a", "own/../more/a", "own/without", "own/folder/a", "more/a"] {
        assert!(!leads(without, &[&own]), "{without}");
        assert!(leads(without, &[&own, &more, &other]), "{without}");
    }
    assert!(!leads("own/inner/a", &[]) && !leads("own/inner/a", &[&outer.path().join("missing")]));
    let missing = resolve_below(&own.join("missing"), [own.as_path()]).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_disk_has_free_bytes_and_a_missing_folder_has_none() {
    let folder = folder();
    assert!(free_bytes(folder.path()).is_some_and(|bytes| bytes > 0));
    assert_eq!(free_bytes(&folder.path().join("missing")), None);
}

#[test]
fn a_folder_is_synced_also_the_present_one_and_a_missing_one_is_an_error() {
    let folder = folder();
    sync_folder(folder.path()).unwrap();
    sync_folder(Path::new("")).unwrap();
    let missing = sync_folder(&folder.path().join("missing")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
}
