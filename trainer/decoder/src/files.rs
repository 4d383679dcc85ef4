//! Weights of files, quantized weights, new weights, and the export of a decoder.

pub(super) mod checkpoint;
pub(super) mod config;
pub(super) mod export;
pub(super) mod mxfp4;
pub(super) mod names;
pub(super) mod quant_state;
pub(super) mod quantize;
pub(super) mod random_init;
pub(super) mod unknown_fields;
