//! Environment of a rank: variables with torchrun's names.
//!
//! | variable | value |
//! |---|---|
//! | `RANK`, `WORLD_SIZE` | index of this rank, from 0, and number of ranks (one if not set) |
//! | `LOCAL_WORLD_SIZE` | ranks on this machine |
//! | `MASTER_ADDR`, `MASTER_PORT` | address at which the first rank's launcher serves the rendezvous |
//! | `RLT_ATTEMPT` | number of the job's attempt, from 1 |
//! | `RLT_RENDEZVOUS_KEY`, `RLT_RENDEZVOUS_KEY_FILE` | key of the rendezvous, or a file with it |

use std::path::Path;

use rlt_torch::collectives::RendezvousKey;

use super::RankError;

/// Variable with the key of the rendezvous. A launcher sets it for its ranks, empty if there is none.
const KEY: &str = "RLT_RENDEZVOUS_KEY";
/// Variable with the file of the key, which [`KEY`] overrides.
const KEY_FILE: &str = "RLT_RENDEZVOUS_KEY_FILE";
/// Maximum size of the file of the key, in bytes.
const MAX_KEY_FILE_BYTES: u64 = 64 << 10;

/// Rank of a process, and address of the rendezvous. A launcher has the environment of the first rank that it
/// starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEnvironment {
    /// Index of the rank, from 0.
    pub rank: usize,
    /// Number of ranks of the job.
    pub world_size: usize,
    /// Number of ranks on this machine.
    pub local_world_size: usize,
    /// Host of the rendezvous.
    pub master_address: String,
    /// Port of the rendezvous.
    pub master_port: u16,
    /// Number of the job's attempt, from 1.
    pub attempt: u64,
    /// Key of the rendezvous; `None` if the environment has none.
    pub key: Option<RendezvousKey>,
}

