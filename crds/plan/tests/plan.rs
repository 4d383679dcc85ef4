//! Tests of plans as other packages see them, in one executable.

mod mutated;
mod placement;
