//! C API of `csrc/collectives.cpp` and `csrc/nccl.cpp`. Safe wrappers are in the modules that use it.

use std::ffi::{c_char, c_int, c_void};

use torch_sys::C_tensor;

use super::store::StoreHandle;
use crate::ffi::Outcome;

unsafe extern "C" {
    pub(super) fn rlt_group_join(
        store: StoreHandle,
        name: *const c_char,
        rank: c_int,
        size: c_int,
        address: *const c_char,
        timeout_ms: i64,
        out: *mut *mut c_void,
    ) -> Outcome;
    pub(super) fn rlt_group_free(group: *mut c_void);
    pub(super) fn rlt_all_reduce(
        group: *mut c_void,
        tensor: *mut C_tensor,
        reduction: i64,
        out: *mut *mut c_void,
    ) -> Outcome;
    pub(super) fn rlt_all_gather(
        group: *mut c_void,
        output: *mut C_tensor,
        input: *mut C_tensor,
        out: *mut *mut c_void,
    ) -> Outcome;
    pub(super) fn rlt_all_to_all(
        group: *mut c_void,
        output: *mut C_tensor,
        input: *mut C_tensor,
        output_splits: *const i64,
        input_splits: *const i64,
        out: *mut *mut c_void,
    ) -> Outcome;
    pub(super) fn rlt_broadcast(
        group: *mut c_void,
        tensor: *mut C_tensor,
        root: i64,
        out: *mut *mut c_void,
    ) -> Outcome;
    pub(super) fn rlt_barrier(group: *mut c_void, out: *mut *mut c_void) -> Outcome;
    pub(super) fn rlt_work_wait(work: *mut c_void) -> Outcome;
    pub(super) fn rlt_work_free(work: *mut c_void);
    pub(super) fn rlt_nccl_version(out: *mut c_int) -> Outcome;
    pub(super) fn rlt_nccl_name(out: *mut u8) -> Outcome;
    pub(super) fn rlt_nccl_join(
        name: *const u8,
        place: c_int,
        size: c_int,
        device_idx: c_int,
        out: *mut *mut c_void,
    ) -> Outcome;
    pub(super) fn rlt_nccl_is_settled(link: *mut c_void, out: *mut bool) -> Outcome;
    pub(super) fn rlt_nccl_finalize(link: *mut c_void) -> Outcome;
    pub(super) fn rlt_nccl_give_up(link: *mut c_void);
    pub(super) fn rlt_nccl_free(link: *mut c_void);
    pub(super) fn rlt_nccl_all_reduce(
        link: *mut c_void,
        tensor: *mut C_tensor,
        reduction: i64,
        is_in_stream: bool,
    ) -> Outcome;
    pub(super) fn rlt_nccl_reduce_scatter(
        link: *mut c_void,
        output: *mut C_tensor,
        input: *mut C_tensor,
    ) -> Outcome;
    pub(super) fn rlt_nccl_all_gather(
        link: *mut c_void,
        output: *mut C_tensor,
        input: *mut C_tensor,
        is_in_stream: bool,
    ) -> Outcome;
    pub(super) fn rlt_nccl_all_to_all(
        link: *mut c_void,
        output: *mut C_tensor,
        input: *mut C_tensor,
        output_splits: *const i64,
        input_splits: *const i64,
        size: c_int,
    ) -> Outcome;
    pub(super) fn rlt_nccl_broadcast(link: *mut c_void, tensor: *mut C_tensor, root: c_int) -> Outcome;
    pub(super) fn rlt_nccl_mark(link: *mut c_void, out: *mut *mut c_void) -> Outcome;
    pub(super) fn rlt_nccl_is_past(mark: *mut c_void, out: *mut bool) -> Outcome;
    pub(super) fn rlt_nccl_compute_after(mark: *mut c_void) -> Outcome;
    pub(super) fn rlt_nccl_mark_free(mark: *mut c_void);
}
