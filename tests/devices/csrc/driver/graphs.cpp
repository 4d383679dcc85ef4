// Graphs by capture of streams: what is put into a stream meanwhile is recorded, and each launch carries it out
// again.
#include "core.h"

using namespace stand_in;

namespace stand_in {

CUresult refuse_while_capturing() {
  std::lock_guard<std::mutex> guard(core().lock);
  bool is_refused = false;
  for (Capture* capture : core().captures) {
    if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool is_own = capture->owner == std::this_thread::get_id();
    if (capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && !is_own) continue;
    capture->is_invalid = is_refused = true;
  }
  return is_refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

}  // namespace stand_in

extern "C" {
CUresult rlt_stand_in_forbid_in_capture() { return refuse_while_capturing(); }

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  if (CUresult refused = ready()) return refused;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  // The default stream is ordered with all others, which cannot be recorded.
  if (stream == stream->device->default_stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::lock_guard<std::mutex> guard(core().lock);
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  stream->capture = new Capture(stream, mode);
  core().captures.insert(stream->capture);
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
  if (CUresult refused = ready()) return refused;
  *out = nullptr;
  Stream* stream = stream_of(handle);
  std::lock_guard<std::mutex> guard(core().lock);
  if (stream == nullptr || stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  std::unique_ptr<Capture> capture(stream->capture);
  if (capture->origin != stream) return capture.release(), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  core().captures.erase(capture.get());
  stream->capture = nullptr;
  bool is_joined = true;
  for (auto& [other, unjoined] : capture->unjoined) {
    other->capture = nullptr;
    is_joined &= !unjoined;
  }
  if (core().settings.capture_failure != CUDA_SUCCESS) return core().settings.capture_failure;
  if (capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!is_joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *out = reinterpret_cast<CUgraph>(new std::shared_ptr<Graph>(capture->graph));
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* out) {
  if (CUresult refused = ready()) return refused;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard<std::mutex> guard(core().lock);
  *out = CU_STREAM_CAPTURE_STATUS_NONE;
  if (stream->capture == nullptr) return CUDA_SUCCESS;
  *out = stream->capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long) {
  if (CUresult refused = ready()) return refused;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUgraphExec>(new std::shared_ptr<Graph>(*reinterpret_cast<std::shared_ptr<Graph>*>(graph)));
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* num) {
  if (CUresult refused = ready()) return refused;
  if (graph == nullptr || nodes != nullptr) return CUDA_ERROR_INVALID_VALUE;
  *num = (*reinterpret_cast<std::shared_ptr<Graph>*>(graph))->nodes.size();
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  if (CUresult refused = ready()) return refused;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (executable == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Graph> graph = *reinterpret_cast<std::shared_ptr<Graph>*>(executable);
  if (stream->capture == nullptr) {
    rlt_stand_in_count(RLT_GRAPH_LAUNCH, 0);
    count_copies(graph->copies);
  }
  // Nodes that are not done yet are taken up where they were left.
  auto next = std::make_shared<size_t>(0);
  const CUresult result = enqueue(*stream, [graph, next] {
    for (; *next < graph->nodes.size(); ++*next)
      if (!graph->nodes[*next]()) return false;
    *next = 0;
    return true;
  });
  if (graph->is_exchange && stream->capture == nullptr) make_progress_on(*stream);
  return result;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  if (CUresult refused = ready()) return refused;
  delete reinterpret_cast<std::shared_ptr<Graph>*>(executable);
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
  if (CUresult refused = ready()) return refused;
  delete reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  return CUDA_SUCCESS;
}
}
