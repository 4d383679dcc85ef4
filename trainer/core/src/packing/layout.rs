//! The segments of a packed row, as varlen attention reads them.

/// A segment of a packed row: a sequence, a prompt, or a completion that continues a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of tokens.
    pub len: usize,
    /// Index of the earlier segment that this one continues, which itself continues none.
    pub prefix: Option<usize>,
}

impl Segment {
    /// Makes a segment that continues none.
    pub fn alone(len: usize) -> Self {
        Self { len, prefix: None }
    }
}

/// The ranges of the segments in a packed row, and each token's position in its sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedLayout {
    /// Cumulative segment lengths, number of segments + 1; segment i is `cu_seqlens[i]..cu_seqlens[i + 1]`.
    pub cu_seqlens: Vec<i32>,
    /// Index of the segment that each segment continues.
    pub prefixes: Vec<Option<usize>>,
    /// Position of each token in its sequence, from 0; a segment with a prefix continues the prefix's
    /// positions.
    pub position_ids: Vec<i64>,
}

impl PackedLayout {
    /// Lays out segments end to end, in this order. The sum of their lengths must fit an `i32`, as in every
    /// micro-batch of [`super::pack`] and [`super::pack_groups`].
    pub fn of(segments: impl IntoIterator<Item = Segment>) -> Self {
        let mut layout = Self { cu_seqlens: vec![0], ..Self::default() };
        for Segment { len, prefix } in segments {
            let first = prefix.map_or(0, |prefix| layout.len_of(prefix));
            layout.position_ids.extend(first..first + len as i64);
            layout.cu_seqlens.push(layout.position_ids.len() as i32);
            layout.prefixes.push(prefix);
        }
        layout
    }

    fn len_of(&self, segment: usize) -> i64 {
        i64::from(self.cu_seqlens[segment + 1] - self.cu_seqlens[segment])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_starts_at_position_zero_and_a_branch_after_its_prefix() {
        let branch = |len| Segment { len, prefix: Some(1) };
        let got = PackedLayout::of([Segment::alone(1), Segment::alone(3), branch(2), branch(0), branch(1)]);
        assert_eq!(got.cu_seqlens, [0, 1, 4, 6, 6, 7]);
        assert_eq!(got.position_ids, [0, 0, 1, 2, 3, 4, 3]);
        assert_eq!(got.prefixes, [None, None, Some(1), Some(1), Some(1)]);
    }
}
