//! Key of the rendezvous of an attempt: that of the environment, a random one if all ranks are local,
//! or the one that the operator hands out to all pods of the attempt.

use std::time::{Duration, Instant};

use rlt_channel::client::{Follower, Settings};
use rlt_parallel::{RankEnvironment, RankError};
use rlt_torch::collectives::RendezvousKey;

use super::{LaunchError, StopSignal};

/// Longest time in which the operator must answer. Ranks wait as long for each other.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);
/// Interval of polls for the operator's newest answer.
const POLL: Duration = Duration::from_millis(20);

/// Result of a request for a key.
#[derive(Debug)]
pub(super) enum Requested {
    /// The key of the attempt; `None` if there is none.
    Key(Option<RendezvousKey>),
    /// A signal requested the end.
    Stopped,
}

/// Returns the key for ranks that are all on this machine: that of the environment, or a random one.
pub(super) fn of_machine(place: &RankEnvironment) -> Result<RendezvousKey, LaunchError> {
    let random = || {
        RendezvousKey::random()
            .map_err(|source| LaunchError::Process { act: "make a key of the rendezvous", source })
    };
    place.key.clone().map_or_else(random, Ok)
}

/// Returns the key of this machine's ranks. If other machines have ranks too and the environment has no key,
/// the operator is asked for it.
pub(super) fn of_place(place: &RankEnvironment, stop: &mut StopSignal) -> Result<Requested, LaunchError> {
    if place.has_all_ranks() {
        return Ok(Requested::Key(Some(of_machine(place)?)));
    }
    if place.key.is_some() || place.is_local() {
        return Ok(Requested::Key(place.key.clone()));
    }
    let settings = Settings::from_environment(|name| std::env::var(name).ok());
    let settings = settings.map_err(|error| RankError::Environment {
        name: rlt_channel::environment::ADDRESS,
        expected: "the variables of the operator's status channel".to_owned(),
        got: error.to_string(),
    })?;
    let Some(settings) = settings else {
        warn_without(place, "RLT_RENDEZVOUS_KEY and RLT_RENDEZVOUS_KEY_FILE are not set");
        return Ok(Requested::Key(None));
    };
    let follower = Follower::for_key(settings)
        .map_err(|source| LaunchError::Process { act: "start a thread", source })?;
    of_operator(&follower, place, stop, TIMEOUT)
}

/// Waits for the key that the operator hands out for the attempt of `place`. An operator of an older release
/// has no key. There is no key either if the operator has moved the pod to another attempt, because the ranks
/// of this one are about to end.
pub(super) fn of_operator(
    follower: &Follower,
    place: &RankEnvironment,
    stop: &mut StopSignal,
    timeout: Duration,
) -> Result<Requested, LaunchError> {
    let deadline = Instant::now() + timeout;
    loop {
        let answer = follower.answer();
        if u64::from(answer.attempt) >= place.attempt {
            if u64::from(answer.attempt) > place.attempt {
                return Ok(Requested::Key(None));
            }
            let key = RendezvousKey::from_text(&answer.rendezvous_key);
            if key.is_none() {
                warn_without(place, "the operator is of an older release");
            }
            return Ok(Requested::Key(key));
        }
        if Instant::now() >= deadline {
            return Err(LaunchError::NoKey { seconds: timeout.as_secs() });
        }
        if stop.sleep(POLL) {
            return Ok(Requested::Stopped);
        }
    }
}

fn warn_without(place: &RankEnvironment, why: &str) {
    tracing::warn!(
        address = place.master_address,
        "the rendezvous has no key, because {why}: whoever reaches its port can join the ranks"
    );
}

#[cfg(test)]
mod tests {
    use rlt_channel::Source;
    use rlt_channel::client::Pace;

    use super::*;

    fn place(local_world_size: usize, key: Option<RendezvousKey>) -> RankEnvironment {
        RankEnvironment {
            rank: 0,
            world_size: 4,
            local_world_size,
            master_address: "10.0.0.7".into(),
            master_port: 29500,
            attempt: 1,
            key,
        }
    }

    #[test]
    fn ranks_of_one_machine_have_a_random_key_unless_the_environment_has_one() {
        let mut stop = StopSignal::listen(Duration::ZERO).unwrap();
        let mut key_of = |place: &RankEnvironment| match of_place(place, &mut stop).unwrap() {
            Requested::Key(key) => key,
            Requested::Stopped => panic!("no signal was sent"),
        };
        let random = key_of(&place(4, None)).unwrap();
        assert_ne!(key_of(&place(4, None)), Some(random));
        let given = RendezvousKey::from_text(&"k".repeat(32));
        assert_eq!(key_of(&place(4, given.clone())), given);
        assert_eq!(key_of(&place(2, given.clone())), given);
    }

    #[test]
    fn an_operator_that_does_not_answer_is_named() {
        let settings = Settings {
            address: "https://127.0.0.1:1".into(),
            ca_file: "/there/is/no/authority".into(),
            token_file: "/there/is/no/token".into(),
            source: Source { attempt: 1, ..Source::default() },
            pace: Pace::default(),
        };
        let follower = Follower::for_key(settings).unwrap();
        let mut stop = StopSignal::listen(Duration::ZERO).unwrap();
        let error = of_operator(&follower, &place(2, None), &mut stop, Duration::ZERO).unwrap_err();
        let expected = "the operator handed out no key for the rendezvous of the ranks within 0 s";
        assert!(error.to_string().starts_with(expected), "{error}");
        assert_eq!(error.exit_code(), rlt_api::ExitCode::RetryableIo);
    }
}
