//! Whole trainings and operators on stand-in devices, each in a process of its own.

#![expect(clippy::unwrap_used, reason = "a test that can not go on says where")]

#[path = "on_devices/trainings.rs"]
mod trainings;
