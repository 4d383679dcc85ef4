//! Shares of the open connections: of peers that are not authenticated yet, and of each namespace.
//!
//! Peers that never authenticate replace only each other, never the connection of a pod. A namespace may use
//! all free connections. When none is free, the namespace with the most connections loses one to a namespace
//! with fewer.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Largest number of connections of peers that are not authenticated, yet or ever.
const MAX_STRANGERS: usize = 2_048;
/// Largest number of connections of authenticated pods, of all namespaces together.
const MAX_OF_PODS: usize = 14_336;
/// Largest number of connections from one address: those of the ranks of all pods on the network of one node.
const MAX_FROM_ADDRESS: usize = 256;

/// Largest numbers of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    strangers: usize,
    of_pods: usize,
    from_address: usize,
}

impl Limits {
    /// Returns the limits of the status channel.
    pub(super) fn of_channel() -> Self {
        Self { strangers: MAX_STRANGERS, of_pods: MAX_OF_PODS, from_address: MAX_FROM_ADDRESS }
    }

    /// Returns the limits of a server without authentication. One address may use all connections. When none
    /// is free, a new connection replaces the oldest one of the address with the most connections.
    pub(crate) fn of_strangers(strangers: usize) -> Self {
        Self { strangers, of_pods: 0, from_address: usize::MAX }
    }
}

/// Open connections by their number, each with a handle by which it can be closed.
#[derive(Debug)]
pub(super) struct Shares<T> {
    limits: Limits,
    num_entered: u64,
    strangers: BTreeMap<u64, (IpAddr, T)>,
    of_pods: BTreeMap<u64, PodConnection<T>>,
    by_address: HashMap<IpAddr, usize>,
    by_namespace: HashMap<Arc<str>, usize>,
}

#[derive(Debug)]
struct PodConnection<T> {
    address: IpAddr,
    namespace: Arc<str>,
    handle: T,
}

/// Result of counting a connection to the share of its namespace.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Authenticated<T> {
    /// The connection stays; another one must be closed for it, if there is a handle.
    Stays(Option<T>),
    /// The connection must be closed, because its namespace has used up its share. Without a handle it is
    /// closed already.
    Closes(Option<T>),
}

impl<T> Shares<T> {
    /// Creates shares without connections.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            num_entered: 0,
            strangers: BTreeMap::new(),
            of_pods: BTreeMap::new(),
            by_address: HashMap::new(),
            by_namespace: HashMap::new(),
        }
    }

    /// Counts a new connection. Returns its number, and the handle of another one that must be closed for it;
    /// `None` if there are too many from its address.
    pub(super) fn enter(&mut self, address: IpAddr, handle: T) -> Option<(u64, Option<T>)> {
        if self.by_address.get(&address).is_some_and(|count| *count >= self.limits.from_address) {
            return None;
        }
        let is_full = self.strangers.len() >= self.limits.strangers;
        let evicted = if is_full { self.evict_stranger() } else { None };
        self.num_entered += 1;
        self.strangers.insert(self.num_entered, (address, handle));
        *self.by_address.entry(address).or_default() += 1;
        Some((self.num_entered, evicted))
    }

    /// Counts a connection to the share of the namespace of its pod, which is authenticated.
    pub(super) fn authenticate(&mut self, number: u64, namespace: &str) -> Authenticated<T> {
        if self.of_pods.contains_key(&number) {
            return Authenticated::Stays(None);
        }
        let Some((address, handle)) = self.strangers.remove(&number) else {
            return Authenticated::Closes(None);
        };
        let mut evicted = None;
        if self.of_pods.len() >= self.limits.of_pods {
            evicted = self.evict_for(namespace);
            if evicted.is_none() {
                subtract(&mut self.by_address, &address);
                return Authenticated::Closes(Some(handle));
            }
        }
        let namespace: Arc<str> = namespace.into();
        *self.by_namespace.entry(Arc::clone(&namespace)).or_default() += 1;
        self.of_pods.insert(number, PodConnection { address, namespace, handle });
        Authenticated::Stays(evicted)
    }

    /// Removes a connection that has ended.
    pub(super) fn leave(&mut self, number: u64) {
        self.remove_stranger(number);
        self.remove_of_pod(number);
    }

    /// Removes the oldest unauthenticated connection of the address that has most of them.
    fn evict_stranger(&mut self) -> Option<T> {
        let mut num_of = HashMap::<IpAddr, usize>::new();
        for (address, _) in self.strangers.values() {
            *num_of.entry(*address).or_default() += 1;
        }
        let most = num_of.values().copied().max()?;
        let is_of_most = |address: &IpAddr| num_of.get(address) == Some(&most);
        let oldest = self.strangers.iter().find(|(_, (address, _))| is_of_most(address));
        let number = oldest.map(|(number, _)| *number)?;
        self.remove_stranger(number)
    }

    /// Removes the oldest connection of the namespace with the most connections; `None` if that namespace has
    /// no more of them than `namespace`.
    fn evict_for(&mut self, namespace: &str) -> Option<T> {
        let own = self.by_namespace.get(namespace).copied().unwrap_or(0);
        let (largest, count) = self.by_namespace.iter().max_by_key(|(_, count)| **count)?;
        if *count <= own {
            return None;
        }
        let oldest = self.of_pods.iter().find(|(_, connection)| connection.namespace == *largest);
        let number = oldest.map(|(number, _)| *number)?;
        self.remove_of_pod(number)
    }

    fn remove_stranger(&mut self, number: u64) -> Option<T> {
        let (address, handle) = self.strangers.remove(&number)?;
        subtract(&mut self.by_address, &address);
        Some(handle)
    }

    fn remove_of_pod(&mut self, number: u64) -> Option<T> {
        let PodConnection { address, namespace, handle } = self.of_pods.remove(&number)?;
        subtract(&mut self.by_address, &address);
        subtract(&mut self.by_namespace, &namespace);
        Some(handle)
    }
}

