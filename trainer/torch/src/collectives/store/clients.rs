//! Open connections of a store's server, before and after their greeting.
//!
//! Both kinds are limited in number. If too many connections have not greeted, a new one evicts the oldest
//! connection of the address that has the most, so that clients that never greet cannot keep the ranks out.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::limits::Limits;

/// Open connections by their number, with a handle by which each can be closed.
#[derive(Debug)]
pub(super) struct Clients<T> {
    greeting: BTreeMap<u64, (IpAddr, T)>,
    admitted: HashMap<u64, T>,
    num_entered: u64,
    limits: Limits,
}

impl<T> Clients<T> {
    /// Creates an empty set.
    pub(super) fn new(limits: Limits) -> Self {
        Self { greeting: BTreeMap::new(), admitted: HashMap::new(), num_entered: 0, limits }
    }

    /// Registers a connection from `address` that has not greeted yet. Returns its number, and the handle of
    /// the connection that it evicts, which the caller must close.
    pub(super) fn enter(&mut self, address: IpAddr, handle: T) -> (u64, Option<T>) {
        let is_full = self.greeting.len() >= self.limits.greeting;
        let evicted = if is_full { self.evict() } else { None };
        self.num_entered += 1;
        self.greeting.insert(self.num_entered, (address, handle));
        (self.num_entered, evicted)
    }

    /// Admits a connection that has greeted.
    ///
    /// # Errors
    /// When there are too many connections: the reason, to be sent to the client.
    pub(super) fn admit(&mut self, number: u64) -> Result<(), String> {
        let Some((_, handle)) = self.greeting.remove(&number) else {
            return Err("too many connections greet it at once".to_owned());
        };
        let most = self.limits.admitted;
        if self.admitted.len() >= most {
            return Err(format!("it has {most} connections, its limit for this number of ranks"));
        }
        self.admitted.insert(number, handle);
        Ok(())
    }

    /// Removes a connection that has ended.
    pub(super) fn leave(&mut self, number: u64) {
        self.greeting.remove(&number);
        self.admitted.remove(&number);
    }

    /// Returns the handles of all connections.
    pub(super) fn handles(&self) -> impl Iterator<Item = &T> {
        self.greeting.values().map(|(_, handle)| handle).chain(self.admitted.values())
    }

    /// Removes the oldest connection of the address that has the most connections without a greeting.
    fn evict(&mut self) -> Option<T> {
        let mut num_of = HashMap::<IpAddr, usize>::new();
        for (address, _) in self.greeting.values() {
            *num_of.entry(*address).or_default() += 1;
        }
        let most = num_of.values().copied().max()?;
        let is_of_most = |address: &IpAddr| num_of.get(address) == Some(&most);
        let oldest = self.greeting.iter().find(|(_, (address, _))| is_of_most(address));
        let number = oldest.map(|(number, _)| *number)?;
        self.greeting.remove(&number).map(|(_, handle)| handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const RANK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn strangers_who_never_greet_replace_each_other_and_keep_no_rank_out() {
        let limits = Limits { greeting: 4, ..Limits::of(1) };
        let mut clients = Clients::new(limits);
        let (rank, evicted) = clients.enter(RANK, 1000);
        assert_eq!(evicted, None);
        let evicted: Vec<_> = (0..100).filter_map(|handle| clients.enter(STRANGER, handle).1).collect();
        assert_eq!(evicted, (0..97).collect::<Vec<_>>(), "the oldest of the stranger's");
        clients.admit(rank).unwrap();
        assert_eq!(clients.handles().count(), 4);
    }

    #[test]
    fn a_client_gets_the_reason_if_its_connection_is_replaced_or_exceeds_the_limit() {
        let mut clients = Clients::new(Limits { greeting: 1, admitted: 1, ..Limits::of(1) });
        let (first, _) = clients.enter(RANK, 1);
        let (second, evicted) = clients.enter(RANK, 2);
        assert_eq!(evicted, Some(1));
        assert_eq!(clients.admit(first).unwrap_err(), "too many connections greet it at once");
        clients.admit(second).unwrap();
        let (third, _) = clients.enter(RANK, 3);
        let why = "it has 1 connections, its limit for this number of ranks";
        assert_eq!(clients.admit(third).unwrap_err(), why);
        clients.leave(second);
        assert_eq!(clients.handles().count(), 0);
    }
}
