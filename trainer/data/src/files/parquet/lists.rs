//! Bounds of the lists of a row. Runs of equal levels and of equal dictionary indices have a few bytes in a
//! page, whatever their length, so the size of a page does not bound the lists that it holds.

use parquet::basic::{Encoding, Type};
use parquet::column::page::Page;
use parquet::schema::types::ColumnDescriptor;

/// Largest number of values, nulls included, of one column in one row.
pub(super) const MAX_ELEMENTS: u64 = 1 << 22;
/// Maximum size of one column in one row, in bytes, if each value is as long as the longest that its pages
/// may repeat.
pub(super) const MAX_ROW_BYTES: u64 = 2 << 30;

/// Maximum length of a run of levels, or number of groups of a bit-packed run. The decoder counts in 32 bits,
/// so it would read a longer run as a short one, and the bytes after it as further runs.
const MAX_RUN: u64 = (u32::MAX >> 3) as u64;

/// Size of the current row in a column with lists.
pub(super) struct Lists {
    /// Number of bits of a repetition level.
    level_bits: usize,
    physical_type: Type,
    /// Length of a value of fixed length, in bytes.
    fixed_bytes: u64,
    num_elements: u64,
    /// Number of bytes of the pages that the row is in.
    num_page_bytes: u64,
    /// Length of the longest value of the dictionary, in bytes.
    dictionary_bytes: u64,
    /// Length of the longest value that the pages so far may repeat without storing it again, in bytes.
    repeated_bytes: u64,
}

impl Lists {
    /// Returns the bounds of a column; `None` for a column without lists.
    pub(super) fn of(column: &ColumnDescriptor) -> Option<Self> {
        let max_level = column.max_rep_level();
        (max_level > 0).then(|| Self {
            level_bits: (i16::BITS - max_level.leading_zeros()) as usize,
            physical_type: column.physical_type(),
            fixed_bytes: u64::try_from(column.type_length()).unwrap_or(0),
            num_elements: 0,
            num_page_bytes: 0,
            dictionary_bytes: 0,
            repeated_bytes: 0,
        })
    }

    /// Counts a decompressed page; an error says which bound a row exceeds.
    pub(super) fn count(&mut self, page: &Page) -> Result<(), String> {
        let (levels, num_values) = match page {
            Page::DictionaryPage { buf, .. } => {
                self.dictionary_bytes = self.longest_value(buf);
                return Ok(());
            }
            Page::DataPage { buf, num_values, rep_level_encoding, .. } => {
                let levels = (*rep_level_encoding == Encoding::RLE).then(|| {
                    let (len, rest) = buf.split_first_chunk::<4>()?;
                    rest.get(..u32::from_le_bytes(*len) as usize)
                });
                (levels.flatten(), *num_values)
            }
            Page::DataPageV2 { buf, num_values, rep_levels_byte_len, .. } => {
                (buf.get(..*rep_levels_byte_len as usize), *num_values)
            }
        };
        let num_bytes = page.buffer().len() as u64;
        self.repeated_bytes = self.repeated_bytes.max(match page.encoding() {
            Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY => self.dictionary_bytes,
            // A value may begin with all of the one before it.
            Encoding::DELTA_BYTE_ARRAY => num_bytes,
            _ => 0,
        });
        self.num_page_bytes += num_bytes;
        self.check()?;
        if self.count_levels(levels.unwrap_or_default(), u64::from(num_values))? {
            self.num_page_bytes = num_bytes;
        }
        Ok(())
    }

    /// Counts the runs of a page's repetition levels, where level 0 begins a row. Returns whether any row
    /// begins in the page. Levels that the page lacks count as values of the current row.
    fn count_levels(&mut self, mut levels: &[u8], mut num_left: u64) -> Result<bool, String> {
        let mut has_start = false;
        while num_left > 0 {
            let Some((header, rest)) = varint(levels) else { break };
            let num_runs = header >> 1;
            if num_runs > MAX_RUN {
                break;
            }
            let is_packed = header & 1 == 1;
            let num_bytes = if is_packed {
                usize::try_from(num_runs).unwrap_or(usize::MAX).saturating_mul(self.level_bits)
            } else {
                self.level_bits.div_ceil(8)
            };
            let (run, rest) = rest.split_at(num_bytes.min(rest.len()));
            if is_packed {
                let num_levels = run.len() * 8 / self.level_bits;
                for level_idx in 0..num_levels.min(usize::try_from(num_left).unwrap_or(usize::MAX)) {
                    let is_start = self.is_zero(run, level_idx);
                    has_start |= is_start;
                    self.add(is_start, 1)?;
                }
                num_left = num_left.saturating_sub(num_levels as u64);
            } else {
                let is_start = num_runs > 0 && !run.is_empty() && run.iter().all(|byte| *byte == 0);
                has_start |= is_start;
                self.add(is_start, num_runs.min(num_left))?;
                num_left = num_left.saturating_sub(num_runs);
            }
            levels = rest;
        }
        self.add(false, num_left)?;
        Ok(has_start)
    }

    /// Whether a level of a bit-packed run is 0.
    fn is_zero(&self, run: &[u8], level_idx: usize) -> bool {
        let mut bits = level_idx * self.level_bits..(level_idx + 1) * self.level_bits;
        bits.all(|bit| (run[bit / 8] >> (bit % 8)) & 1 == 0)
    }

