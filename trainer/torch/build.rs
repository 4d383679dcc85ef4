//! Links the crate's tests against libtorch.
fn main() {}
