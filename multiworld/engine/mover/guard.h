// The guard: one native thread of the process, which moves the data of engines that owe something to peers while nobody waits.
//
// It begins when an engine first owes something, sleeps while none does, and goes with the process. It needs no GIL, and no
// signal is handled in it. An engine that a thread or a loop moves is left to that.
#pragma once

namespace multiworld {

class Guard {
 public:
  // An engine owes something: `Engine::pay_all` is called until none does. False if there is no thread to be had now.
  static bool look();
  // There is no such thread in a forked child; it gets one of its own once it needs one.
  static void after_fork_in_child();
};

}  // namespace multiworld
