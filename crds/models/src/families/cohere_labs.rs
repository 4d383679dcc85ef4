//! Families of Cohere.

pub(super) mod cohere;
pub(super) mod cohere2;