impl RankEnvironment {
    /// Reads the environment by `variable`, a look-up by name; `None` if `WORLD_SIZE` is not set.
    ///
    /// # Errors
    /// [`RankError::Environment`], naming the variable.
    pub fn read(variable: impl Fn(&'static str) -> Option<String>) -> Result<Option<Self>, RankError> {
        let number = |name, default: Option<usize>, range: std::ops::RangeInclusive<usize>| {
            let text = variable(name);
            let parsed = text.as_deref().map_or(default, |text| text.parse().ok());
            parsed.filter(|number| range.contains(number)).ok_or_else(|| RankError::Environment {
                name,
                expected: format!("a number from {} to {}", range.start(), range.end()),
                got: text.map_or_else(|| "nothing".to_owned(), |text| format!("`{text}`")),
            })
        };
        if variable("WORLD_SIZE").is_none() {
            return Ok(None);
        }
        let world_size = number("WORLD_SIZE", None, 1..=1 << 20)?;
        let rank = number("RANK", None, 0..=world_size - 1)?;
        Ok(Some(Self {
            rank,
            world_size,
            local_world_size: number("LOCAL_WORLD_SIZE", Some(1), 1..=world_size)?,
            master_address: variable("MASTER_ADDR").unwrap_or_else(|| "localhost".to_owned()),
            // A single rank needs no rendezvous.
            master_port: number("MASTER_PORT", (world_size == 1).then_some(1), 1..=65535)? as u16,
            attempt: number("RLT_ATTEMPT", Some(1), 1..=usize::MAX)? as u64,
            key: key(&variable)?,
        }))
    }

    /// Whether all ranks are on this machine.
    pub fn has_all_ranks(&self) -> bool {
        self.local_world_size == self.world_size
    }

    /// Whether all ranks reach the rendezvous over loopback: they are all on this machine, or the master
    /// address is `localhost` or `127.0.0.1`.
    pub fn is_local(&self) -> bool {
        self.has_all_ranks() || ["localhost", "127.0.0.1"].contains(&self.master_address.as_str())
    }

    /// Host at which ranks reach the rendezvous.
    pub(crate) fn rendezvous_host(&self) -> &str {
        if self.has_all_ranks() { "localhost" } else { &self.master_address }
    }

    /// Reads the variables of the process's environment.
    ///
    /// # Errors
    /// As [`RankEnvironment::read`].
    pub fn of_process() -> Result<Option<Self>, RankError> {
        Self::read(|name| std::env::var(name).ok())
    }

    /// Returns the environment variables for the process of this machine's rank `local_rank`.
    pub fn variables(&self, local_rank: usize) -> [(&'static str, String); 8] {
        [
            ("RANK", (self.rank + local_rank).to_string()),
            ("WORLD_SIZE", self.world_size.to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", self.local_world_size.to_string()),
            ("MASTER_ADDR", self.master_address.clone()),
            ("MASTER_PORT", self.master_port.to_string()),
            ("RLT_ATTEMPT", self.attempt.to_string()),
            (KEY, self.key.as_ref().map_or("", RendezvousKey::text).to_owned()),
        ]
    }
}

/// Reads the key of the rendezvous. Errors do not quote it.
fn key(variable: impl Fn(&'static str) -> Option<String>) -> Result<Option<RendezvousKey>, RankError> {
    let wrong = |name, expected: &str, got: String| RankError::Environment {
        name,
        expected: expected.to_owned(),
        got,
    };
    let (name, text) = match (variable(KEY), variable(KEY_FILE)) {
        // A launcher without a key sets the variable to the empty string. Its ranks then ignore `KEY_FILE`
        // too.
        (Some(text), _) if text.is_empty() => return Ok(None),
        (Some(text), _) => (KEY, text),
        (None, Some(path)) => {
            let read = rlt_files::read_to_string(Path::new(&path), MAX_KEY_FILE_BYTES);
            (
                KEY_FILE,
                read.map_err(|error| wrong(KEY_FILE, "a file with a key", format!("`{path}`: {error}")))?,
            )
        }
        (None, None) => return Ok(None),
    };
    let key = RendezvousKey::from_text(&text);
    key.map(Some).ok_or_else(|| wrong(name, RendezvousKey::FORM, format!("{} bytes", text.trim().len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&'static str, &str)]) -> Result<Option<RankEnvironment>, RankError> {
        RankEnvironment::read(|wanted| {
            variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn ranks_read_the_environment_that_their_launcher_writes() {
        let variables = [
            ("RANK", "2"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "first"),
            ("MASTER_PORT", "29500"),
            ("RLT_ATTEMPT", "3"),
            (KEY, "0123456789abcdef0123456789abcdef"),
        ];
        let launcher = read(&variables).unwrap().unwrap();
        let of_second = launcher.variables(1);
        assert!(of_second.contains(&("RANK", "3".to_owned())));
        assert!(of_second.contains(&("LOCAL_RANK", "1".to_owned())));
        let texts: Vec<_> = launcher.variables(0).to_vec();
        let back = RankEnvironment::read(|wanted| {
            texts.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.clone())
        });
        assert_eq!(back.unwrap(), Some(launcher));
    }

    #[test]
    fn a_key_is_read_from_a_variable_or_a_file_and_in_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let text = "0123456789abcdef0123456789abcdef";
        let (good, short) = (file("good", &format!("{text}\n")), file("short", "secret\n"));
        let read_with = |changes: &[(&'static str, &str)]| {
            let world = [("WORLD_SIZE", "1"), ("RANK", "0")];
            read(&[world.as_slice(), changes].concat()).map(|environment| environment.unwrap().key)
        };
        let key = RendezvousKey::from_text(text);
        assert_eq!(read_with(&[(KEY, text)]).unwrap(), key);
        assert_eq!(read_with(&[(KEY_FILE, good.as_str())]).unwrap(), key);
        assert_eq!(read_with(&[(KEY, ""), (KEY_FILE, good.as_str())]).unwrap(), None, "a launcher has none");
        assert_eq!(read_with(&[]).unwrap(), None);
        for (name, value) in [(KEY, "secret"), (KEY_FILE, &*short)] {
            let error = read_with(&[(name, value)]).unwrap_err().to_string();
            assert_eq!(error, format!("{name}: expected {}, got 6 bytes", RendezvousKey::FORM));
        }
        let missing = read_with(&[(KEY_FILE, "/there/is/no/key")]).unwrap_err().to_string();
        assert!(missing.starts_with("RLT_RENDEZVOUS_KEY_FILE: expected a file with a key"), "{missing}");
    }

    #[test]
    fn ranks_of_one_machine_meet_on_loopback() {
        let place = |local: &'static str, host: &'static str| {
            let variables = [
                ("RANK", "0"),
                ("WORLD_SIZE", "4"),
                ("LOCAL_WORLD_SIZE", local),
                ("MASTER_ADDR", host),
                ("MASTER_PORT", "29500"),
            ];
            read(&variables).unwrap().unwrap()
        };
        let (whole, named) = (place("4", "10.0.0.7"), place("2", "127.0.0.1"));
        assert_eq!((whole.is_local(), whole.rendezvous_host()), (true, "localhost"));
        assert_eq!((named.is_local(), named.rendezvous_host()), (true, "127.0.0.1"));
        for host in ["10.0.0.7", "127.0.0.5"] {
            let several = place("2", host);
            assert_eq!((several.is_local(), several.rendezvous_host()), (false, host));
        }
    }

    #[test]
    fn without_a_world_there_is_one_rank_and_a_wrong_variable_is_named() {
        assert_eq!(read(&[]).unwrap(), None);
        assert!(read(&[("WORLD_SIZE", "1"), ("RANK", "0")]).unwrap().is_some());
        for (variables, message) in [
            (
                [("WORLD_SIZE", "two"), ("RANK", "0")],
                "WORLD_SIZE: expected a number from 1 to 1048576, got `two`",
            ),
            ([("WORLD_SIZE", "2"), ("RANK", "2")], "RANK: expected a number from 0 to 1, got `2`"),
            (
                [("WORLD_SIZE", "2"), ("RANK", "0")],
                "MASTER_PORT: expected a number from 1 to 65535, got nothing",
            ),
        ] {
            assert_eq!(read(&variables).unwrap_err().to_string(), message);
        }
    }
}