    /// Counts values that each begin a row, or that continue the current one.
    fn add(&mut self, is_start: bool, num_values: u64) -> Result<(), String> {
        self.num_elements =
            if is_start { num_values.min(1) } else { self.num_elements.saturating_add(num_values) };
        self.check()
    }

    fn check(&self) -> Result<(), String> {
        let num_elements = self.num_elements;
        if num_elements > MAX_ELEMENTS {
            return Err(format!("a row has {num_elements} values, expected at most {MAX_ELEMENTS}"));
        }
        let num_bytes = self.num_page_bytes.max(num_elements.saturating_mul(self.repeated_bytes));
        if num_bytes > MAX_ROW_BYTES {
            return Err(format!(
                "a row of {num_elements} values may have {num_bytes} bytes, expected at most {MAX_ROW_BYTES}; split \
                 its lists, or write the column without a dictionary"
            ));
        }
        Ok(())
    }

    /// Length of the longest value of a dictionary, in bytes.
    fn longest_value(&self, mut dictionary: &[u8]) -> u64 {
        match self.physical_type {
            Type::BYTE_ARRAY => {
                let mut longest = 0;
                while let Some((len, rest)) = dictionary.split_first_chunk::<4>() {
                    let len = u32::from_le_bytes(*len);
                    longest = longest.max(u64::from(len));
                    dictionary = rest.get(len as usize..).unwrap_or_default();
                }
                longest
            }
            Type::FIXED_LEN_BYTE_ARRAY => self.fixed_bytes,
            _ => 0,
        }
    }
}

/// Splits off an unsigned LEB128 number of at most 32 bits from the start of `bytes`.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (idx, byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7f) << (7 * idx);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[idx + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists() -> Lists {
        Lists {
            level_bits: 1,
            physical_type: Type::BYTE_ARRAY,
            fixed_bytes: 0,
            num_elements: 0,
            num_page_bytes: 0,
            dictionary_bytes: 0,
            repeated_bytes: 0,
        }
    }

    /// A data page whose repetition levels are these runs.
    fn page(levels: &[u8], num_values: u32, encoding: Encoding) -> Page {
        Page::DataPageV2 {
            buf: levels.to_vec().into(),
            num_values,
            encoding,
            num_nulls: 0,
            num_rows: 1,
            def_levels_byte_len: 0,
            rep_levels_byte_len: levels.len() as u32,
            is_compressed: false,
            statistics: None,
        }
    }

    #[test]
    fn values_of_a_row_are_counted_over_runs_groups_and_pages() {
        let mut lists = lists();
        // A run of three 0; eight levels of which the bits 0 and 4 begin rows; a run of five 1.
        let levels = [3_u8 << 1, 0, (1 << 1) | 1, 0b1110_1110, 5 << 1, 1];
        lists.count(&page(&levels, 16, Encoding::PLAIN)).unwrap();
        assert_eq!(lists.num_elements, 4 + 5);
        lists.count(&page(&[2 << 1, 1], 2, Encoding::PLAIN)).unwrap();
        assert_eq!((lists.num_elements, lists.num_page_bytes), (11, 8), "the row continues in the next page");
        lists.count(&page(&[1 << 1, 0], 1, Encoding::PLAIN)).unwrap();
        assert_eq!((lists.num_elements, lists.num_page_bytes), (1, 2));
    }

    #[test]
    fn runs_of_no_length_and_runs_that_are_cut_off_begin_no_row() {
        let mut lists = lists();
        // A run of one 0, one of six 1, and one of no 0.
        lists.count(&page(&[1 << 1, 0, 6 << 1, 1, 0, 0], 7, Encoding::PLAIN)).unwrap();
        assert_eq!(lists.num_elements, 7);
        for cut_off in [&[9 << 1][..], &[0xff, 0xff, 0xff, 0xff, 0x0f, 0], &[]] {
            lists.num_elements = 7;
            lists.count(&page(cut_off, 9, Encoding::PLAIN)).unwrap();
            assert_eq!(lists.num_elements, 16, "{cut_off:?}");
        }
    }

    #[test]
    fn a_run_of_many_values_in_one_row_is_refused_and_one_of_many_rows_is_not() {
        // 2^23 << 1 as LEB128.
        let many = |level: u8| [0x80, 0x80, 0x80, 0x08, level];
        lists().count(&page(&many(0), 1 << 23, Encoding::PLAIN)).unwrap();
        for levels in [many(1).as_slice(), &[]] {
            let error = lists().count(&page(levels, 1 << 23, Encoding::PLAIN)).unwrap_err();
            assert!(error.contains("at most 4194304"), "{error}");
        }
    }

    #[test]
    fn a_long_value_of_a_dictionary_may_not_fill_the_memory_by_its_repetitions() {
        let mut value = (1_u32 << 20).to_le_bytes().to_vec();
        value.resize(4 + (1 << 20), b'a');
        let dictionary = Page::DictionaryPage {
            buf: value.into(),
            num_values: 1,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        // 4096 << 1 as LEB128.
        let data = page(&[0x80, 0x40, 1], 4096, Encoding::RLE_DICTIONARY);
        let mut repeated = lists();
        repeated.count(&dictionary).unwrap();
        let error = repeated.count(&data).unwrap_err();
        assert!(error.contains("at most 2147483648"), "{error}");
        lists().count(&data).unwrap();
    }
}
