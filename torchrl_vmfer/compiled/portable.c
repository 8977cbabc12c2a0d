#define MODULE _portable
#include "module.h"
