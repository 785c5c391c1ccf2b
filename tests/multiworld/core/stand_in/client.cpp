// What is behind the stand-in's interface: jobs go, one after the other, over TCP to a switch of the test's own
// (switch.py), which adds up what all workers send. Like the original it ends the process on a mistake of its caller,
// starts once, cannot give up a job, and joins its thread in Stop() while it holds the lock that this thread needs.

#include <switchml/context.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace switchml {

namespace {

void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "stand-in: FATAL: %s\n", what);
  std::abort();
}

bool transfer(ssize_t (*call)(int, char*, size_t), int socket, void* data, size_t size) {
  auto at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t moved = call(socket, at, size);
    if (moved <= 0) return false;
    at += moved;
    size -= static_cast<size_t>(moved);
  }
  return true;
}

ssize_t sendSome(int socket, char* data, size_t size) { return send(socket, data, size, MSG_NOSIGNAL); }
ssize_t receiveSome(int socket, char* data, size_t size) { return recv(socket, data, size, 0); }

}  // namespace

bool Config::LoadFromFile(std::string path) {
  std::ifstream file(path.empty() ? "switchml.cfg" : path);
  if (!file.good()) return false;
  std::string name, sign, value;
  while (file >> name) {
    if (name[0] == '[') continue;
    file >> sign >> value;
    if (name == "rank") general_.rank = static_cast<uint16_t>(std::stoi(value));
    if (name == "num_workers") general_.num_workers = static_cast<uint16_t>(std::stoi(value));
    if (name == "controller_ip") general_.controller_ip_str = value;
    if (name == "controller_port") general_.controller_port = static_cast<uint16_t>(std::stoi(value));
  }
  return true;
}

void Job::WaitToComplete() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return status_ == FINISHED || status_ == FAILED; });
}

JobStatus Job::GetJobStatus() {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void Job::SetJobStatus(JobStatus status) {
  std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
  changed_.notify_all();
}

Context& Context::GetInstance() {
  static Context instance;
  return instance;
}

Context::~Context() {
  if (state_ == RUNNING) Stop();
}

bool Context::Start(Config* config) {
  if (state_ != CREATED) return false;
  require(config != nullptr, "Could not start the context due to missing configuration.");
  config_ = *config;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(config_.general_.controller_port);
  inet_pton(AF_INET, config_.general_.controller_ip_str.c_str(), &address.sin_addr);
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return false;
  uint16_t hello[2] = {config_.general_.rank, config_.general_.num_workers};
  if (!transfer(sendSome, socket_, hello, sizeof hello)) return false;
  state_ = RUNNING;
  worker_ = std::thread([this] { Run(); });
  return true;
}

void Context::Stop() {
  std::unique_lock<std::mutex> lock(access_mutex_);
  require(state_ == RUNNING, "You cannot stop the context except when its in the running state");
  state_ = STOPPING;
  shutdown(socket_, SHUT_RDWR);
  {
    std::lock_guard<std::mutex> queue_lock(queue_mutex_);
    queue_changed_.notify_all();
  }
  worker_.join();
  close(socket_);
  state_ = STOPPED;
}

std::shared_ptr<Job> Context::AllReduceAsync(void* in, void* out, uint64_t numel, DataType type, AllReduceOperation) {
  require(state_ == RUNNING, "You cannot submit a job to the context unless it is in the running state");
  auto job = std::make_shared<Job>(in, out, numel, type);
  {
    std::lock_guard<std::mutex> lock(access_mutex_);
    ++current_jobs_;
  }
  std::lock_guard<std::mutex> lock(queue_mutex_);
  job->SetJobStatus(QUEUED);
  queue_.push_back(job);
  queue_changed_.notify_all();
  return job;
}

std::shared_ptr<Job> Context::AllReduce(void* in, void* out, uint64_t numel, DataType type, AllReduceOperation how) {
  auto job = AllReduceAsync(in, out, numel, type, how);
  job->WaitToComplete();
  return job;
}

void Context::WaitForAllJobs() {
  std::unique_lock<std::mutex> lock(access_mutex_);
  all_jobs_finished_.wait(lock, [this] { return current_jobs_ == 0; });
}

Context::ContextState Context::GetContextState() { return state_; }

const Config& Context::GetConfig() { return config_; }

void Context::Run() {
  std::unique_lock<std::mutex> lock(queue_mutex_);
  for (;;) {
    queue_changed_.wait(lock, [this] { return state_ != RUNNING || !queue_.empty(); });
    if (state_ != RUNNING) break;
    auto job = queue_.front();
    queue_.pop_front();
    lock.unlock();
    if (Exchange(*job)) {
      job->SetJobStatus(FINISHED);
      // The original needs its lock here, too, a moment after the job counts as finished. The moment is longer here.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::lock_guard<std::mutex> access(access_mutex_);
      --current_jobs_;
      all_jobs_finished_.notify_all();
    } else {
      job->SetJobStatus(FAILED);
    }
    lock.lock();
  }
  for (auto& job : queue_) job->SetJobStatus(FAILED);
}

bool Context::Exchange(Job& job) {
  struct {
    uint64_t numel;
    uint64_t type;
  } head{job.numel_, static_cast<uint64_t>(job.type_)};
  uint64_t failed = 1;
  return transfer(sendSome, socket_, &head, sizeof head) && transfer(sendSome, socket_, job.in_, job.numel_ * 4) &&
         transfer(receiveSome, socket_, &failed, sizeof failed) && failed == 0 &&
         transfer(receiveSome, socket_, job.out_, job.numel_ * 4);
}

}  // namespace switchml
