/* Regions of a compiled model that run on the NPU: what generated code and the run-time part share. */
#ifndef HETERO_TVM_NPU_REGION_H_
#define HETERO_TVM_NPU_REGION_H_

#include <stdint.h>
#include <tvm/ffi/c_api.h>

typedef struct {
  const char* name;
  const unsigned char* stream;
  uint64_t stream_bytes;
  const unsigned char* constants;
  uint64_t constant_bytes;
  uint64_t workspace_bytes;
  uint32_t inputs, outputs;
  const uint64_t* bytes; /* of the inputs, then the outputs */
} hetero_npu_region;

/* What the last call of every region cost. */
typedef struct {
  double cycles, seconds;       /* of the NPU, by its own clock */
  double call_seconds;          /* of the host: copying, and waiting for the driver */
  double joule, macs;
  uint64_t dram_bytes;
} hetero_npu_use;

/* Defined by the generated code. */
extern const hetero_npu_region hetero_npu_regions[];
extern const uint32_t hetero_npu_region_count;
extern const char hetero_npu_config[];

/* A call of region `index` by the virtual machine: inputs, then outputs. */
int32_t hetero_npu_call(uint32_t index, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);

#endif