/// Subtracts one from a count, and removes a count of zero.
fn subtract<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(idx: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + idx).to_be_bytes())
    }

    /// Opens a connection with the handle `idx` from a separate address, and authenticates it.
    fn enter_pod(shares: &mut Shares<u32>, idx: u32, namespace: &str) -> Authenticated<u32> {
        let (number, _) = shares.enter(address(idx), idx).unwrap();
        shares.authenticate(number, namespace)
    }

    #[test]
    fn connections_are_limited_per_address_and_released_when_closed() {
        let mut shares = Shares::new(Limits::of_channel());
        let [noisy, quiet] = [address(1), address(2)];
        let numbers: Vec<_> = (0..1000).filter_map(|idx| Some(shares.enter(noisy, idx)?.0)).collect();
        assert_eq!(numbers.len(), MAX_FROM_ADDRESS);
        let (last, _) = shares.enter(quiet, 0).unwrap();
        shares.leave(numbers[0]);
        let (next, _) = shares.enter(noisy, 0).unwrap();
        numbers.into_iter().chain([last, next]).for_each(|number| shares.leave(number));
        assert!(shares.strangers.is_empty() && shares.by_address.is_empty());
    }

    #[test]
    fn all_addresses_together_are_bounded() {
        let mut shares = Shares::new(Limits { strangers: 32, of_pods: 64, from_address: 256 });
        for idx in 0..200 {
            enter_pod(&mut shares, idx, "team");
            shares.enter(address(1000 + idx), idx).unwrap();
        }
        assert_eq!((shares.strangers.len(), shares.of_pods.len()), (32, 64));
        assert_eq!(shares.by_address.len(), 32 + 64);
        assert_eq!(MAX_STRANGERS + MAX_OF_PODS, 16_384);
    }

    #[test]
    fn peers_that_do_not_authenticate_replace_each_other_and_no_pod() {
        let mut shares = Shares::new(Limits { strangers: 4, of_pods: 4, from_address: 256 });
        assert_eq!(enter_pod(&mut shares, 1, "team"), Authenticated::Stays(None));
        let (arriving, _) = shares.enter(address(2), 2).unwrap();
        let crowd = (100..110).filter_map(|idx| shares.enter(address(9), idx)?.1);
        assert_eq!(crowd.collect::<Vec<_>>(), (100..107).collect::<Vec<_>>(), "the oldest of the crowd");
        assert_eq!(shares.authenticate(arriving, "team"), Authenticated::Stays(None));
        assert_eq!(shares.of_pods.len(), 2);
    }

    #[test]
    fn a_namespace_with_most_connections_gives_way_to_one_with_fewer() {
        let mut shares = Shares::new(Limits { strangers: 4, of_pods: 4, from_address: 256 });
        for idx in 0..4 {
            assert_eq!(enter_pod(&mut shares, idx, "greedy"), Authenticated::Stays(None), "all are free");
        }
        assert_eq!(enter_pod(&mut shares, 4, "greedy"), Authenticated::Closes(Some(4)), "it has its share");
        assert_eq!(enter_pod(&mut shares, 5, "modest"), Authenticated::Stays(Some(0)));
        assert_eq!(enter_pod(&mut shares, 6, "modest"), Authenticated::Stays(Some(1)));
        assert_eq!(enter_pod(&mut shares, 7, "modest"), Authenticated::Closes(Some(7)));
        assert_eq!((shares.by_namespace["greedy"], shares.by_namespace["modest"]), (2, 2));
        assert_eq!(
            shares.authenticate(1, "greedy"),
            Authenticated::Closes(None),
            "it was closed for another"
        );
    }
}
