//! A rank's place along an axis, and the ranges of heads, tokens, experts and elements that follow from it.

use std::ops::Range;

/// Index of a rank among the ranks of one axis, or of several axes together, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisPlace {
    /// Index of the rank, from 0.
    pub index: usize,
    /// Number of ranks, at least one.
    pub size: usize,
}

impl AxisPlace {
    /// The place of the only rank of an axis, which holds everything.
    pub const ALONE: Self = Self { index: 0, size: 1 };

    /// Returns the places of all ranks of the axis, in order.
    pub fn all(self) -> impl Iterator<Item = Self> {
        (0..self.size).map(move |index| Self { index, ..self })
    }

    /// Returns the rank's range of `len` heads, rows, columns or experts. If the ranks do not divide the
    /// number, the last ranges are shorter, or empty.
    pub fn range(self, len: usize) -> Range<usize> {
        let longest = self.longest(len);
        (self.index * longest).min(len)..((self.index + 1) * longest).min(len)
    }

    /// Returns the rank's range of `len` tokens padded to a multiple of the ranks, so that all ranges are
    /// equally long. The last ones may hold padding.
    pub fn padded_range(self, len: usize) -> Range<usize> {
        EvenSplit::new(len, self.size).range(self.index)
    }

    /// Length of the longest range of `len` heads, rows, columns or experts.
    pub fn longest(self, len: usize) -> usize {
        len.div_ceil(self.size)
    }

    /// Returns the rank's range of `len` key heads, where one of `len` and the number of ranks divides the
    /// other. With more ranks than key heads, several ranks hold the same head: the one that their query
    /// heads attend to.
    pub fn key_heads(self, len: usize) -> Range<usize> {
        let start = self.index * len / self.size;
        start..start + (len / self.size).max(1)
    }
}

/// A flat buffer split into shards of equal length; the last shards may hold padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvenSplit {
    len: usize,
    num_shards: usize,
}

impl EvenSplit {
    /// Splits `len` elements into `num_shards` shards, at least one.
    pub fn new(len: usize, num_shards: usize) -> Self {
        Self { len, num_shards: num_shards.max(1) }
    }

    /// Number of elements of each shard, padding included.
    pub fn shard_len(&self) -> usize {
        self.len.div_ceil(self.num_shards)
    }

    /// Number of elements of all shards, padding included.
    pub fn padded_len(&self) -> usize {
        self.shard_len() * self.num_shards
    }

    /// The range of a shard in the padded buffer.
    pub fn range(&self, shard: usize) -> Range<usize> {
        shard * self.shard_len()..(shard + 1) * self.shard_len()
    }

    /// The range `wanted` clipped to a shard, by its offsets in the buffer; may be empty.
    pub fn part_of(&self, wanted: &Range<usize>, shard: usize) -> Range<usize> {
        let own = self.range(shard);
        let start = wanted.start.clamp(own.start, own.end);
        start..wanted.end.clamp(start, own.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places(size: usize) -> impl Iterator<Item = AxisPlace> {
        AxisPlace { index: 0, size }.all()
    }

    proptest! {
        #[test]
        fn ranges_are_contiguous_and_none_is_longer_than_the_first(len in 0_usize..100, size in 1_usize..9) {
            let all: Vec<usize> = places(size).flat_map(|place| place.range(len)).collect();
            prop_assert_eq!(all, (0..len).collect::<Vec<_>>());
            for place in places(size) {
                let own = place.range(len).len();
                prop_assert!(own <= place.longest(len));
                prop_assert!(len % size > 0 || own == len / size);
            }
            prop_assert_eq!(places(size).next().map(|first| first.range(len).len()), Some(len.div_ceil(size)));
        }

        #[test]
        fn padded_ranges_are_equally_long_and_contiguous(num_tokens in 0_usize..100, size in 1_usize..9) {
            let ranges: Vec<_> = places(size).map(|place| place.padded_range(num_tokens)).collect();
            prop_assert_eq!(ranges[0].start, 0);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(ranges.iter().all(|range| range.len() == num_tokens.div_ceil(size)));
            prop_assert_eq!(AxisPlace::ALONE.padded_range(num_tokens), 0..num_tokens);
        }

        #[test]
        fn every_query_head_finds_its_key_head_in_its_own_range(
            num_key_heads in 1_usize..5,
            queries_of_key in 1_usize..5,
            size in 1_usize..17,
        ) {
            let num_heads = num_key_heads * queries_of_key;
            let fits = num_heads % size == 0 && (num_key_heads % size == 0 || size % num_key_heads == 0);
            for place in places(size).filter(|_| fits) {
                let (queries, keys) = (place.range(num_heads), place.key_heads(num_key_heads));
                prop_assert!(keys.end <= num_key_heads);
                // As attention pairs them: neighbouring queries, as many for each key.
                let queries_of_own = queries.len() / keys.len();
                prop_assert_eq!(queries_of_own * keys.len(), queries.len());
                for (nth, head) in queries.enumerate() {
                    prop_assert_eq!(keys.start + nth / queries_of_own, head / queries_of_key);
                }
            }
        }

        #[test]
        fn shards_of_one_length_cover_the_buffer_with_less_padding_than_shards(
            len in 0_usize..1000,
            num_shards in 1_usize..9,
        ) {
            let shards = EvenSplit::new(len, num_shards);
            let ranges: Vec<_> = (0..num_shards).map(|shard| shards.range(shard)).collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(ranges.iter().all(|range| range.len() == shards.shard_len()));
            prop_assert_eq!(ranges[num_shards - 1].end, shards.padded_len());
            prop_assert!(shards.padded_len() >= len && shards.padded_len() < len + num_shards);
        }
    }

    proptest! {
        #[test]
        fn the_parts_of_a_range_in_all_shards_are_the_range_in_order(
            lens in prop::collection::vec(0_usize..40, 1..8),
            num_shards in 1_usize..9,
        ) {
            let shards = EvenSplit::new(lens.iter().sum(), num_shards);
            let mut start = 0;
            for len in lens {
                let wanted = start..start + len;
                let parts = (0..num_shards).map(|shard| (shards.range(shard), shards.part_of(&wanted, shard)));
                let mut elements = Vec::new();
                for (own, part) in parts {
                    prop_assert!(own.start <= part.start && part.start <= part.end && part.end <= own.end);
                    elements.extend(part);
                }
                prop_assert_eq!(elements, wanted.collect::<Vec<_>>());
                start += len;
            }
        }
    }
}
