//! The rendezvous of ranks: one of them (or their launcher) serves a store, all join it, and create their
//! process groups through it.
//!
//! The store has the attempt's number. A rank of an earlier attempt finds a higher number and is refused, so
//! it can never take part in the new attempt's collectives. A rank that finds a lower number waits for the
//! store of its own attempt.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::by_device::GroupByDevice;
use super::pulse::Pulse;
use super::seat::Seat;
use super::store::{RendezvousKey, Store, StoreError, StoreSettings};
use super::traffic::Meter;
use super::{Alone, Collectives, RendezvousError, Traffic};

const RETRY: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(20);
/// The key of the first rank's failure.
const FAILURE: &str = "failure";

/// A rank's membership of a job: the store's address, the rank and the number of ranks, attempt, timeouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Host of the store: a name, which may take a while to resolve, or an address.
    pub host: String,
    /// Port of the store.
    pub port: u16,
    /// Rank of this process, below `world_size`.
    pub rank: usize,
    /// Ranks in all.
    pub world_size: usize,
    /// The how many-th start of the job this is.
    pub attempt: u64,
    /// Key of the attempt; `None` if the store has none.
    pub key: Option<RendezvousKey>,
    /// How long to wait for the store and for all ranks; names of a cluster can take minutes to appear.
    pub join_timeout: Duration,
    /// How long an operation may take before the ranks it waits for count as lost.
    pub operation_timeout: Duration,
}

/// Serves the store of `attempt` for `world_size` ranks of this machine at `port` (0 for any free one) until
/// it is dropped: on loopback, without a key.
///
/// # Errors
/// When the port is taken.
pub fn serve_store(port: u16, attempt: u64, world_size: usize) -> Result<Store, StoreError> {
    serve_store_with(&StoreSettings { port, is_local: true, attempt, world_size, key: None })
}

/// Serves the store of an attempt until it is dropped.
///
/// # Errors
/// When the port is taken.
pub fn serve_store_with(settings: &StoreSettings) -> Result<Store, StoreError> {
    let store = Store::serve(settings)?;
    store.set("world_size", &settings.world_size.to_string())?;
    // Last: a rank that reads it may rely on the other entries.
    store.set("attempt", &settings.attempt.to_string())?;
    Ok(store)
}

/// Reports through the store why `rank` failed, unless a failure was reported before. Ranks that still join
/// get the first report, and so does every caller.
///
/// # Errors
/// When the store is gone.
pub fn report_failure(store: &Store, rank: usize, cause: &str) -> Result<String, StoreError> {
    store.set_first(FAILURE, &format!("rank {rank}: {cause}"))
}

/// A place among all ranks, from which groups are made.
#[derive(Debug)]
pub struct Rendezvous {
    store: Store,
    pulse: Arc<Pulse>,
    meter: Arc<Meter>,
    membership: Membership,
    address: IpAddr,
}

impl Rendezvous {
    /// Joins, and returns when all ranks have.
    ///
    /// # Errors
    /// [`RendezvousError`], naming the ranks that did not join.
    pub fn join(membership: Membership) -> Result<Self, RendezvousError> {
        Self::join_with(membership, &mut || sleep(RETRY))
    }

    /// Joins with `pause` between two tries to reach the store of this attempt.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub(crate) fn join_with(
        membership: Membership,
        pause: &mut dyn FnMut(),
    ) -> Result<Self, RendezvousError> {
        if membership.rank >= membership.world_size {
            return Err(RendezvousError::Argument {
                name: "rank",
                expected: format!("a number below the {} ranks", membership.world_size),
                got: membership.rank.to_string(),
            });
        }
        let deadline = Instant::now() + membership.join_timeout;
        let (store, address) = store_of_attempt(&membership, deadline, pause)?;
        if store.add(&seat_name(membership.rank), 1)? > 1 {
            return Err(RendezvousError::RankTaken { rank: membership.rank });
        }
        wait_for_all(&store, &membership, deadline)?;
        let pulse = Arc::new(Pulse::start(&store, membership.rank)?);
        Ok(Self { store, pulse, meter: Arc::default(), membership, address })
    }

    /// The rank of this process.
    pub fn rank(&self) -> usize {
        self.membership.rank
    }

    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        self.membership.world_size
    }

    /// Connects the ranks `members` (ascending) to a group; `None` for ranks that are not among them. Every
    /// member makes the same groups, under names that are used once.
    ///
    /// # Errors
    /// When the members do not connect in time.
    pub fn group(
        &self,
        name: &str,
        members: &[usize],
    ) -> Result<Option<Box<dyn Collectives>>, RendezvousError> {
        let is_ascending = members.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending || members.last().is_none_or(|last| *last >= self.world_size()) {
            return Err(RendezvousError::Argument {
                name: "members of a group",
                expected: format!("ascending ranks below {}", self.world_size()),
                got: format!("{members:?}"),
            });
        }
        let Ok(place) = members.binary_search(&self.rank()) else {
            return Ok(None);
        };
        if members.len() == 1 {
            return Ok(Some(Box::new(Alone::new(name))));
        }
        let seat = self.seat(name, members, place);
        let group = GroupByDevice::join(&self.store, self.membership.attempt, seat, self.address)?;
        Ok(Some(Box::new(group)))
    }

    /// Traffic of this rank in all of its groups so far.
    pub fn traffic(&self) -> Traffic {
        self.meter.total()
    }

    /// This rank's seat at `place` among `members`.
    pub(super) fn seat(&self, name: &str, members: &[usize], place: usize) -> Seat {
        Seat {
            name: name.to_owned(),
            members: members.to_vec(),
            place,
            timeout: self.membership.operation_timeout,
            pulse: Arc::clone(&self.pulse),
            meter: Arc::clone(&self.meter),
        }
    }

    #[cfg(test)]
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Reports why this rank fails; every rank gets the first report back.
    ///
    /// # Errors
    /// When the store is gone.
    pub fn report_failure(&self, cause: &str) -> Result<String, RendezvousError> {
        Ok(report_failure(&self.store, self.rank(), cause)?)
    }
}

