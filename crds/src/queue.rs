//! Names that a job and Kueue have in common.

/// Label with which a job requests a queue.
pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// Label with which a job names its priority in the queue.
pub const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// Value of `spec.managedBy` of a job that MultiKueue runs in another cluster.
pub const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";
