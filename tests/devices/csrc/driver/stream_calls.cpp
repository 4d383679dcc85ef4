// The driver's functions on streams and events, and functions of the host.
#include "core.h"

using namespace stand_in;

namespace {

Event* event_of(CUevent handle) { return reinterpret_cast<Event*>(handle); }

std::shared_ptr<Moment> recorded(CUevent handle) {
  std::lock_guard<std::mutex> guard(core().lock);
  return event_of(handle)->recorded;
}

// A stream of a capture takes in the stream that follows it; one outside of it is none of the capture's business.
CUresult follow_captured(Stream& stream, const Moment& moment) {
  std::lock_guard<std::mutex> guard(core().lock);
  if (moment.capture == nullptr) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  if (core().captures.count(moment.capture) == 0) return CUDA_ERROR_INVALID_VALUE;
  Capture& capture = *moment.capture;
  if (stream.capture == nullptr) {
    stream.capture = &capture;
    capture.unjoined[&stream] = true;
  } else if (stream.capture != &capture) {
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  // What the other stream has recorded so far is now before what this one records.
  if (const auto found = capture.unjoined.find(moment.stream); found != capture.unjoined.end()) found->second = false;
  return CUDA_SUCCESS;
}

CUresult wait_for(Stream& stream, uint64_t position) {
  if (CUresult refused = refuse_while_capturing()) return refused;
  rlt_stand_in_count(RLT_WAIT, 0);
  advance(stream, position, true);
  return core().failure;
}

}  // namespace

extern "C" {
CUresult cuStreamCreateWithPriority(CUstream* out, unsigned, int priority) {
  if (CUresult refused = ready()) return refused;
  if (current_device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  auto stream = std::make_unique<Stream>();
  stream->device = current_device, stream->priority = priority;
  *out = reinterpret_cast<CUstream>(stream.get());
  std::lock_guard<std::mutex> guard(core().lock);
  core().streams.push_back(std::move(stream));
  return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

// The stream's work is still carried out, so what stands for it stays.
CUresult cuStreamDestroy(CUstream handle) {
  if (CUresult refused = ready()) return refused;
  return handle == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream handle, int* out) {
  if (CUresult refused = ready()) return refused;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *out = stream->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  if (CUresult refused = ready()) return refused;
  Stream* stream = stream_of(handle);
  return stream == nullptr ? CUDA_ERROR_INVALID_CONTEXT : wait_for(*stream, rlt_stand_in_position(handle));
}

CUresult cuStreamQuery(CUstream handle) {
  if (CUresult refused = ready()) return refused;
  if (CUresult refused = refuse_while_capturing()) return refused;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const bool is_done = advance(*stream, rlt_stand_in_position(handle), false);
  return core().failure != CUDA_SUCCESS ? core().failure.load() : is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuCtxSynchronize() {
  if (CUresult refused = ready()) return refused;
  if (current_device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult refused = refuse_while_capturing()) return refused;
  rlt_stand_in_count(RLT_WAIT, 0);
  return drain_device(*current_device);
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* context) {
  if (CUresult refused = ready()) return refused;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(*stream, [=] { return call_on_host(function, context), true; });
}

CUresult cuEventCreate(CUevent* out, unsigned) {
  if (CUresult refused = ready()) return refused;
  *out = reinterpret_cast<CUevent>(new Event);
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) {
  if (CUresult refused = ready()) return refused;
  delete event_of(event);
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  if (CUresult refused = ready()) return refused;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  auto moment = mark(*stream);
  std::lock_guard<std::mutex> guard(core().lock);
  event_of(event)->recorded = std::move(moment);
  return CUDA_SUCCESS;
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) { return cuEventRecord(event, stream); }

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
  if (CUresult refused = ready()) return refused;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  auto moment = recorded(event);
  if (moment == nullptr) return CUDA_SUCCESS;
  if (moment->capture != nullptr || stream->capture != nullptr) return follow_captured(*stream, *moment);
  enqueue_wait(*stream, std::move(moment));
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  if (CUresult refused = ready()) return refused;
  const auto moment = recorded(event);
  if (moment == nullptr) return CUDA_SUCCESS;
  if (moment->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  if (CUresult refused = refuse_while_capturing()) return refused;
  const bool is_done = is_over(*moment) || advance(*moment->stream, moment->position, false);
  return core().failure != CUDA_SUCCESS ? core().failure.load() : is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  if (CUresult refused = ready()) return refused;
  const auto moment = recorded(event);
  if (moment == nullptr) return CUDA_SUCCESS;
  if (moment->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  return wait_for(*moment->stream, moment->position);
}

CUresult cuEventElapsedTime(float* out, CUevent from, CUevent to) {
  if (CUresult refused = ready()) return refused;
  const auto start = recorded(from), end = recorded(to);
  if (start == nullptr || end == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!is_over(*start) || !is_over(*end)) return CUDA_ERROR_NOT_READY;
  *out = float(end->milliseconds - start->milliseconds);
  return CUDA_SUCCESS;
}

// The same under the name that it had before.
#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float* out, CUevent from, CUevent to) { return cuEventElapsedTime_v2(out, from, to); }
}
