// y = x W^T + bias with a 4-bit or 8-bit W, which is unpacked in registers as it is read, so that decoding
// reads a quarter of the bytes of bfloat16. Each value is rounded like that of the dequantized weight, so the
// product equals that of the dequantized weight.
//
// Each output is one chain of multiply-adds over the inputs in order, whatever the number of rows or threads.
// So the result of a row is bitwise equal in any batch.
//
// Spread inputs: with 4 bits, W bytes are read at once and hold 2 W codes, those with even indices in the
// upper halves. So x is reordered to its values with even indices, then those with odd indices. With 8 bits x
// keeps its order. It also does with 4 bits if a row ends within a block; each code is then looked up
// separately.

#if defined(__AVX512F__)
constexpr int QUANTIZED_ROWS = 4;  // 16 of 32 registers are accumulators
#else
constexpr int QUANTIZED_ROWS = 2;  // 8 of 16 registers are accumulators
#endif
constexpr int QUANTIZED_OUTPUTS = 4;
// Number of rows that are multiplied by the same unpacked outputs. Their inputs fit the second-level cache.
constexpr int64_t QUANTIZED_BLOCK = 64;

static inline bool is_spread(const Quantized& q, int64_t in) {
  return q.format == Quantized::Format::FourBit && q.block % (2 * W) == 0 && in % q.block == 0;
}
static int64_t spread_len(int64_t in) { return round_up(in, 2 * W); }

template <class T>
static inline void spread_row(const Quantized& q, const T* x, int64_t in, float* out) {
  if (!is_spread(q, in)) {
    for (int64_t k = 0; k < in; ++k) out[k] = to_float(x[k]);
    for (int64_t k = in; k < spread_len(in); ++k) out[k] = 0.0f;
    return;
  }
  for (int64_t k = 0; k < in; k += 2 * W)
    for (int64_t i = 0; i < W; ++i) {
      out[k + i] = to_float(x[k + 2 * i]);
      out[k + W + i] = to_float(x[k + 2 * i + 1]);
    }
}
static void spread_rows(const Quantized& q, const void* x, Dtype dtype, int64_t in, float* out, int64_t begin,
                        int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    float* row = out + r * spread_len(in);
    if (dtype == Dtype::BF16)
      spread_row(q, static_cast<const bf16*>(x) + r * in, in, row);
    else
      spread_row(q, static_cast<const float*>(x) + r * in, in, row);
  }
}

// Unpacks QUANTIZED_OUTPUTS outputs, from `first` on. Calls `take(output, place, numbers)` with each vector
// of their values and the index of the first input of `x` to multiply it by. The last output is repeated for
// outputs after it.
template <class Take>
static inline void unpack_four_bits(const QuantizedLinear& a, int64_t first, Take take) {
  const Quantized& q = a.weight;
  const int64_t blocks_a_row = a.in / q.block;
  const uint8_t* codes[QUANTIZED_OUTPUTS];
  int64_t blocks[QUANTIZED_OUTPUTS];
  for (int n = 0; n < QUANTIZED_OUTPUTS; ++n) {
    const int64_t output = lesser(first + n, a.out - 1);
    codes[n] = q.codes + output * a.in / 2;
    blocks[n] = output * blocks_a_row;
  }
  for (int64_t b = 0; b < blocks_a_row; ++b) {
    Numbers numbers[QUANTIZED_OUTPUTS];
#pragma GCC unroll 4
    for (int n = 0; n < QUANTIZED_OUTPUTS; ++n) numbers[n] = numbers_of(q, scale_of(q, blocks[n] + b));
    for (int64_t k = b * q.block; k < (b + 1) * q.block; k += 2 * W)
#pragma GCC unroll 4
      for (int n = 0; n < QUANTIZED_OUTPUTS; ++n) {
        const vu pairs = load_bytes(codes[n] + k / 2);
        take(n, k, pick(numbers[n], pairs >> 4));
        take(n, k + W, pick(numbers[n], pairs));
      }
  }
}

