//! The C API of `csrc/` and the helpers that call it. Safe wrappers are in the modules that use it.

use crate::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use tch::Tensor;
use torch_sys::C_tensor;

/// Result of a C++ function: null, or an error text to free.
pub(crate) type Outcome = *mut c_char;

/// Callback type `LaunchRows` in c_api.h.
pub(crate) type LaunchRows = unsafe extern "C" fn(
    kernel: c_int,
    tensors: *const *mut C_tensor,
    num_tensors: usize,
    numbers: *const f64,
    num_numbers: usize,
    message: *mut c_char,
    message_bytes: usize,
) -> bool;

/// Callback type `Launch` in experts_cuda.cpp.
pub(crate) type Launch = unsafe extern "C" fn(
    kernel: c_int,
    first: *mut C_tensor,
    second: *mut C_tensor,
    ints: *mut C_tensor,
    out: *mut C_tensor,
    message: *mut c_char,
    message_bytes: usize,
) -> bool;

/// Arrays of one chunk of the language-model head, with one entry per row (`ChunkRows` in head.cpp).
#[repr(C)]
pub(crate) struct ChunkRows {
    pub(crate) targets: *const i64,
    pub(crate) max: *mut f32,
    pub(crate) log_sum: *mut f32,
    pub(crate) logprob: *mut f32,
    pub(crate) entropy: *mut f32,
    pub(crate) grad_logprob: *const f32,
    pub(crate) grad_entropy: *const f32,
}

/// `Scores` in attention.cpp.
#[repr(C)]
pub(crate) struct RawScores {
    pub(crate) scale: f64,
    pub(crate) window: i64,
    pub(crate) softcap: f64,
    pub(crate) sinks: *mut C_tensor,
}

/// `AdamWSettings` in runtime.cpp.
#[repr(C)]
pub(crate) struct AdamWSettings {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
    pub(crate) grad_scale: f64,
    pub(crate) step: i64,
}

/// `QuantizedParts` in quantized.cpp.
#[repr(C)]
pub(crate) struct QuantizedParts {
    pub(crate) format: i64,
    pub(crate) num_outputs: i64,
    pub(crate) num_inputs: i64,
    pub(crate) block: i64,
    pub(crate) stored: i64,
    pub(crate) codes: *mut C_tensor,
    pub(crate) scales: *mut C_tensor,
    pub(crate) nested_scales: *mut C_tensor,
    pub(crate) nested_offset: *mut C_tensor,
    pub(crate) table: *const f32,
    pub(crate) scale_table: *const f32,
    /// Dequantizes a weight on a GPU to a tensor there, or writes the error.
    pub(crate) dequantize_on_device: unsafe extern "C" fn(
        weight: *const QuantizedParts,
        out: *mut C_tensor,
        message: *mut c_char,
        capacity: usize,
    ) -> bool,
}

/// Returns the pointer that C++ borrows; it takes tensors by reference and never keeps the pointer.
pub(crate) fn raw(tensor: &Tensor) -> *mut C_tensor {
    tensor.as_ptr().cast_mut()
}

/// Converts the error text of a C++ function to an error.
pub(crate) fn check(act: &'static str, outcome: Outcome) -> Result<(), Error> {
    if outcome.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null outcome is a text that `guarded` allocated, freed once, here.
    Err(Error::Libtorch { act, message: unsafe { owned_text(outcome) } })
}

/// Takes ownership of a text that C++ allocated.
///
/// # Safety
/// `text` is NUL-terminated, allocated by C's allocator, and not used elsewhere.
pub(crate) unsafe fn owned_text(text: *mut c_char) -> String {
    // SAFETY: promised by the caller.
    unsafe {
        let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
        rlt_free_text(text);
        owned
    }
}

