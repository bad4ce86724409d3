#pragma once

/// \file
/// `environment`: what an operator says from outside of a program that is not changed for it. Every arena and every group
/// goes by it, whichever door it was made through:
///
///     TENURE_ARENAS='gpu max=64GiB; gpu/alice max=8GiB'    limits, by path; they stand for what the program says
///     TENURE_PUBLISH=1                                     `tenure top` sees the arenas, while there are any
///
/// A key that a line does not give (`arena_config.hpp`) stays as the program has it, and so does what the program sets
/// later (`set_max` and the like). A root's path is its name.
///
/// The variables are read when the first arena or group is made. A text that cannot be read is an error there
/// (`arena_config_error`, `std::invalid_argument`): an operator's limits are never dropped in silence.
///
/// Without both variables this costs a look at a flag for each arena made, and nothing else: no thread, no page.
///
/// Thread-safety: thread-safe, except `read_again`.

#include <tenure/tenancy/arena_config.hpp>
#include <tenure/tenancy/arenas_view.hpp>
#include <tenure/tenancy/publisher.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace tenure {

class environment {
  public:
    /// While it lives, its arena or group is published.
    class [[nodiscard]] shown {
      public:
        shown() = default;
        shown(shown&& other) noexcept
            : to_(std::exchange(other.to_, nullptr)), seen_(std::move(other.seen_)) {
            other.seen_.reset();
        }
        shown& operator=(shown&& other) noexcept {
            std::swap(to_, other.to_);
            std::swap(seen_, other.seen_);
            return *this;
        }
        ~shown() {
            if (to_ == nullptr) return;
            seen_.reset();
            to_->hide();
        }

      private:
        friend class environment;
        environment* to_ = nullptr;
        std::optional<arenas_view::seen> seen_;
    };

    /// The process's. Throws: see above, each time until the text is right.
    static environment& instance() {
        static environment& of_process =
            *new environment; // not destroyed: arenas may live as long as the process
        return of_process;
    }

    environment(const environment&) = delete;
    environment& operator=(const environment&) = delete;

    /// Effects: the variables are read anew, for arenas and groups that are made from now on. Requires: nobody else is at it
    /// meanwhile, and nothing is shown. Throws: see above; then nothing has changed.
    void read_again() {
        const bool publish = publisher::is_asked();
        config_ = arena_config::from_environment();
        publishes_ = publish;
    }

    /// Returns: the options with the operator's limits for that path; the name stays.
    template <class Options>
    [[nodiscard]] Options limited(const meter* parent, Options options) const {
        if (config_.empty()) return options;
        std::string name = options.name;
        (void)config_.apply(parent == nullptr ? name : parent->path() + '/' + name, options);
        options.name = std::move(name);
        return options;
    }

    /// Effects: publishes an arena or a group while the result lives, if that is asked for and there is host memory for it;
    /// the thread that does begins with the first and ends with the last.
    template <class Tenant>
    [[nodiscard]] shown show(const Tenant& tenant) noexcept {
        shown s;
        if (!publishes_) return s;
        try {
            s.seen_.emplace(view_.add(tenant));
            const std::lock_guard lock(mutex_);
            if (count_ == 0)
                publisher_ = std::make_unique<publisher>(view_, publisher_options{.when = publish::always});
            ++count_;
            s.to_ = this;
        } catch (...) { // what an operator sees is worth no failure
        }
        return s;
    }

    /// Returns: the published page, or an empty path.
    [[nodiscard]] std::string page() const {
        const std::lock_guard lock(mutex_);
        return publisher_ ? publisher_->file() : std::string();
    }

  private:
    environment() { read_again(); }

    void hide() noexcept {
        const std::lock_guard lock(mutex_); // the publisher's thread, which ends here, does not take it
        if (--count_ == 0) publisher_.reset();
    }

    arena_config config_;
    bool publishes_ = false;
    arenas_view view_;
    mutable std::mutex mutex_; ///< guards what follows
    std::size_t count_ = 0;    ///< of what is shown
    std::unique_ptr<publisher> publisher_;
};

} // namespace tenure
