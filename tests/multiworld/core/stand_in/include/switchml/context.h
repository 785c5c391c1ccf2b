// A stand-in for the client library of SwitchML: the part of its public interface that the shim uses, with the same
// names, for tests. See client.cpp for what is behind it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace switchml {

enum DataType { FLOAT32, INT32 };
enum AllReduceOperation { SUM };
enum JobStatus { INIT, QUEUED, RUNNING, FINISHED, FAILED };

struct GeneralConfig {
  uint16_t rank;
  uint16_t num_workers;
  std::string controller_ip_str;
  uint16_t controller_port;
#ifdef TIMEOUTS
  double timeout;
  std::string only_in_the_library;
#endif
};

// As in the original, the layout depends on a macro that the library is compiled with and its users are not.
class Config {
 public:
  bool LoadFromFile(std::string path = "");
  GeneralConfig general_;
};

class Job {
 public:
  Job(void* in, void* out, uint64_t numel, DataType type) : in_(in), out_(out), numel_(numel), type_(type) {}
  void WaitToComplete();
  JobStatus GetJobStatus();
  void SetJobStatus(JobStatus status);

  void* const in_;
  void* const out_;
  const uint64_t numel_;
  const DataType type_;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  JobStatus status_ = INIT;
};

class Context {
 public:
  enum ContextState { CREATED, STARTING, RUNNING, STOPPING, STOPPED };

  static Context& GetInstance();
  bool Start(Config* config = nullptr);
  void Stop();
  std::shared_ptr<Job> AllReduceAsync(void* in, void* out, uint64_t numel, DataType type, AllReduceOperation operation);
  std::shared_ptr<Job> AllReduce(void* in, void* out, uint64_t numel, DataType type, AllReduceOperation operation);
  void WaitForAllJobs();
  ContextState GetContextState();
  const Config& GetConfig();

 private:
  Context() = default;
  ~Context();
  void Run();
  bool Exchange(Job& job);

  Config config_{};
  std::atomic<ContextState> state_{CREATED};
  std::mutex access_mutex_;
  std::condition_variable all_jobs_finished_;
  int current_jobs_ = 0;
  std::mutex queue_mutex_;
  std::condition_variable queue_changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  std::thread worker_;
  int socket_ = -1;
};

}  // namespace switchml
