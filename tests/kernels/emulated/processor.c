/* In place of the library's processor.c: every instruction set of x86 is there. */
#include "kernels.h"

Path path = NO_PATH;

int amx_permitted(unsigned kind) { return (int)kind; }
int has_path(int wanted) { return wanted >= AVX2 && wanted <= AMX_INT8; }
void use_path(int wanted) { path = (Path)wanted; }
