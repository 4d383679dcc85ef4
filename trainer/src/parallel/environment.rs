//! Environment of a rank: variables with torchrun's names.
//!
//! | variable | value |
//! |---|---|
//! | `RANK`, `WORLD_SIZE` | this rank, from 0, and how many there are; without `WORLD_SIZE` there is one |
//! | `LOCAL_WORLD_SIZE` | ranks on this machine |
//! | `MASTER_ADDR`, `MASTER_PORT` | where the first rank's launcher serves the rendezvous |
//! | `RLT_ATTEMPT` | number of the job's attempt, from 1 |

use super::RankError;

/// Rank of a process, and the address of the rendezvous. For a launcher: those of its first rank.
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
        }))
    }

    /// Reads the variables of the process's environment.
    ///
    /// # Errors
    /// As [`RankEnvironment::read`].
    pub fn of_process() -> Result<Option<Self>, RankError> {
        Self::read(|name| std::env::var(name).ok())
    }

    /// The variables for the process of rank `local_rank` of this machine.
    pub fn variables(&self, local_rank: usize) -> [(&'static str, String); 7] {
        [
            ("RANK", (self.rank + local_rank).to_string()),
            ("WORLD_SIZE", self.world_size.to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", self.local_world_size.to_string()),
            ("MASTER_ADDR", self.master_address.clone()),
            ("MASTER_PORT", self.master_port.to_string()),
            ("RLT_ATTEMPT", self.attempt.to_string()),
        ]
    }
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
    fn a_launcher_s_ranks_read_back_what_it_wrote() {
        let variables = [
            ("RANK", "2"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "first"),
            ("MASTER_PORT", "29500"),
            ("RLT_ATTEMPT", "3"),
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
