// The simulator as a driver.
#pragma once
#include "hnpu_loader.h"

namespace hnpu {

extern const hnpu_driver_table kSimulator;

}  // namespace hnpu