/// Runs `call` with a place for its resulting tensor, and takes ownership of that tensor.
pub(crate) fn tensor_from(
    act: &'static str,
    call: impl FnOnce(*mut *mut C_tensor) -> Outcome,
) -> Result<Tensor, Error> {
    let mut out = std::ptr::null_mut();
    check(act, call(&mut out))?;
    // SAFETY: without an error text C++ has stored a tensor that it allocated and no longer owns.
    Ok(unsafe { Tensor::from_ptr(out) })
}

unsafe extern "C" {
    fn rlt_free_text(text: *mut c_char);
    pub(crate) fn rlt_backward(
        outputs: *const *mut C_tensor,
        grads: *const *mut C_tensor,
        n: usize,
    ) -> Outcome;
    pub(crate) fn rlt_set_grad(leaf: *mut C_tensor, grad: *mut C_tensor) -> Outcome;
    pub(crate) fn rlt_set_float32_matmul_precision(name: *const c_char) -> Outcome;
    pub(crate) fn rlt_multiply_by_onednn() -> Outcome;
    pub(crate) fn rlt_cuda_multiplies_in_tf32(out: *mut bool) -> Outcome;
    pub(crate) fn rlt_set_deterministic(wanted: bool) -> Outcome;
    pub(crate) fn rlt_is_deterministic() -> bool;
    pub(crate) fn rlt_kernels_isa() -> *const c_char;
    #[cfg(test)]
    pub(crate) fn rlt_select_kernels(isa: *const c_char) -> bool;
    pub(crate) fn rlt_linear_of_panels(
        x: *mut C_tensor,
        panels: *mut C_tensor,
        num_outputs: i64,
        bias: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_linear(
        x: *mut C_tensor,
        weight: *mut C_tensor,
        bias: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_has_one_order() -> bool;
    pub(crate) fn rlt_pack_bf16(weight: *mut C_tensor, out: *mut *mut C_tensor) -> Outcome;
    pub(crate) fn rlt_linear_of_bf16_panels(
        x: *mut C_tensor,
        panels: *mut C_tensor,
        num_outputs: i64,
        bias: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_pack_linear(weight: *mut C_tensor, rows_hint: i64, out: *mut *mut C_tensor) -> Outcome;
    pub(crate) fn rlt_packed_linear(
        x: *mut C_tensor,
        packed: *mut C_tensor,
        bias: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_dequantize(
        weight: *const QuantizedParts,
        dtype: i8,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_quantized_linear(
        weight: *const QuantizedParts,
        x: *mut C_tensor,
        bias: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_quantized_product(
        weight: *const QuantizedParts,
        x: *mut C_tensor,
        bias: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_rms_norm(
        x: *mut C_tensor,
        weight: *mut C_tensor,
        eps: f64,
        offset: f64,
        launch: LaunchRows,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_gated_activation(
        gate: *mut C_tensor,
        up: *mut C_tensor,
        activation: i64,
        launch: LaunchRows,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_gated_activation_packed(
        packed: *mut C_tensor,
        activation: i64,
        launch: LaunchRows,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_gather_rows(
        x: *mut C_tensor,
        order: *mut C_tensor,
        inverse: *mut C_tensor,
        per_token: i64,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_grouped_linear(
        x: *mut C_tensor,
        weight: *mut C_tensor,
        ends: *const i64,
        num_experts: i64,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_combine_rows(
        x: *mut C_tensor,
        weights: *mut C_tensor,
        order: *mut C_tensor,
        inverse: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_device_grouped_linear(
        x: *mut C_tensor,
        weight: *mut C_tensor,
        ends: *mut C_tensor,
        launch: Launch,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_device_combine_rows(
        x: *mut C_tensor,
        weights: *mut C_tensor,
        order: *mut C_tensor,
        inverse: *mut C_tensor,
        launch: Launch,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_apply_rope(
        x: *mut C_tensor,
        cos: *mut C_tensor,
        sin: *mut C_tensor,
        launch: LaunchRows,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_varlen_attention(
        q: *mut C_tensor,
        k: *mut C_tensor,
        v: *mut C_tensor,
        cu_seqlens: *const i64,
        num_cu: usize,
        prefixes: *const i64,
        num_prefixes: usize,
        scores: *const RawScores,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_packed_attention(
        q: *mut C_tensor,
        k: *mut C_tensor,
        v: *mut C_tensor,
        cu_queries: *mut C_tensor,
        cu_keys: *mut C_tensor,
        keys: *mut C_tensor,
        max_queries: i64,
        max_keys: i64,
        scale: f64,
        window: i64,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_paged_attention(
        q: *mut C_tensor,
        k_cache: *mut C_tensor,
        v_cache: *mut C_tensor,
        tables: *const *const i32,
        table_lens: *const i64,
        context_lens: *const i32,
        num_queries: i64,
        scores: *const RawScores,
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_write_kv(
        k_cache: *mut C_tensor,
        v_cache: *mut C_tensor,
        k: *mut C_tensor,
        v: *mut C_tensor,
        slots: *const i64,
        num_slots: usize,
    ) -> Outcome;
    pub(crate) fn rlt_head_chunk_forward(
        hidden: *mut C_tensor,
        weight: *mut C_tensor,
        logits: *mut C_tensor,
        rows: *const ChunkRows,
        temperature: f64,
        softcap: f64,
    ) -> Outcome;
    pub(crate) fn rlt_head_chunk_backward(
        hidden: *mut C_tensor,
        weight: *mut C_tensor,
        logits: *mut C_tensor,
        rows: *const ChunkRows,
        temperature: f64,
        softcap: f64,
        grad_hidden: *mut C_tensor,
        grad_weight: *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_sum_of_squares(tensor: *mut C_tensor, out: *mut f64) -> Outcome;
    pub(crate) fn rlt_adamw(
        param: *mut C_tensor,
        grad: *mut C_tensor,
        m: *mut C_tensor,
        v: *mut C_tensor,
        settings: *const AdamWSettings,
    ) -> Outcome;
    pub(crate) fn rlt_tensor_from_owner(
        data: *mut c_void,
        sizes: *const i64,
        num_dims: usize,
        scalar_type: i8,
        owner: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
        out: *mut *mut C_tensor,
    ) -> Outcome;
    pub(crate) fn rlt_resize_storage(tensor: *mut C_tensor, num_bytes: usize) -> Outcome;
    pub(crate) fn rlt_pinned_like(tensor: *mut C_tensor, out: *mut *mut C_tensor) -> Outcome;
    pub(crate) fn rlt_copy_beside(to: *mut C_tensor, from: *mut C_tensor) -> Outcome;
    pub(crate) fn rlt_follow_copies(cuda_index: i64) -> Outcome;
    pub(crate) fn rlt_finish_copies(cuda_index: i64) -> Outcome;
    pub(crate) fn rlt_load_cuda(missing: *mut *mut c_char) -> Outcome;
    pub(crate) fn rlt_current_stream(device: i64, id: *mut i64, handle: *mut *mut c_void) -> Outcome;
    pub(crate) fn rlt_pool_stream(device: i64, id: *mut i64, handle: *mut *mut c_void) -> Outcome;
    pub(crate) fn rlt_exchange_stream(device: i64, id: i64, before: *mut i64) -> Outcome;
    pub(crate) fn rlt_reuse_large_buffers();
    pub(crate) fn rlt_release_free_memory();
    pub(crate) fn rlt_skip_destructors();
    pub(crate) fn rlt_take_signals(signals: *const c_int, n: usize, takes: bool) -> c_int;
    pub(crate) fn rlt_peak_cuda_bytes(index: i64, allocated: *mut i64, reserved: *mut i64) -> Outcome;
    pub(crate) fn rlt_reset_peak_cuda_bytes(index: i64) -> Outcome;
    pub(crate) fn rlt_start_profiler(records_device: bool) -> Outcome;
    pub(crate) fn rlt_end_profiler(path: *const c_char) -> Outcome;
}
