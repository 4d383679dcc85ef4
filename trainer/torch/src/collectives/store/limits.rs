//! Limits of a store, which grow with the number of ranks, and its values within them.

use std::collections::HashMap;

use super::wire::{Answer, MAX_NAME_BYTES, MAX_VALUE_BYTES, Operation};

/// Largest number of values, of bytes of all names and values, and of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) values: usize,
    pub(super) bytes: usize,
    /// Largest number of connections that have greeted and proven that they have the key.
    pub(super) admitted: usize,
    /// Largest number of connections that have not completed their greeting.
    pub(super) greeting: usize,
}

impl Limits {
    /// Returns the limits of a store for `world_size` ranks. In each group every rank publishes the addresses
    /// that the others connect to, some hundred bytes for each, so values grow with the square of the ranks.
    /// A rank has three connections and one for each of its groups.
    pub(super) fn of(world_size: usize) -> Self {
        let pairs = world_size.saturating_mul(world_size);
        Self {
            values: pairs.saturating_mul(16).saturating_add(64 << 10),
            bytes: pairs.saturating_mul(2 << 10).saturating_add(16 << 20),
            admitted: world_size.saturating_mul(64).saturating_add(64),
            greeting: world_size.saturating_mul(4).saturating_add(256),
        }
    }
}

/// Describes the limit that a name or a value exceeds; `None` if both can be stored.
pub(super) fn excess(name: &[u8], value: &[u8]) -> Option<String> {
    [("name", name.len(), MAX_NAME_BYTES), ("value", value.len(), MAX_VALUE_BYTES)]
        .into_iter()
        .find(|(_, len, most)| len > most)
        .map(|(what, len, most)| format!("the {what} has {len} bytes, of at most {most}"))
}

/// The values of a store by their names.
#[derive(Debug)]
pub(super) struct Values {
    by_name: HashMap<Vec<u8>, Vec<u8>>,
    num_bytes: usize,
    limits: Limits,
}

impl Values {
    /// Creates an empty map.
    pub(super) fn new(limits: Limits) -> Self {
        Self { by_name: HashMap::new(), num_bytes: 0, limits }
    }

    /// Returns the value under `name`.
    pub(super) fn get(&self, name: &[u8]) -> Option<&Vec<u8>> {
        self.by_name.get(name)
    }

    /// Applies an operation that changes the value under `name`. A change beyond the limits is refused.
    pub(super) fn change(&mut self, operation: Operation, name: Vec<u8>, value: Vec<u8>) -> Answer {
        let present = self.by_name.get(&name);
        let next = match (operation, present) {
            (Operation::SetFirst, Some(present)) => return Answer::Value(present.clone()),
            (Operation::Add, present) => match sum(present.map_or(b"0".as_slice(), Vec::as_slice), &value) {
                Some(sum) => sum.to_string().into_bytes(),
                None => {
                    return Answer::Refused("the sum of what is there and what is added is no number".into());
                }
            },
            _ => value,
        };
        let before = present.map(|present| name.len() + present.len());
        let after = self.num_bytes - before.unwrap_or(0) + name.len() + next.len();
        if before.is_none() && self.by_name.len() >= self.limits.values {
            return Answer::Refused(format!("it holds {} values, its limit", self.limits.values));
        }
        if after > self.limits.bytes {
            let most = self.limits.bytes;
            return Answer::Refused(format!("it would hold {after} bytes, of at most {most}"));
        }
        self.num_bytes = after;
        self.by_name.insert(name, next.clone());
        Answer::Value(next)
    }
}

fn sum(present: &[u8], added: &[u8]) -> Option<i64> {
    let number = |bytes| std::str::from_utf8(bytes).ok()?.parse::<i64>().ok();
    number(present)?.checked_add(number(added)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(values: &mut Values, name: &str, len: usize) -> Result<(), String> {
        match values.change(Operation::Set, name.into(), vec![0; len]) {
            Answer::Refused(why) => Err(why),
            _ => Ok(()),
        }
    }

    #[test]
    fn the_number_and_bytes_of_values_are_limited_and_replacing_one_frees_its_bytes() {
        let mut values = Values::new(Limits { values: 2, bytes: 100, ..Limits::of(1) });
        set(&mut values, "a", 60).unwrap();
        assert_eq!(set(&mut values, "b", 60).unwrap_err(), "it would hold 122 bytes, of at most 100");
        set(&mut values, "a", 30).unwrap();
        set(&mut values, "b", 60).unwrap();
        assert_eq!(set(&mut values, "c", 1).unwrap_err(), "it holds 2 values, its limit");
        assert_eq!(values.get(b"b").map(Vec::len), Some(60));
        let twelve = values.change(Operation::Set, b"a".to_vec(), b"12".to_vec());
        assert_eq!(twelve, Answer::Value(b"12".to_vec()));
        let sum = values.change(Operation::Add, b"a".to_vec(), b"30".to_vec());
        assert_eq!(sum, Answer::Value(b"42".to_vec()));
        assert_eq!(values.num_bytes, 1 + 2 + 1 + 60);
    }

    #[test]
    fn limits_have_room_for_the_addresses_of_each_group_of_a_thousand_ranks() {
        let (limits, ranks) = (Limits::of(1024), 1024);
        let of_a_group = ranks * ranks * 256;
        assert!(limits.bytes >= 6 * of_a_group && limits.values >= 6 * ranks);
        assert!(MAX_VALUE_BYTES >= ranks * 256);
        assert_eq!(Limits::of(usize::MAX).bytes, usize::MAX);
    }

    #[test]
    fn a_name_or_value_that_is_too_long_is_named() {
        assert_eq!(excess(&[0; MAX_NAME_BYTES], &[]), None);
        assert_eq!(
            excess(&[0; MAX_NAME_BYTES + 1], &[]).unwrap(),
            format!("the name has {} bytes, of at most {MAX_NAME_BYTES}", MAX_NAME_BYTES + 1)
        );
        assert!(excess(b"name", &vec![0; MAX_VALUE_BYTES + 1]).unwrap().starts_with("the value has "));
    }
}
