// gloo::transport's classes as far as ProcessGroupGloo.hpp mentions them. See README.md.
#pragma once
namespace gloo::transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};
}  // namespace gloo::transport