/// Connects to the store of this attempt, and returns it with this machine's address on the way to it. Where
/// the pod of rank 0 is started again in place, the store of the attempt before may answer until that pod has
/// ended its ranks.
fn store_of_attempt(
    membership: &Membership,
    deadline: Instant,
    pause: &mut dyn FnMut(),
) -> Result<(Store, IpAddr), RendezvousError> {
    loop {
        let (server, address) = reach(membership, deadline, pause)?;
        match connect(server, membership, deadline) {
            Ok(store) => return Ok((store, address)),
            Err(error) if error.may_be_of_earlier_attempt() && Instant::now() < deadline => pause(),
            Err(error) => return Err(error),
        }
    }
}

fn connect(server: SocketAddr, membership: &Membership, deadline: Instant) -> Result<Store, RendezvousError> {
    let store = Store::connect(server, membership.attempt, membership.key.as_ref())?;
    check_attempt(&store, membership, deadline)?;
    Ok(store)
}

/// The store's address, and this machine's address on the way to it.
fn reach(
    membership: &Membership,
    deadline: Instant,
    pause: &mut dyn FnMut(),
) -> Result<(SocketAddr, IpAddr), RendezvousError> {
    let address = format!("{}:{}", membership.host, membership.port);
    loop {
        match try_reach(&membership.host, membership.port) {
            Ok(reached) => return Ok(reached),
            Err(source) if Instant::now() >= deadline => {
                let timeout = membership.join_timeout;
                return Err(RendezvousError::Unreachable { address, timeout, source });
            }
            Err(_) => pause(),
        }
    }
}

fn try_reach(host: &str, port: u16) -> std::io::Result<(SocketAddr, IpAddr)> {
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for server in addresses(host, port)? {
        match TcpStream::connect_timeout(&server, Duration::from_secs(2)) {
            Ok(stream) => return Ok((server, stream.local_addr()?.ip())),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Addresses of a host. `localhost` needs no resolver.
fn addresses(host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    if host == "localhost" {
        return Ok(vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]);
    }
    Ok((host, port).to_socket_addrs()?.collect())
}

fn check_attempt(store: &Store, membership: &Membership, deadline: Instant) -> Result<(), RendezvousError> {
    let theirs: u64 = await_number(store, "attempt", membership, deadline)?;
    if theirs != membership.attempt {
        return Err(RendezvousError::OtherAttempt { ours: membership.attempt, theirs });
    }
    let theirs = await_number(store, "world_size", membership, deadline)? as usize;
    if theirs != membership.world_size {
        return Err(RendezvousError::OtherWorldSize { ours: membership.world_size, theirs });
    }
    Ok(())
}

/// A number that the server writes right after its start.
fn await_number(
    store: &Store,
    name: &'static str,
    membership: &Membership,
    deadline: Instant,
) -> Result<u64, RendezvousError> {
    loop {
        if let Some(text) = store.get(name)? {
            return text.parse().map_err(|_| {
                StoreError::Value { name: name.into(), expected: "a number", got: text }.into()
            });
        }
        if Instant::now() >= deadline {
            let timeout = membership.join_timeout;
            let source = std::io::Error::from(std::io::ErrorKind::InvalidData);
            let address = format!("{}:{}", membership.host, membership.port);
            return Err(RendezvousError::Unreachable { address, timeout, source });
        }
        sleep(POLL);
    }
}

fn wait_for_all(store: &Store, membership: &Membership, deadline: Instant) -> Result<(), RendezvousError> {
    let mut missing: Vec<usize> = (0..membership.world_size).collect();
    loop {
        let mut still = Vec::new();
        for rank in missing {
            if store.get(&seat_name(rank))?.is_none() {
                still.push(rank);
            }
        }
        missing = still;
        if missing.is_empty() {
            return Ok(());
        }
        if let Some(cause) = store.get(FAILURE)? {
            return Err(RendezvousError::Failed { missing, cause });
        }
        if Instant::now() >= deadline {
            return Err(RendezvousError::Missing { missing, timeout: membership.join_timeout });
        }
        sleep(POLL);
    }
}

fn seat_name(rank: usize) -> String {
    format!("joined/{rank}")
}
