//! An append-only file of records, which never keeps half of one.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::TrackingError;

/// Records that wait for a full disk to be cleaned, at most.
const MAX_PENDING_BYTES: usize = 1 << 20;

/// An append-only file of whole records.
pub(super) struct AppendFile {
    path: PathBuf,
    file: File,
    len: u64,
    /// Whole records that the disk has refused so far.
    pending: Vec<u8>,
}

impl AppendFile {
    /// Opens `path` at its end, creating it where missing.
    pub(super) fn open(path: &Path) -> Result<Self, TrackingError> {
        let open = || {
            let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
            let len = file.seek(SeekFrom::End(0))?;
            Ok((file, len))
        };
        let (file, len) = open().map_err(TrackingError::file("open", path))?;
        Ok(Self { path: path.to_path_buf(), file, len, pending: Vec::new() })
    }

    /// Appends one record and everything the disk refused before it. After a failure the file ends with its
    /// last whole record and this one waits for the next try, as long as not too many do.
    pub(super) fn append(&mut self, record: &[u8]) -> Result<(), TrackingError> {
        if self.pending.is_empty() || self.pending.len() + record.len() <= MAX_PENDING_BYTES {
            self.pending.extend_from_slice(record);
        }
        self.write_pending()
    }

    /// Bytes of all whole records, those included that the disk has refused so far.
    pub(super) fn len(&self) -> u64 {
        self.len + self.pending.len() as u64
    }

    /// Makes everything survive a power loss.
    pub(super) fn sync(&mut self) -> Result<(), TrackingError> {
        self.write_pending()?;
        self.file.sync_data().map_err(TrackingError::file("sync", &self.path))
    }

    /// Continues with another descriptor, as if the disk had filled up or been cleaned.
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
