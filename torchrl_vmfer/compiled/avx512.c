#define MODULE _avx512
#include "module.h"
