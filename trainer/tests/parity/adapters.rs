//! Adapters beside PEFT.
