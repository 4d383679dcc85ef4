//! An append-only file of records. It never contains a part of a record, and is never replaced by a shorter
//! file.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::TrackingError;

/// Maximum size of the records that wait while the disk is full, in bytes.
const MAX_PENDING_BYTES: usize = 1 << 20;
/// Number of bytes that are read at a time from the end of a file.
const BLOCK_BYTES: u64 = 1 << 16;
/// Prefix of the names of incomplete files, which `rlt-trainer` removes.
const UNFINISHED: &str = ".new-";

/// An append-only file of complete records.
pub(super) struct AppendFile {
    path: PathBuf,
    file: File,
    len: u64,
    /// Complete records that the disk has refused so far.
    pending: Vec<u8>,
}

impl AppendFile {
    /// Opens `path` at its end; creates the file if it does not exist.
    #[cfg(test)]
    pub(super) fn open(path: &Path) -> Result<Self, TrackingError> {
        Self::open_at(path, None).map_err(TrackingError::file("open", path))
    }

    /// Opens `path` truncated to `end` bytes, which needs no free space on the disk.
    pub(super) fn open_cut(path: &Path, end: u64) -> Result<Self, TrackingError> {
        Self::open_at(path, Some(end)).map_err(TrackingError::file("cut", path))
    }

    fn open_at(path: &Path, end: Option<u64>) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        if let Some(end) = end.filter(|end| file.metadata().is_ok_and(|metadata| *end < metadata.len())) {
            file.set_len(end)?;
        }
        let len = file.seek(SeekFrom::End(0))?;
        Ok(Self { path: path.to_path_buf(), file, len, pending: Vec::new() })
    }

    /// Opens `path` with exactly the records that `write` appends. A file that begins with them is truncated
    /// in place. Any other file is replaced atomically, and stays unchanged if that fails.
    pub(super) fn restore(
        path: &Path,
        mut write: impl FnMut(&mut dyn RecordSink) -> Result<(), TrackingError>,
    ) -> Result<Self, TrackingError> {
        let mut present = Present::open(path).map_err(TrackingError::file("read", path))?;
        write(&mut present)?;
        if !present.differs {
            return Self::open_cut(path, present.len);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let beside = path.with_file_name(format!("{UNFINISHED}{name}"));
        let written = Self::write_beside(&beside, path, &mut write);
        if written.is_err() {
            // The error that matters is the one above.
            let _ = std::fs::remove_file(&beside);
        }
        written
    }

    fn write_beside(
        beside: &Path,
        path: &Path,
        write: &mut dyn FnMut(&mut dyn RecordSink) -> Result<(), TrackingError>,
    ) -> Result<Self, TrackingError> {
        let mut file = Self::open_cut(beside, 0)?;
        write(&mut file)?;
        file.sync()?;
        std::fs::rename(beside, path).map_err(TrackingError::file("replace", path))?;
        let folder = path.parent().unwrap_or(path);
        rlt_files::sync_folder(folder).map_err(TrackingError::file("sync", folder))?;
        file.path = path.to_path_buf();
        Ok(file)
    }

    /// Syncs the file, so that all records survive a power loss.
    pub(super) fn sync(&mut self) -> Result<(), TrackingError> {
        self.write_pending()?;
        self.file.sync_data().map_err(TrackingError::file("sync", &self.path))
    }

    /// Replaces the file descriptor, as if the disk had filled up or been cleaned up.
    #[cfg(test)]
    pub(super) fn replace_descriptor(&mut self, file: File) {
        self.file = file;
    }

    fn write_pending(&mut self) -> Result<(), TrackingError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        match self.file.write_all(&self.pending) {
            Ok(()) => {
                self.len += self.pending.len() as u64;
                self.pending.clear();
                Ok(())
            }
            Err(error) => {
                self.cut_torn_record();
                Err(TrackingError::file("append to", &self.path)(error))
            }
        }
    }

    fn cut_torn_record(&mut self) {
        let cut: io::Result<u64> =
            self.file.set_len(self.len).and_then(|()| self.file.seek(SeekFrom::Start(self.len)));
        // What cannot be cut now is cut when the run resumes.
        let _ = cut;
    }
}

/// A sequence of records to which records are appended.
pub(super) trait RecordSink {
    /// Appends one record.
    ///
    /// # Errors
    /// When the record could not be written; it may be written by a later call.
    fn append(&mut self, record: &[u8]) -> Result<(), TrackingError>;

