//! The certificate authority of the status channel, which can be replaced while the operator runs.

use std::sync::{Arc, PoisonError, RwLock};

/// A certificate authority in PEM. Clones share its value.
#[derive(Clone, Debug, Default)]
pub struct Authority(Arc<RwLock<String>>);

impl Authority {
    /// Returns the authority in PEM.
    pub fn pem(&self) -> String {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the authority of all clones. Returns whether the old one differed.
    pub fn replace(&self, pem: &str) -> bool {
        let mut present = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_other = *present != pem;
        if is_other {
            pem.clone_into(&mut present);
        }
        is_other
    }
}

impl From<&str> for Authority {
    fn from(pem: &str) -> Self {
        Self(Arc::new(RwLock::new(pem.to_owned())))
    }
}

impl PartialEq for Authority {
    fn eq(&self, other: &Self) -> bool {
        self.pem() == other.pem()
    }
}

impl Eq for Authority {}
