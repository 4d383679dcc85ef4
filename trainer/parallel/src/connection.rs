//! The connection between this rank and all others, from which process groups are created.

use rlt_torch::collectives::{Collectives, Rendezvous, SingleProcessGroup};

use super::RankError;

/// Collectives of all ranks, and the rendezvous that connects groups of them.
#[derive(Debug)]
pub(super) struct Connection {
    /// Collectives of all ranks.
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
