//! Connection of this rank to the other ranks, by which groups of ranks are made.

use rlt_torch::collectives::{Collectives, Rendezvous, SingleProcessGroup};

use super::RankError;

/// Collectives of a set of ranks, and the rendezvous by which groups of them are connected.
#[derive(Debug)]
pub(super) struct Connection {
    /// Collectives of all ranks of the set.
    pub(super) group: Box<dyn Collectives>,
    /// Rendezvous of all ranks; `None` for a single rank.
    pub(super) rendezvous: Option<Rendezvous>,
}

impl Connection {
    /// Connects this rank with the other `members` of a new group.
    pub(super) fn connect(&self, name: &str, members: &[usize]) -> Result<Box<dyn Collectives>, RankError> {
        let group = match &self.rendezvous {
            Some(rendezvous) => rendezvous.group(name, members)?,
            None => None,
        };
        Ok(group.unwrap_or_else(|| Box::new(SingleProcessGroup::new(name))))
    }
}
