// Includes every header that is not itself written for one instruction set but is used by code that is. The
// files attend_*.cc include it before they change the code generation options: an inline function compiled
// under AVX-512 could otherwise be the copy that the linker keeps for the whole program, and stop it on a
// processor without AVX-512.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "base/philox.h"
#include "base/round_up.h"
#include "kernels/attention.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/launch.h"
#include "kernels/cpu/read_rows.h"
#include "kernels/cpu/workspace.h"
#include "kernels/product.h"
#include "kernels/rows.h"
#include "kernels/sampling.h"