    /// Total size of all records in bytes.
    fn len(&self) -> u64;
}

impl RecordSink for AppendFile {
    /// Appends the records that the disk has refused so far, and then this one. After a failure the file ends
    /// with its last complete record, and this record waits for the next call, unless too many wait already.
    fn append(&mut self, record: &[u8]) -> Result<(), TrackingError> {
        if self.pending.is_empty() || self.pending.len() + record.len() <= MAX_PENDING_BYTES {
            self.pending.extend_from_slice(record);
        }
        self.write_pending()
    }

    /// Total size of all complete records in bytes, including those that the disk has refused so far.
    fn len(&self) -> u64 {
        self.len + self.pending.len() as u64
    }
}

/// A file that is compared with the records that it should contain.
struct Present {
    file: Option<BufReader<File>>,
    len: u64,
    /// Whether the file differs from the records so far.
    differs: bool,
}

impl Present {
    fn open(path: &Path) -> io::Result<Self> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(BufReader::new(opened?)),
        };
        Ok(Self { differs: false, file, len: 0 })
    }
}

impl RecordSink for Present {
    fn append(&mut self, record: &[u8]) -> Result<(), TrackingError> {
        let mut found = vec![0; record.len()];
        let read =
            self.file.as_mut().is_some_and(|file| !self.differs && file.read_exact(&mut found).is_ok());
        self.differs |= !read || found != record;
        self.len += record.len() as u64;
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len
    }
}

/// Returns the offset after the last line of `path` for which `stays` is true; 0 if there is no such line or
/// no file. Reads backwards from the end, only as far as that line.
pub(super) fn end_of_lines(path: &Path, stays: impl Fn(&[u8]) -> bool) -> io::Result<u64> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        opened => opened?,
    };
    let mut end = file.seek(SeekFrom::End(0))?;
    // A line that a kill has cut off has no line break.
    let mut line_end = end_of_last_line(&mut file, end)?;
    while line_end > 0 {
        end = line_end;
        line_end = end_of_last_line(&mut file, end - 1)?;
        file.seek(SeekFrom::Start(line_end))?;
        let mut line = Vec::new();
        BufReader::new(&file).take(end - line_end).read_until(b'\n', &mut line)?;
        if stays(line.strip_suffix(b"\n").unwrap_or(&line)) {
            return Ok(end);
        }
    }
    Ok(0)
}

/// Returns the offset after the last newline before the offset `end`; 0 if there is none.
fn end_of_last_line(file: &mut File, mut end: u64) -> io::Result<u64> {
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK_BYTES);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        Read::by_ref(file).take(end - start).read_to_end(&mut block)?;
        if let Some(idx) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + idx as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_last_line_that_stays_is_found_from_the_end_whatever_its_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let long = "x".repeat(3 * BLOCK_BYTES as usize);
        let stays = |line: &[u8]| line.starts_with(b"+");
        assert_eq!(end_of_lines(&path, stays).unwrap(), 0);
        for (text, kept) in [
            (String::new(), 0),
            ("+torn".to_owned(), 0),
            ("-\n-\n".to_owned(), 0),
            ("+a\n".to_owned(), 3),
            ("+a\n\n-b\n+torn".to_owned(), 3),
            (format!("+{long}\n-{long}\n-{long}"), 2 + long.len()),
            (format!("-{long}\n+a\n-\n"), 2 + long.len() + 3),
        ] {
            fs::write(&path, &text).unwrap();
            assert_eq!(end_of_lines(&path, stays).unwrap(), kept as u64, "{} bytes", text.len());
        }
    }

    #[test]
    fn a_file_that_begins_with_its_records_is_cut_in_place_and_another_is_replaced_or_stays() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let inode = || fs::metadata(&path).unwrap().ino();
        let restore = |records: &'static [&'static str]| {
            AppendFile::restore(&path, |sink| records.iter().try_for_each(|one| sink.append(one.as_bytes())))
        };
        fs::write(&path, "one two three").unwrap();
        let before = inode();
        restore(&["one", " two"]).unwrap().append(b" four").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), inode()), ("one two four".into(), before));
        restore(&["one", " 2"]).unwrap().append(b" 3").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one 2 3");
        assert_ne!(inode(), before);
        // A folder stands where the new file would be written.
        fs::create_dir(dir.path().join(".new-log")).unwrap();
        assert!(restore(&["other"]).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "one 2 3");
    }
}
