//! The rendezvous of ranks: one rank or its launcher serves a store, all ranks join it, and they create their
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
use super::heartbeat::Heartbeat;
use super::member::GroupMember;
use super::store::{RendezvousKey, Store, StoreError, StoreSettings};
use super::traffic::Meter;
use super::{Collectives, RendezvousError, SingleProcessGroup, Traffic};

const RETRY: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(20);
/// Key under which the first rank that fails stores its error.
const FAILURE: &str = "failure";

/// Settings of a rank in a job: the store's address, rank and number of ranks, attempt, and timeouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Host of the store: an IP address, or a name, whose resolution may take a while.
    pub host: String,
    /// Port of the store on its host.
    pub port: u16,
    /// Rank of this process, below `world_size`.
    pub rank: usize,
    /// Number of ranks of the job.
    pub world_size: usize,
    /// Number of the job's attempt, from 1.
    pub attempt: u64,
    /// Key of the attempt; `None` if the store has no key.
    pub key: Option<RendezvousKey>,
    /// Timeout for the store and for all ranks to appear; names of a cluster may need minutes.
    pub join_timeout: Duration,
    /// Timeout of an operation, after which the ranks that it waits for count as lost.
    pub operation_timeout: Duration,
}

/// Serves the store of `attempt` for `world_size` ranks of this machine at `port` (0 for any free one) until
/// the returned store is dropped. It listens on loopback, and has no key.
///
/// # Errors
/// When the port is in use.
pub fn serve_store(port: u16, attempt: u64, world_size: usize) -> Result<Store, StoreError> {
    serve_store_with(&StoreSettings { port, is_local: true, attempt, world_size, key: None })
}

/// Serves the store of an attempt until the returned store is dropped.
///
/// # Errors
/// When the port is in use.
pub fn serve_store_with(settings: &StoreSettings) -> Result<Store, StoreError> {
    let store = Store::serve(settings)?;
    store.set("world_size", &settings.world_size.to_string())?;
    // Written last, so that a rank that reads it finds all other entries.
    store.set("attempt", &settings.attempt.to_string())?;
    Ok(store)
}

/// Reports the error of `rank` through the store, unless a failure was reported before. Returns the first
/// report, which ranks that join later get, too.
///
/// # Errors
/// When the store does not answer.
pub fn report_failure(store: &Store, rank: usize, cause: &str) -> Result<String, StoreError> {
    store.set_first(FAILURE, &format!("rank {rank}: {cause}"))
}

/// Membership of this rank in a job, by which groups of ranks are created.
#[derive(Debug)]
pub struct Rendezvous {
    store: Store,
    heartbeat: Arc<Heartbeat>,
    meter: Arc<Meter>,
    membership: Membership,
    address: IpAddr,
}

impl Rendezvous {
    /// Joins the job, and returns once all ranks have joined.
    ///
    /// # Errors
    /// [`RendezvousError`], naming the ranks that did not join.
    pub fn join(membership: Membership) -> Result<Self, RendezvousError> {
        Self::join_with(membership, &mut || sleep(RETRY))
    }

    /// Joins the job as [`Self::join`] does, with `pause` between two attempts to reach the store.
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
        let heartbeat = Arc::new(Heartbeat::start(&store, membership.rank)?);
        Ok(Self { store, heartbeat, meter: Arc::default(), membership, address })
    }

    /// Index of this rank among all ranks.
    pub fn rank(&self) -> usize {
        self.membership.rank
    }

    /// Number of ranks of the job.
    pub fn world_size(&self) -> usize {
        self.membership.world_size
    }

    /// Connects the ranks `members` (ascending) to a group; returns `None` on other ranks. All members must
    /// create the same groups, each with a unique name.
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
            return Ok(Some(Box::new(SingleProcessGroup::new(name))));
        }
        let member = self.member(name, members, place);
        let group = GroupByDevice::join(&self.store, self.membership.attempt, member, self.address)?;
        Ok(Some(Box::new(group)))
    }

    /// Number of bytes that this rank has exchanged so far, in all of its groups.
    pub fn traffic(&self) -> Traffic {
        self.meter.total()
    }

    /// Creates the membership of this rank, which is at index `place` among `members`.
    pub(super) fn member(&self, name: &str, members: &[usize], place: usize) -> GroupMember {
        GroupMember {
            name: name.to_owned(),
            members: members.to_vec(),
            place,
            timeout: self.membership.operation_timeout,
            heartbeat: Arc::clone(&self.heartbeat),
            meter: Arc::clone(&self.meter),
        }
    }

    #[cfg(test)]
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Reports the error of this rank, and returns the first report of any rank.
    ///
    /// # Errors
    /// When the store does not answer.
    pub fn report_failure(&self, cause: &str) -> Result<String, RendezvousError> {
        Ok(report_failure(&self.store, self.rank(), cause)?)
    }
}

/// Connects to the store of this attempt; also returns this machine's address on the route to it. If the pod
/// of rank 0 is restarted in place, the store of the previous attempt may answer until that pod has ended its
/// ranks.
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

/// Returns the store's address, and this machine's address on the route to it.
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

/// Resolves a host to addresses; `localhost` needs no resolver.
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

/// Waits for a number that the server writes right after its start.
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
