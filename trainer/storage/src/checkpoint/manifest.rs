//! `manifest.json`: lists the content of a checkpoint with offsets and digests.
//!
//! This module only handles values; it opens no file.

use std::collections::BTreeMap;
use std::ops::Range;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::dtype;

/// Name of the manifest within a checkpoint.
pub(super) const FILE_NAME: &str = "manifest.json";
/// Name of the small state within a checkpoint.
pub(super) const STATE_FILE_NAME: &str = "state.json";
/// Value of the field `format`.
pub(super) const FORMAT: &str = "rltraining.dev/checkpoint";
/// Format version that this code writes, and the only one that it reads.
pub(super) const VERSION: u32 = 1;

/// Table of contents of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Name of the format, always `rltraining.dev/checkpoint`.
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// Number of finished steps.
    pub step: u64,
    /// Number of the save, which grows by one with every save of a run. The newest checkpoint is the one
    /// saved last, even if the run has returned to an earlier step in between.
    pub save_index: u64,
    /// Files other than the manifest, by name.
    pub files: BTreeMap<String, FileEntry>,
    /// Tensors, by name.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// SHA-256 of this manifest with this field empty, hexadecimal.
    pub sha256: String,
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Length of the file in bytes.
    pub num_bytes: u64,
    /// SHA-256 of its content, hexadecimal.
    pub sha256: String,
}

/// A full tensor, which is stored in pieces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape of the full tensor.
    pub shape: Vec<u64>,
    /// Disjoint pieces that together cover `shape`.
    pub pieces: Vec<TensorPiece>,
}

/// A box within a tensor, and the location of its values, which are row-major and little-endian.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorPiece {
    /// Index of the box's first element in each dimension of the full tensor.
    pub start: Vec<u64>,
    /// Shape of the box.
    pub shape: Vec<u64>,
    /// Name of the file that contains the values.
    pub file: String,
    /// Offset in the file at which the values begin, in bytes.
    pub byte_offset: u64,
}

impl Manifest {
    /// Serializes the manifest with its digest filled in.
    pub(super) fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        let sealed = Self { sha256: self.digest()?, ..self.clone() };
        let mut json = serde_json::to_vec_pretty(&sealed)?;
        json.push(b'\n');
        Ok(json)
    }

    /// Computes the SHA-256 of everything except the digest itself, hexadecimal.
    pub(super) fn digest(&self) -> Result<String, serde_json::Error> {
        let unsealed = Self { sha256: String::new(), ..self.clone() };
        Ok(hex(&Sha256::digest(serde_json::to_vec(&unsealed)?)))
    }

    /// Returns the first contradiction within the manifest, as a message.
    pub(super) fn find_problem(&self) -> Option<String> {
        let foreign = self.files.keys().find(|name| !is_plain_file_name(name));
        if let Some(name) = foreign {
            return Some(format!("file name {name:?} is not a plain name"));
        }
        self.tensors
            .iter()
            .find_map(|(name, entry)| Some(format!("tensor {name}: {}", self.find_tensor_problem(entry)?)))
    }

    fn find_tensor_problem(&self, entry: &TensorEntry) -> Option<String> {
        if let Some(problem) = entry.pieces.iter().find_map(|piece| self.find_piece_problem(entry, piece)) {
            return Some(problem);
        }
        for (idx, piece) in entry.pieces.iter().enumerate() {
            if entry.pieces[..idx].iter().any(|earlier| overlap(earlier, piece)) {
                return Some(format!("the piece at {:?} overlaps another", piece.start));
            }
        }
        let expected = num_elements(&entry.shape);
        let got =
            entry.pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(num_elements(&piece.shape)?));
        (expected.is_none() || got != expected).then(|| format!("pieces do not fill shape {:?}", entry.shape))
    }

    fn find_piece_problem(&self, entry: &TensorEntry, piece: &TensorPiece) -> Option<String> {
        let Some(file) = self.files.get(&piece.file) else {
            return Some(format!("file {:?} is not listed", piece.file));
        };
        let fits = piece.start.len() == entry.shape.len()
            && piece.shape.len() == entry.shape.len()
            && (0..entry.shape.len()).all(|dim| {
                piece.start[dim].checked_add(piece.shape[dim]).is_some_and(|end| end <= entry.shape[dim])
            });
        if !fits {
            let TensorPiece { start, shape, .. } = piece;
            return Some(format!("a piece of shape {shape:?} at {start:?} lies outside {:?}", entry.shape));
        }
        let end = num_elements(&piece.shape)
            .and_then(|num| num.checked_mul(dtype::num_bytes(entry.dtype)))
            .and_then(|num_bytes| num_bytes.checked_add(piece.byte_offset));
        end.is_none_or(|end| end > file.num_bytes)
            .then(|| format!("a piece ends beyond the {} bytes of {:?}", file.num_bytes, piece.file))
    }
}

