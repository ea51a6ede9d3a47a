/* Which driver serves this process: the simulator that is linked in, or $HNPU_DRIVER. */
#ifndef HNPU_LOADER_H_
#define HNPU_LOADER_H_

#include "hnpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of hnpu.h, by the same names without the prefix. */
typedef struct {
  uint32_t (*abi_version)(void);
  hnpu_status (*open)(const char*, hnpu_device**);
  void (*close)(hnpu_device*);
  hnpu_status (*capabilities)(hnpu_device*, hnpu_capabilities_t*);
  hnpu_status (*alloc)(hnpu_device*, uint64_t, uint64_t*);
  hnpu_status (*free)(hnpu_device*, uint64_t);
  hnpu_status (*copy_to_device)(hnpu_device*, uint64_t, const void*, uint64_t);
  hnpu_status (*copy_from_device)(hnpu_device*, void*, uint64_t, uint64_t);
  hnpu_status (*load)(hnpu_device*, const void*, uint64_t, hnpu_program**);
  void (*unload)(hnpu_device*, hnpu_program*);
  hnpu_status (*submit)(hnpu_device*, hnpu_program*, const hnpu_binding*, uint32_t, uint32_t);
  hnpu_status (*wait)(hnpu_device*);
  hnpu_status (*read_counters)(hnpu_device*, hnpu_counters*);
  hnpu_status (*read_trace)(hnpu_device*, hnpu_trace_entry*, uint64_t, uint64_t*);
  const char* (*last_error)(void);
  const char* (*status_name)(hnpu_status);
} hnpu_driver_table;

/* The driver named by HNPU_DRIVER at the first call, else the simulator.  Null when the named one
 * cannot serve; *error (if given) is then a text that says why, and stays valid. */
HNPU_API const hnpu_driver_table* hnpu_driver(const char** error);

#ifdef __cplusplus
}
#endif
#endif /* HNPU_LOADER_H_ */