// Unpacks 4-bit rows that end within a block, one code at a time; see `unpack_four_bits`.
template <class Take>
static inline void unpack_one_by_one(const QuantizedLinear& a, int64_t first, Take take) {
  const Quantized& q = a.weight;
  for (int n = 0; n < QUANTIZED_OUTPUTS; ++n) {
    const int64_t start = lesser(first + n, a.out - 1) * a.in;
    float numbers[16];
    int64_t block = -1;
    for (int64_t k = 0; k < a.in; k += W) {
      float part[W] = {};
      for (int64_t i = start + k; i < start + lesser(k + W, a.in); ++i) {
        if (i / q.block != block) {
          block = i / q.block;
          block_numbers(q, block, numbers);
        }
        const uint8_t pair = q.codes[i / 2];
        part[i - start - k] = numbers[i % 2 == 0 ? pair >> 4 : pair & 15];
      }
      take(n, k, load(part));
    }
  }
}

template <class Take>
static inline void unpack_int8(const QuantizedLinear& a, int64_t first, Take take) {
  const Quantized& q = a.weight;
  const int8_t* codes[QUANTIZED_OUTPUTS];
  float scales[QUANTIZED_OUTPUTS];
  for (int n = 0; n < QUANTIZED_OUTPUTS; ++n) {
    const int64_t output = lesser(first + n, a.out - 1);
    codes[n] = reinterpret_cast<const int8_t*>(q.codes) + output * a.in;
    scales[n] = q.scales[output];
  }
  for (int64_t k = 0; k < a.in; k += W)
#pragma GCC unroll 4
    for (int n = 0; n < QUANTIZED_OUTPUTS; ++n)
      take(n, k, int8_numbers(codes[n] + k, a.in - k, scales[n], q.rounds));
}
template <class Take>
static inline void unpack(const QuantizedLinear& a, int64_t first, Take take) {
  if (a.weight.format == Quantized::Format::Int8)
    unpack_int8(a, first, take);
  else if (is_spread(a.weight, a.in))
    unpack_four_bits(a, first, take);
  else
    unpack_one_by_one(a, first, take);
}

template <int ROWS>
static inline void store_outputs(const QuantizedLinear& a, const vf acc[ROWS][QUANTIZED_OUTPUTS], int64_t row,
                                 int64_t first) {
  for (int m = 0; m < ROWS; ++m) {
    float sums[QUANTIZED_OUTPUTS];
    sums_of(acc[m], sums);
    for (int n = 0; n < QUANTIZED_OUTPUTS && first + n < a.out; ++n)
      a.y[(row + m) * a.out + first + n] = a.bias ? sums[n] + a.bias[first + n] : sums[n];
  }
}

// Multiplies ROWS rows by QUANTIZED_OUTPUTS outputs, which are unpacked for these rows only.
template <int ROWS>
static inline void quantized_tile(const QuantizedLinear& a, int64_t row, int64_t first) {
  vf acc[ROWS][QUANTIZED_OUTPUTS] = {};
  const float* x = a.x + row * a.x_row;
  unpack(a, first, [&](int n, int64_t k, vf numbers) __attribute__((always_inline)) {
    for (int m = 0; m < ROWS; ++m) acc[m][n] += load(x + m * a.x_row + k) * numbers;
  });
  store_outputs<ROWS>(a, acc, row, first);
}

// Multiplies ROWS rows by outputs that are already unpacked, [QUANTIZED_OUTPUTS, x_row].
template <int ROWS>
static inline void unpacked_tile(const QuantizedLinear& a, const float* unpacked, int64_t len, int64_t row,
                                 int64_t first) {
  vf acc[ROWS][QUANTIZED_OUTPUTS] = {};
  const float* x = a.x + row * a.x_row;
  for (int64_t k = 0; k < len; k += W)
    for (int m = 0; m < ROWS; ++m) {
      const vf xm = load(x + m * a.x_row + k);
      for (int n = 0; n < QUANTIZED_OUTPUTS; ++n) acc[m][n] += xm * load(unpacked + n * a.x_row + k);
    }
  store_outputs<ROWS>(a, acc, row, first);
}

