//! Which worker of a job: its group, and its index there.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use rlt_api::plan::TRAINER_GROUP;

/// The name of a group of workers. That of the group which every job has takes no memory of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(Cow<'static, str>);

/// A worker of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId {
    /// Its group.
    pub group: GroupName,
    /// Its index in the group, from 0.
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
