// The scheduler behind fibers.h.
#include "fibers.h"

#include <utility>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace fibers {

Block block;
Index thread_index, block_index, block_size, grid_size;
uint64_t order = 1;
__thread bool reduces_in_steps = false;
// As much as the largest GPU gives one block.
alignas(128) unsigned char dynamic_shared[227 << 10];

namespace {

std::mutex one_launch;

#if defined(__x86_64__)
asm(R"(
.text
.globl rlt_fiber_switch
.type rlt_fiber_switch, @function
rlt_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size rlt_fiber_switch, .-rlt_fiber_switch
)");
void swap(void** from, void* to) { rlt_fiber_switch(from, to); }

// A stack on which rlt_fiber_switch "returns" into `entry`, aligned as behind a call.
void* fresh(char* stack, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack + STACK_BYTES) - 2;
  *top = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  return top;
}
#else
// Slower, for other machines: a context is kept at the start of its stack.
struct Context {
  ucontext_t registers;
};
Context of_scheduler;
void swap(void** from, void* to) {
  Context* self = *from == nullptr ? &of_scheduler : static_cast<Context*>(*from);
  *from = self;
  swapcontext(&self->registers, &static_cast<Context*>(to)->registers);
}
void* fresh(char* stack, void (*entry)()) {
  Context* context = new (stack) Context();
  getcontext(&context->registers);
  context->registers.uc_stack.ss_sp = stack + sizeof(Context) + 64;
  context->registers.uc_stack.ss_size = STACK_BYTES - sizeof(Context) - 64;
  makecontext(&context->registers, entry, 0);
  return context;
}
#endif

uint64_t random_number() {
  order ^= order << 13, order ^= order >> 7, order ^= order << 17;
  return order;
}

// A number below `bound`.
unsigned below(unsigned bound) { return unsigned((random_number() >> 32) * bound >> 32); }

// One mapping holds the stacks of all threads, in huge pages where the system has them: each switch goes to another
// stack, and a page for each would miss the translations that the processor keeps.
char* map_stacks() {
  const size_t size = MAX_THREADS * STACK_STRIDE;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  madvise(memory, size, MADV_HUGEPAGE);
  return static_cast<char*>(memory);
}

char* stack() {
  if (!block.free_stacks.empty()) {
    char* last = block.free_stacks.back();
    return block.free_stacks.pop_back(), last;
  }
  static char* const stacks = map_stacks();
  return stacks + block.num_stacks++ * STACK_STRIDE;
}

void thread_main() {
  block.body(block.body_argument);
  Fiber& self = block.threads[block.current];
  ++block.num_done;
  // The next thread that starts may have this stack: nothing is done on it but leaving.
  block.free_stacks.push_back(self.stack);
  swap(&self.stack_pointer, block.scheduler);
}

// Takes a random thread out of those that can run, as the current one.
Fiber& next() {
  std::swap(block.ready[below(block.num_ready)], block.ready[block.num_ready - 1]);
  block.current = block.ready[--block.num_ready];
  Fiber& fiber = block.threads[block.current];
  thread_index = fiber.index;
  if (fiber.stack == nullptr) {
    fiber.stack = stack();
    fiber.stack_pointer = fresh(fiber.stack, thread_main);
  }
  return fiber;
}

// Leaves the current thread until it is ready again. The scheduler takes over only where no other thread can run.
void leave() {
  void** self = &block.threads[block.current].stack_pointer;
  swap(self, block.num_ready > 0 ? next().stack_pointer : block.scheduler);
}

void run_block() {
  block.num_done = 0, block.num_ready = block.num_threads;
  const auto reset = [](Group& group, unsigned size) {
    group.size = size, group.arrived = group.generation = group.num_waiting = 0;
  };
  reset(block.all, block.num_threads);
  for (unsigned warp = 0; warp < block.num_threads / WARP; ++warp) reset(block.warps[warp], WARP);
  for (unsigned thread = 0; thread < block.num_threads; ++thread) {
    block.ready[thread] = thread;
    block.threads[thread].stack = nullptr;
  }
  while (block.num_ready > 0) swap(&block.scheduler, next().stack_pointer);
  if (block.num_done == block.num_threads) return;
  std::fprintf(stderr, "kernel: %u of %u threads of block %u,%u,%u wait at a barrier that the others never reach\n",
               block.num_threads - block.num_done, block.num_threads, block_index.x, block_index.y, block_index.z);
  std::abort();
}

}  // namespace

void wait(Group& group) {
  if (++group.arrived < group.size) {
    group.waiting[group.num_waiting++] = block.current;
    leave();
    return;
  }
  for (unsigned i = 0; i < group.num_waiting; ++i) block.ready[block.num_ready++] = group.waiting[i];
  group.arrived = group.num_waiting = 0;
  ++group.generation;
}

void run(const unsigned grid[3], const unsigned threads[3], size_t shared_bytes, void (*body)(void*), void* argument) {
  const std::lock_guard<std::mutex> guard(one_launch);
  grid_size = {grid[0], grid[1], grid[2]}, block_size = {threads[0], threads[1], threads[2]};
  block.num_threads = threads[0] * threads[1] * threads[2];
  if (block.num_threads % WARP != 0 || block.num_threads > MAX_THREADS || shared_bytes > sizeof dynamic_shared) {
    std::fprintf(stderr, "kernel: %u threads with %zu bytes of shared memory\n", block.num_threads, shared_bytes);
    std::abort();
  }
  block.body = body, block.body_argument = argument;
  for (unsigned thread = 0; thread < block.num_threads; ++thread) {
    const unsigned row = thread / threads[0];
    block.threads[thread].index = {thread % threads[0], row % threads[1], row / threads[1]};
  }
#if !defined(__x86_64__)
  block.scheduler = nullptr;
#endif
  std::vector<unsigned> blocks(size_t(grid[0]) * grid[1] * grid[2]);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = unsigned(i);
  for (size_t left = blocks.size(); left > 0; --left) {
    std::swap(blocks[below(unsigned(left))], blocks[left - 1]);
    const unsigned at = blocks[left - 1];
    block_index = {at % grid[0], at / grid[0] % grid[1], at / grid[0] / grid[1]};
    // What lies in shared memory before a block writes it is anything.
    std::memset(dynamic_shared, 0xff, shared_bytes);
    run_block();
  }
}

}  // namespace fibers

// The order of threads and blocks in the launches from now on; not 0. In the first one, reductions of the calling
// thread's kernels take as many exchanges as on a GPU.
extern "C" void rlt_fibers_seed(uint64_t seed) {
  fibers::reduces_in_steps = seed == 1;
  const std::lock_guard<std::mutex> guard(fibers::one_launch);
  fibers::order = seed * 0x9e3779b97f4a7c15u | 1;
}

// As RLT_STAND_IN_KERNELS_SEED says, for processes that cannot call.
__attribute__((constructor)) static void seed_by_environment() {
  const char* seed = std::getenv("RLT_STAND_IN_KERNELS_SEED");
  if (seed != nullptr) rlt_fibers_seed(std::strtoull(seed, nullptr, 10));
}
