//! Programs that tests install in a cluster, or start next to it.

pub(super) mod argo_cd;
pub(super) mod jobset;
pub(super) mod kueue;
pub(super) mod minio;
