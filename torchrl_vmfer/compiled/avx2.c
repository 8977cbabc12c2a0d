#define MODULE _avx2
#include "module.h"
