// What a process has asked of its devices, counted and reported.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core.h"

namespace stand_in {
namespace {

constexpr int NUM_COUNTERS = RLT_WAIT + 1;
std::atomic<int64_t> counts[NUM_COUNTERS], bytes[NUM_COUNTERS];

std::string text_of(const RltStandInCounts& c) {
  std::string text = "{";
  const auto field = [&](const char* name, int64_t value) {
    text += "\"" + std::string(name) + "\": " + std::to_string(value) + ", ";
  };
  field("host_to_device", c.host_to_device), field("device_to_host", c.device_to_host);
  field("device_to_device", c.device_to_device), field("launches", c.launches);
  field("graph_launches", c.graph_launches), field("waits", c.waits);
  field("bytes_host_to_device", c.bytes_host_to_device), field("bytes_device_to_host", c.bytes_device_to_host);
  field("bytes_device_to_device", c.bytes_device_to_device);
  const auto array = [&](const char* name, const int64_t* values) {
    text += "\"" + std::string(name) + "\": [";
    for (int i = 0; i < c.num_devices; ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
    text += "]";
  };
  array("peak_bytes", c.peak_bytes);
  text += ", ";
  array("peak_reserved_bytes", c.peak_reserved_bytes);
  return text + "}\n";
}

struct AtTheEnd {
  ~AtTheEnd() { rlt_stand_in_report(); }
} at_the_end;

}  // namespace

void count_copies(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) rlt_stand_in_count(copy.direction, copy.num_bytes);
}

}  // namespace stand_in

using namespace stand_in;

extern "C" {
void rlt_stand_in_count(RltCounter counter, size_t num_bytes) {
  bytes[counter] += int64_t(num_bytes);
  const int64_t before = counts[counter]++;
  const Settings& settings = core().settings;
  if (counter == RLT_LAUNCH && settings.failing_launch >= 0 && before >= settings.failing_launch)
    fail(settings.failure, "as RLT_STAND_IN_FAILURE asks");
}

void rlt_stand_in_counts(RltStandInCounts* out) {
  *out = {};
  out->host_to_device = counts[RLT_HOST_TO_DEVICE], out->device_to_host = counts[RLT_DEVICE_TO_HOST];
  out->device_to_device = counts[RLT_DEVICE_TO_DEVICE], out->launches = counts[RLT_LAUNCH];
  out->graph_launches = counts[RLT_GRAPH_LAUNCH], out->waits = counts[RLT_WAIT];
  out->bytes_host_to_device = bytes[RLT_HOST_TO_DEVICE], out->bytes_device_to_host = bytes[RLT_DEVICE_TO_HOST];
  out->bytes_device_to_device = bytes[RLT_DEVICE_TO_DEVICE];
  std::lock_guard<std::mutex> guard(core().lock);
  out->num_devices = int64_t(core().devices.size());
  for (auto& device : core().devices) {
    out->peak_bytes[device->idx] = int64_t(device->peak);
    out->peak_reserved_bytes[device->idx] = int64_t(device->peak_reserved);
  }
}

void rlt_stand_in_report() {
  const char* name = std::getenv("RLT_STAND_IN_REPORT");
  if (name == nullptr) return;
  std::string path = name;
  if (const size_t at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  RltStandInCounts counted;
  rlt_stand_in_counts(&counted);
  if (FILE* file = std::fopen(path.c_str(), "w")) {
    std::fputs(text_of(counted).c_str(), file);
    std::fclose(file);
  }
}
}
