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
/// A line of TENURE_ARENAS that no arena or group has taken up is most often a name that is written wrongly, and a limit that
/// does not hold. When the program ends, such lines are told on stderr; of a file, which several programs may share, only if it
/// has taken up none at all. `unused` tells a program that asks.
///
/// Without both variables this costs a look at a flag for each arena made, and nothing else: no thread, no page.
///
/// Thread-safety: thread-safe, except `read_again`.

#include <tenure/tenancy/arena_config.hpp>
#include <tenure/tenancy/arenas_view.hpp>
#include <tenure/tenancy/publisher.hpp>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tenure {

class environment {
  public:
    /// While it lives, its arena or group is published.
    class shown {
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
        if (!config_.empty() && !tells_) tells_ = std::atexit([] { instance().tell_unused(); }) == 0;
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

    /// Effects: publishes what `arenas_view::add` takes while the result lives, if that is asked for and there is host memory for
    /// it; the thread that does begins with the first and ends with the last. Arenas, groups and books of accounts do so for
    /// themselves; a program does for accounts of its choice, and for the device it looks at:
    ///
    ///     auto shown = environment::instance().show("0", card, [&] { return root.limits().used; });
    template <class... Tenant>
    [[nodiscard]] shown show(Tenant&&... tenant) noexcept {
        shown s;
        if (!publishes_) return s;
        try {
            s.seen_.emplace(view_.add(std::forward<Tenant>(tenant)...));
            const std::lock_guard lock(mutex_);
            if (count_ == 0)
                publisher_ = std::make_unique<publisher>(view_, publisher_options{.when = publish::always});
            ++count_;
            s.to_ = this;
        } catch (...) { // what an operator sees is worth no failure
        }
        return s;
    }

    /// Returns: one line for a person about what TENURE_ARENAS says and nobody has taken up so far; empty: nothing.
    /// Throws: `std::bad_alloc`.
    [[nodiscard]] std::string unused() const {
        const std::vector<const arena_entry*> left = config_.unused();
        if (left.empty()) return {};
        std::string text = "TENURE_ARENAS: no arena or group here is";
        constexpr std::size_t most = 8;
        for (std::size_t i = 0; i < left.size() && i < most; ++i)
            text +=
                (i == 0 ? " \"" : ", \"") + left[i]->path + "\" (line " + std::to_string(left[i]->line) + ')';
        if (left.size() > most) text += " and " + std::to_string(left.size() - most) + " more";
        return text;
    }

    /// Returns: the published page, or an empty path.
    [[nodiscard]] std::string page() const {
        const std::lock_guard lock(mutex_);
        return publisher_ ? publisher_->file() : std::string();
    }

  private:
    environment() { read_again(); }

    void tell_unused() const noexcept {
        try {
            const bool of_a_file = config_.source() != "TENURE_ARENAS";
            if (of_a_file && config_.unused().size() != config_.entries().size()) return;
            if (const std::string text = unused(); !text.empty())
                std::fprintf(stderr, "tenure: %s\n", text.c_str());
        } catch (...) { // no host memory for a word at the end
        }
    }

    void hide() noexcept {
        const std::lock_guard lock(mutex_); // the publisher's thread, which ends here, does not take it
        if (--count_ == 0) publisher_.reset();
    }

    arena_config config_;
    bool publishes_ = false;
    bool tells_ = false; ///< at the end, what is unused
    arenas_view view_;
    mutable std::mutex mutex_; ///< guards what follows
    std::size_t count_ = 0;    ///< of what is shown
    std::unique_ptr<publisher> publisher_;
};

} // namespace tenure
