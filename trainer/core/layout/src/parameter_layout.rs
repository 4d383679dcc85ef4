//! Layouts of parameters over the axes along which ranks have different weights before FSDP shards them.

use super::axis_place::AxisPlace;
use super::local_tensor::{DimShards, LocalTensor, Placement};
use super::mesh::Axis;

/// Placements of a parameter along the axes that split weights. Along an axis without a placement every rank
/// has the parameter, until FSDP shards it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterLayout {
    placements: Vec<(Axis, Placement)>,
}

impl ParameterLayout {
    /// Axes along which weights may be split.
    pub const AXES: [Axis; 2] = [Axis::Tp, Axis::Ep];

    /// Adds the placement along an axis. The first axis is the one whose shards are joined first.
    #[must_use]
    pub fn with(mut self, axis: Axis, placement: Placement) -> Self {
        self.placements.push((axis, placement));
        self
    }

    /// Returns the shards along each axis that splits the parameter, in the order of [`Self::with`].
    pub fn shards(&self) -> impl DoubleEndedIterator<Item = (Axis, &DimShards)> {
        self.placements.iter().filter_map(|(axis, placement)| match placement {
            Placement::Shard(shards) => Some((*axis, shards)),
            Placement::Replicate | Placement::Partial => None,
        })
    }

    /// Returns the axes that split the parameter.
    pub fn split_axes(&self) -> Vec<Axis> {
        self.shards().map(|(axis, _)| axis).collect()
    }

    /// Whether every rank along `axis` computes a summand of the parameter's gradient.
    pub fn is_partial_along(&self, axis: Axis) -> bool {
        self.placements.iter().any(|(of, placement)| *of == axis && *placement == Placement::Partial)
    }

    /// Returns the local tensor of one rank for a tensor of shape `shape`, whose split dimensions may have
    /// their full or their local length. `place` returns the rank's place along an axis.
    pub fn local(&self, shape: &[i64], place: impl Fn(Axis) -> AxisPlace) -> LocalTensor {
        let mut local = LocalTensor::full(shape);
        for (axis, shards) in self.shards() {
            local = local.with(shards.dim, shards.of_ranks[place(axis).index].clone());
        }
        local
    }
}

#[cfg(test)]
mod tests {
    use super::super::local_tensor::DimRanges;
    use super::*;

    /// Equal shards of a dimension of length `len` for two ranks.
    fn halves(dim: usize, len: usize) -> Placement {
        let of_ranks = AxisPlace { index: 0, size: 2 }.all();
        let of_ranks = of_ranks.map(|place| DimRanges { len, ranges: vec![place.range(len)] });
        Placement::Shard(DimShards { dim, of_ranks: of_ranks.collect() })
    }

    #[test]
    fn a_parameter_that_is_split_along_two_axes_is_local_in_both_dimensions() {
        let layout = ParameterLayout::default().with(Axis::Tp, halves(1, 6)).with(Axis::Ep, halves(0, 4));
        assert_eq!(layout.split_axes(), ParameterLayout::AXES);
        let place = |axis: Axis| AxisPlace { index: usize::from(axis == Axis::Ep), size: 2 };
        // The split dimensions of the second have their local lengths already.
        for shape in [[4, 6, 5], [2, 3, 5]] {
            let local = layout.local(&shape, place);
            assert_eq!((local.shape(), local.local_shape()), (&[4, 6, 5][..], vec![2, 3, 5]));
            let own = [0, 1].map(|dim: usize| local.dims()[dim].ranges[0].clone());
            assert_eq!(own, [2..4, 0..3]);
        }
    }

    #[test]
    fn a_parameter_without_a_shard_is_local_in_full() {
        let layout = ParameterLayout::default().with(Axis::Tp, Placement::Partial);
        assert!(layout.local(&[4, 6], |_| AxisPlace { index: 1, size: 2 }).is_full());
        assert!(layout.split_axes().is_empty());
        assert_eq!(ParameterLayout::AXES.map(|axis| layout.is_partial_along(axis)), [true, false]);
    }
}
