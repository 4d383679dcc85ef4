//! A bounded cache of image features by digest, for a tower whose weights do not change.

use std::collections::{HashMap, VecDeque};

use rlt_models::KEPT_FEATURES_BYTES;
use tch::Tensor;

/// A cache of features that evicts the least recently used.
#[derive(Debug, Default)]
pub(super) struct FeatureCache {
    features: HashMap<u64, Tensor>,
    /// Digests in the order of their last use, oldest first.
    order: VecDeque<u64>,
    bytes: u64,
}

impl FeatureCache {
    /// The cached features of an image.
    pub(super) fn get(&mut self, digest: u64) -> Option<Tensor> {
        let features = self.features.get(&digest)?.shallow_clone();
        self.order.retain(|kept| *kept != digest);
        self.order.push_back(digest);
        Some(features)
    }

    /// Adds features, and evicts the least recently used until all fit in [`KEPT_FEATURES_BYTES`].
    pub(super) fn insert(&mut self, digest: u64, features: &Tensor) {
        self.bytes += bytes(features);
        self.features.insert(digest, features.shallow_clone());
        self.order.push_back(digest);
        while self.bytes > KEPT_FEATURES_BYTES {
            let Some(oldest) = self.order.pop_front() else { return };
            self.bytes -= self.features.remove(&oldest).as_ref().map_or(0, bytes);
        }
    }
}

fn bytes(features: &Tensor) -> u64 {
    (features.numel() * features.kind().elt_size_in_bytes()) as u64
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn the_least_recently_used_entry_is_dropped() {
        // Three of them do not fit.
        let large =
            Tensor::zeros([1], (Kind::Uint8, Device::Cpu)).expand([(KEPT_FEATURES_BYTES / 2) as i64], false);
        let mut kept = FeatureCache::default();
        kept.insert(1, &large);
        kept.insert(2, &large);
        assert!(kept.get(1).is_some());
        kept.insert(3, &large);
        assert!(kept.get(2).is_none() && kept.get(1).is_some() && kept.get(3).is_some());
    }
}
