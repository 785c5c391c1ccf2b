// All of the engine as one source: it compiles in half the time of its parts.
#include "bind/module.cc"
#include "core/agreement.cc"
#include "core/core.cc"
#include "core/messages.cc"
#include "lanes/lane.cc"
#include "lanes/ring.cc"
#include "mover/engine.cc"
#include "mover/guard.cc"
