//! Identity of a worker of a job: its group, and its index in the group.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use rlt_plan::TRAINER_GROUP;

/// Name of a group of workers. The trainer group's name, which every job has, needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(Cow<'static, str>);

/// Identity of a worker of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId {
    /// Group of the worker.
    pub group: GroupName,
    /// Index of the worker in its group, from 0.
    pub idx: u32,
}

impl Default for GroupName {
    fn default() -> Self {
        Self(Cow::Borrowed(TRAINER_GROUP))
    }
}

impl From<&str> for GroupName {
    fn from(name: &str) -> Self {
        if name == TRAINER_GROUP { Self::default() } else { Self(Cow::Owned(name.to_owned())) }
    }
}

impl Deref for GroupName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}