template <int ROWS = QUANTIZED_ROWS>
static inline void quantized_rows(int64_t rows, const QuantizedLinear& a, int64_t row, int64_t first) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      quantized_tile<ROWS>(a, row, first);
    else
      quantized_rows<ROWS - 1>(rows, a, row, first);
  }
}
template <int ROWS = QUANTIZED_ROWS>
static inline void unpacked_rows(int64_t rows, const QuantizedLinear& a, const float* unpacked, int64_t len,
                                 int64_t row, int64_t first) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      unpacked_tile<ROWS>(a, unpacked, len, row, first);
    else
      unpacked_rows<ROWS - 1>(rows, a, unpacked, len, row, first);
  }
}

static int64_t num_output_groups(const QuantizedLinear& a) {
  return (a.out + QUANTIZED_OUTPUTS - 1) / QUANTIZED_OUTPUTS;
}
static int64_t quantized_items(const QuantizedLinear& a) {
  return num_output_groups(a) * ((a.num_rows + QUANTIZED_BLOCK - 1) / QUANTIZED_BLOCK);
}
static int64_t quantized_scratch(const QuantizedLinear& a) { return QUANTIZED_OUTPUTS * a.x_row; }

// Runs the items [begin, end), which are numbered by groups of outputs first, then by blocks of rows.
static void quantized_linear(const QuantizedLinear& a, float* scratch, int64_t begin, int64_t end) {
  const int64_t num_groups = num_output_groups(a);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i % num_groups * QUANTIZED_OUTPUTS, start = i / num_groups * QUANTIZED_BLOCK,
                  last = lesser(a.num_rows, start + QUANTIZED_BLOCK);
    if (last - start <= QUANTIZED_ROWS) {
      quantized_rows(last - start, a, start, first);
      continue;
    }
    unpack(a, first, [&](int n, int64_t k, vf numbers) { store(scratch + n * a.x_row + k, numbers); });
    const int64_t len = round_up(a.in, W);
    for (int64_t m = start; m < last; m += QUANTIZED_ROWS)
      unpacked_rows(lesser(QUANTIZED_ROWS, last - m), a, scratch, len, m, first);
  }
}

static inline void put(float* out, float x) { *out = x; }
static inline void put(bf16* out, float x) {
  // The values are already rounded, so the bits that are cut off are zero.
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  out->bits = uint16_t(bits >> 16);
}

template <class T>
static inline void dequantize_block(const Quantized& q, int64_t num, T* out, int64_t block) {
  const int64_t first = block * q.block, last = lesser(num, first + q.block);
  if (q.format == Quantized::Format::Int8) {
    const int8_t* codes = reinterpret_cast<const int8_t*>(q.codes);
    for (int64_t i = first; i < last; i += W) {
      float numbers[W];
      store(numbers, int8_numbers(codes + i, last - i, q.scales[block], q.rounds));
      for (int64_t k = i; k < lesser(last, i + W); ++k) put(out + k, numbers[k - i]);
    }
    return;
  }
  float numbers[16];
  block_numbers(q, block, numbers);
  int64_t i = first;
  for (; i + 1 < last; i += 2) {
    const uint8_t pair = q.codes[i / 2];
    put(out + i, numbers[pair >> 4]);
    put(out + i + 1, numbers[pair & 15]);
  }
  if (i < last) put(out + i, numbers[q.codes[i / 2] >> 4]);
}
static void dequantize(const Quantized& q, int64_t num, void* out, Dtype dtype, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; ++block) {
    if (dtype == Dtype::BF16)
      dequantize_block(q, num, static_cast<bf16*>(out), block);
    else
      dequantize_block(q, num, static_cast<float*>(out), block);
  }
}
