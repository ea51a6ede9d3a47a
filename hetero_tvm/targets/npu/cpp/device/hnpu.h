/* The driver interface of the NPU.  Compiled models know nothing of a device but this header.
 *
 * A driver is a set of functions with C linkage and the names below: the simulator that is linked into
 * every exported library, or a vendor's shared library named by HNPU_DRIVER.  Numbers are host-endian;
 * command streams are little-endian (see stream.py and the manual).
 *
 * Threads: different devices may be used from different threads at once; one device by one thread at
 * a time.  hnpu_last_error is per thread.  No function throws or exits.
 */
#ifndef HNPU_H_
#define HNPU_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a declaration below does; a driver of another version is refused. */
#define HNPU_ABI_VERSION 2u
/* Version of command streams, stored in each. */
#define HNPU_ISA_VERSION 2u

#ifndef HNPU_API
#define HNPU_API
#endif

typedef enum {
  HNPU_OK = 0,
  HNPU_ERROR_ARGUMENT = 1,      /* null, unknown handle, bad configuration, binding that does not fit */
  HNPU_ERROR_VERSION = 2,       /* ABI or stream of another version */
  HNPU_ERROR_STREAM = 3,        /* malformed or damaged command stream */
  HNPU_ERROR_UNSUPPORTED = 4,   /* the device is too small, or cannot do this */
  HNPU_ERROR_MEMORY = 5,        /* no device or host memory left */
  HNPU_ERROR_RANGE = 6,         /* an address, index or size out of range */
  HNPU_ERROR_ALIGNMENT = 7,     /* misaligned address or stride */
  HNPU_ERROR_UNINITIALIZED = 8, /* bytes were read that nothing had written */
  HNPU_ERROR_RACE = 9,          /* two queues touch the same bytes without order */
  HNPU_ERROR_DEADLOCK = 10,     /* every queue waits */
  HNPU_ERROR_DRIVER = 11        /* the driver cannot be loaded, or failed within */
} hnpu_status;

typedef struct hnpu_device hnpu_device;
typedef struct hnpu_program hnpu_program;

/* Memories, in this order. */
enum { HNPU_L1 = 0, HNPU_L0A, HNPU_L0B, HNPU_L0C, HNPU_UB, HNPU_SCRATCHPADS };

/* Command queues, in this order. */
enum { HNPU_DMA_IN = 0, HNPU_MOVE, HNPU_MATRIX, HNPU_VECTOR, HNPU_DMA_OUT, HNPU_QUEUES };

typedef struct {
  uint32_t isa_version;
  uint32_t matrix_block[3];                 /* M, N, K per cycle for two-byte operands */
  uint32_t vector_lanes;                    /* two-byte elements per cycle */
  uint32_t events;                          /* ids of every pair of queues */
  uint32_t alignment;                       /* bytes */
  uint32_t reserved;
  uint64_t scratchpad_bytes[HNPU_SCRATCHPADS];
  uint64_t dram_bytes;
  double clock_hz;
  double dram_bytes_per_cycle;
} hnpu_capabilities_t;

/* Where a buffer slot of a program lies at this submission. */
typedef struct {
  uint64_t address;                         /* device address from hnpu_alloc, or within it */
  uint64_t bytes;
} hnpu_binding;

/* Why a queue did not work, in this order. */
enum {
  HNPU_STALL_FLAG = 0,                      /* waits for a flag */
  HNPU_STALL_BARRIER,
  HNPU_STALL_LATENCY,                       /* DRAM latency that nothing hid */
  HNPU_STALL_DRAM,                          /* slowed by the other DMA engine */
  HNPU_STALL_PORT,                          /* slowed at the banks of L1 or UB */
  HNPU_STALLS
};

typedef struct {
  double busy, issue;                       /* cycles */
  double stall[HNPU_STALLS];
  double idle;                              /* after its last instruction */
  uint64_t instructions;
} hnpu_queue_counters;

typedef struct {
  double cycles;                            /* from submission to the end of the last instruction */
  hnpu_queue_counters queue[HNPU_QUEUES];
  uint64_t dram_read_bytes, dram_write_bytes; /* whole granules */
  double matrix_block_cycles;               /* cycles in which the matrix unit multiplied */
  double macs;
  double vector_elements;
  double energy_joule;
} hnpu_counters;

typedef struct {
  uint32_t instruction;                     /* index in the stream */
  uint16_t tag;                             /* operator, see the stream's names */
  uint8_t opcode, queue;
  double start, end;                        /* cycles: of the work itself, not its issue */
  uint64_t dram_bytes;                      /* whole granules */
  /* What the queue spent on its way here since the entry before (flags and barriers included), by the
   * kinds of hnpu_queue_counters: the entries of a queue add up to its counters but for what comes
   * behind its last. */
  float issue, stall[HNPU_STALLS];
  float joule;
} hnpu_trace_entry;

/* hnpu_submit flags. */
enum {
  HNPU_TIMING_ONLY = 1,                     /* count cycles and check, but compute no numbers; bindings
                                               may be null */
  HNPU_TRACE = 2                            /* keep a trace entry per instruction */
};

HNPU_API uint32_t hnpu_abi_version(void);

/* Opens a device.  config: lines "key=value", as NPUSpec.to_config writes them.  A driver of real
 * hardware checks them against the hardware.  On failure *device is null. */
HNPU_API hnpu_status hnpu_open(const char* config, hnpu_device** device);
HNPU_API void hnpu_close(hnpu_device* device);
HNPU_API hnpu_status hnpu_capabilities(hnpu_device* device, hnpu_capabilities_t* capabilities);

/* Device memory; addresses are multiples of the device's alignment and at least of 64. */
HNPU_API hnpu_status hnpu_alloc(hnpu_device* device, uint64_t bytes, uint64_t* address);
HNPU_API hnpu_status hnpu_free(hnpu_device* device, uint64_t address);
HNPU_API hnpu_status hnpu_copy_to_device(hnpu_device* device, uint64_t address, const void* source,
                                         uint64_t bytes);
HNPU_API hnpu_status hnpu_copy_from_device(hnpu_device* device, void* target, uint64_t address,
                                           uint64_t bytes);

/* Checks a command stream, its order between queues included (data races, deadlocks), and keeps a copy. */
HNPU_API hnpu_status hnpu_load(hnpu_device* device, const void* stream, uint64_t bytes,
                               hnpu_program** program);
HNPU_API void hnpu_unload(hnpu_device* device, hnpu_program* program);

/* Starts a program with its slots bound, in their order.  One program at a time: hnpu_wait first.
 * Contents of output and scratch slots are undefined at the start. */
HNPU_API hnpu_status hnpu_submit(hnpu_device* device, hnpu_program* program, const hnpu_binding* slots,
                                 uint32_t slot_count, uint32_t flags);
/* Waits for what was submitted last and says how it went. */
HNPU_API hnpu_status hnpu_wait(hnpu_device* device);

/* Of the last program that was waited for. */
HNPU_API hnpu_status hnpu_read_counters(hnpu_device* device, hnpu_counters* counters);
/* *count is the number of entries; up to `capacity` of them are written, in order of completion. */
HNPU_API hnpu_status hnpu_read_trace(hnpu_device* device, hnpu_trace_entry* entries, uint64_t capacity,
                                     uint64_t* count);

/* Text of the last failure in this thread; never null. */
HNPU_API const char* hnpu_last_error(void);
/* One or two words for a status; never null. */
HNPU_API const char* hnpu_status_name(hnpu_status status);

#ifdef __cplusplus
}
#endif
#endif /* HNPU_H_ */
