//! Pages of parquet columns, decompressed within bounds. The decoder of the `parquet` crate reads the output
//! of some codecs to its end, whatever size the file states, so a page of some kilobytes could fill the
//! memory.

use std::fs::File;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{RowGroupReader, SerializedPageReader};
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;

use super::codecs;
use super::lists::Lists;

/// Largest size of a page after decompression, in bytes; also the largest row of a file of JSON lines.
const MAX_PAGE_BYTES: usize = 512 << 20;

/// A row group of a file whose pages are decompressed within bounds.
pub(super) struct RowGroup<'a> {
    pub(super) file: &'a Arc<File>,
    pub(super) metadata: &'a RowGroupMetaData,
}

impl RowGroupReader for RowGroup<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, column_idx: usize) -> Result<Box<dyn PageReader>, ParquetError> {
        let num_rows = usize::try_from(self.metadata.num_rows())?;
        Ok(Box::new(Pages::open(self.file, self.metadata.column(column_idx), num_rows)?))
    }

    fn get_column_bloom_filter(&self, _column_idx: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>, ParquetError> {
        RowIter::from_row_group(projection, self)
    }
}

/// Pages of one column of a row group.
struct Pages {
    /// Reader of the pages as they are in the file, compressed.
    compressed: SerializedPageReader<File>,
    codec: Compression,
    /// Path of the column, for errors.
    column: String,
    /// Number of decompressed bytes that the file's metadata states for the pages that are not read yet.
    num_stated_bytes: u64,
    /// Bounds of the rows of a column with lists.
    lists: Option<Lists>,
}

impl Pages {
    fn open(file: &Arc<File>, column: &ColumnChunkMetaData, num_rows: usize) -> Result<Self, ParquetError> {
        // A reader of a column without compression hands out the pages as they are.
        let plain = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
        Ok(Self {
            compressed: SerializedPageReader::new(Arc::clone(file), &plain, num_rows, None)?,
            codec: column.compression(),
            column: column.column_path().string(),
            num_stated_bytes: u64::try_from(column.uncompressed_size())?,
            lists: Lists::of(column.column_descr()),
        })
    }

    /// Returns `page`, whose first `num_level_bytes` are not compressed, after decompression.
    fn decompress(&mut self, page: &[u8], num_level_bytes: usize) -> Result<Vec<u8>, ParquetError> {
        let bound = usize::try_from(self.num_stated_bytes)?.min(MAX_PAGE_BYTES);
        let refused = |why: String| {
            let (column, codec) = (&self.column, self.codec);
            ParquetError::General(format!(
                "column {column:?}: decompress a page ({codec}): expected at most {bound} bytes, the size that \
                 the file states for the rest of the column, and never more than {MAX_PAGE_BYTES}: {why}"
            ))
        };
        let (levels, values) =
            page.split_at_checked(num_level_bytes).ok_or_else(|| refused("its levels are cut off".into()))?;
        let max_value_bytes =
            bound.checked_sub(levels.len()).ok_or_else(|| refused("its levels are longer".into()))?;
        let values = codecs::decompress(self.codec, values, max_value_bytes)
            .map_err(|error| refused(error.to_string()))?;
        let page = if levels.is_empty() { values } else { [levels, &values[..]].concat() };
        self.num_stated_bytes = self.num_stated_bytes.saturating_sub(page.len() as u64);
        Ok(page)
    }

    fn check_uncompressed(&self, num_bytes: usize) -> Result<(), ParquetError> {
        if num_bytes <= MAX_PAGE_BYTES {
            return Ok(());
        }
        let column = &self.column;
        let message =
            format!("column {column:?}: a page has {num_bytes} bytes, expected at most {MAX_PAGE_BYTES}");
        Err(ParquetError::General(message))
    }
}

impl Iterator for Pages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let Some(mut page) = self.compressed.get_next_page()? else { return Ok(None) };
        let (is_compressed, num_level_bytes) = match &page {
            Page::DataPageV2 { is_compressed, def_levels_byte_len, rep_levels_byte_len, .. } => {
                (*is_compressed, *def_levels_byte_len as usize + *rep_levels_byte_len as usize)
            }
            Page::DataPage { .. } | Page::DictionaryPage { .. } => (true, 0),
        };
        let (Page::DataPage { buf, .. } | Page::DataPageV2 { buf, .. } | Page::DictionaryPage { buf, .. }) =
            &mut page;
        if is_compressed && self.codec != Compression::UNCOMPRESSED {
            *buf = self.decompress(buf, num_level_bytes)?.into();
        } else {
            self.check_uncompressed(buf.len())?;
        }
        if let Some(lists) = &mut self.lists {
            let refused = |why: String| ParquetError::General(format!("column {:?}: {why}", self.column));
            lists.count(&page).map_err(refused)?;
        }
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.compressed.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.compressed.skip_next_page()
    }
}