impl TensorEntry {
    /// Entry of the rows `wanted` of the first dimension, as a tensor that begins at row 0. A tensor without
    /// dimensions is returned in full.
    pub(super) fn rows(&self, wanted: Range<u64>) -> Self {
        let Some((_, row_shape)) = self.shape.split_first() else { return self.clone() };
        let of_piece = |piece: &TensorPiece| {
            let start = piece.start[0].max(wanted.start);
            let end = (piece.start[0] + piece.shape[0]).min(wanted.end);
            let row_bytes = piece.shape[1..].iter().product::<u64>() * dtype::num_bytes(self.dtype);
            let with_rows = |first: u64, other: &[u64]| [&[first], other].concat();
            (start < end).then(|| TensorPiece {
                start: with_rows(start - wanted.start, &piece.start[1..]),
                shape: with_rows(end - start, &piece.shape[1..]),
                file: piece.file.clone(),
                byte_offset: piece.byte_offset + (start - piece.start[0]) * row_bytes,
            })
        };
        let shape = [&[wanted.end - wanted.start], row_shape].concat();
        Self { dtype: self.dtype, shape, pieces: self.pieces.iter().filter_map(of_piece).collect() }
    }
}

/// Product of the lengths; `None` on overflow.
fn num_elements(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |product, &len| product.checked_mul(len))
}

/// Whether two boxes of the same tensor, both within its shape, share an element.
fn overlap(left: &TensorPiece, right: &TensorPiece) -> bool {
    (0..left.start.len()).all(|dim| {
        left.start[dim] < right.start[dim] + right.shape[dim]
            && right.start[dim] < left.start[dim] + left.shape[dim]
    })
}

/// Whether a name is that of a file directly in the checkpoint's folder. Manifests are untrusted, so their
/// names must not lead outside it.
fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

/// Formats bytes as lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(start: &[u64], shape: &[u64], byte_offset: u64) -> TensorPiece {
        TensorPiece { start: start.into(), shape: shape.into(), file: "a".into(), byte_offset }
    }

    fn with_pieces(shape: &[u64], pieces: Vec<TensorPiece>) -> Manifest {
        let entry = TensorEntry { dtype: Dtype::F32, shape: shape.into(), pieces };
        Manifest {
            format: FORMAT.into(),
            version: VERSION,
            step: 1,
            save_index: 1,
            files: BTreeMap::from([("a".into(), FileEntry { num_bytes: 1000, sha256: String::new() })]),
            tensors: BTreeMap::from([("t".into(), entry)]),
            sha256: String::new(),
        }
    }

    fn problem(shape: &[u64], pieces: Vec<TensorPiece>) -> String {
        with_pieces(shape, pieces).find_problem().expect("a problem")
    }

    #[test]
    fn accepts_disjoint_pieces_that_fill_the_shape() {
        let halves = vec![piece(&[0, 0], &[2, 3], 0), piece(&[2, 0], &[2, 3], 24)];
        assert_eq!(with_pieces(&[4, 3], halves).find_problem(), None);
        assert_eq!(with_pieces(&[], vec![piece(&[], &[], 996)]).find_problem(), None);
        assert_eq!(with_pieces(&[0, 3], vec![]).find_problem(), None);
    }

    #[test]
    fn gaps_overlaps_and_bytes_out_of_range_are_named() {
        assert!(problem(&[4], vec![piece(&[0], &[3], 0)]).contains("do not fill shape [4]"));
        let twice = vec![piece(&[0], &[2], 0), piece(&[1], &[2], 8)];
        assert!(problem(&[4], twice).contains("overlaps"));
        assert!(problem(&[4], vec![piece(&[2], &[4], 0)]).contains("lies outside [4]"));
        assert!(problem(&[4], vec![piece(&[0], &[4], 988)]).contains("beyond the 1000 bytes"));
        assert!(problem(&[u64::MAX, 2], vec![]).contains("do not fill"));
    }

    #[test]
    fn refuses_file_names_that_leave_the_folder() {
        for name in ["../a", "/etc/passwd", "..", ""] {
            let mut manifest = with_pieces(&[], vec![piece(&[], &[], 0)]);
            manifest.files.insert(name.into(), FileEntry { num_bytes: 0, sha256: String::new() });
            assert!(manifest.find_problem().expect("a problem").contains("not a plain name"), "{name:?}");
        }
    }
}
