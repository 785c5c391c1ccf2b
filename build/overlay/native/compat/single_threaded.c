// __libc_single_threaded came with glibc 2.32. Where it is false, reference counts are changed atomically, which is
// always right.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
