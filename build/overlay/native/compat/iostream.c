// std::ios_base_library_init(): <iostream> of GCC 13 and newer names it, and never calls it, so that a program needs a
// libstdc++ that sets up std::cout by itself. PyTorch's own libraries set it up in every process.
__attribute__((visibility("hidden"))) void _ZSt21ios_base_library_initv(void) {}
